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
from skgpsvm.active_learning import diverse_sampling, least_confident_sampling

BATCH, N_ROUNDS, N_REPEATS = 10, 13, 3
POLICIES = {
    "unsure and diverse": diverse_sampling,
    "least confident": least_confident_sampling,
    "at random": None,
}

X, y = load_digits(return_X_y=True)


def learning_curve(query, seed):
    """Return the test error after each round, and the error that the model expects of itself."""
    X_pool, X_test, y_pool, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=seed
    )
    scaler = StandardScaler().fit(X_pool)
    X_pool, X_test = scaler.transform(X_pool), scaler.transform(X_test)
    rng = np.random.default_rng(seed)
    labeled = [i for digit in range(10) for i in np.flatnonzero(y_pool == digit)[:2]]
    errors, expected = [], []
    for _ in range(N_ROUNDS):
        # There are few labels, so the kernel is not learned, and a rough solution is enough.
        model = BayesianSVC(optimizer=None, tol=0.1, random_state=0)
        model.fit(X_pool[labeled], y_pool[labeled])
        errors.append(1 - model.score(X_test, y_test))
        expected.append(1 - model.predict_proba(X_pool).max(axis=1).mean())
        rest = np.setdiff1d(np.arange(len(y_pool)), labeled)
        if query is None:
            chosen = rng.permutation(len(rest))[:BATCH]
        else:
            chosen, _ = query(model, X_pool[rest], BATCH, random_state=rng.integers(1000))
        labeled.extend(rest[chosen])
    return errors, expected


curves = {
    name: np.array([learning_curve(query, seed) for seed in range(N_REPEATS)])
    for name, query in POLICIES.items()
}

# %%
# Half as many labels reach the final error of random queries if the model chooses them. Within a
# batch, the least confident digits are often alike, so that one label reveals the others: diverse
# batches help most while there are few labels.

n_labeled = 20 + BATCH * np.arange(N_ROUNDS)
figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
for (name, found), color, marker in zip(
    curves.items(), ("#0072B2", "#D55E00", "#777777"), "os^", strict=True
):
    percent = 100 * found[:, 0]
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
# **When to stop.** Test labels are not available in practice. Probabilities are calibrated, so one
# minus the mean of the largest is the error that the model expects on the pool, and needs no label.
# With few labels the model is too cautious; from seventy on, it is right. To stop once this error
# has been below a target in two rounds is therefore a rule that costs nothing. Without a target,
# stop when predictions no longer change: see :func:`~skgpsvm.active_learning.has_stabilized`.

errors, expected = 100 * curves["unsure and diverse"].mean(axis=0)
figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
ax.plot(n_labeled, errors, "o-", color="#0072B2", ms=4, label="on test rows")
ax.plot(n_labeled, expected, "s--", color="#D55E00", ms=4, label="expected on the pool")
ax.set(xlabel="labeled digits", ylabel="error, %", ylim=(0, None))
ax.grid(alpha=0.3)
ax.legend(frameon=False)
plt.show()
