"""The evidence as a function of the hyperparameters, and functions that optimize it."""

import warnings

import numpy as np
import oracles
import pytest
from numpy.testing import assert_allclose
from problems import assert_all_close
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpsvm import DecoupledGPRegressor, EPClassifier, SVGPClassifier, SVGPRegressor
from skgpsvm._fitted_models import SparseModel
from skgpsvm._sparse import optimized
from skgpsvm.exceptions import NotPositiveDefiniteError
from skgpsvm.solvers import InterleavedEP, NaturalGradient

KERNEL = 2.0 * RBF([1.0, 1.5], [(1e-2, 1e2), (1e-2, 1e2)])
WITH_NOISE = WhiteKernel(0.1) + KERNEL
OTHER = 10.0 * RBF([0.5, 0.5])
SPARSE = {"n_inducing": 12, "max_iter": 2}


def problem(n_outputs=None):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    signals = np.stack([np.sin(2 * X[:, 0]), X[:, 1]], 1) + 0.2 * rng.normal(size=(40, 2))
    return X, 3 + 2 * (signals[:, 0] if n_outputs is None else signals)


def fitted(kernel, X, y, **more):
    return SVGPRegressor(kernel, mean="zero", optimizer=None, random_state=0, **more).fit(X, y)


def away(model):
    return model.kernel_.theta + np.linspace(-0.3, 0.4, model.kernel_.n_dims)


@pytest.mark.parametrize("n_outputs", [None, 2])
@pytest.mark.parametrize("kernel", [KERNEL, WITH_NOISE, KERNEL + WhiteKernel(0.1, "fixed")])
def test_exact_process_has_the_evidence_of_scikit_learn(kernel, n_outputs):
    X, y = problem(n_outputs)
    model = fitted(kernel, X, y)
    theirs = kernel + WhiteKernel(0.1, "fixed") if kernel is KERNEL else kernel
    peer = GaussianProcessRegressor(theirs, optimizer=None, normalize_y=True).fit(X, y)
    value = peer.log_marginal_likelihood_value_
    assert model.log_marginal_likelihood_value_ == pytest.approx(value, abs=1e-6)
    for theta in (model.kernel_.theta, away(model)):
        found = model.log_marginal_likelihood(theta, eval_gradient=True, X=X, y=y)
        # scikit-learn adds 1e-10 to the variances, and we a jitter of 1e-9 of their mean.
        assert_all_close(found, peer.log_marginal_likelihood(theta, True), atol=1e-6)


def test_sparse_process_has_titsias_bound():
    X, y = problem()
    model = fitted(WITH_NOISE, X, y, n_inducing=12)
    standard = (y - y.mean()) / y.std()
    Z, theta = model.inducing_points_, away(model)
    kernel, noise = model.kernel_.clone_with_theta(theta).k2, np.exp(theta[0])
    expected = oracles.collapsed(kernel, Z, Z, X, standard, noise)
    assert model.log_marginal_likelihood(theta, X=X, y=y) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("n_outputs", [None, 2])
