"""
Does leave-one-out choose the right kernel?
===========================================

``BayesianSVC`` chooses the hyperparameters of its kernel by the log loss of leave-one-out
predictions. These have a closed form, so that one fit is enough and no row has to be held out. This
example compares the leave-one-out loss with the loss on new rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.inspection import DecisionBoundaryDisplay
from sklearn.metrics import log_loss

from skgpsvm import BayesianSVC

X, y = make_moons(200, noise=0.3, random_state=0)
X_test, y_test = make_moons(5000, noise=0.3, random_state=1)

# %%
# The map has one fit for each pair of values, with nothing learned. ``loo_log_loss_`` is the
# leave-one-out log loss of the fit.

length_scales = np.geomspace(0.1, 10, 15)
variances = np.geomspace(0.1, 1000, 15)
promised, observed = np.empty((2, len(variances), len(length_scales)))
for i, variance in enumerate(variances):
    for j, length_scale in enumerate(length_scales):
        kernel = ConstantKernel(variance) * RBF(length_scale)
        model = BayesianSVC(kernel, n_inducing=64, optimizer=None, random_state=0).fit(X, y)
        promised[i, j] = model.loo_log_loss_
        observed[i, j] = log_loss(y_test, model.predict_proba(X_test))

# %%
# The next fit shows where the search starts and where it ends. The search gives up a little of the
# loss to stay near its start, which prevents overfitting where rows are few.

start = ConstantKernel(5.0) * RBF(3.0)
chosen = BayesianSVC(start, n_inducing=64, random_state=0).fit(X, y).kernel_
print(f"{start}  ->  {chosen}")


def place(kernel):
    """Return the length scale and the variance of a kernel."""
    variance, length_scale = np.exp(kernel.theta)
    return length_scale, variance


# %%
# Both maps have the same valley. On 200 rows, the leave-one-out loss has a second valley at shorter
# length scales, and is nearly constant as the variance grows. The prior, which favors values near
# the start, decides which valley is chosen and how large the variance becomes.

levels = np.linspace(0.22, 0.42, 11)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.9), sharey=True, layout="constrained")
titles = ("leave-one-out on 200 rows", "5000 new rows")
for ax, title, loss in zip(axes, titles, (promised, observed), strict=True):
    filled = ax.contourf(length_scales, variances, loss, levels, cmap="cividis", extend="both")
    ax.contour(length_scales, variances, loss, levels, colors="white", linewidths=0.4)
    ax.plot(*place(start), "o", color="white", markeredgecolor="black", ms=9, label="start")
    ax.plot(*place(chosen), "*", color="white", markeredgecolor="black", ms=15, label="chosen")
    ax.set(xscale="log", yscale="log", xlabel="length scale", title=title)
axes[0].set_ylabel("variance")
axes[0].legend(loc="upper right")
figure.colorbar(filled, ax=axes, label="log loss, nats")

# %%
# Three places on the map: with a short length scale, the model is uncertain even a short distance
# from each row; with the chosen kernel it follows the classes; with the start, its boundary cannot
# bend enough.

short = ConstantKernel(chosen.k1.constant_value) * RBF(0.15)
figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
kernels = {"short length scale": short, "chosen": chosen, "start": start}
for ax, (title, kernel) in zip(axes, kernels.items(), strict=True):
    model = BayesianSVC(kernel, n_inducing=64, optimizer=None, random_state=0).fit(X, y)
    display = DecisionBoundaryDisplay.from_estimator(
        model,
        X,
        response_method="predict_proba",
        class_of_interest=1,
        grid_resolution=200,
        levels=np.linspace(0, 1, 11),
        cmap="RdBu_r",
        alpha=0.9,
        ax=ax,
    )
    ax.scatter(*X.T, c=y, cmap="RdBu_r", s=12, edgecolors="black", linewidths=0.4)
    loss = log_loss(y_test, model.predict_proba(X_test))
    ax.set(title=f"{title}: {loss:.2f} nats", xlabel="x₀")
axes[0].set_ylabel("x₁")
figure.colorbar(display.surface_, ax=axes, label="probability of class 1")
plt.show()
