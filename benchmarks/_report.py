"""Text reports: headers with date and versions, tables, mean ranks and pairwise comparisons."""

import os
import platform
from datetime import date

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy
import sklearn
import torch
from matplotlib.ticker import NullFormatter

from . import _data, _measure
from ._harness import RESULTS, package_code

_PANELS = 4  # number of panels in a row


def header(title, **settings):
    """Return the first lines of a report: its title, date, versions and settings."""
    versions = (
        f"{package_code()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"scikit-learn {sklearn.__version__}, scipy {scipy.__version__}, numpy {np.__version__}"
    )
    lines = [title, "=" * len(title), f"{date.today()}, {os.cpu_count()} CPUs", versions]
    return "\n".join(lines + [f"{name}: {value}" for name, value in settings.items()])


def publish(name, parts, *, write):
    """Print a report and, if ``write``, save it as results/<name>-<date>.txt.

    Empty parts are left out.
    """
    text = "\n\n".join(filter(None, parts)) + "\n"
    print(text)
    if write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}-{date.today()}.txt").write_text(text)


def publish_picture(name, figure):
    """Save a figure as results/<name>-<date>.png."""
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / f"{name}-{date.today()}.png", dpi=150)


def table(frame, title="", digits=3):
    """Return a data frame as aligned text with ``digits`` decimals; missing values are a dash."""
    text = frame.to_string(
        index=False, na_rep="-", float_format=lambda value: f"{value:.{digits}f}"
    )
    return f"{title}\n{text}" if title else text


def ranks(scores, *, higher_is_better):
    """Return the rank of every column within each row, 1 for the best; ties share their mean rank.

    Missing scores are the worst. Scores are rounded to 9 decimals, so that smaller differences are
    ties.
    """
    return scores.round(9).rank(axis=1, ascending=not higher_is_better, na_option="bottom")


def comparison(scores, ours, *, higher_is_better):
    """Return ranks, wins and ties of one column against each other, over the sets both have."""
    rows = []
    for other in scores.columns.drop(ours):
        pair = scores[[ours, other]].dropna()
        mean = ranks(pair, higher_is_better=higher_is_better).mean()
        ahead = ranks(pair, higher_is_better=higher_is_better)[ours]
        rows.append(
            {
                "against": other,
                "rank": mean[ours],
                "its rank": mean[other],
                "wins": (ahead == 1).sum(),
                "ties": (ahead == 1.5).sum(),
                "losses": (ahead == 2).sum(),
                "mean difference": (pair[ours] - pair[other]).mean(),
            }
        )
    return pd.DataFrame(rows)


def failures(results, keys=("set", "seed", "method")):
    """Return text with a line for each failed task, named by its ``keys``, or "No fit failed."."""
    failed = results[results["error"] != ""]
    lines = [
        f"  {' '.join(str(row[key]) for key in keys)}: {row['error']}"
        for _, row in failed.iterrows()
    ]
    return "\n".join(["FAILED:", *lines]) if lines else "No fit failed."


def other_code(results, codes):
    """Return text that lists methods with results of other code than would be run now.

    ``codes`` maps methods to code versions.
    """
    versions = results.groupby("method")["code"].unique()
    lines = [
        f"  {name}: {', '.join(versions[name])}"
        for name, code in codes.items()
        if name in versions and set(versions[name]) != {code}
    ]
    return "\n".join(["Results of other code:", *lines]) if lines else ""


def by_use(results, sizes, of, metrics, ours, kind):
    """Return the parts of `methods` for the evaluation sets of a kind, then for the others."""
    evaluated = sizes.index.isin(_data.EVALUATION[kind])
    parts = []
    for title, chosen in (("Evaluation sets", evaluated), ("Development sets", ~evaluated)):
        if chosen.any():
            found = results[results["set"].isin(sizes.index[chosen])]
            parts.append(f"{title}\n{'-' * len(title)}")
            parts += methods(found, sizes[chosen], of, metrics, ours)
    return parts


def methods(results, sizes, methods, metrics, ours):
    """Return the parts of a report on methods over sets: comparisons with ours, then every set.

    Parameters
    ----------
    results : DataFrame
        Results of `run_methods`.
    sizes : DataFrame
        Sizes of each set; the index is the order of the sets.
    methods : dict of Method
    metrics : dict
        Whether higher is better, and a title, by name of the metric.
    ours : str
        Method with which the others are compared.
    """
    measured = [*metrics, "fit_seconds", "peak_mib"]
    if ours not in set(results["method"]):
        raise SystemExit(f"No results of {ours!r}, which others are compared with: run it too.")
    methods = {name: m for name, m in methods.items() if name in set(results["method"])}
    means = results.groupby(["set", "method"])[measured].mean().unstack().reindex(sizes.index)
    codes = {name: method.code for name, method in methods.items()}
    parts, tables = [failures(results), other_code(results, codes)], []
    for metric, (higher, title) in metrics.items():
        scores = means[metric][[m for m in methods if metric in methods[m].metrics]]
        verdicts = comparison(scores, ours, higher_is_better=higher)
        parts.append(table(verdicts, f"{title}: {ours} against others, over sets"))
        everywhere = scores.dropna(axis=1)  # others' means and ranks would not compare
        mean_ranks = ranks(everywhere, higher_is_better=higher).mean()
        footer = pd.DataFrame([everywhere.mean(), mean_ranks], index=["mean", "mean rank"])
        tables.append(table(_with_sizes(sizes, scores, footer), title))
    seconds = means["fit_seconds"][list(methods)]
    footer = seconds.sum().to_frame("sum").T
    title = "Seconds of processor time to fit, one thread"
    tables.append(table(_with_sizes(sizes, seconds, footer), title, digits=2))
    memory = means["peak_mib"][list(methods)]
    footer = memory.max().to_frame("largest").T
    title = "Peak memory above that before the fit, MiB"
    tables.append(table(_with_sizes(sizes, memory, footer), title, digits=0))
    warned = results[results["warnings"] != ""]
    counts = warned.groupby(["method", "warnings"]).size().rename("fits").reset_index()
    parts.append(table(counts, "Fits that warned") if len(counts) else "No fit warned.")
    return parts + tables


