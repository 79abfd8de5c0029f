"""
Does a model learn faster when it chooses what is labeled?
==========================================================

This example labels digits ten at a time by one of three policies. The first chooses digits about
which a Bayesian support vector machine is unsure and that differ from each other. The second
chooses the digits about which it is least confident, which may resemble each other. The third
chooses at random. Every policy starts from the same two digits of each class and uses the same
model, fitted anew after each round. The model also says when to stop.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from skgpsvm import BayesianSVC
from skgpsvm.active_learning import (
    diverse_sampling,
    has_stabilized,
    least_confident_sampling,
)

BATCH, N_ROUNDS, N_REPEATS = 10, 13, 3
POLICIES = {
    "unsure and diverse": diverse_sampling,
    "least confident": least_confident_sampling,
    "at random": None,
}

X, y = load_digits(return_X_y=True)


def learning_curve(query, seed, stop):
    """Return the number of labels in each round, the test error, and the error that is expected.

    The latter is what the model expects of itself on the pool. The loop ends when ``stop`` is true
    of the labels that all models so far predict on the pool.
    """
    X_pool, X_test, y_pool, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=seed
    )
    scaler = StandardScaler().fit(X_pool)
    X_pool, X_test = scaler.transform(X_pool), scaler.transform(X_test)
    rng = np.random.default_rng(seed)
    labeled = [i for digit in range(10) for i in np.flatnonzero(y_pool == digit)[:2]]
    rounds, predictions = [], []
    while not stop(predictions):
        # There are few labels, so the kernel is not learned, and a rough solution is enough.
        model = BayesianSVC(optimizer=None, tol=0.1, random_state=0)
        model.fit(X_pool[labeled], y_pool[labeled])
        probabilities = model.predict_proba(X_pool)
        expected = 1 - probabilities.max(axis=1).mean()
        rounds.append((len(labeled), 1 - model.score(X_test, y_test), expected))
        predictions.append(probabilities.argmax(axis=1))
        rest = np.setdiff1d(np.arange(len(y_pool)), labeled)
        if query is None:
            chosen = rng.permutation(len(rest))[:BATCH]
        else:
            chosen, _ = query(model, X_pool[rest], BATCH, random_state=rng.integers(1000))
        labeled.extend(rest[chosen])
    return np.transpose(rounds)


def after_rounds(predictions):
    return len(predictions) == N_ROUNDS


curves = {
    name: np.array([learning_curve(query, seed, after_rounds) for seed in range(N_REPEATS)])
    for name, query in POLICIES.items()
}

# %%
# Chosen labels reach the final error of random ones with about two thirds as many. Within a batch,
# the least confident digits are often alike, so that one label reveals the others: diverse batches
# help most while there are few labels.

figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
for (name, found), color, marker in zip(
    curves.items(), ("#0072B2", "#D55E00", "#777777"), "os^", strict=True
):
    n_labeled, percent = found[0, 0], 100 * found[:, 1]
    ax.plot(n_labeled, percent.mean(0), marker + "-", color=color, ms=4, label=name)
    ax.fill_between(n_labeled, percent.min(0), percent.max(0), color=color, alpha=0.15, lw=0)
ax.set(
    xlabel="labeled digits",
    ylabel="test error, %",
    yscale="log",
    title=f"Mean and range of {N_REPEATS} splits",
)
ax.set_yticks([2, 5, 10, 20, 50], [2, 5, 10, 20, 50])
ax.minorticks_off()
ax.grid(alpha=0.3)
ax.legend(title="labels chosen by", frameon=False)

# %%
# **When to stop.** :func:`~skgpsvm.active_learning.has_stabilized` stops the loop when the labels
# that the last four models predict on the pool hardly differ. Test labels are not available in
# practice, and this rule needs none. Probabilities are calibrated, so one minus the mean of the
# largest is the error that the model expects on the pool. With few labels it is too cautious; later
# it is near the error on test rows, and in the end below it, since the labeled digits are part of
# the pool. If you have a target, stop once this error has been below it in two rounds.

figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for seed in range(N_REPEATS):
    n_labeled, errors, expected = learning_curve(diverse_sampling, seed, has_stabilized)
    ax.plot(n_labeled, 100 * errors, color="#0072B2", label="on test rows")
    ax.plot(n_labeled, 100 * expected, "--", color="#D55E00", label="expected on the pool")
    ax.plot(n_labeled[-1], 100 * errors[-1], "o", color="#0072B2", label="the rule stops")
    print(f"split {seed}: stopped at {n_labeled[-1]:.0f} labels, test error {errors[-1]:.1%}")
ax.set(xlabel="labeled digits", ylabel="error, %", ylim=(0, None), title="Three splits")
ax.grid(alpha=0.3)
ax.legend(handles=ax.lines[:3], frameon=False)
plt.show()
