"""Problems of variational GPs: what is learned, the prior of the default kernel, and the starts."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skgpsvm import SVGPClassifier, SVGPRegressor
from skgpsvm._variational import classification_problem, regression_problem


@pytest.fixture
def problem_of(monkeypatch):
    """A function that returns the problem of an estimator's fit, and the estimator."""

    def make(estimator, y):
        problems, fit_model = [], type(estimator)._fit_model

        def kept(self, problem):
            problems.append(problem)
            return fit_model(self, problem)

        monkeypatch.setattr(type(estimator), "_fit_model", kept)
        X = np.random.default_rng(0).normal(size=(40, 2))
        estimator.set_params(n_inducing=5, max_iter=2, random_state=0).fit(X, y(X))
        return problems[-1]

    return make


def plane(X):
    return X[:, 0] + 0.1 * X[:, 1]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("parameters", "learned", "has_prior"),
    [
        ({}, ("theta", "noise", "Z"), True),
        ({"learn_inducing": False}, ("theta", "noise"), True),
        ({"optimizer": None}, ("Z",), False),
        ({"kernel": 1.0 * RBF()}, ("theta", "noise", "Z"), False),
        ({"kernel": RBF() + WhiteKernel(0.1, "fixed")}, ("theta", "Z"), False),
    ],
)
def test_what_is_learned_and_which_kernel_has_a_prior(parameters, learned, has_prior, problem_of):
    model = SVGPRegressor(**parameters)
    problem = problem_of(model, plane)
    sparse = regression_problem(model, problem, "zero")
    assert sparse.learned == learned
    assert (sparse.prior() is not None) == has_prior
    if "kernel" in parameters and sparse.template is not None:
        assert sparse.template == parameters["kernel"]
        assert sparse.kernel == RBF()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("optimizer", "learns"), [("auto", True), (None, False)])
def test_variance_of_a_linear_mean_is_learned_with_the_rest(optimizer, learns, problem_of):
    model = SVGPClassifier(optimizer=optimizer)
    problem = problem_of(model, lambda X: (X[:, 0] > 0).astype(int))
    linear, zero = (classification_problem(model, problem, mean) for mean in ("linear", "zero"))
    assert linear.kernel.n_dims - zero.kernel.n_dims == learns
    assert (linear.prior() is not None) == learns
    assert ("theta" in linear.learned) == learns


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_bounds_of_streams_add_up():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=60)
    model = SVGPRegressor(1.0 * RBF(), n_inducing=8, optimizer=None, learn_inducing=False)
    model.set_params(mean="zero", normalize_y=False, random_state=0)
    model.partial_fit(X[:30], y[:30])
    points = model.inducing_points_
    streamed = model.partial_fit(X[30:], y[30:]).elbo_
    whole = model.set_params(inducing_points=points, warm_start=False).fit(X, y).elbo_
    assert streamed == pytest.approx(whole, abs=1e-6)
