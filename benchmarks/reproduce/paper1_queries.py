"""Paper 1, Figure 5: queries by variation ratio and by entropy, with four inducing points.

Wistuba and Rawat (2018), section 4.3.1: 100 queries, one at a time, from one random labeled row of
each class; the mean rank of the error over sets, and the error on poker. Poker hands are drawn, as
those of the UCI set are: five cards of a deck, whose class is what the hand is worth. The pool has
as many hands as that set; each query is among 20,000 of them, drawn anew. Run ``python -m
benchmarks.reproduce.paper1_queries [--quick]``.
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from skgpsvm.active_learning import mean_softmax_entropy, variation_ratio

from .. import _data, _report
from ..active_learning import classifier, errors_along, problem

POLICIES = {"variation ratio": variation_ratio, "entropy": mean_softmax_entropy}
N_INDUCING, STEPS, N_SEEDS = 4, tuple(range(0, 101, 5)), 2
HANDS, CANDIDATES, TEST_HANDS = 1_025_010, 20_000, 20_000
MIN_ROWS, MAX_ROWS = 300, 3000  # of a set


def hands(n, rng):
    """Return suits and ranks of hands (n, 10), and the classes of the hands, 0 to 9."""
    cards = rng.permuted(np.tile(np.arange(52, dtype=np.int8), (n, 1)), axis=1)[:, :5]
    suits, ranks = np.divmod(cards, 13)  # ace is 0
    counts = -np.sort(-(ranks[:, :, None] == np.arange(13)).sum(1), axis=1)
    kinds = {(2, 1): 1, (2, 2): 2, (3, 1): 3, (3, 2): 6, (4, 1): 7}
    classes = np.zeros(n, dtype=np.int64)
    for pattern, code in kinds.items():
        classes[(counts[:, :2] == pattern).all(1)] = code
    ordered = np.sort(ranks, axis=1)
    ends = ordered[:, 4] - ordered[:, 0]
    alone, royal = counts[:, 0] == 1, (ordered == (0, 9, 10, 11, 12)).all(1)
    straight, flush = (alone & (ends == 4)) | royal, (suits == suits[:, :1]).all(1)
    classes[straight], classes[flush] = 4, 5
    classes[straight & flush] = 8
    classes[royal & flush] = 9
    X = np.stack([suits + 1, ranks + 1], axis=2).reshape(n, 10)
    return X.astype(np.float32), classes


def poker(n, seed):
    """Return a pool and test hands, standardized, as `problem` does."""
    rng = np.random.default_rng(seed)
    X, y = hands(n + TEST_HANDS, rng)
    X = StandardScaler().fit_transform(X)
    _, labeled = np.unique(y[:n], return_index=True)
    return X[:n], y[:n], X[n:], y[n:], labeled, rng


def measured(problems, steps):
    """Return a table of the test error along the queries, by set, seed and policy."""
    rows = []
    for name, seed, make in problems:
        for policy, score in POLICIES.items():
            data = make(name, seed)
            model = classifier(data[0], seed, N_INDUCING)
            errors = errors_along(model, score, *data, steps, most=CANDIDATES)
            rows.append({"set": name, "seed": seed, "policy": policy, **errors})
            print(name, seed, policy, *(f"{e:.3f}" for e in errors.values()), flush=True)
    return pd.DataFrame(rows)


def curves(found, steps):
    """Return mean ranks over sets and seeds, and mean errors, of the policies at each step."""
    columns = [f"q{step}" for step in steps]
    wide = found.pivot(index=["set", "seed"], columns="policy", values=columns)
    ranks = [_report.ranks(wide[c], higher_is_better=False).mean() for c in columns]
    errors = [wide[c].mean() for c in columns]
    return tuple(pd.DataFrame(part, steps)[list(POLICIES)] for part in (ranks, errors))


def drawn(ranks, errors):
    """Return a figure of the mean rank over sets, and of the error on poker."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, frame, label in zip(
        axes, (ranks, errors), ("mean rank over sets", "error on poker"), strict=True
    ):
        for policy in POLICIES:
            axis.plot(frame.index, frame[policy], label=policy)
        axis.set(xlabel="queries", ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    return figure


def main():
    """Query, and write the report and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small version, printed only")
    options = parser.parse_args()
    steps, n_hands, n_seeds = (STEPS[:3], 5000, 1) if options.quick else (STEPS, HANDS, N_SEEDS)
    sets = _data.classification_sets(min_rows=MIN_ROWS, min_classes=3)
    sets = [name for name, info in sets.items() if info.n <= MAX_ROWS][
        : 2 if options.quick else None
    ]
    found = measured([(name, s, problem) for s in range(n_seeds) for name in sets], steps)
    hands_found = measured(
        [("poker", s, lambda _, s: poker(n_hands, s)) for s in range(n_seeds)], steps
    )
    (ranks, errors), (_, on_poker) = curves(found, steps), curves(hands_found, steps)
    table = ranks.add_suffix(", rank").join(errors.add_suffix(", error"))
    table = table.join(on_poker.add_suffix(", poker")).rename_axis("queries").reset_index()
    parts = [
        _report.header(
            "Paper 1, Figure 5: queries with four inducing points",
            sets=f"{len(sets)} of more than two classes, {MIN_ROWS} to {MAX_ROWS} rows",
            seeds=n_seeds,
            poker=f"{n_hands} drawn hands, queries among {CANDIDATES}; error on {TEST_HANDS} more",
            model=f"as of active_learning: held kernel with a linear term, {N_INDUCING} k-means "
            "inducing points, fitted anew after each query",
        ),
        _report.table(table, "Mean rank and error over sets, and error on poker"),
        "The paper: equal at the start, then the variation ratio is ahead; curves only.",
    ]
    _report.publish("paper1_queries", parts, write=not options.quick)
    if not options.quick:
        _report.publish_picture("paper1_queries", drawn(ranks, on_poker))


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
