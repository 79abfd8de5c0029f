"""Calibration of the variances of solved regressors on held-out rows."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import norm
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skgpsvm import DecoupledGPRegressor, QSGPRegressor, _conjugate_gradients
from skgpsvm._hyperparameters.held_out import NOISE_PRIOR, HeldOutRows
from skgpsvm._local_variances import LocalVariances
from skgpsvm._posteriors import WhitenedBasis


def quick_sine(seed, n=500):
    """Return rows of a function that varies more than five inducing points can represent."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, size=(n, 1))
    return X, np.sin(4 * X[:, 0]) + 0.1 * rng.normal(size=n)


SETTINGS = {"mean": "zero", "n_inducing": 5, "learn_inducing": False, "random_state": 0}
QUICK = QSGPRegressor(ConstantKernel(1.0, "fixed") * RBF(0.4, "fixed"), **SETTINGS)
LOCAL = DecoupledGPRegressor(QUICK.kernel, **SETTINGS)


@pytest.mark.parametrize("quick", [QUICK, LOCAL], ids=["power", "local"])
def test_variances_are_right_between_few_inducing_points(quick, monkeypatch):
    model = clone(quick).fit(*quick_sine(0))
    monkeypatch.setattr(_conjugate_gradients, "MIN_CALIBRATED", 501)
    plain = clone(quick).fit(*quick_sine(0))
    X_new, y_new = quick_sine(1)
    densities = []
    for each in (model, plain):
        mean, std = each.predict(X_new, return_std=True)
        densities.append(norm.logpdf(y_new, mean, std).mean())
    # Three standard errors below the log density of the truth; the standard deviation is 0.1.
    best = norm.logpdf(0, 0, 0.1) - 0.5
    assert densities[0] > best - 0.15
    assert plain.variance_power_ == 1
    if quick is QUICK:
        assert model.variance_power_ > 1
        assert densities[0] > densities[1] + 0.5
    else:
        assert densities[1] > best - 0.15
    assert_allclose(model.predict(X_new), plain.predict(X_new), atol=1e-6)
    assert model.elbo_ == pytest.approx(plain.elbo_, rel=1e-9)
    far = np.array([[50.0]])
    for each in (model, plain):
        _, var = each.latent_mean_and_variance(far)
        assert var.item() == pytest.approx(quick_sine(0)[1].var(), rel=1e-9)
    # Four standard errors of a variance from the fifty held-out rows.
    assert model.noise_variance_ == pytest.approx(0.01, rel=4 * np.sqrt(2 / 50))


@pytest.mark.parametrize(
    ("quick", "function"),
    [(QUICK, (WhitenedBasis, "projected_variance")), (LOCAL, (LocalVariances, "__call__"))],
    ids=["power", "local"],
)
def test_rows_held_out_are_read_in_chunks(quick, function, monkeypatch):
    whole, sizes, own = clone(quick).fit(*quick_sine(0)), [], getattr(*function)

    def variance(part, X):
        sizes.append(len(X))
        return own(part, X)

    monkeypatch.setattr(*function, variance)
    monkeypatch.setattr(_conjugate_gradients, "CHUNK_ROWS", 20)
    model = clone(quick).fit(*quick_sine(0))
    assert model.noise_variance_ == pytest.approx(whole.noise_variance_, rel=1e-9)
    # Local variances depend on the noise, which is calibrated repeatedly.
    assert sizes == [20, 20, 10] * (1 if quick is QUICK else _conjugate_gradients._CALIBRATIONS)


@pytest.mark.parametrize("quick", [QUICK, LOCAL], ids=["power", "local"])
def test_held_out_rows_set_the_noise(quick, monkeypatch):
    found, own = [], HeldOutRows.most_likely

    def recorded(rows, model, *args):
        found.append((rows, model, own(rows, model, *args)))
        return found[-1][2]

    monkeypatch.setattr(HeldOutRows, "most_likely", recorded)
    clone(quick).fit(*quick_sine(0))
    rows, before, after = found[-1]

    def density(model, change):
        log_noise = torch.tensor(model.noise) + change
        penalty = 0.5 * ((log_noise.item() - before.noise[0]) / NOISE_PRIOR) ** 2
        likelihood = rows.likelihood.at(log_noise).likelihood
        latent = rows._latent(model.power)
        values = likelihood.log_marginal(rows.targets, rows.means, latent)
        return (rows.weights @ values).item() - penalty

    assert after.noise != before.noise
    assert density(after, 0.0) > max(density(after, -0.01), density(after, 0.01))


def test_rows_held_out_are_not_their_own_neighbors():
    # Almost without noise. A row that knew itself would have no variance, and the noise would grow.
    rng = np.random.default_rng(0)
    kernel = ConstantKernel(1.0, "fixed") * Matern(0.5, "fixed", nu=1.5)
    X = rng.uniform(-3, 3, size=(900, 2))
    y = np.linalg.cholesky(kernel(X) + 1e-6 * np.eye(900)) @ rng.normal(size=900)
    settings = {"mean": "zero", "normalize_y": False, "n_inducing": 20, "random_state": 0}
    model = DecoupledGPRegressor(kernel, **settings).fit(X[:600], y[:600])
    mean, std = model.predict(X[600:], return_std=True)
    # Three standard errors of the mean of 300 squares.
    assert np.square((y[600:] - mean) / std).mean() == pytest.approx(1, abs=3 * np.sqrt(2 / 300))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [DecoupledGPRegressor, QSGPRegressor])
def test_variances_do_not_vanish_where_noise_hides_them(kind, seed):
    rng = np.random.RandomState(52 + seed)
    X = rng.uniform(-3, 3, (500, 2))
    f = np.sin(X[:, 0]) * np.cos(X[:, 1])
    model = kind(n_inducing=40, normalize_y=False, random_state=2)
    mean, var = model.fit(X, f + 0.3 * rng.normal(size=500)).latent_mean_and_variance(X)
    assert 0.5 < np.square(mean - f).mean() / var.mean() < 4


@pytest.mark.parametrize("quick", [QUICK, LOCAL], ids=["power", "local"])
def test_fewer_rows_or_given_hyper_parameters_are_not_calibrated(quick):
    X, y = quick_sine(0)
    assert clone(quick).fit(X[:499], y[:499]).variance_power_ == 1
    assert clone(quick).set_params(optimizer=None).fit(X, y).variance_power_ == 1


@pytest.mark.parametrize("quick", [QUICK, LOCAL], ids=["power", "local"])
def test_warm_start_without_calibration_has_no_power(quick):
    model = clone(quick).set_params(warm_start=True).fit(*quick_sine(0))
    assert model.set_params(optimizer=None).fit(*quick_sine(0)).variance_power_ == 1
