"""
Three kinds of answers
======================

A number is seldom enough. The models of skgpsvm also say how certain they are: a regression has
intervals, a classifier has calibrated probabilities, and an additive model has a band around the
effect of each feature. This example draws the picture of the first page, for light and for dark
backgrounds.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb
from sklearn.datasets import load_diabetes

from skgpsvm import AdditiveGPRegressor, BayesianSVC, SVGPRegressor
from skgpsvm.inspection import ComponentEffectDisplay

rng = np.random.default_rng(2)

# %%
# The noise of the regression varies with the feature, and there are no rows in a gap. The interval
# is wide for both reasons.

x = np.concatenate([rng.uniform(0, 4.6, 110), rng.uniform(6.4, 10, 90)])
target = np.sin(1.3 * x) + 0.15 * x + (0.05 + 0.05 * x) * rng.normal(size=x.size)
regressor = SVGPRegressor(likelihood="heteroscedastic", random_state=0).fit(x[:, None], target)
line = np.linspace(0, 10, 300)
mean, std = regressor.predict(line[:, None], return_std=True)

# %%
# Three classes overlap. Away from the rows, the classifier is less certain.

points = np.concatenate(
    [rng.normal(center, (1.0, 0.7), (70, 2)) for center in ([-1.6, 0.9], [1.5, 1.1], [0.1, -1.3])]
)
classes = np.repeat([0, 1, 2], 70)
classifier = BayesianSVC(random_state=0).fit(points, classes)
a, b = np.linspace(-5, 5, 160), np.linspace(-4.2, 4.2, 140)
plane = np.stack(np.meshgrid(a, b), axis=-1).reshape(-1, 2)
probability = classifier.predict_proba(plane).reshape(len(b), len(a), 3)

# %%
# The additive model is fitted to scikit-learn's diabetes table, and one of its effects is drawn.

table, progression = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
gam = AdditiveGPRegressor(random_state=0).fit(table, progression)
parts = ComponentEffectDisplay.from_estimator(gam, table, features=["bmi"]).effects
plt.close()


# %%
# One function draws both versions.


def draw(style, ink, colors):
    """Draw the three panels on a background of the color of the page."""
    settings = {
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "axes.facecolor": "none",
        "figure.facecolor": style,
        "savefig.facecolor": style,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 11,
    }
    with plt.rc_context(settings):
        _, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
        blue = colors[0]
        for ax in axes:
            ax.title.set_weight("bold")
        axes[0].fill_between(line, mean - 2 * std, mean + 2 * std, color=blue, alpha=0.3, lw=0)
        axes[0].plot(line, mean, color=blue, lw=2)
        axes[0].plot(x, target, "o", ms=2.5, color=ink, alpha=0.75, mew=0)
        axes[0].set(title="intervals of observations", xlabel="feature", ylabel="target")

        palette = np.array([to_rgb(color) for color in colors])
        share = np.clip((probability.max(axis=2) - 1 / 3) * 1.5, 0, 1)[..., None]
        paper = np.array(to_rgb(style))
        image = paper + share * (probability @ palette - paper)
        axes[1].imshow(image, extent=(-5, 5, -4.2, 4.2), origin="lower", aspect="auto")
        for label, color in enumerate(colors):
            axes[1].plot(*points[classes == label].T, "o", ms=3.5, color=color, mec=ink, mew=0.5)
        axes[1].set(title="calibrated class probabilities", xlabel="first", ylabel="second")

        (part,) = parts
        (values,) = part.grid
        axes[2].fill_between(values, part.lower, part.upper, color=colors[1], alpha=0.3, lw=0)
        axes[2].plot(values, part.effect, color=colors[1], lw=2)
        axes[2].plot(part.rug, np.full(len(part.rug), part.lower.min()), "|", color=ink, ms=6)
        axes[2].set(title="effects with credible bands", xlabel="body mass index", ylabel="effect")


draw("#ffffff", "#222222", ("#0072B2", "#D55E00", "#009E73"))
draw("#131416", "#dddddd", ("#56B4E9", "#E69F00", "#2FCB97"))
plt.show()
