"""Rough effects of one feature: spikes, bumps, steps and teeth, from 200 to 20,000 rows.

Rows have three features, of which the first has an effect. The report has the root mean squared
error relative to the better of two peers that have the first feature alone: gradient boosting, and
a smoothing spline of first or second order whose penalty has the smallest error; and the coverage
of 95 % bands, in all and around the rough places. Run ``python -m benchmarks.steps [--quick]``.
"""

import argparse
import time

import numpy as np
from scipy.sparse import diags_array
from scipy.sparse.linalg import spsolve
from sklearn.ensemble import HistGradientBoostingRegressor

from skgpsvm import AdditiveGPRegressor

CENTER, TEETH, BINS, TESTED = 0.37, 5, 4000, 4000
NOISES, SIZES = (0.1, 0.5), (200, 2_000, 20_000)


def bump(width):
    """Return a bump, and the function that is true around it."""
    return (
        lambda x: 2 * np.exp(-0.5 * ((x - CENTER) / width) ** 2),
        lambda x: abs(x - CENTER) < 3 * width,
    )


# Effects, and functions that are true around their rough places.
SHAPES = {
    "smooth": (lambda x: np.sin(6 * x), lambda x: x < 2),
    "spike": (lambda x: 2.0 * (x == 0), lambda x: x < 0.1),
    "bump .1": bump(0.1),
    "bump .03": bump(0.03),
    "bump .01": bump(0.01),
    "step": (lambda x: 1.0 * (x > CENTER), lambda x: abs(x - CENTER) < 0.05),
    "sawtooth": (
        lambda x: 2 * (TEETH * x % 1),
        lambda x: abs((TEETH * x + 0.5) % 1 - 0.5) < 0.05 * TEETH,
    ),
}


def rows(shape, n, rng):
    """Return X (n, 3) and the effect of its first column."""
    X = rng.uniform(size=(n, 3))
    if shape == "spike":
        X[rng.uniform(size=n) < 0.3, 0] = 0.0
    return X, SHAPES[shape][0](X[:, 0])


def oracle_error(x, y, truth):
    """Return the smallest error of smoothing splines on bins, given the truth (BINS,)."""
    place = np.minimum((x * BINS).astype(int), BINS - 1)
    counts, totals = (np.bincount(place, part, BINS) for part in (np.ones_like(y), y))
    found = []
    for order, most in ((1, 6), (2, 10)):
        differences = diags_array(np.ones(BINS), format="csr")
        for _ in range(order):
            differences = differences[1:] - differences[:-1]
        penalties = (differences.T @ differences).tocsc()
        for penalty in np.logspace(-2, most, 40):
            spline = spsolve(diags_array(counts + 1e-9, format="csc") + penalty * penalties, totals)
            found.append(np.mean((spline - truth) ** 2))
    return np.sqrt(min(found))


def measure(shape, n, noise, seed=0, **options):
    """Return figures of one case, a dict."""
    rng = np.random.default_rng(seed)
    X, f = rows(shape, n, rng)
    y = f + noise * rng.normal(size=n)
    T, truth = rows(shape, TESTED, rng)
    near = SHAPES[shape][1](T[:, 0])

    def error(mean):
        return np.sqrt(np.mean((mean - truth) ** 2))

    boosting = HistGradientBoostingRegressor(random_state=0).fit(X[:, :1], y)
    grid = SHAPES[shape][0]((np.arange(BINS) + 0.5) / BINS)
    start = time.process_time()
    model = AdditiveGPRegressor(interactions=None, random_state=0, **options).fit(X, y)
    seconds = time.process_time() - start
    mean, var = (part.ravel() for part in model.latent_mean_and_variance(T))
    inside = abs(mean - truth) < 1.96 * np.sqrt(var)
    return {
        "rmse": error(mean),
        "boosting": error(boosting.predict(T[:, :1])),
        "spline": np.inf if shape == "spike" else oracle_error(X[:, 0], y, grid),
        "coverage": inside.mean(),
        "near": inside[near].mean(),
        "seconds": seconds,
        "terms": model.term_names_,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no 20,000 rows")
    sizes = SIZES[:-1] if parser.parse_args().quick else SIZES
    print(
        "shape        rows noise    rmse  boosting  spline  ratio  coverage  near  seconds  terms"
    )
    for shape in SHAPES:
        for n in sizes:
            for noise in NOISES:
                found = measure(shape, n, noise)
                ratio = found["rmse"] / min(found["boosting"], found["spline"])
                print(
                    f"{shape:10s} {n:6d} {noise:5.1f} {found['rmse']:7.4f} {found['boosting']:9.4f}"
                    f"{found['spline']:8.4f} {ratio:6.2f} {found['coverage']:9.2f}"
                    f"{found['near']:6.2f} {found['seconds']:8.1f}  {', '.join(found['terms'])}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