@pytest.mark.parametrize("n_inducing", [None, 12])
@pytest.mark.parametrize("kernel", [KERNEL, WITH_NOISE, KERNEL + WhiteKernel(0.1)])
def test_gradient_is_that_of_finite_differences(kernel, n_inducing, n_outputs, known):
    X, y = problem(n_outputs)
    data = {"X": X, "y": y, "sample_weight": np.linspace(0.5, 1.5, len(X))}
    data["noise_variance"] = np.linspace(0.01, 1, len(X)) if known else None
    model = fitted(clone(kernel), X, y, n_inducing=n_inducing)
    theta = away(model)
    value, gradient = model.log_marginal_likelihood(theta, True, **data)
    assert value == pytest.approx(model.log_marginal_likelihood(theta, **data), rel=1e-12)
    ends = [
        [model.log_marginal_likelihood(theta + sign * step, **data) for sign in (1, -1)]
        for step in 1e-4 * np.eye(len(theta))
    ]
    assert_allclose(gradient, [(up - down) / 2e-4 for up, down in ends], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("more", [{}, SPARSE])
def test_value_at_the_fit_is_its_elbo(more):
    X, y = problem()
    model = SVGPRegressor(random_state=0, **more).fit(X, y)
    assert model.log_marginal_likelihood() == model.elbo_
    assert model.log_marginal_likelihood(X=X, y=y) == pytest.approx(model.elbo_, abs=1e-5)


def labels_of(y, n_classes):
    return np.digitize(y, [3.0] if n_classes == 2 else [2.5, 3.5])


def targets(likelihood, y):
    signal = (y - 3) / 2
    transforms = {
        "poisson": lambda f: np.round(np.exp(f)),
        "negative_binomial": lambda f: np.round(np.exp(f)),
        "gamma": np.exp,
        "beta": expit,
    }
    return transforms.get(likelihood, lambda f: y)(signal)


CLASSIFIERS = [("softmax", 2), ("softmax", 3), ("probit", 2), ("robust_max", 3)]
OF_OTHER_NOISE = ["laplace", "student_t", "heteroscedastic"]
OF_LINKS = ["poisson", "negative_binomial", "gamma", "beta"]
WITHOUT_CLOSED_FORM = [
    *(
        pytest.param(SVGPClassifier(likelihood=name), k, id=f"{name} {k}")
        for name, k in CLASSIFIERS
    ),
    *(
        pytest.param(SVGPRegressor(likelihood=name), 0, id=name)
        for name in OF_OTHER_NOISE + OF_LINKS
    ),
]


def fitted_without_closed_form(model, n_classes, n_inducing=12):
    X, y = problem()
    y = labels_of(y, n_classes) if n_classes else targets(model.likelihood, y)
    model = clone(model).set_params(n_inducing=n_inducing, random_state=0)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return model.fit(X, y), {"X": X, "y": y}


@pytest.mark.parametrize(("model", "n_classes"), WITHOUT_CLOSED_FORM)
def test_value_without_closed_form_is_the_elbo(model, n_classes):
    model, data = fitted_without_closed_form(model, n_classes)
    assert model.log_marginal_likelihood_value_ == model.elbo_
    value = model.log_marginal_likelihood(**data)
    # The fit ends once its means hardly move. Its softmax has fewer draws.
    atol = 0.5 if n_classes == 3 and model.likelihood == "softmax" else 1e-2
    assert value == pytest.approx(model.elbo_, abs=atol)
    again = model.log_marginal_likelihood(model.kernel_.theta, **data)
    assert again == value


@pytest.mark.parametrize(("model", "n_classes"), WITHOUT_CLOSED_FORM)
def test_gradient_without_closed_form_is_that_of_finite_differences(model, n_classes):
    model, data = fitted_without_closed_form(model, n_classes)
    data["sample_weight"] = np.linspace(0.5, 1.5, len(data["y"]))
    theta = away(model)
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True, **data)
    assert value == model.log_marginal_likelihood(theta, **data)
    ends = [
        [model.log_marginal_likelihood(theta + sign * step, **data) for sign in (1, -1)]
        for step in 1e-3 * np.eye(len(theta))
    ]
    # Expectations of the softmax are over draws, and those of Student-t noise by few nodes for its
    # tails: errors of derivatives are not derivatives of errors.
    atol = {"softmax 3": 0.03, "student_t 0": 0.2}.get(f"{model.likelihood} {n_classes}", 1e-3)
    differences = [(up - down) / 2e-3 for up, down in ends]
    assert_allclose(gradient, differences, rtol=1e-3, atol=atol)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_elbo_of_classes_does_not_depend_on_the_fit(n_classes):
    """The sweeps end at the same posterior, whichever they start from."""
    X, y = problem()
    data = {"X": X, "y": labels_of(y, n_classes)}
    parts = {"mean": "zero", "optimizer": None, "inducing_points": X}
    near, far = (SVGPClassifier(kernel, **parts).fit(*data.values()) for kernel in (KERNEL, OTHER))
    value = near.log_marginal_likelihood(**data)
    assert far.log_marginal_likelihood(KERNEL.theta, **data) == pytest.approx(value, abs=1e-5)


def test_elbo_of_classes_is_slightly_below_the_evidence():
    X, y = problem()
    parts = {"mean": "zero", "optimizer": None, "inducing_points": X}
    labels = labels_of(y, 2)
    model = SVGPClassifier(KERNEL, likelihood="probit", **parts).fit(X, labels)
    evidence = EPClassifier(KERNEL, **parts).fit(X, labels)
    gap = evidence.log_marginal_likelihood() - model.log_marginal_likelihood(X=X, y=labels)
    assert 0 < gap < 0.1


