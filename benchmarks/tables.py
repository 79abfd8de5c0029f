"""The tables of results that the documentation quotes. Run ``python -m benchmarks.tables``.

The directive ``measured`` of the documentation (``doc/measured.py``) shows them. To quote another
table, add a function to ``TABLES`` that returns a data frame, whose cells are reStructuredText, and
the codes it was measured at.
"""

import re

import numpy as np
import pandas as pd

from . import _data
from .figures import Rows, line, runs, shown

# Results file, loss, our estimator and the peers, with their names in the tables.
COMPARISONS = {
    "classification": (
        "classification",
        "log_loss",
        "BayesianSVC",
        {
            "calibrated SVC": "``SVC``, calibrated",
            "gradient boosting": "``HistGradientBoostingClassifier``",
            "exact GP": "``GaussianProcessClassifier``",
            "GPyTorch SVGP": "GPyTorch, variational",
        },
    ),
    "regression": (
        "regression",
        "rmse",
        "SVGPRegressor",
        {
            "gradient boosting": "``HistGradientBoostingRegressor``",
            "exact GP": "``GaussianProcessRegressor``",
            "GPyTorch SVGP": "GPyTorch, variational",
        },
    ),
    "density": (
        "regression",
        "nlpd",
        "SVGPRegressor",
        {
            "exact GP": "``GaussianProcessRegressor``",
            "GPyTorch SVGP": "GPyTorch, variational",
            "GPBoost": "GPBoost, nearest neighbors",
            "gradient boosting, MAPIE": "``HistGradientBoostingRegressor``, intervals by MAPIE",
            "CatBoost, tuned": "CatBoost with uncertainty, tuned",
            "NGBoost": "NGBoost",
            "NGBoost, tuned": "NGBoost, tuned",
        },
    ),
}


def compared(name):
    """Return our estimator beside its peers: losses on the splits that both have.

    Of each set, the results of the newest code count.
    """
    kind, loss, ours, peers = COMPARISONS[name]
    rows = Rows(kind, set=_data.EVALUATION[kind], method=ours).newest("set")
    splits = pd.MultiIndex.from_frame(rows.frame[["set", "seed"]])
    results = Rows(kind).frame.set_index(["set", "seed"])
    lines = []
    for peer, shown_as in peers.items():
        its = results[results["method"] == peer].reindex(splits)[loss]
        both = pd.DataFrame({"ours": rows.frame[loss].to_numpy(), "its": its.to_numpy()})
        both = both.groupby(splits.get_level_values("set")).mean().dropna()
        line = {"against": shown_as, "sets": len(both), "better on": (both.ours < both.its).sum()}
        medians = {f"median, {side}": f"{both[side].median():.3f}" for side in both}
        lines.append(line | medians)
    return pd.DataFrame(lines), rows.codes()


def own(kind):
    """Return mean losses and seconds of the package's estimators, on sets that all were fitted to.

    Estimators are those with the newest code.
    """
    loss = COMPARISONS[kind][1]
    rows = Rows(kind, set=_data.EVALUATION[kind], seed=0).newest()
    frame = rows.frame.dropna(subset=[loss])
    losses = frame.pivot(index="set", columns="method", values=loss)
    losses = losses.dropna(axis=1, thresh=3).dropna()
    others = frame[frame["set"].isin(losses.index)].groupby("method").mean(numeric_only=True)
    others = others.loc[losses.columns]
    if kind == "classification":
        two = [name in TWO_CLASSES for name in losses.index]
        groups = {"two classes": two, "more classes": np.logical_not(two)}
        means = {f"{name}, {sum(of)} sets": losses[of].mean() for name, of in groups.items()}
    else:
        means = {name: losses.loc[name] for name in losses.index}
        means["negative log density"] = others["nlpd"]
    texts = {name: [shown(v, ".3f") for v in values] for name, values in means.items()}
    texts["seconds"] = [shown(v, ".1f") for v in others["fit_seconds"]]
    table = pd.DataFrame(texts, index=losses.columns)
    table = table.loc[losses.mean().sort_values().index]
    return _named(table), rows.codes()


TWO_CLASSES = (
    "australian breast_cancer column2C crabs cylinder_bands heart heart_h mushroom sick spect"
).split()


