"""
Turned digits: how sure is a network of what it has not seen?
=============================================================

Two networks with a Gaussian process as their last layer look at digits that are turned.
:class:`~skgpsvm.HybridSVGPClassifier` has learned from upright digits only; its confidence should
fall as the images turn away from these. :class:`~skgpsvm.HybridSVGPRegressor` estimates the angle
by which a digit is turned, with an interval.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from torch import nn

from skgpsvm import HybridSVGPClassifier, HybridSVGPRegressor

BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#777777"


class Extractor(nn.Sequential):
    """Network that maps images (1, 8, 8) to 32 features."""

    def __init__(self, n_filters=16):
        super().__init__(
            nn.Conv2d(1, n_filters, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(n_filters, 2 * n_filters, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * n_filters, 32),
        )


def turned(images, angles):
    """Return images (n, 1, 8, 8), each turned by its angle in degrees."""
    pairs = zip(images[:, 0], np.broadcast_to(angles, len(images)), strict=True)
    return np.stack([rotate(image, a, reshape=False, order=1) for image, a in pairs])[:, None]


X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)

# %%
# A classifier of upright digits
# ------------------------------
#
# The softmax network for comparison is scikit-learn's, with as many features in its last layer.
# Below each image are the label and the probability that each network gives it.

gp = HybridSVGPClassifier(Extractor, max_iter=30, random_state=0).fit(X_train, y_train)
mlp = MLPClassifier((128, 32), max_iter=300, random_state=0).fit(X_train.reshape(-1, 64), y_train)


def probabilities(images):
    """Return the class probabilities of both networks, by name."""
    return {
        "Gaussian process": gp.predict_proba(images),
        "softmax": mlp.predict_proba(images.reshape(-1, 64)),
    }


shown = np.arange(0, 91, 15)
three = np.repeat(X_test[y_test == 3][:1], len(shown), axis=0)
images = turned(three, shown)
figure, axes = plt.subplots(1, len(shown), figsize=(10, 2.4), layout="constrained")
for k, (ax, angle) in enumerate(zip(axes, shown, strict=True)):
    ax.imshow(images[k, 0], cmap="gray_r", vmin=0, vmax=1)
    text = [
        f"{name}\n{p[k].argmax()}: {p[k].max():.2f}" for name, p in probabilities(images).items()
    ]
    ax.set(xticks=[], yticks=[], title=f"{angle} degrees")
    ax.set_xlabel("\n".join(text), size="small")

# %%
# A network can be trusted if it is right as often as it is confident. The left panel has the share
# of right labels of all test digits, and the mean probability of the labels that the networks
# choose. Up to 15 degrees, the confidence of the Gaussian process follows its accuracy, and that of
# the softmax does not. Beyond 30 degrees both are too confident, because many digits now look like
# others, such as a 6 like a 9. The Gaussian process is less so: its features move away from those
# of the training images, where the posterior returns to the prior.

angles = np.arange(0, 181, 15)
found = {"Gaussian process": [], "softmax": []}
for angle in angles:
    for name, p in probabilities(turned(X_test, angle)).items():
        found[name].append((np.mean(p.argmax(1) == y_test), p.max(1).mean()))
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for ax, (name, values), color in zip(axes, found.items(), (BLUE, ORANGE), strict=True):
    accuracy, confidence = np.transpose(values)
    ax.fill_between(angles, accuracy, confidence, color=color, alpha=0.15, lw=0)
    ax.plot(angles, accuracy, "o-", color=GRAY, ms=4, label="share of right labels")
    ax.plot(angles, confidence, "s-", color=color, ms=4, label="mean confidence")
    gap = np.mean(confidence - accuracy)
    ax.set(
        title=f"{name}: too confident by {gap:.2f} on average", xlabel="degrees", xticks=angles[::2]
    )
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, loc=(0.32, 0.42))
axes[0].set_ylim(0, 1.05)

# sphinx_gallery_thumbnail_number = 2

# %%
# An angle with its interval
# --------------------------
#
# The same network, with the regressor as its last layer, learns by how many degrees the digits 2,
# 3, 4, 5 and 7 are turned. The noise of the model is that of rows held out from the fit, so the
# intervals hold about as often as they should on average over these digits, though not for each.
# For the digits that it has not learned, they hold less often: the features of such an image need
# not be far from those of the training images. If such images may come, check first which digit it
# is.

rng = np.random.default_rng(0)
learned = np.isin(y_train, [2, 3, 4, 5, 7])
chosen, angle = rng.choice(np.flatnonzero(learned), 2000), rng.uniform(-60, 60, 2000)
regressor = HybridSVGPRegressor(Extractor, max_iter=30, random_state=0)
regressor.fit(turned(X_train[chosen], angle), angle)

truth = rng.uniform(-60, 60, len(X_test))
images = turned(X_test, truth)
mean = regressor.predict(images)
low, high = regressor.predict_interval(images, level=0.95)
inside = (low <= truth) & (truth <= high)
few = np.flatnonzero(np.isin(y_test, y_train[learned]))[:80]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
width = np.abs([mean - low, high - mean])
left.errorbar(truth[few], mean[few], yerr=width[:, few], fmt="o", ms=3, color=BLUE, lw=0.8)
left.plot([-60, 60], [-60, 60], ":", color="black")
left.set(xlabel="degrees", ylabel="estimate, with 95 % interval", title="80 digits that it knows")
print(f"learned digits: {inside[np.isin(y_test, y_train[learned])].mean():.2f} of intervals hold")
share = [inside[y_test == digit].mean() for digit in range(10)]
colors = [BLUE if digit in y_train[learned] else GRAY for digit in range(10)]
right.bar(range(10), share, color=colors)
right.axhline(0.95, ls=":", color="black")
right.set(
    xlabel="digit (gray: not learned)",
    ylabel="share of intervals that hold",
    title="all test digits",
    xticks=range(10),
    ylim=(0, 1.02),
)
plt.show()
