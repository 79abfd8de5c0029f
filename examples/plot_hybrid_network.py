"""
A network that knows what it does not know
==========================================

:class:`~skgpsvm.HybridBayesianSVC` puts a Bayesian support vector machine in the place of a
network's softmax layer and trains both jointly. This example uses it for two tasks at which a
softmax is poor: detecting adversarial attacks, and detecting images of classes that are not in the
training data.
"""

# sphinx_gallery_thumbnail_number = 2

# %%
# A small convolutional network
# -----------------------------
#
# A module maps images to features. The estimator takes the class of the module and not an instance,
# so that every fit has its own weights.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from torch import nn

from skgpsvm import HybridBayesianSVC
from skgpsvm.active_learning import least_confident, predictive_entropy
from skgpsvm.adversarial import detection_roc, fast_gradient_sign


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


X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
svc = HybridBayesianSVC(Extractor, max_iter=30, random_state=0).fit(X_train, y_train)
print(f"accuracy {svc.score(X_test, y_test):.3f}, temperature {svc.temperature_:.1f}")

# %%
# Under attack
# ------------
#
# The fast gradient sign method changes every pixel by the same amount, in the direction that raises
# the loss. Below each image are the predicted class and the probability that this prediction is
# wrong. Most wrong predictions have a clear probability of an error. The 3 under strong attacks is
# an exception: the model takes it for an 8, which it also resembles to our eyes.

strengths = [0.0, 0.05, 0.1, 0.15, 0.2, 0.3]
attacked = {s: fast_gradient_sign(svc, X_test, y_test, s, clip=(0, 1)) for s in strengths}
rows = [np.flatnonzero(y_test == digit)[0] for digit in (3, 6, 8)]

figure, axes = plt.subplots(len(rows), len(strengths), figsize=(8.4, 5.2), layout="constrained")
for line, row in zip(axes, rows, strict=True):
    for axis, strength in zip(line, strengths, strict=True):
        image = attacked[strength][row : row + 1]
        label, unsure = svc.predict(image)[0], least_confident(svc, image)[0]
        color = "C2" if label == y_test[row] else "C3"
        axis.imshow(image[0, 0], cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel(f"a {label}, {unsure:.2f}", color=color)
for axis, strength in zip(axes[0], strengths, strict=True):
    axis.set_title(f"strength {strength}" if strength else "clean", fontsize=10)
plt.show()

# %%
# Over all test images, the accuracy falls with the strength of the attack, and the probability of
# an error rises. A threshold on this probability therefore detects attacks, and it detects stronger
# attacks better.

accuracy = [svc.score(attacked[s], y_test) for s in strengths]
unsure = [least_confident(svc, attacked[s]).mean() for s in strengths]
curves = {s: detection_roc(svc, X_test, attacked[s]) for s in strengths[1:]}

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained")
left.plot(strengths, accuracy, "o-", color="C0")
left.plot(strengths, unsure, "s-", color="C1")
left.text(strengths[1] + 0.01, accuracy[1], "accuracy", color="C0")
left.text(strengths[-2] - 0.01, unsure[-2] + 0.04, "mean probability of an error", color="C1")
left.set(xlabel="strength of the attack", ylim=(0, 1.02))
for strength, shade in zip(curves, np.linspace(0.35, 1, len(curves)), strict=True):
    curve = curves[strength]
    label = f"{strength}: area {curve.auc:.2f}"
    right.plot(curve.fpr, curve.tpr, color=plt.get_cmap("Blues")(shade), label=label)
right.plot([0, 1], [0, 1], ":", color="0.6")
right.set(xlabel="clean images flagged", ylabel="attacked images flagged")
right.legend(title="strength", frameon=False)
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
# Digits it never saw
# -------------------
#
# How do networks that were trained only on 0 to 4 classify 5 to 9? Far from the features of the
# training images, the posterior returns to the prior and the class probabilities become more even.
# Their entropy therefore separates the unseen digits from the others, though here not better than
# the entropy of a softmax, which depends on the logits alone. The latent variance is worse: the
# network maps many unseen digits between the known ones, where the variance is small.

known, known_test = y_train < 5, y_test < 5
few = HybridBayesianSVC(Extractor, max_iter=30, random_state=0).fit(X_train[known], y_train[known])
mlp = MLPClassifier((128, 32), max_iter=300, random_state=0)
flat_train, flat_test = X_train.reshape(len(X_train), -1), X_test.reshape(len(X_test), -1)
mlp.fit(flat_train[known], y_train[known])

scores = {
    "softmax network: entropy": predictive_entropy(mlp, flat_test),
    "hybrid network: entropy": predictive_entropy(few, X_test),
    "hybrid network: latent variance": few.latent_mean_and_variance(X_test)[1].mean(1),
}
figure, axes = plt.subplots(1, 3, figsize=(8.4, 2.9), layout="constrained")
for axis, (name, score) in zip(axes, scores.items(), strict=True):
    bins = np.linspace(0, score.max(), 30)
    axis.hist(score[known_test], bins, density=True, alpha=0.6, color="C0", label="0 to 4")
    axis.hist(score[~known_test], bins, density=True, alpha=0.6, color="C3", label="5 to 9")
    axis.set_title(f"{name}\narea {roc_auc_score(~known_test, score):.3f}", fontsize=10)
    axis.set(yticks=[], xlabel="nats" if "entropy" in name else "")
    axis.spines[["top", "right", "left"]].set_visible(False)
axes[0].legend(frameon=False)
plt.show()