def _named(table):
    """Return a table with the index as its first column, and links to the package's estimators."""
    link = re.compile(r"^\w*(GP|GPRegressor|GPClassifier|RVM\w+|BayesianSVC|EPClassifier)\b")
    names = [link.sub(r":class:`\g<0>`", name) for name in table.index]
    return table.set_axis(names).rename_axis("estimator").reset_index()


def _chosen(file, columns, methods, by="method", **equal):
    """Return columns of the rows of some methods, by their names in a table, and the codes.

    ``columns`` maps columns of the file to names and formats, and ``methods`` maps methods to
    names. Columns are means over the rows of a method.
    """
    rows = Rows(file, **{by: list(methods)}, **equal).newest(by)
    means = rows.frame.groupby(by)[list(columns)].mean().loc[list(methods)]
    found = {name: [shown(v, form) for v in means[c]] for c, (name, form) in columns.items()}
    table = pd.DataFrame(found, index=list(methods.values()))
    return table.rename_axis(by).reset_index(), rows.codes()


def _joined(file, columns, methods, **equal):
    """Return one row for each set: of each method, its columns joined by commas."""
    names = equal.pop("set")
    rows = Rows(file, method=list(methods), set=names, **equal).newest("set", "method")
    means = rows.frame.groupby(["set", "method"])[list(columns)].mean()
    cells = [means[column].map(form.format) for column, form in columns.items()]
    joined = pd.concat(cells, axis=1).agg(", ".join, axis=1).unstack()
    table = joined.loc[names, list(methods)].rename(columns=methods).fillna("")
    return table.rename_axis(columns=None).reset_index(), rows.codes()


def mixed_table():
    """Return log losses and times on the table of customers."""
    columns = {"log_loss": ("log loss", ".3f"), "seconds": ("seconds", ".1f")}
    models = {
        "AdditiveGPClassifier": ":class:`AdditiveGPClassifier`",
        "EBM": "explainable boosting machine",
        "boosted trees": "boosted trees, grid search",
        "SVC, calibrated": "``SVC``, calibrated, grid search",
    }
    return _chosen("first_screen", columns, models, by="model", result="mixed table")


def decoupled():
    """Return errors, densities and times of many bases, and of few points that are learned."""
    return _joined(
        "decoupled",
        {"rmse": "{:.3f}", "nlpd": "{:.2f}", "fit_seconds": "{:.0f} s"},
        {
            "DecoupledGPRegressor": ":class:`DecoupledGPRegressor`",
            "SVGPRegressor 512": ":class:`SVGPRegressor`, 512 points",
        },
        set=["kin40k", "pol", "pumadyn32nm"],
    )


def additive():
    """Return errors, densities and times of additive models and of boosting."""
    return _joined(
        "additive",
        {"rmse": "{:.3f}", "nlpd": "{:.2f}", "fit_seconds": "{:.0f} s"},
        {
            "AdditiveGP": '``sparse="auto"``',
            "AdditiveGP, inducing points": "``sparse=True``",
            "EBM": "boosting",
        },
        set=["energy", "concrete"],
        seed=0,
    )


ERROR = {"error_rate": ("error", ".1%"), "log_loss": ("log loss", ".3f")}
SECONDS = {"fit_seconds": ("seconds", ".0f")}


def odd_or_even():
    """Return results on MNIST, odd against even."""
    methods = {
        "EPClassifier, all rows": ":class:`EPClassifier`, 200 points that move, ``max_iter=40``",
        "EPClassifier, minibatches": "the same, in minibatches",
        "SVGPClassifier": ":class:`SVGPClassifier`",
        "GPyTorch SVGP": "GPyTorch, variational",
    }
    return _chosen("paper2_mnist", ERROR | SECONDS, methods)


def flights():
    """Return results on two million simulated flights."""
    methods = {
        "EPClassifier": ":class:`EPClassifier`, 200 points that move, five passes",
        "SVGPClassifier": ":class:`SVGPClassifier`",
        "logistic regression": "logistic regression",
    }
    table, codes = _chosen("paper2_airline", ERROR | SECONDS, methods)
    best = Rows("paper2_airline").frame["best_log_loss"].iloc[0]
    table.loc[len(table)] = ["the true probabilities", "", f"{best:.3f}", ""]
    return table, codes