def against_time(results, sizes, quality, ours, peer):
    """Return the parts of a report on the time that methods take to reach a peer's final loss.

    Only fits of seed 0 that were watched are used. A method that never reaches the loss counts as
    infinitely slower.

    Parameters
    ----------
    results, sizes
        Parameters of `methods`.
    quality : str
        Name of the loss.
    ours : sequence of str
    peer : str
    """
    curves = results[results["seed"] == 0].pivot(index="set", columns="method", values="curve")
    curves = curves[[*ours, peer]].dropna().reindex(sizes.index).dropna()
    watched = curves[[len(_measure.curve(text)[0]) > 1 for text in curves[peer]]]
    if not len(watched):
        return []
    rows = {}
    for name, texts in watched.iterrows():
        target = _measure.curve(texts[peer])[1][-1]
        taken = {method: _measure.time_to(texts[method], target) for method in (peer, *ours)}
        ratios = {f"ratio, {method}": taken[peer] / taken[method] for method in ours}
        rows[name] = {"final loss": target, **{f"{m} s": t for m, t in taken.items()}, **ratios}
    found = pd.DataFrame(rows).T
    medians = found[[f"ratio, {method}" for method in ours]].median()
    title = (
        f"Processor seconds to the final {quality} on test rows of {peer}, one thread, first split"
    )
    sizes = sizes.loc[found.index]
    return [table(_with_sizes(sizes, found, medians.to_frame("median").T), title, digits=2)]


def draw_curves(results, methods, quality, path):
    """Draw the loss on test rows against time, with a panel for each set whose fits were watched.

    Parameters
    ----------
    results : DataFrame
        Results of `run_methods`; the fits of seed 0 are drawn.
    methods : sequence of str
    quality : str
        Name of the loss.
    path : Path
    """
    found = results[(results["seed"] == 0) & results["method"].isin(methods)]
    curves = found.pivot(index="set", columns="method", values="curve").fillna("")
    curves = curves[curves.map(lambda text: text.count(":")).max(axis=1) > 1]
    n_rows = -(-len(curves) // _PANELS)
    figure, axes = plt.subplots(
        n_rows, _PANELS, figsize=(11, 2.3 * n_rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(curves) :]:
        axis.remove()
    for axis, (name, texts) in zip(axes.flat, curves.iterrows(), strict=False):
        shown = {method: _measure.curve(texts[method]) for method in methods if texts[method]}
        for method, (taken, loss) in shown.items():
            axis.plot(taken, loss, "o-", ms=2.5, lw=1.2, label=method)
        best = min(loss.min() for _, loss in shown.values())
        worst = max(loss[-1] for _, loss in shown.values())
        room = worst - best + 1e-3
        axis.set(xscale="log", title=name, ylim=(best - 0.15 * room, worst + 0.7 * room))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=7)
    figure.supxlabel("processor seconds, one thread", fontsize=9)
    figure.supylabel(f"{quality} on test rows", fontsize=9)
    figure.savefig(path, dpi=120)


def watched(results, title, peer):
    """Return the parts of a report on methods whose log loss was watched on one set.

    Parameters
    ----------
    results : DataFrame
        Results of `run_tasks` with error rate and log loss.
    title : str
        Description of the test rows.
    peer : str
        Method whose final log loss is the target of the others' times.
    """
    shown = results[["method", "error_rate", "log_loss", "fit_seconds", "peak_mib"]]
    parts = [failures(results), table(shown, f"{title}; processor seconds to fit", digits=4)]
    if (results["error"] != "").any():
        return parts
    texts = results.set_index("method")["curve"]
    final = _measure.curve(texts[peer])[1][-1]
    times = {name: _measure.time_to(text, final) for name, text in texts.items()}
    frame = pd.DataFrame(times.items(), columns=["method", "seconds"])
    frame["ratio"] = times[peer] / frame["seconds"]
    parts.append(table(frame, f"Seconds to the final log-loss of {peer}", digits=1))
    curves = [f"{name}: {text}" for name, text in texts.items()]
    return [*parts, "\n".join(["Seconds:log-loss where it fell", *curves])]


def _with_sizes(sizes, scores, footer):
    body = pd.concat([pd.concat([sizes, scores], axis=1), footer])
    body = body.rename_axis("set").reset_index()
    body[sizes.columns] = body[sizes.columns].astype("Int64")
    return body
