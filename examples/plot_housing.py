"""
House prices: from the table to the price of a place
====================================================

What does a district's location add to the value of its houses? Neither the latitude nor the
longitude says so by itself: there are expensive places along a diagonal coast, and an interaction
of the two coordinates is needed. ``AdditiveGPRegressor`` finds it, with the effects of all other
features, in a pandas table with a category and missing values. The 6,000 districts are generated
to resemble those of California in 1990, so that the value of a place is known.
"""

import textwrap
from time import process_time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeCV
from sklearn.metrics import root_mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, SplineTransformer

from skgpsvm import AdditiveGPRegressor
from skgpsvm.inspection import ComponentEffectDisplay, ContributionDisplay

# Latitude, longitude, share of the districts, and what the place adds to the log value.
PLACES = {
    "Los Angeles": (34.05, -118.25, 0.32, 0.25),
    "Santa Monica": (34.02, -118.48, 0.08, 0.5),
    "San Francisco": (37.77, -122.42, 0.12, 0.75),
    "Palo Alto": (37.44, -122.14, 0.1, 0.6),
    "San Diego": (32.75, -117.15, 0.12, 0.3),
    "Sacramento": (38.58, -121.49, 0.1, 0.05),
    "Fresno": (36.75, -119.77, 0.1, -0.3),
    "Bakersfield": (35.37, -119.02, 0.06, -0.35),
}
COAST = {"Santa Monica", "San Francisco", "Palo Alto", "San Diego"}
CENTERS = np.array([place[:2] for place in PLACES.values()])
WEIGHTS = np.array([place[3] for place in PLACES.values()])
HOMES = {"houses": 0.0, "apartments": 0.1, "mixed": 0.03, "mobile": -0.4}


def place_value(at):
    """Return what places (n, 2) add to the log value."""
    square = np.square(at[:, None] - CENTERS).sum(2)
    return np.exp(-0.5 * square / 0.22**2) @ WEIGHTS


def districts(n, seed):
    """Return a table of districts, and the values of their houses in dollars."""
    rng = np.random.default_rng(seed)
    place = rng.choice(len(PLACES), n, p=[place[2] for place in PLACES.values()])
    at = CENTERS[place] + 0.4 * rng.standard_normal((n, 2)) * rng.choice([0.5, 1.5], (n, 1))
    at[:, 1] += 2 * np.maximum(39 - 1.04 * at[:, 0] - 122.14 - at[:, 1], 0)  # none is at sea
    income, rooms = rng.lognormal(1.2, 0.45, n), rng.lognormal(1.65, 0.2, n)
    age, occupancy = (rng.gamma(5, 6.5, n)).clip(1, 52).round(), 2 + rng.lognormal(0, 0.4, n)
    homes = rng.choice(list(HOMES), n, p=[0.6, 0.25, 0.1, 0.05])
    log_value = (
        11.15
        + 0.55 * np.log(income)
        + 0.18 * np.log(rooms / occupancy)
        + 0.12 * (age == 52)
        + pd.Series(homes).map(HOMES).to_numpy()
        + place_value(at)
    )
    table = pd.DataFrame(
        {
            "income": income,
            "house_age": age,
            "rooms": rooms,
            "occupancy": occupancy,
            "population": rng.lognormal(7, 0.7, n).round(),
            "homes": pd.Categorical(homes),
            "latitude": at[:, 0],
            "longitude": at[:, 1],
        }
    ).round(3)
    table.loc[rng.uniform(size=n) < 0.05, "rooms"] = np.nan
    return table, np.exp(log_value + 0.2 * rng.standard_normal(n))


table, value = districts(6000, seed=0)
new, new_value = districts(6000, seed=1)
print(table.assign(value=value.round(-2)).head(4).to_string())

# %%
# **The fit.** The target is the logarithm of the value, as prices differ by factors. A linear model
# on splines has no interactions; boosted trees have those of all orders. The noise of the data is
# 0.2, and no model can have a smaller error.

numbers = [name for name in table if name != "homes"]
models = {
    "AdditiveGPRegressor": AdditiveGPRegressor(random_state=0),
    "boosted trees": HistGradientBoostingRegressor(
        max_iter=500, early_stopping=True, random_state=0
    ),
    "splines, linear": make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), SplineTransformer(12)), numbers),
            (OneHotEncoder(), ["homes"]),
        ),
        RidgeCV(np.logspace(-4, 2, 7)),
    ),
}
print("                      seconds  error")
for name, model in models.items():
    start = process_time()
    model.fit(table, np.log(value))
    seconds = process_time() - start
    error = root_mean_squared_error(np.log(new_value), model.predict(new))
    print(f"{name:20s}  {seconds:7.1f}  {error:5.3f}")
gam = models["AdditiveGPRegressor"]
print(textwrap.fill("terms: " + ", ".join(gam.term_names_), 92))

# %%
# **What it has learned.** Each panel is an effect on the logarithm of the value, with a 95 % band:
# 0.1 is about 10 % more. The fit has noticed that many districts share an age of 52, where the
# table caps it, and gives them an effect of their own. It has dropped the population, which has no
# effect. In the map of the pair, hatched places have no districts: what the model says there is a
# guess.

ComponentEffectDisplay.from_estimator(gam, table)
# sphinx_gallery_thumbnail_number = 2

# %%
# **The price of a place.** The effects of latitude, longitude and their pair belong together. The
# left map has the value of one and the same district, a typical one, at every place near the data.
# The right one is the truth.

lat, lon = np.linspace(32.2, 39.2, 141), np.linspace(-123.2, -116.3, 139)
at = np.stack(np.meshgrid(lat, lon, indexing="ij"), -1).reshape(-1, 2)
places = new[["latitude", "longitude"]].to_numpy()
near = np.array([(np.abs(places - place) < 0.12).all(1).any() for place in at])
rows = new.iloc[np.zeros(near.sum(), int)]
rows = rows.assign(latitude=at[near, 0], longitude=at[near, 1])
surface = np.full((2, len(at)), np.nan)
surface[0, near] = gam.predict(rows)
surface[1, near] = place_value(at[near])
surface -= np.nanmean(surface, axis=1, keepdims=True)
figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), sharey=True, layout="constrained")
for ax, values, title in zip(axes, surface, ("learned", "truth"), strict=True):
    image = ax.pcolormesh(
        lon, lat, values.reshape(len(lat), -1), cmap="RdBu_r", vmin=-0.9, vmax=0.9, rasterized=True
    )
    for name, (y, x, *_) in PLACES.items():
        side = -1 if name in COAST else 1
        ax.plot(x, y, "+", color="black")
        ax.annotate(
            *(name, (x, y), (8 * side, 0)),
            textcoords="offset points",
            ha="right" if side < 0 else "left",
            va="center",
            size="small",
        )
    ax.set(xlabel="longitude", title=title, xlim=(-124.6, -116.2))
axes[0].set_ylabel("latitude")
figure.colorbar(image, ax=axes, label="log value, less its mean over the map")

# %%
# **One district.** Why is this one expected to be the most expensive? The bars lead from the
# average of the log value to the prediction, each with the 95 % interval of its contribution.

district = new.iloc[[gam.predict(new).argmax()]]
print(district.to_string(index=False))
expected, low, high = np.exp([gam.predict(district), *gam.predict_interval(district, level=0.9)])
print(f"expected ${expected[0]:,.0f}; with probability 0.9 from ${low[0]:,.0f} to ${high[0]:,.0f};")
print(f"observed ${new_value[district.index[0]]:,.0f}")
ContributionDisplay.from_estimator(gam, district)
plt.show()