def batches():
    """Return mean test errors on the evaluation sets after batches of ten queries."""
    labels = {f"b{i}": (f"{10 * i + 10} labels", ".3f") for i in (1, 3, 5, 10)}
    methods = {
        "diverse": "``diverse_sampling``",
        "diverse, EPIG": "``diverse_sampling`` with ``score=epig``",
        "scikit-activeml BADGE": "BADGE of scikit-activeml",
        "scikit-activeml TypiClust": "TypiClust of scikit-activeml",
        "least confident": "least confident rows",
        "random": "random rows",
    }
    return _chosen("batch_queries", labels, methods, set=_data.EVALUATION["classification"])


def policies():
    """Return mean ranks and errors along single queries, over sets of 500 to 1,000 rows."""
    methods = {
        "least confident": "least confident",
        "variation ratio": "variation ratio",
        "entropy of softmax of means": "entropy of the softmax of the means",
        "random": "random rows",
    }
    rows = Rows("active_learning", method=list(methods)).newest("method")
    errors = rows.frame.filter(regex=r"^q\d+$").mean(axis=1)
    errors = rows.frame.assign(error=errors).pivot(
        index=["set", "seed"], columns="method", values="error"
    )
    ranks = errors.rank(axis=1).mean().map("{:.2f}".format)
    table = pd.DataFrame(
        {"mean rank": ranks, "mean test error": errors.mean().map("{:.3f}".format)}
    )
    table = table.loc[list(methods)].set_axis(list(methods.values()))
    return table.rename_axis("policy").reset_index(), rows.codes()


def local():
    """Return standard deviations relative to those of the exact process, by set."""
    columns = {"local": "local: 5 %, median, 95 %", "inducing points": "inducing points alone"}
    table, found = [], set()
    for name, n in {"airfoil": 1353, "wine": 1440, "concrete": 927, "sml": 3724}.items():
        row = {"set": name}
        for start, column in columns.items():
            parts = [line("local_variances", f"{name} {n} {start}", i, ".2f") for i in (6, 7, 8)]
            row[column] = ", ".join(text for text, _ in parts)
            found |= parts[0][1]
        table.append(row)
    return pd.DataFrame(table), found


def vectors():
    """Return errors and numbers of relevance vectors on draws of the sinc function."""
    models = {
        "exact process": "exact Gaussian process",
        "default": "``QSRVMRegressor()``",
        "sweeps, full": '``kernel=RBF(1.5, "fixed")``',
        "sweeps, mean field": '``covariance="mean_field"``, the same kernel',
        "steps, mean field": 'the same, ``solver="quadruply_stochastic"``',
        "steps, chevron": '``covariance="chevron"``, the same solver',
        "paper's steps, chevron": "the same, gradient and control variate in print",
    }
    columns = {"median of the vectors": (2, ".3g"), "median RMSE to the truth": (0, ".4f")}
    table, found = [], set()
    for start, name in models.items():
        report = "relevance_steps" if "steps" in start else "relevance_sweeps"
        parts = {c: line(report, start, *where) for c, where in columns.items()}
        table.append({"model": name} | {column: text for column, (text, _) in parts.items()})
        found |= parts["median RMSE to the truth"][1]
    return pd.DataFrame(table), found


def bands():
    """Return the coverage and the errors of both kernels of additive models."""
    rows = Rows("paper5_friedman", covariance="full")
    means = rows.frame.groupby("kernel").mean(numeric_only=True)
    effects = means[[f"cover_f{i}" for i in range(1, 7)]].mean(axis=1)
    found = {
        "coverage of 95 % bands, effects of one feature": effects.map("{:.2f}".format),
        "coverage of 95 % bands, pair": means["cover_f12"].map("{:.2f}".format),
        "RMSE of the pair": means["rmse_f12"].map("{:.3f}".format),
        "RMSE of the function": means["rmse_f"].map("{:.3f}".format),
    }
    table = pd.DataFrame(found).T[["rbf", "matern52"]]
    table.columns = ['``"rbf"``', '``"matern52"``']
    return table.rename_axis("").reset_index(), rows.codes()


def networks():
    """Return results of hybrid and softmax networks on the test digits of MNIST."""
    columns = {"accuracy": ".1%", "log loss": ".3f", "calibration error": ".1%"}
    methods = {
        "Bayesian SVM": ":class:`HybridBayesianSVC`",
        "softmax": "softmax layer",
        "softmax, tempered": "softmax, fitted temperature",
    }
    table, found = [], set()
    for start, name in methods.items():
        row = {"network": name}
        for i, (column, form) in enumerate(columns.items()):
            text, codes = line("hybrid_mnist", start, i, form)
            row[column] = text
            found |= codes
        table.append(row)
    return pd.DataFrame(table), found