def test_class_weights_of_the_next_fit_do_not_change_the_model():
    X, y = problem()
    labels = labels_of(y, 2)
    model = SVGPClassifier(KERNEL, n_inducing=8, optimizer=None, random_state=0).fit(X, labels)
    before = model.predict_proba(X)
    model.set_params(class_weight={0: 5.0, 1: 1.0}).log_marginal_likelihood(X=X, y=labels)
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_errors_and_absence():
    X, y = problem()
    model = fitted(KERNEL, X, y)
    with pytest.raises(ValueError, match="pass the rows of fit as X and y"):
        model.log_marginal_likelihood(model.kernel_.theta)
    with pytest.raises(ValueError, match=r"theta has shape \(1,\), but kernel_.theta has shape"):
        model.log_marginal_likelihood([0.0], X=X, y=y)
    assert not hasattr(DecoupledGPRegressor(), "log_marginal_likelihood")
    with pytest.raises(NotFittedError):
        SVGPClassifier().log_marginal_likelihood()


def test_one_theta_may_be_that_of_every_class():
    X, y = problem()
    labels = np.digitize(y, [2.5, 3.5])
    model = EPClassifier(KERNEL, mean="zero", n_inducing=8, optimizer=None, random_state=0)
    model.fit(X, labels)
    theta = KERNEL.theta + np.array([0.1, 0.2, -0.3])
    value, gradient = model.log_marginal_likelihood(theta, True, X=X, y=labels)
    every, parts = model.log_marginal_likelihood(np.tile(theta, 3), True, X=X, y=labels)
    assert value == every
    assert_allclose(gradient, parts.reshape(3, 3).sum(0))
    with pytest.raises(ValueError, match=r"\(9,\), and that of each class \(3,\)"):
        model.log_marginal_likelihood(theta[:2], X=X, y=labels)


# Functions as optimizers


def by_scipy(loss, theta, bounds):
    found = minimize(loss, theta, jac=True, method="L-BFGS-B", bounds=bounds)
    return found.x, found.fun


@pytest.mark.parametrize("solver", ["auto", "natural_gradient"])
def test_a_function_finds_the_hyperparameters_of_scikit_learn(solver):
    X, y = problem()
    kernel = WhiteKernel(0.1) + 2.0 * RBF(1.0)
    model = SVGPRegressor(kernel, mean="zero", optimizer=by_scipy, solver=solver).fit(X, y)
    peer = GaussianProcessRegressor(kernel, normalize_y=True).fit(X, y)
    assert_allclose(model.kernel_.theta, peer.kernel_.theta, atol=1e-3)
    assert_allclose(model.predict(X), peer.predict(X), atol=1e-3)


def test_a_function_learns_each_class_by_its_evidence():
    X, y = problem()
    labels = np.digitize(y, [2.5, 3.5])
    kernel = 2.0 * RBF([1.0, 1.5], "fixed")
    model = EPClassifier(kernel, mean="zero", n_inducing=8, optimizer=by_scipy, random_state=0)
    model.fit(X, labels)
    _, gradient = model.log_marginal_likelihood(None, True, X=X, y=labels)
    assert_allclose(gradient, 0, atol=1e-2)
    assert np.ptp(model.kernel_.theta) > 0.1


def test_an_evaluation_that_fails_is_infinitely_bad():
    found = []

    def optimizer(loss, theta, bounds):
        found.extend([*loss(theta), loss(theta, eval_gradient=False)])
        return theta, 0.0

    def fail(*_):
        raise NotPositiveDefiniteError("K")

    optimized(optimizer, fail, SparseModel(KERNEL, problem()[0], noise=(0.0,)), None)
    assert found[0] == found[2] == np.inf
    assert_allclose(found[1], np.zeros(3))


def test_functions_need_a_kernel_and_gaussian_noise():
    X, y = problem()
    with pytest.raises(ValueError, match="needs a kernel"):
        SVGPRegressor(optimizer=by_scipy).fit(X, y)
    for other in (SVGPRegressor(likelihood="laplace"), SVGPClassifier(), DecoupledGPRegressor()):
        with pytest.raises(ValueError, match="optimizer"):
            other.set_params(kernel=KERNEL, optimizer=by_scipy).fit(X, np.round(y))


@pytest.mark.parametrize(
    "model",
    [
        EPClassifier(KERNEL, solver="gfitc"),
        EPClassifier(KERNEL, solver=InterleavedEP(rule="sign")),
        SVGPRegressor(KERNEL, solver=NaturalGradient(learning_rate=0.1)),
    ],
)
def test_options_of_learning_have_no_effect_beside_a_function(model):
    X, y = problem()
    with pytest.raises(ValueError, match="optimizer='auto'"):
        model.set_params(optimizer=by_scipy).fit(X, y > 3)
