"""Ordered classes: the likelihood with thresholds, and the classifiers that learn them."""

import itertools
import pickle

import mpmath
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from problems import t64
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss

from skgpsvm import AdditiveGPClassifier, SVGPClassifier
from skgpsvm._quadrature import expect
from skgpsvm.inspection import ComponentEffects
from skgpsvm.likelihoods import Ordinal, Probit

CUTS = np.array([-2.0, -0.5, 1.0, 2.5])
CLASSIFIERS = [
    SVGPClassifier(likelihood="ordinal", n_inducing=30, random_state=0),
    AdditiveGPClassifier(likelihood="ordinal", interactions=None, random_state=0),
]


def ordered(n, seed=0, function=lambda X: 2 * np.sin(1.5 * X[:, 0]) + X[:, 1]):
    """Return rows, classes 0 to 4 and their probabilities."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    f = function(X)
    edges = np.array([-np.inf, *CUTS, np.inf])
    truth = np.diff(norm.cdf(edges - f[:, None]), axis=1)
    return X, np.digitize(f + rng.normal(size=n), CUTS), truth


def ids(model):
    return type(model).__name__


# Likelihood


def test_probabilities_are_those_of_intervals_of_the_normal_distribution():
    f = np.linspace(-4, 4, 9)
    edges = np.array([-np.inf, *CUTS, np.inf])
    expected = np.diff(norm.cdf(edges - f[:, None]), axis=1)
    likelihood = Ordinal(CUTS)
    for k in range(5):
        codes = torch.full((9,), k)
        found = likelihood.log_prob(codes, t64(f[:, None])).exp()
        assert_allclose(found.detach(), expected[:, k], rtol=1e-9, atol=1e-15)
    assert_allclose(
        likelihood.predict(t64(f[:, None]), torch.zeros(9, 1)).detach(), expected, atol=1e-15
    )


def exact_interval(low, high):
    """Return log M of a normal interval and its two derivatives in f, to 60 digits; mpmath."""
    mpmath.mp.dps = 60
    low, high = mpmath.mpf(low), mpmath.mpf(high)
    if low + high > 0:
        below, above = -high, -low
    else:
        below, above = low, high
    mass = mpmath.ncdf(above) - mpmath.ncdf(below)
    densities = [mpmath.npdf(end) for end in (low, high)]
    first = (densities[0] - densities[1]) / mass
    moments = [0 if mpmath.isinf(end) else end * mpmath.npdf(end) for end in (low, high)]
    second = (moments[0] - moments[1]) / mass - first**2
    return mpmath.log(mass), first, second


@pytest.mark.parametrize("f", [0.0, 0.3, 1.0, 5.0, 30.0, 300.0, 1e4])
@pytest.mark.parametrize("cuts", [[-1.0, 0.5, 3.0], [0.0, 1e-6], [-30.0, 30.0], [-1e3, 1e3], [2.0]])
def test_values_and_derivatives_are_exact_far_out_and_of_any_width(cuts, f):
    likelihood = Ordinal(cuts)
    edges = [-mpmath.inf, *likelihood.thresholds.tolist(), mpmath.inf]
    for sign in (-1, 1):
        mean = t64([[sign * f]]).expand(len(edges) - 1, 1)
        codes = torch.arange(len(mean))
        found = likelihood.expected_terms(codes, mean, torch.zeros_like(mean))
        rows = itertools.pairwise(edges)
        exact = [exact_interval(low - sign * f, high - sign * f) for low, high in rows]
        value, first, second = np.array(exact, dtype=float).T
        assert_allclose(found[0].detach(), value, rtol=1e-10, atol=1e-10)
        assert_allclose(found[1][:, 0], first, rtol=1e-9, atol=1e-9)
        # It is a difference of terms of f times density over probability, which is at most
        # about f + 1 / width.
        size = f * (f + 1 / min(np.diff(cuts), default=1.0))
        assert_allclose(found[2][:, 0], second, atol=max(1e-9, 1e-15 * size))
        in_single = likelihood.expected_terms(codes, mean.float(), torch.zeros_like(mean).float())
        for one, other in zip(in_single, found, strict=True):
            assert_allclose(one.detach(), other.detach(), rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(
            likelihood.log_prob(codes, mean).sum(), list(likelihood.parameters())
        )
        assert all(part.isfinite().all() for part in gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("f", [0.0, 0.3, 5.0, 30.0, 1e3, 1e6, 1e9])
def test_probit_has_exact_derivatives_far_out(f, dtype):
    mean = torch.tensor([[f], [-f]], dtype=dtype)
    value, first, second = Probit().expected_terms(torch.tensor([1, 1]), mean, 0 * mean)
    exact = [exact_interval(-at, mpmath.inf) for at in mean[:, 0].tolist()]
    expected = np.array(exact, dtype=float).T
    rounding = torch.finfo(dtype).eps
    assert_allclose(value.detach(), expected[0], rtol=10 * rounding, atol=1e-12)
    assert_allclose(first[:, 0], expected[1], rtol=10 * rounding, atol=1e-12)
    # Its terms of size f^2 cancel to at most one.
    assert_allclose(second[:, 0], expected[2], atol=max(rounding, 2e-16 * f**2))
    assert ((second >= -1) & (second <= 0)).all()


def test_two_classes_are_those_of_the_probit():
    y, mean = torch.tensor([0, 1, 1]), t64([[-3.0], [0.2], [30.0]])
    var = t64([[0.5], [0.0], [4.0]])
    ordinal, probit = Ordinal([0.0]), Probit()
    assert_allclose(ordinal.log_prob(y, mean).detach(), probit.log_prob(y, mean), rtol=1e-14)
    found, expected = (part.expected_terms(y, mean, var) for part in (ordinal, probit))
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one.detach(), other, rtol=1e-9, atol=1e-12)


def test_derivatives_are_those_of_automatic_differentiation():
    torch.manual_seed(0)
    likelihood, y = Ordinal([-1.0, 0.5, 0.51, 3.0]), torch.randint(0, 5, (200,))
    mean = 4 * torch.randn(200, 1, dtype=torch.float64)
    var = 3 * torch.rand(200, 1, dtype=torch.float64)
    found = likelihood.expected_terms(y, mean, var)

    def derivatives(f):
        f = f.detach().requires_grad_()
        (first,) = torch.autograd.grad(likelihood.log_prob(y, f).sum(), f, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), f)
        return torch.stack([first.detach(), second], 1)

    expected = likelihood.expected_log_prob(y, mean, var), *expect(derivatives, mean, var)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one.detach(), other.detach(), atol=1e-10)
    assert (found[2] <= 0).all()


@pytest.mark.parametrize("weights", [None, [1, 0, 0, 0], [0, 0, 0, 2.0]])
def test_parameters_determine_the_thresholds_whatever_their_weights(weights):
    likelihood = Ordinal(CUTS, weights)
    assert_allclose(likelihood.thresholds.detach(), CUTS)
    assert_allclose(likelihood.weights.sum(), 1)
    if weights:
        assert_allclose(likelihood.center.detach(), [CUTS[np.argmax(weights)]])


@pytest.mark.parametrize("weights", [[1.0], [1, -1, 1, 1], [0, 0, 0, 0], [1, np.nan, 1, 1]])
def test_weights_of_thresholds_are_checked(weights):
    with pytest.raises(ValueError, match="weights must be 4 finite numbers"):
        Ordinal(CUTS, weights)


@pytest.mark.parametrize("thresholds", [[], [1.0, 1.0], [2.0, 1.0], [np.nan], [[0.0, 1.0]]])
def test_thresholds_must_increase(thresholds):
    with pytest.raises(ValueError, match="increasing finite numbers"):
        Ordinal(thresholds)


# Classifiers


def proportional_probit(X, y, new):
    """Return class probabilities (n, c) of ordered probit regression by maximum likelihood."""
    c, d = y.max() + 1, X.shape[1]

    def probabilities(values, X):
        cuts = np.cumsum([values[0], *np.exp(values[1 : c - 1])])
        edges = np.array([-np.inf, *cuts, np.inf])
        return np.diff(norm.cdf(edges - (X @ values[c - 1 :])[:, None]), axis=1)

    def loss(values):
        return -np.log(probabilities(values, X)[np.arange(len(y)), y] + 1e-300).mean()

    start = np.concatenate([[-1.0], np.zeros(c - 2), np.zeros(d)])
    return probabilities(minimize(loss, start, method="BFGS").x, new)


@pytest.mark.parametrize("model", CLASSIFIERS, ids=ids)
def test_linear_functions_are_those_of_ordered_probit_regression(model):
    X, y, _ = ordered(1500, function=lambda X: X[:, 0] - 0.5 * X[:, 1])
    new = X[:200]
    expected = proportional_probit(X, y, new)
    found = clone(model).fit(X, y).predict_proba(new)
    # Both estimate the same probabilities, but for functions that need not be linear: .0016 and
    # .013 apart when this was written.
    assert np.abs(found - expected).mean() < 0.02


@pytest.mark.parametrize("solver", ["auto", "natural_gradient"])
def test_reversed_classes_have_reversed_probabilities(solver):
    rng = np.random.default_rng(1)
    X, new = rng.normal(size=(150, 2)), rng.normal(size=(50, 2))
    y = np.digitize(np.sin(X[:, 0]) + rng.normal(size=150), [1.5, 2.3, 2.8])
    assert np.bincount(y).min() > 0
    model = SVGPClassifier(likelihood="ordinal", solver=solver, tol=1e-2, random_state=0)
    fits = [clone(model).fit(X, labels) for labels in (y, -y)]
    ahead, back = (fit.predict_proba(new) for fit in fits)
    assert_allclose(ahead, back[:, ::-1], atol=1e-6)
    assert_allclose(fits[0].thresholds_, -fits[1].thresholds_[::-1], rtol=1e-6)


@pytest.mark.parametrize("model", CLASSIFIERS, ids=ids)
def test_order_helps_where_rows_are_few(model):
    X, y, truth = ordered(1200)
    few, rest = slice(150), slice(150, None)
    losses = {}
    for likelihood in ("ordinal", "softmax"):
        fitted = clone(model).set_params(likelihood=likelihood).fit(X[few], y[few])
        p = fitted.predict_proba(X[rest])
        losses[likelihood] = -(truth[rest] * np.log(p)).sum(1).mean()
    assert losses["ordinal"] < losses["softmax"] - 0.02


@pytest.mark.parametrize("model", CLASSIFIERS, ids=ids)
def test_thresholds_are_learned(model):
    X, y, _ = ordered(1500)
    fitted = clone(model).fit(X, y)
    assert fitted.thresholds_.shape == (4,)
    # The prior mean moves all together; distances are in units of the noise.
    assert_allclose(np.diff(fitted.thresholds_), np.diff(CUTS), atol=0.3)
    latents, _ = fitted.latent_mean_and_variance(X)
    assert latents.shape == (1500,)
    p = fitted.predict_proba_from_latent(latents[:, None])
    edges = np.array([-np.inf, *fitted.thresholds_, np.inf])
    expected = np.diff(norm.cdf(edges - latents[:, None]), axis=1)
    if fitted.temperature_ == 1:
        assert_allclose(p, expected, atol=1e-10)
    assert_allclose(p.sum(1), 1)
    same = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(same.predict_proba(X[:9]), fitted.predict_proba(X[:9]))


@pytest.mark.parametrize("model", CLASSIFIERS, ids=ids)
def test_noise_is_not_explained(model):
    rng = np.random.default_rng(0)
    y = np.digitize(rng.normal(size=1200), [-1, 0, 0.7])
    X = rng.normal(size=(1200, 5))
    p = clone(model).fit(X[:200], y[:200]).predict_proba(X[200:])
    base = np.tile(np.bincount(y[:200]) / 200, (1000, 1))
    assert log_loss(y[200:], p) < log_loss(y[200:], base) + 0.01


@pytest.mark.parametrize("model", CLASSIFIERS, ids=ids)
def test_labels_are_numbers(model):
    X, y, _ = ordered(60)
    names = np.array(["none", "little", "some", "much", "all"])[y]
    with pytest.raises(ValueError, match="numbers in the order of the classes"):
        clone(model).fit(X, names)
    grades = np.array([3, 4, 20, 22, 24])[y]
    fitted = clone(model).fit(X, grades)
    assert np.array_equal(fitted.predict_proba(X), clone(model).fit(X, y).predict_proba(X))
    assert set(fitted.predict(X)) <= set(grades)


def test_fixed_hyperparameters_start_from_class_frequencies():
    X, y, _ = ordered(400)
    model = SVGPClassifier(4.0 * RBF(), likelihood="ordinal", optimizer=None, mean="zero")
    thresholds = model.fit(X, y).thresholds_
    shares = (np.cumsum(np.bincount(y) + 0.5) / (400 + 2.5))[:-1]
    assert_allclose(thresholds, norm.ppf(shares) * np.sqrt(5.0), rtol=1e-12)


@pytest.mark.parametrize("model", CLASSIFIERS, ids=ids)
def test_more_rows_keep_the_thresholds(model):
    X, y, _ = ordered(600)
    fitted = clone(model).partial_fit(X[:300], y[:300], classes=range(5))
    before = fitted.thresholds_.copy()
    loss = log_loss(y[300:], fitted.predict_proba(X[300:]))
    fitted.partial_fit(X[300:], y[300:])
    assert_allclose(fitted.thresholds_, before)
    assert log_loss(y[300:], fitted.predict_proba(X[300:])) < loss


@pytest.mark.parametrize("solver", ["natural_gradient", "gradient"])
def test_other_solvers_learn_thresholds(solver):
    X, y, truth = ordered(400)
    model = SVGPClassifier(likelihood="ordinal", solver=solver, n_inducing=20, random_state=0)
    p = model.fit(X, y).predict_proba(X)
    base = np.bincount(y) / len(y)
    gained = -(truth * np.log(base)).sum(1).mean() + (truth * np.log(p)).sum(1).mean()
    assert gained > 0.3  # of .57 of the truth


def test_monotone_effects_move_all_probabilities_of_higher_classes():
    X, y, _ = ordered(400, function=lambda X: np.arctan(2 * X[:, 0]) + np.sin(2 * X[:, 1]))
    model = AdditiveGPClassifier(likelihood="ordinal", monotonic_cst=[1, 0], random_state=0)
    model.fit(X, y)
    line = np.column_stack([np.linspace(-2, 2, 50), np.full(50, 0.3)])
    above = model.predict_proba(line)[:, ::-1].cumsum(1)[:, ::-1][:, 1:]
    assert (np.diff(above, axis=0) > -1e-9).all()
    with pytest.raises(ValueError, match="two classes, or ordered ones"):
        clone(model).set_params(likelihood="softmax").fit(X, y)


def test_tables_hold_the_thresholds():
    X, y, _ = ordered(200)
    model = clone(CLASSIFIERS[1]).fit(X, y)
    table = ComponentEffects.from_estimator(model, n_points=5).to_dict()
    assert table["link"] == "ordinal"
    assert table["thresholds"] == model.thresholds_.tolist()
    other = clone(model).set_params(likelihood="softmax").fit(X, y)
    assert ComponentEffects.from_estimator(other, n_points=5).to_dict()["thresholds"] is None