# File, rows, estimator and data of the table of costs.
_FITS = (
    ("regression", "SVGPRegressor", "concrete", "", "1,030 rows, 8 features"),
    ("regression", "AdditiveGPRegressor", "concrete", "", "1,030 rows, 8 features"),
    ("decoupled", "SVGPRegressor 512", "kin40k", ", 512 points", "40,000 rows, 8 features"),
    ("decoupled", "DecoupledGPRegressor", "kin40k", "", "40,000 rows, 8 features"),
    ("paper4_table", "QSGPRegressor", "kin40k", ", ``float32``", "40,000 rows, 8 features"),
    ("classification", "BayesianSVC", "letter", "", "20,000 rows, 16 features, 26 classes"),
)


def fits():
    """Return the seconds of fits to real data."""
    table, found = [], set()
    for file, method, name, option, size in _FITS:
        rows = Rows(file, set=name, method=method, seed=0).newest()
        seconds = two_digits(rows.frame["fit_seconds"].iloc[0])
        estimator = f":class:`{method.split()[0]}`{option}"
        table.append({"estimator": estimator, "data": f"{name}, {size}", "seconds": seconds})
        found |= rows.codes()
    return pd.DataFrame(table), found


COST_LOSSES = {"regression": "error", "classification": "log loss"}
COST_PEERS = {
    "regression": ["HistGradientBoostingRegressor", "SVR"],
    "classification": ["HistGradientBoostingClassifier", "SVC"],
}


def two_digits(number):
    """Return a number with two significant digits, as text without an exponent."""
    return f"{float(f'{number:.2g}'):,.10g}"


def costs(task):
    """Return seconds of estimators, their multiples of the peers' seconds, and one loss."""
    rows = Rows("cost", task=task).newest("method", "rows")
    seconds, losses = (
        rows.frame.pivot(index="method", columns="rows", values=value)
        for value in ("fit_seconds", "loss")
    )
    peers = COST_PEERS[task]
    table = pd.DataFrame(index=[*peers, *seconds.index.drop(peers)])
    for n in seconds:
        multiples = (seconds[n] / seconds.loc[peer, n] for peer in peers)
        parts = (values.map(two_digits) for values in (seconds[n], *multiples))
        joined = pd.concat(parts, axis=1).agg(lambda cells: "{} s ({}; {})".format(*cells), axis=1)
        table[f"{n:,} rows"] = joined
    loss = losses[10_000].map("{:.3f}".format).replace("nan", "")
    table[f"{COST_LOSSES[task]}, 10,000 rows"] = loss
    return _named(table), rows.codes()


def hour():
    """Return the rows that an hour of one core takes, continued linearly from the largest fits."""
    rows = Rows("cost").newest("method", "rows")
    most = rows.frame["rows"].max()
    peers = [name for names in COST_PEERS.values() for name in names]
    frame = rows.frame[rows.frame["rows"] == most].set_index("method").drop(peers)
    seconds = frame["fit_seconds"].sort_values()
    table = pd.DataFrame({f"seconds, {most:,} rows": seconds.map(two_digits)})
    table["rows in an hour"] = (most * 3600 / seconds).map(two_digits)
    return _named(table), rows.codes()


TABLES = {
    "additive": additive,
    "bands": bands,
    "batches": batches,
    "costs-classification": lambda: costs("classification"),
    "costs-regression": lambda: costs("regression"),
    "decoupled": decoupled,
    "fits": fits,
    "flights": flights,
    "hour": hour,
    "local": local,
    "mixed-table": mixed_table,
    "networks": networks,
    "odd-or-even": odd_or_even,
    "own-classification": lambda: own("classification"),
    "own-regression": lambda: own("regression"),
    "peers-classification": lambda: compared("classification"),
    "peers-regression": lambda: compared("regression"),
    "peers-density": lambda: compared("density"),
    "policies": policies,
    "vectors": vectors,
}


def main():
    """Print all tables."""
    for name, made in TABLES.items():
        table, codes = made()
        print(f"\n{name} ({'; '.join(str(run) for c, run in runs().items() if c in codes)})")
        print(table.to_string(index=False))


if __name__ == "__main__":
    main()
