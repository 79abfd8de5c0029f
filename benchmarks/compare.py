"""Compare the default estimators with their peers on the evaluation sets, from saved results.

Run ``python -m benchmarks.compare``, after ``benchmarks.classification`` and
``benchmarks.regression``. It writes the tables of the guide, ``compare-classification.csv`` and
``compare-regression.csv``. The README of the data folder says which sets are for evaluation.
"""

import argparse
import re

import pandas as pd

from . import _data, _harness, _report

# Results file: its loss, our estimator and the peers, with their names in the tables.
COMPARISONS = {
    "classification": (
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
        "rmse",
        "SVGPRegressor",
        {
            "gradient boosting": "``HistGradientBoostingRegressor``",
            "exact GP": "``GaussianProcessRegressor``",
            "GPyTorch SVGP": "GPyTorch, variational",
        },
    ),
}


def evaluation_sets(kind):
    """Return the names of the evaluation sets of a kind of task."""
    text = (_data.folder() / "README.md").read_text(encoding="utf-8")
    return re.findall(r"\w+", re.search(rf"\*\*{kind}, evaluation\*\*:(.*)", text)[1])


def compared(kind):
    """Return a table of our estimator and its peers, over the sets that both have."""
    loss, ours, peers = COMPARISONS[kind]
    results = pd.read_csv(_harness.RESULTS / f"{kind}.csv")
    results = results[results["set"].isin(evaluation_sets(kind))]
    means = results.groupby(["set", "method"])[loss].mean().unstack()
    rows = []
    for peer, name in peers.items():
        both = means[[ours, peer]].dropna()
        rows.append(
            {
                "against": name,
                "sets": len(both),
                "better on": int((both[ours] < both[peer]).sum()),
                "median, ours": f"{both[ours].median():.3f}",
                "median, its": f"{both[peer].median():.3f}",
            }
        )
    return pd.DataFrame(rows)


def main():
    """Write and print the tables."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    for kind, (loss, ours, _) in COMPARISONS.items():
        found = compared(kind)
        found.to_csv(_harness.RESULTS / f"compare-{kind}.csv", index=False)
        print(_report.table(found, f"{ours}, {loss}"), end="\n\n")


if __name__ == "__main__":
    main()
