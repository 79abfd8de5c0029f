"""Learning of variational GPs in stages and from several initial values."""

import numpy as np
import pytest
from problems import waves
from scipy.stats import norm
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, DotProduct, WhiteKernel
from sklearn.metrics import root_mean_squared_error as rmse

from skgpsvm import (
    DecoupledGPRegressor,
    QSGPRegressor,
    SVGPRegressor,
)
from skgpsvm._collapsed import CollapsedBound
from skgpsvm._hyperparameters.initialization import MIN_GAIN

SEARCH = "skgpsvm._hyperparameters.collapsed_search"


def test_learning_in_stages_ends_as_well_as_on_all_rows(monkeypatch):
    X, y = waves(600)
    settings = {"n_inducing": 30, "random_state": 0, "tol": 1e-4}
    whole = SVGPRegressor(**settings).fit(X, y)
    monkeypatch.setattr(f"{SEARCH}.STAGES", ((100, 2), (300, 2)))
    staged = SVGPRegressor(**settings).fit(X, y)
    assert staged.elbo_ > whole.elbo_ - 0.02 * 600


def test_inducing_points_are_learned_alone():
    # There are enough of them for starts on the exact evidence, which has none.
    X, y = waves(400)
    settings = {"n_inducing": 250, "optimizer": None, "max_iter": 2, "tol": 10.0, "random_state": 0}
    fixed, learned = (
        SVGPRegressor(1.0 * RBF(0.1), learn_inducing=learn, **settings).fit(X, y)
        for learn in (False, True)
    )
    assert learned.elbo_ > fixed.elbo_
    assert not np.array_equal(learned.inducing_points_, fixed.inducing_points_)


@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(n_inducing=32, random_state=0),
        DecoupledGPRegressor(n_inducing=32, n_mean_bases=200, random_state=0),
        QSGPRegressor(n_inducing=32, n_basis=300, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_far_from_a_peak_predictions_return_to_its_plane_not_to_the_mean(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1300, 4))
    f = np.exp(-np.square(X).sum(1))
    y = f[:300] + 0.01 * rng.normal(size=300)
    found = [
        rmse(f[300:], clone(model).set_params(**mean).fit(X[:300], y).predict(X[300:]))
        for mean in ({}, {"mean": "zero"})
    ]
    assert found[0] < 0.75 * found[1]


def test_end_at_mere_noise_is_tried_again(monkeypatch):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 40))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=300)
    model = SVGPRegressor(mean="zero", n_inducing=40, random_state=0)
    assert clone(model).fit(X, y).score(X, y) > 0.9
    monkeypatch.setattr(f"{SEARCH}._LENGTHS", (1.0,))
    assert clone(model).fit(X, y).score(X, y) < 0.2


def test_features_that_matter_only_together_are_found_among_many_idle_ones():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2500, 32))
    f = X[:, 1] * (np.sin(2 * X[:, 0]) + 0.5 * X[:, 2] * X[:, 3])
    y = f[:1500] + 0.2 * rng.normal(size=1500)
    model = SVGPRegressor(n_inducing=200, random_state=0).fit(X[:1500], y)
    assert rmse(f[1500:], model.predict(X[1500:])) < 0.25 * f.std()


# With two features, and with several features of few rows.
@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("noise", [1e-5, 1e-3])
def test_start_of_little_noise_ends_where_one_of_more_noise_does(d, noise):
    X, y = waves(60, d=d, noise=0.5)
    ends = [
        SVGPRegressor(1.0 * RBF(np.ones(d)) + WhiteKernel(level, (1e-6, 10)), random_state=0)
        .fit(X, y)
        .elbo_
        for level in (noise, 0.3)
    ]
    assert ends[0] > ends[1] - 0.1


@pytest.mark.parametrize("solver", ["natural_gradient", "gradient"])
def test_warm_start_from_the_closed_form_predicts_as_its_bound_says(solver):
    X, y = waves(80, d=2)
    model = SVGPRegressor(
        RBF(3.0, "fixed") * 1.0, n_inducing=30, normalize_y=False, warm_start=True, random_state=0
    )
    model.fit(X, y).set_params(solver=solver, max_iter=10, tol=10.0).fit(X, y)
    mean, var = model.latent_mean_and_variance(X)
    noise = model.noise_variance_
    kl = model._latents[0].posterior("cpu").kl().item()
    expected = norm(mean, noise**0.5).logpdf(y).sum() - var.sum() / (2 * noise) - kl
    assert model.elbo_ == pytest.approx(expected, rel=1e-6)


@pytest.fixture
def gains(monkeypatch):
    """Return a list that collects the gains over pure noise of all initial values."""
    found, gain = [], CollapsedBound.gain_over_noise

    def told(*args):
        found.append(gain(*args))
        return found[-1]

    monkeypatch.setattr(CollapsedBound, "gain_over_noise", told)
    return found


def test_constant_output_does_not_hide_what_another_gains(gains):
    X, y = waves(200)
    SVGPRegressor(n_inducing=20, random_state=0).fit(X, np.c_[y, np.full(200, 3.0)])
    assert len(gains) == 1
    assert gains[0] > MIN_GAIN


@pytest.mark.filterwarnings("ignore:.*hardly any signal:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kernel", [DotProduct(), 1.0 * RBF(1.0, "fixed")], ids=str)
def test_no_start_is_tried_twice_where_no_length_scale_is_free(kernel, gains):
    X, _ = waves(60, 2)
    noise = np.random.default_rng(1).normal(size=60)
    SVGPRegressor(kernel, n_inducing=8, random_state=0).fit(X, noise)
    assert len(gains) == 1


@pytest.mark.parametrize(("target", "limit"), [("line", 0.5), ("parabola", 0.3), ("noise", 1.4)])
def test_ten_rows_of_several_features_tell_functions_from_noise(target, limit):
    """Squared errors are relative to the variance of new targets."""
    errors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(310, 5 if target != "parabola" else 3))
        mean = {"line": X[:, 0], "parabola": X[:, 0] ** 2, "noise": 0 * X[:, 0]}[target]
        y = mean + (1.0 if target == "noise" else 0.1) * rng.normal(size=len(X))
        model = SVGPRegressor(random_state=0).fit(X[:10], y[:10])
        errors.append(np.mean((model.predict(X[10:]) - y[10:]) ** 2) / y[10:].var())
    assert np.median(errors) < limit
