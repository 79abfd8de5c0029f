"""Friedman's function: rows, effects in closed form, and measures of a fitted model."""

import numpy as np
from scipy.special import sici
from scipy.stats import norm

TERMS = {"f1": (0,), "f2": (1,), "f3": (2,), "f4": (3,), "f5": (4,), "f6": (5,), "f12": (0, 1)}
MEASURED = tuple(f"{kind}_{name}" for kind in ("rmse", "cover", "width", "share") for name in TERMS)
_BAND = norm.ppf(0.975)
_ROUNDING = 1e-9  # tolerance of bands of width zero


def _constants():
    """Return the mean of 10 sin(pi x1 x2), and the variances of the terms: (S33), (S34)."""
    si, ci = sici(np.pi)
    kappa = 10 / np.pi * (np.euler_gamma + np.log(np.pi) - ci)
    si_2 = sici(2 * np.pi)[0]
    alone = 100 / np.pi * (2 * si - si_2 - 4 / np.pi) - kappa**2
    both = 50 * (1 - si_2 / (2 * np.pi)) - kappa**2 - 2 * alone
    return kappa, np.array([alone, alone, 20 / 9, 25 / 3, 25 / 12, 0, both])


KAPPA, VARIANCES = _constants()
CONSTANT = KAPPA + 5 / 3 + 15 / 2
SHARES = dict(zip(TERMS, VARIANCES / VARIANCES.sum(), strict=True))


def effects(X):
    """Return the terms (n, 7) of rows, each with zero mean over the unit interval: (S33)."""
    x1, x2 = X[:, 0], X[:, 1]
    alone = np.pi / 2 * X[:, :2] * np.sinc(X[:, :2] / 2) ** 2 * 10
    columns = [
        *(alone - KAPPA).T,
        20 * (X[:, 2] - 0.5) ** 2 - 5 / 3,
        10 * (X[:, 3] - 0.5),
        5 * (X[:, 4] - 0.5),
        np.zeros(len(X)),
        10 * np.sin(np.pi * x1 * x2) - alone.sum(1) + KAPPA,
    ]
    return np.stack(columns, 1)


def rows(n, seed, correlation=0.0):
    """Return rows, uniform or with a Gaussian copula, and targets with unit noise."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 6))
    if correlation:
        common = np.sqrt(correlation) * rng.standard_normal((n, 1))
        X = norm.cdf(common + np.sqrt(1 - correlation) * norm.ppf(X))
    return X, CONSTANT + effects(X).sum(1) + rng.standard_normal(n)


def judged(model, X):
    """Return `MEASURED` of an additive model on rows; a term that the model lacks is zero.

    For each term, these are the error of the effect, the coverage of the truth by its 95 % band,
    the width of that band, and the share of the variance.
    """
    truth, found = effects(X), {}
    mean, std = model.explain(X, return_std=True)
    for name, true in zip(TERMS, truth.T, strict=True):
        has = TERMS[name] in model.terms_
        at = model.terms_.index(TERMS[name]) if has else None
        error = true - (mean[:, at] if has else 0.0)
        width = _BAND * std[:, at] if has else np.zeros(len(X))
        found[f"rmse_{name}"] = np.sqrt(np.square(error).mean())
        found[f"cover_{name}"] = (np.abs(error) <= width + _ROUNDING).mean()
        found[f"width_{name}"] = 2 * width.mean()
        found[f"share_{name}"] = model.sobol_indices_[at] if has else 0.0
    return found


def over_seeds(results, kind, by, how="mean"):
    """Return a summary over seeds of one kind of `MEASURED`, with a row for each ``by``."""
    columns = {f"{kind}_{name}": name for name in TERMS}
    found = results.groupby(by, sort=False)[list(columns)].agg(how)
    return found.rename(columns=columns).reset_index()
