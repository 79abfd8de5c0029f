"""
Does a model learn faster when it chooses what is labelled?
===========================================================

Digits are labelled a few at a time: those that a Bayesian support vector machine is least sure
of, or random ones. Every policy starts from the same one digit of each kind, and the same model,
fitted anew after each round, serves them all.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skgpsvm import BayesianSVC
from skgpsvm.active_learning import bald, variation_ratio

BATCH, N_ROUNDS, N_REPEATS = 10, 15, 2
POLICIES = {
    "variation ratio": variation_ratio,
    "mutual information": bald,
    "at random": None,
}

X, y = load_digits(return_X_y=True)


def learning_curve(score, seed):
    """Test error after each round."""
    X_pool, X_test, y_pool, y_test = train_test_split(X, y, stratify=y, random_state=seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y_pool))
    X_pool, y_pool = X_pool[order], y_pool[order]
    labelled = list(np.unique(y_pool, return_index=True)[1])
    errors = []
    for _ in range(N_ROUNDS):
        model = BayesianSVC(n_inducing=64, optimizer=None, tol=0.05, random_state=0)
        model.fit(X_pool[labelled], y_pool[labelled])
        errors.append(1 - model.score(X_test, y_test))
        rest = np.setdiff1d(np.arange(len(y_pool)), labelled)
        value = rng.random(len(rest)) if score is None else score(model, X_pool[rest])
        labelled.extend(rest[np.argsort(value)[-BATCH:]])
    return errors


curves = {
    name: np.array([learning_curve(score, seed) for seed in range(N_REPEATS)])
    for name, score in POLICIES.items()
}

# %%
# After the first rounds, in which every label is news, the model's questions pay: it reaches the
# error of the last random label with far fewer of its own.

n_labelled = 10 + BATCH * np.arange(N_ROUNDS)
figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
for (name, errors), colour, marker in zip(
    curves.items(), ("#0072B2", "#D55E00", "#777777"), "os^", strict=True
):
    percent = 100 * errors
    ax.plot(n_labelled, percent.mean(0), marker + "-", color=colour, ms=4, label=name)
    ax.fill_between(n_labelled, percent.min(0), percent.max(0), color=colour, alpha=0.15, lw=0)
ax.set(
    xlabel="labelled digits",
    ylabel="test error, %",
    yscale="log",
    title=f"Mean and range of {N_REPEATS} splits",
)
ax.set_yticks([2, 5, 10, 20, 50], [2, 5, 10, 20, 50])
ax.minorticks_off()
ax.grid(alpha=0.3)
ax.legend(title="labels chosen by", frameon=False)
plt.show()
