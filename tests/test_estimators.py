"""Every estimator of the package behaves as scikit-learn and its users expect."""

import pickle
import random
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import every_estimator
import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from configurations import DETERMINISTIC, STOCHASTIC
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_all_close, assert_all_equal, waves
from scipy.special import expit, log_softmax
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import StackingClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Matern,
    PairwiseKernel,
)
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import all_estimators, check_random_state
from sklearn.utils.estimator_checks import parametrize_with_checks

import skgpsvm
from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
    _data,
)
from skgpsvm._inference import coordinate_ascent as _ascent
from skgpsvm._inference.natural_gradient import CoordinateInference
from skgpsvm.exceptions import DivergenceError, NumericalWarning
from skgpsvm.solvers import CoordinateAscent, Gradient, InterleavedEP

ESTIMATORS = [getattr(skgpsvm, name) for name in skgpsvm.__all__ if name[0] != "_"]

# Given hyperparameters and few inducing points, for tests that are not about learning them.
quick = partial(BayesianSVC, n_inducing=8, optimizer=None, random_state=0)
MODES = {
    "coordinate ascent": {},
    "ovr": {"multi_class": "ovr"},
    "argmax": {"probability": "argmax"},
    "gradient": {"solver": "gradient", "tol": 0.1},
    "minibatches": {"solver": CoordinateAscent(batch_size=16), "tol": 0.2},
    "learned inducing points": {"learn_inducing": True, "max_iter": 30, "tol": 0.1},
}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
modes_and_learned_kernel = pytest.mark.parametrize(
    "mode", [*MODES.values(), {"optimizer": "auto"}], ids=[*MODES, "learned kernel"]
)


def blobs(n=60, d=2, n_classes=3, seed=0):
    """Return overlapping, normally distributed classes with integer labels."""
    rng = np.random.RandomState(seed)
    y = np.arange(n) % n_classes
    return 1.5 * rng.normal(size=(n_classes, d))[y] + rng.normal(size=(n, d)), y


def predictions(model, X):
    """Return all predictions of a model for rows."""
    return (model.predict(X), model.predict_proba(X), *model.latent_mean_and_variance(X))


def assert_same_bits(model, other, X, other_X=None):
    """Require that two models predict the same, to the last bit."""
    other_X = X if other_X is None else other_X
    assert_all_equal(predictions(model, X), predictions(other, other_X))


def assert_probabilities(P, n_classes):
    assert P.shape[1] == n_classes
    assert np.isfinite(P).all()
    assert (P >= 0).all()
    # The error is a few roundings of numbers up to 1.
    assert_allclose(P.sum(1), 1, atol=1e-12)


# scikit-learn's own checks


# On data without structure many fits reach max_iter, and first calls have few rows: both warn.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.* first call")
@parametrize_with_checks([*DETERMINISTIC, *STOCHASTIC])
def test_scikit_learn_check(estimator, check):
    check(estimator)


# Inside scikit-learn's meta-estimators


def test_grid_search_over_a_pipeline_in_two_processes():
    X, y = blobs()
    pipeline = make_pipeline(StandardScaler(), quick(kernel=1.0 * RBF()))
    grid = {
        "bayesiansvc__kernel__k2__length_scale": [0.01, 1.0],
        "bayesiansvc__probability": ["calibrated", "argmax"],
    }
    search = GridSearchCV(pipeline, grid, cv=3, scoring="neg_log_loss", n_jobs=2).fit(X, y)
    alone = GridSearchCV(pipeline, grid, cv=3, scoring="neg_log_loss").fit(X, y)
    # The number of threads, and thus the order of sums, may differ in a worker.
    assert_allclose(
        search.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"], rtol=1e-6
    )
    best = search.best_estimator_[-1]
    assert search.best_params_["bayesiansvc__kernel__k2__length_scale"] == 1.0
    assert best.kernel_.k2.length_scale == pytest.approx(1.0)
    assert search.best_score_ > -np.log(3)


def test_cross_val_predict_is_the_loop_over_folds():
    X, y = blobs()
    folds = StratifiedKFold(3)
    got = cross_val_predict(quick(), X, y, cv=folds, method="predict_proba")
    for train, test in folds.split(X, y):
        assert_array_equal(got[test], quick().fit(X[train], y[train]).predict_proba(X[test]))


@pytest.mark.parametrize("method", ["sigmoid", "isotonic", "temperature"])
def test_calibrated_classifier(method):
    X, y = blobs(120)
    frozen = FrozenEstimator(quick(probability="argmax").fit(X[:60], y[:60]))
    calibrated = CalibratedClassifierCV(frozen, method=method).fit(X[60:], y[60:])
    assert_probabilities(calibrated.predict_proba(X), 3)
    if method == "temperature":  # the result is a monotone function of `decision_function`
        assert_array_equal(calibrated.predict(X), frozen.predict(X))
        before, after = (log_loss(y[60:], m.predict_proba(X[60:])) for m in (frozen, calibrated))
        assert after <= before + 1e-6  # its optimizer's tolerance


def test_one_vs_rest_is_ovr():
    X, y = blobs()
    options = {"kernel": 2.0 * RBF(1.5), "inducing_points": X[:8]}
    rest = OneVsRestClassifier(quick(**options)).fit(X, y)
    ours = quick(multi_class="ovr", **options).fit(X, y)
    mean, variance = ours.latent_mean_and_variance(X)
    for j, binary in enumerate(rest.estimators_):
        one_mean, one_variance = binary.latent_mean_and_variance(X)
        assert_array_equal(one_mean, mean[:, j])
        assert_allclose(one_variance / binary.spread_, variance[:, j] / ours.spread_)


def test_stacking_uses_probabilities():
    X, y = blobs()
    stack = StackingClassifier([("svc", quick()), ("logistic", LogisticRegression())], cv=3)
    assert stack.fit(X, y).stack_method_ == ["predict_proba"] * 2
    assert stack.score(X, y) > 0.6


def test_sample_weights_are_routed():
    X, y = blobs()
    weights = 1.0 + y
    with config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(
            StandardScaler().set_fit_request(sample_weight=False),
            quick().set_fit_request(sample_weight=True),
        )
        pipeline.fit(X, y, sample_weight=weights)
    scaled = StandardScaler().fit_transform(X)
    assert_same_bits(pipeline[-1], quick().fit(scaled, y, weights), scaled)


def test_clone_is_unfitted_and_fits_the_same():
    X, y = blobs()
    model = quick(kernel=1.0 * RBF(), class_weight={0: 2.0}).fit(X, y)
    copy = clone(model)
    assert repr(copy) == repr(model)
    with pytest.raises(NotFittedError):
        copy.predict(X)
    assert_same_bits(copy.fit(X, y), model, X)


@modes
def test_pickles_predict_the_same_and_hold_no_tensors(mode, tmp_path):
    X, y = blobs()
    model = quick(**mode).fit(X, y)
    stored = pickle.dumps(model)
    assert b"torch" not in stored
    assert_same_bits(pickle.loads(stored), model, X)
    joblib.dump(model, tmp_path / "model.joblib", compress=1)
    assert_same_bits(joblib.load(tmp_path / "model.joblib"), model, X)


def test_fitted_state_does_not_grow_with_the_data():
    # Conformal sets need the log losses of rows left out, of which at most 3,000 are kept.
    sizes = [len(pickle.dumps(quick(n_inducing=5).fit(*blobs(n)))) for n in (3000, 6000)]
    # `objective_curve_` has 8 bytes per iteration.
    assert abs(sizes[1] - sizes[0]) < 8 * 100


def test_representations_show_parameters_and_fitted_attributes():
    X, y = blobs()
    model = quick(kernel=1.0 * RBF())
    assert "1**2 * RBF" in repr(model)
    assert "RBF" in model._repr_html_()
    assert "temperature_" in model.fit(X, y)._repr_html_()


def test_output_containers_do_not_concern_predictions():
    X, y = blobs()
    model = quick().fit(X, y)
    with config_context(transform_output="pandas"):
        assert all(type(part) is np.ndarray for part in predictions(model, X))


# Input data


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_data_frames(frame):
    X, y = blobs()
    table = frame(dict(zip("ab", X.T, strict=True)))
    labels = (pd.Series if frame is pd.DataFrame else pl.Series)(np.array(["u", "v", "w"])[y])
    model = quick().fit(table, labels)
    assert_array_equal(model.feature_names_in_, ["a", "b"])
    assert_array_equal(model.classes_, ["u", "v", "w"])
    # Data frames are stored by columns, so that sums are in another order.
    expected = quick().fit(X, y).predict_proba(X)
    assert_allclose(model.predict_proba(table), expected, rtol=1e-10)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table[["b", "a"]])


@pytest.mark.parametrize(
    "labels",
    [
        ["z", "y", "x"],
        np.array(["one", "three", "two"], dtype=object),
        [-7, 3, 100],
        [0.0, 5.0, 9.0],
        [2**40, 0, -(2**40)],
    ],
    ids=str,
)
def test_any_labels(labels):
    X, y = blobs()
    labels = np.asarray(labels)
    model = quick().fit(X, labels[y])
    assert_array_equal(model.classes_, np.unique(labels))
    assert model.predict(X).dtype == model.classes_.dtype
    assert model.score(X, labels[y]) > 0.6


def test_boolean_labels():
    X, y = blobs(n_classes=2)
    model = quick().fit(X, y == 1)
    assert model.predict(X).dtype == bool
    assert_array_equal(model.predict_proba(X), quick().fit(X, y).predict_proba(X))


def test_categorical_labels():
    X, y = blobs()
    labels = pd.Series(pd.Categorical.from_codes(y, ["lo", "mid", "hi"]))
    assert set(quick().fit(X, labels).predict(X)) <= {"lo", "mid", "hi"}


@pytest.mark.parametrize("sizes", [(20, 20, 20), (25, 15, 20)], ids=str)
@pytest.mark.parametrize(
    "model",
    [
        BayesianSVC(),
        EPClassifier(),
        SVGPClassifier(),
        DecoupledGPClassifier(),
        QSGPClassifier(),
        QSRVMClassifier(),
        AdditiveGPClassifier(interactions=None),
    ],
)
def test_renamed_classes_have_their_probabilities(model, sizes):
    X, y = blobs(75)
    used = np.concatenate([np.flatnonzero(y == k)[:size] for k, size in enumerate(sizes)])
    model, X, y = clone(model).set_params(random_state=0), X[used], y[used]
    P = model.fit(X, y).predict_proba(X)
    for order in ([2, 0, 1], [1, 0, 2]):
        renamed = model.fit(X, np.array(order)[y]).predict_proba(X)
        # Sums over the classes have another order. Learning enlarges these rounding errors.
        assert_allclose(renamed[:, order], P, rtol=0, atol=1e-6)


@modes
def test_one_feature(mode):
    X, y = blobs(d=1)
    assert_probabilities(quick(**mode).fit(X, y).predict_proba(X), 3)


def test_constant_features_change_nothing():
    X, y = blobs()
    constant = np.c_[np.full(60, 1e6), X, np.zeros(60)]
    expected = quick().fit(X, y).predict_proba(X)
    # Inducing points are clusters of the same rows; only rounding of their sums differs.
    assert_allclose(quick().fit(constant, y).predict_proba(constant), expected, atol=1e-8)


@modes
def test_duplicated_rows(mode):
    X, y = blobs(12)
    model = quick(**mode).fit(np.repeat(X, 5, 0), np.repeat(y, 5))
    assert_probabilities(model.predict_proba(X), 3)
    assert len(np.vstack(model.inducing_points_)) <= 3 * 8


def test_fewer_rows_than_inducing_points():
    X, y = blobs(10)
    model = quick(n_inducing=256).fit(X, y)
    assert_array_equal(model.inducing_points_, np.unique(X, axis=0))


@modes
def test_class_with_a_single_row(mode):
    X, y = blobs()
    y = y % 2
    y[0] = 2
    model = quick(**mode).fit(X, y)
    assert_probabilities(model.predict_proba(X), 3)


def test_two_rows_are_enough():
    model = quick().fit([[0.0], [1.0]], ["a", "b"])
    assert_array_equal(model.predict([[0.0], [1.0]]), ["a", "b"])


@modes_and_learned_kernel
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_of_the_data_does_not_matter(mode, scale):
    X, y = blobs()
    expected = quick(**mode).fit(X, y).predict_proba(X)
    for scales in (scale, np.array([scale, 1.0])):
        got = quick(**mode).fit(X * scales, y).predict_proba(X * scales)
        # Learning a kernel and inducing points may amplify rounding errors of 1e-16.
        assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_scale_of_float32_data_does_not_matter(scale):
    X, y = blobs()
    small = (X * scale).astype(np.float32)
    expected = quick().fit(X, y).predict_proba(X)
    # The precision of float32 is 1e-7, which the kernel's projection amplifies.
    assert_allclose(quick().fit(small, y).predict_proba(small), expected, atol=1e-3)


@modes
@pytest.mark.parametrize("value", [0.0, 1e12])
@pytest.mark.parametrize("n", [60, 61])
def test_rows_all_alike_leave_class_frequencies(mode, value, n):
    X, y = np.full((n, 2), value), np.minimum(np.arange(n) % 4, 2)
    model = quick(**mode).fit(X, y)
    P = model.predict_proba(X)
    assert_probabilities(P, 3)
    assert_array_equal(P, np.tile(P[0], (n, 1)))
    assert_array_equal(model.predict(X), 2)  # its rows have half of the weight


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda X, y: (np.where(X > 1, np.nan, X), y), ValueError, "X contains NaN"),
        (lambda X, y: (np.where(X > 1, np.inf, X), y), ValueError, "X contains infinity"),
        (lambda X, y: (1e300 * X, y), ValueError, "overflow in float64: scale them down"),
        (lambda X, y: (X.astype(str), np.full(60, "a")), ValueError, "at least two classes"),
        (lambda X, y: (np.full((60, 2), "x"), y), ValueError, "Column 0 of X has strings such as"),
        (lambda X, y: (X + 1j, y), ValueError, "Complex data not supported"),
        (lambda X, y: (X[:, 0], y), ValueError, "Expected 2D array"),
        (lambda X, y: (X[:, :0], y), ValueError, "0 feature"),
        (lambda X, y: (X[:0], y[:0]), ValueError, "0 sample"),
        (lambda X, y: (X, y[:-1]), ValueError, "inconsistent numbers of samples"),
        (lambda X, y: (X, np.c_[y, y]), ValueError, "1d array.*MultiOutputClassifier"),
        (lambda X, y: (X, y + 0.5), ValueError, "Unknown label type: continuous"),
        (lambda X, y: (X, np.where(y == 0, np.nan, y)), ValueError, "y contains NaN"),
        (lambda X, y: (X, np.zeros(60)), ValueError, "at least two classes"),
        (lambda X, y: (X, None), ValueError, "requires y to be passed"),
    ],
)
def test_bad_data_is_refused_in_words(spoil, error, message):
    with pytest.raises(error, match=message):
        quick().fit(*spoil(*blobs()))


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda X: np.where(X > 1, np.nan, X), ValueError, "X contains NaN"),
        (lambda X: X[:, :1], ValueError, "expecting 2 features"),
        (lambda X: X[0], ValueError, "Expected 2D array"),
    ],
)
def test_bad_new_rows_are_refused_in_words(spoil, error, message):
    X, y = blobs()
    model = quick().fit(X, y)
    for method in (
        model.predict,
        model.predict_proba,
        model.decision_function,
        model.latent_mean_and_variance,
        model.latent_covariance,
        model.sample_latent,
    ):
        with pytest.raises(error, match=message):
            method(spoil(X))


# Parameters


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("kernel", "rbf", TypeError, r"kernel='rbf' is not a kernel .* such as 1\.0 \* RBF"),
        ("kernel", RBF, TypeError, "is not a kernel"),
        ("kernel", PairwiseKernel(), TypeError, "No torch form is known .* Known are"),
        ("kernel", RBF([1.0, 2.0, 3.0]), ValueError, r"shape \(3,\) but X has 2 feature"),
        ("learn_inducing", "yes", ValueError, "must be True or False"),
        ("warm_start", 1, ValueError, "must be True or False"),
        ("multi_class", "ovo", ValueError, "not one of 'crammer_singer', 'ovr'"),
        ("solver", None, ValueError, "not one of 'coordinate_ascent', 'gradient', nor one of"),
        ("contrast", 1, ValueError, "not one of 'soft', 'hard'"),
        ("probability", True, ValueError, "not one of 'calibrated', 'argmax'"),
        ("optimizer", "sgd", ValueError, "not one of 'auto', 'leave_one_out', 'adam', None"),
        ("n_inducing", 0, ValueError, "integer of at least 1"),
        ("n_inducing", 2.5, ValueError, "integer of at least 1"),
        ("inducing_points", "grid", ValueError, "use 'kmeans', 'random' or an array"),
        ("inducing_points", np.ones((3, 5)), ValueError, r"array \(m, 2\)"),
        ("max_iter", 0, ValueError, "integer of at least 1"),
        ("tol", -1, ValueError, "number of at least 0"),
        ("tol", np.nan, ValueError, "number of at least 0"),
        ("solver", Gradient(batch_size=0), ValueError, "^batch_size=0 .* of at least 1, or None"),
        ("solver", Gradient(learning_rate="fast"), ValueError, "^learning_rate='fast' .* above 0"),
        ("solver", Gradient(learning_rate=0), ValueError, "^learning_rate=0 .* above 0, or None"),
        ("class_weight", "equal", ValueError, "class_weight"),
        ("class_weight", {0: -1.0}, ValueError, "not negative"),
        ("device", "gpu", ValueError, "device='gpu' cannot be used here"),
        ("dtype", "float16", ValueError, "not one of 'float32', 'float64', None"),
        ("random_state", "seed", ValueError, "must be an integer from 0"),
    ],
)
def test_bad_parameters_are_refused_in_words(name, value, error, message):
    with pytest.raises(error, match=message):
        quick(**{name: value}).fit(*blobs())


def test_device_without_double_precision_is_refused_in_words(monkeypatch):
    empty = torch.empty

    def single(*size, dtype=None, **options):
        if dtype == torch.float64:
            raise TypeError("this device has no float64")
        return empty(*size, dtype=dtype, **options)

    monkeypatch.setattr(torch, "empty", single)
    with pytest.raises(ValueError, match="device='cpu' cannot be used here: this device has no"):
        quick(device="cpu").fit(*blobs())


@pytest.mark.parametrize(
    "kernel",
    [
        RBF([1.0, 2.0]),
        Matern(nu=1.5) + DotProduct(),
        ConstantKernel(2.0, "fixed") * RBF(1.0),
        RBF() + RBF(0.1),
    ],
    ids=str,
)
def test_kernels_of_the_user_are_learned_within_their_marks(kernel):
    X, y = blobs()
    before = clone(kernel)
    model = quick(kernel=kernel, optimizer="auto").fit(X, y)
    assert kernel == before
    assert type(model.kernel_) is type(kernel)
    low, high = model.kernel_.bounds.T
    assert (low <= model.kernel_.theta).all()
    assert (model.kernel_.theta <= high).all()
    marks = [[(h.name, h.fixed) for h in k.hyperparameters] for k in (kernel, model.kernel_)]
    assert marks[0] == marks[1]
    assert model.score(X, y) > 0.6


def test_fixed_kernel_stays_as_given():
    X, y = blobs()
    kernel = ConstantKernel(2.0, "fixed") * RBF(1.5, "fixed")
    assert quick(kernel=kernel, optimizer="auto").fit(X, y).kernel_ == kernel


def test_no_optimizer_keeps_the_kernel_as_given():
    X, y = blobs()
    kernel = 2.0 * RBF([1.5, 0.5])
    assert_allclose(quick(kernel=kernel).fit(X, y).kernel_.theta, kernel.theta, rtol=1e-15)


NOTHING = {"n_inducing": 8, "random_state": 0}
BY_ROWS = {**NOTHING, "basis": "inducing", "n_basis": 20}
NETWORK = {"module_params": {"hidden_layer_sizes": (4,)}, "max_iter": 2, "random_state": 0}
# Ways to compute a posterior, each with an estimator that uses it.
WAYS = [
    BayesianSVC(**NOTHING),
    BayesianSVC(**NOTHING, learn_inducing=True),
    BayesianSVC(**NOTHING, solver="gradient", learn_inducing=True),
    EPClassifier(**NOTHING),
    EPClassifier(**NOTHING, solver=InterleavedEP(batch_size=20)),
    EPClassifier(**NOTHING, solver="gfitc"),
    SVGPClassifier(**NOTHING),
    SVGPClassifier(**NOTHING, solver="gradient"),
    DecoupledGPClassifier(**NOTHING),
    QSGPClassifier(**BY_ROWS),
    QSGPClassifier(**BY_ROWS, covariance="chevron"),
    QSGPClassifier(**BY_ROWS, solver="sgd"),
    QSRVMClassifier(),
    HybridBayesianSVC(**NETWORK),
    HybridSVGPClassifier(**NETWORK),
    SVGPRegressor(**NOTHING),
    SVGPRegressor(**NOTHING, solver="natural_gradient"),
    SVGPRegressor(**NOTHING, likelihood="laplace"),
    DecoupledGPRegressor(**NOTHING),
    DecoupledGPRegressor(**NOTHING, likelihood="student_t"),
    QSGPRegressor(**BY_ROWS),
    QSGPRegressor(**BY_ROWS, likelihood="laplace"),
    QSRVMRegressor(),
    HybridSVGPRegressor(**NETWORK),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", WAYS, ids=str)
@pytest.mark.parametrize(
    ("kernel", "optimizer"),
    [
        (DotProduct(sigma_0_bounds="fixed"), "auto"),
        (DotProduct(), None),
        (ConstantKernel(), None),
    ],
    ids=str,
)
def test_fits_with_nothing_to_learn(model, kernel, optimizer):
    X, y = blobs(40, 2, 2)
    model = clone(model).set_params(kernel=kernel, max_iter=3)
    if "optimizer" in model.get_params():
        model.set_params(optimizer=optimizer)
    if optimizer is None and getattr(model, "solver", None) == "gfitc":
        model.set_params(solver="auto")  # "gfitc" is for learning
    model.fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    if optimizer is None and "optimizer" in model.get_params():
        own = model.kernel_.theta[: kernel.n_dims]
        assert_allclose(own, kernel.theta, rtol=1e-12)


# Numerical accuracy


@modes_and_learned_kernel
def test_single_and_double_precision_agree(mode):
    X, y = blobs()
    X = X.astype(np.float32).astype(np.float64)
    # With the default tolerance, where sweeps end would differ by more than rounding does.
    mode = {**mode, "tol": 1e-3}
    double = quick(**mode).fit(X, y).predict_proba(X)
    for model, rows in [(quick(**mode, dtype="float32"), X), (quick(**mode), np.float32(X))]:
        single = model.fit(rows, y).predict_proba(rows)
        assert single.dtype == np.float64
        # Features are projected by the inverse of a Cholesky factor of condition number up to 1e3.
        assert_allclose(single, double, atol=1e-3)


@modes
@pytest.mark.parametrize("n_classes", [2, 3])
def test_predictions_are_consistent(mode, n_classes):
    X, y = blobs(n_classes=n_classes)
    model = quick(**mode).fit(X, y)
    P, scores = model.predict_proba(X), model.decision_function(X)
    assert_probabilities(P, n_classes)
    assert_array_equal(model.predict(X), model.classes_[P.argmax(1)])
    # The error is rounding of 1e-16 in exp and log.
    if n_classes == 2:
        assert scores.shape == (60,)
        assert_allclose(P[:, 1], expit(scores), atol=1e-14)
        assert_array_equal(model.predict(X), (scores > 0).astype(int))
    else:
        assert_allclose(np.log(P), log_softmax(scores, axis=1), atol=1e-11)
        assert_array_equal(model.predict(X), scores.argmax(1))


def test_rows_are_predicted_each_for_itself(monkeypatch):
    X, y = blobs()
    model = quick().fit(X, y)
    P = model.predict_proba(X)
    monkeypatch.setattr(_data, "CHUNK_ROWS", 7)
    # Matrix products of other shapes have sums in another order.
    assert_allclose(model.predict_proba(X[::-1])[::-1], P, rtol=1e-10)


@modes_and_learned_kernel
def test_same_seed_same_bits(mode):
    X, y = blobs()
    assert_same_bits(quick(**mode).fit(X, y), quick(**mode).fit(X, y), X)


def test_other_seed_other_inducing_points():
    X, y = blobs()
    Z = [quick(inducing_points="random", random_state=s).fit(X, y).inducing_points_ for s in (0, 1)]
    assert not np.array_equal(*Z)


def global_state():
    """Return the global state that a library could change without its user's knowledge."""
    return {
        "torch seed": torch.get_rng_state().tolist(),
        # None stands for NumPy's global random state.
        "numpy seed": [np.array(part).tolist() for part in check_random_state(None).get_state()],
        "python seed": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "float errors": np.geterr(),
        "print options": np.get_printoptions(),
    }


@modes_and_learned_kernel
def test_global_state_is_left_alone(mode):
    X, y = blobs()
    before = global_state()
    model = quick(**mode).fit(X, y).partial_fit(X, y)
    model.predict_proba(X)
    model.sample_latent(X, 2, random_state=0)
    assert global_state() == before


def test_default_dtype_of_torch_does_not_matter():
    X, y = blobs()
    mode = MODES["learned inducing points"]
    expected = quick(**mode).fit(X, y)
    torch.set_default_dtype(torch.float64)
    try:
        got = quick(**mode).fit(X, y)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_bits(got, expected, X)


# Memory


class AnonymousMemory:
    """Context that measures peak growth of this process's anonymous memory, in bytes."""

    status = Path("/proc/self/status")

    def __enter__(self):
        self.start = self.peak = self._now()
        self._running = True
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._running = False
        self._thread.join()

    def _now(self):
        lines = self.status.read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def _watch(self):
        while self._running:
            self.peak = max(self.peak, self._now())
            time.sleep(0.001)

    @property
    def growth(self):
        return self.peak - self.start


@pytest.mark.skipif(not AnonymousMemory.status.is_file(), reason="needs Linux's /proc")
def test_read_only_memmap_is_never_copied_whole(tmp_path, monkeypatch):
    for module in (_data, _ascent):
        monkeypatch.setattr(module, "HELD_BYTES", 2**20)
    n, d = 100_000, 160
    mapped = np.memmap(tmp_path / "X", np.float32, "w+", shape=(n, d))
    rng = np.random.default_rng(0)
    for i in range(0, n, 10_000):
        mapped[i : i + 10_000] = rng.standard_normal((10_000, d), np.float32)
    mapped.flush()
    y = mapped[:, 0] > 0
    X = np.memmap(tmp_path / "X", np.float32, "r", shape=(n, d))
    model = quick(kernel=RBF(10.0), inducing_points=np.array(X[:4]), max_iter=1)
    with pytest.warns(ConvergenceWarning):
        model.fit(X[:5000], y[:5000])  # loads and allocates what only a first fit does
    with AnonymousMemory() as memory, pytest.warns(ConvergenceWarning):
        P = model.fit(X, y).predict_proba(X)
    assert_probabilities(P, 2)
    assert memory.growth < X.nbytes / 2


# Weights


def test_weight_zero_removes_a_class():
    X, y = blobs()
    model = quick().fit(X, y, (y != 1).astype(float))
    assert_array_equal(model.classes_, [0, 2])
    removed = quick().fit(X[y != 1], y[y != 1])
    # Sums with and without zeros round differently.
    assert_allclose(model.predict_proba(X), removed.predict_proba(X), rtol=1e-10)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        SVGPRegressor(n_inducing=5),
        SVGPRegressor(n_inducing=5, likelihood="student_t"),
        DecoupledGPRegressor(n_inducing=5),
        QSGPRegressor(n_inducing=5, n_basis=20),
        QSRVMRegressor(),
        AdditiveGPRegressor(sparse=True),
        HybridSVGPRegressor(**NETWORK),
    ],
    ids=str,
)
def test_every_regressor_tells_of_weights_that_are_not_counts(model):
    X, y = blobs(30)
    weights = np.random.default_rng(0).uniform(10, 20, 30)
    options = {"max_iter": 2, "optimizer": None}
    options = {name: options[name] for name in options if hasattr(model, name)}
    with pytest.warns(UserWarning, match="Weights are not relative"):
        clone(model).set_params(**options).fit(X, y + 0.1 * X[:, 0], weights)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        BayesianSVC(n_inducing=5),
        SVGPClassifier(n_inducing=5),
        EPClassifier(n_inducing=5),
        DecoupledGPClassifier(n_inducing=5),
        QSGPClassifier(n_inducing=5, n_basis=20),
        QSRVMClassifier(),
        AdditiveGPClassifier(),
        HybridBayesianSVC(**NETWORK),
    ],
    ids=str,
)
def test_every_classifier_tells_of_weights_that_sum_to_one(model):
    X, y = blobs(30)
    weights = np.random.default_rng(0).uniform(size=30)
    options = {"max_iter": 2, "optimizer": None}
    options = {name: options[name] for name in options if hasattr(model, name)}
    model = clone(model).set_params(**options)
    with pytest.warns(UserWarning, match=r"so that these 30 rows count as 1\. Divide relative"):
        model.fit(X, y, weights / weights.sum())
    model.fit(X, y, weights / weights.mean())  # without a warning


def test_exposures_may_be_of_any_size():
    X, y = blobs(30)
    AdditiveGPRegressor(likelihood="poisson").fit(X, y, np.linspace(10.5, 20, 30))


def test_weight_draws_the_prediction_to_its_class():
    X, y = blobs()
    shares = [
        quick().fit(X, y, np.where(y == 0, w, 1.0)).predict_proba(X)[:, 0].mean()
        for w in (0.2, 1.0, 5.0)
    ]
    assert shares == sorted(shares)


# Streams


@modes
@pytest.mark.parametrize("n_classes", [2, 3])
def test_first_batch_is_a_fit(mode, n_classes):
    X, y = blobs(n_classes=n_classes)
    assert_same_bits(quick(**mode).partial_fit(X, y), quick(**mode).fit(X, y), X)


@pytest.mark.parametrize("multi_class", ["crammer_singer", "ovr"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_shuffled_stream_approaches_a_fit(multi_class, n_classes):
    X, y = blobs(600, n_classes=n_classes)
    options = {"kernel": 2.0 * RBF(1.5), "inducing_points": X[:12], "multi_class": multi_class}
    whole = quick(**options).fit(X, y)
    stream = quick(**options)
    for batch in np.random.RandomState(0).permutation(600).reshape(6, 100):
        stream.partial_fit(X[batch], y[batch])
    P, P_stream, P_first = (
        model.predict_proba(X) for model in (whole, stream, quick(**options).fit(X[:100], y[:100]))
    )
    # Sites of old rows are not updated, which makes a small difference for 600 rows.
    assert np.abs(P_stream - P).mean() < 0.5 * np.abs(P_first - P).mean()
    assert np.abs(P_stream - P).mean() < 0.03
    assert stream.score(X, y) > whole.score(X, y) - 0.02


def test_stream_goes_on_in_its_multi_class_only():
    X, y = blobs()
    model = quick().partial_fit(X, y).set_params(multi_class="ovr")
    with pytest.raises(ValueError, match=r"multi_class was .* is 'ovr' now"):
        model.partial_fit(X, y)


@pytest.mark.parametrize("mode", [{}, {"solver": "gradient", "max_iter": 2}])
def test_fit_works_where_gradients_are_off(mode):
    X, y = blobs()
    with torch.no_grad(), warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        quick(optimizer="auto", **mode).fit(X, y)


def test_later_batches_narrow_the_posterior():
    X, y = blobs(120)
    model = quick().partial_fit(X[:60], y[:60])
    before = model.latent_mean_and_variance(X)[1] / model.spread_
    after = model.partial_fit(X[60:], y[60:]).latent_mean_and_variance(X)[1] / model.spread_
    assert (after < before).all()


def test_later_batches_may_lack_classes():
    X, y = blobs()
    model = quick(class_weight={2: 2.0}).partial_fit(X, y)
    model.partial_fit(X[y == 0], y[y == 0])
    assert_array_equal(model.classes_, [0, 1, 2])
    assert_probabilities(model.predict_proba(X), 3)


def test_classes_may_come_later():
    X, y = blobs()
    known = y < 2
    with pytest.warns(UserWarning, match="first call.*no rows of the classes"):
        model = quick().partial_fit(X[known], y[known], classes=[0, 1, 2])
    unseen = model.predict_proba(X[y == 2])[:, 2].mean()
    for _ in range(3):
        model.partial_fit(X, y)
    assert model.predict_proba(X[y == 2])[:, 2].mean() > unseen
    assert model.score(X, y) > 0.6


def test_later_calls_may_repeat_the_classes_but_not_change_them():
    X, y = blobs()
    model = quick().partial_fit(X, y, classes=[0, 1, 2]).partial_fit(X, y, classes=[2, 1, 0])
    with pytest.raises(ValueError, match=r"classes=\[0, 1, 3\] are not \[0, 1, 2\]"):
        model.partial_fit(X, y, classes=[0, 1, 3])


def test_warm_start_with_other_classes_says_how_to_start_anew():
    X, y = blobs()
    model = quick(warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="set warm_start=False to start anew"):
        model.fit(X, y + 1)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda X, y: (X, y + 1), r"classes \[3\] that are not among \[0, 1, 2\]"),
        (lambda X, y: (X[:, :1], y), "expecting 2 features"),
        (lambda X, y: (np.full_like(X, np.nan), y), "X contains NaN"),
    ],
)
def test_failing_batch_leaves_the_model_as_it_was(batch, message):
    X, y = blobs()
    model = quick().partial_fit(X, y)
    before = pickle.dumps(model)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*batch(X, y))
    assert pickle.dumps(model) == before


def test_stream_cannot_be_balanced():
    with pytest.raises(ValueError, match="needs all rows at once"):
        quick(class_weight="balanced").partial_fit(*blobs())


def test_fit_forgets_a_stream():
    X, y = blobs()
    assert_same_bits(quick().partial_fit(X, y).partial_fit(X, y).fit(X, y), quick().fit(X, y), X)


# Warm starts


@modes
def test_warm_start_continues(mode):
    X, y = blobs()
    model = quick(**mode, warm_start=True).fit(X, y)
    Z, cold = model.inducing_points_, model.objective_curve_
    warm = model.fit(X, y).objective_curve_
    if not model.learn_inducing:
        assert_array_equal(model.inducing_points_, Z)
    assert len(warm) <= len(cold)
    # The objective fluctuates a little in steps of Adam and of minibatches.
    assert warm[0] > cold[0] + 0.8 * (cold[-1] - cold[0])


def waves_and_labels(estimator, n):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=n)
    return X, (y > 0).astype(int) if is_classifier(estimator) else y


with_learned_kernels = pytest.mark.parametrize(
    "estimator",
    [
        BayesianSVC(n_inducing=10),
        DecoupledGPClassifier(n_inducing=10),
        DecoupledGPRegressor(n_inducing=10),
        EPClassifier(n_inducing=10),
        QSGPClassifier(n_basis=60, n_inducing=10),
        QSGPRegressor(n_basis=60, n_inducing=10),
        QSRVMClassifier(n_basis=20),
        QSRVMRegressor(n_basis=20),
        SVGPClassifier(n_inducing=10),
        SVGPRegressor(n_inducing=10),
    ],
    ids=lambda estimator: type(estimator).__name__,
)


@with_learned_kernels
def test_warm_start_that_learns_no_kernel_keeps_the_learned_one(estimator):
    model = clone(estimator).set_params(warm_start=True, random_state=0)
    X, y = waves_and_labels(model, 90)
    theta = model.fit(X[:40], y[:40]).kernel_.theta
    predict = getattr(model, "predict_proba", model.predict)
    before = predict(X)
    assert_array_equal(model.set_params(optimizer=None).fit(X, y).kernel_.theta, theta)
    assert not np.array_equal(predict(X), before)
    # It has not learned, so that a fit that learns starts anew.
    cold = clone(model).set_params(optimizer="auto").fit(X, y)
    model.set_params(optimizer="auto").fit(X, y)
    assert_array_equal(model.kernel_.theta, cold.kernel_.theta)


@with_learned_kernels
def test_warm_start_that_begins_to_learn_starts_anew(estimator):
    model = clone(estimator).set_params(warm_start=True, random_state=0, optimizer=None)
    X, y = waves_and_labels(model, 40)
    cold = clone(model).set_params(optimizer="auto").fit(X, y)
    model.fit(X, y).set_params(optimizer="auto").fit(X, y)
    assert_all_equal(*(each.latent_mean_and_variance(X) for each in (model, cold)))


@with_learned_kernels
def test_warm_start_without_learning_starts_anew_once_rows_have_grown(estimator):
    model = clone(estimator).set_params(warm_start=True, random_state=0, optimizer=None)
    X, y = waves_and_labels(model, 90)
    cold = clone(model).fit(X, y)
    model.fit(X[:40], y[:40]).fit(X, y)
    assert_all_equal(*(each.latent_mean_and_variance(X) for each in (model, cold)))


@with_learned_kernels
def test_warm_start_starts_anew_once_rows_have_grown_by_a_fifth(estimator):
    model = clone(estimator).set_params(warm_start=True, random_state=0)
    X, y = waves_and_labels(model, 57)
    theta = model.fit(X[:40], y[:40]).kernel_.theta
    predict = getattr(model, "predict_proba", model.predict)
    before = predict(X)
    assert_array_equal(model.fit(X[:48], y[:48]).kernel_.theta, theta)
    assert not np.array_equal(predict(X), before)
    # 57 rows are less than a fifth more than 48, but not than 40.
    cold = clone(model).fit(X, y)
    assert_all_equal(*(each.latent_mean_and_variance(X) for each in (model.fit(X, y), cold)))
    assert not np.array_equal(model.kernel_.theta, theta)


@pytest.mark.parametrize(
    ("rows", "change"), [(slice(20, 60), {}), (slice(15, 60), {"tol": 1e-3}), (slice(30, 60), {})]
)
def test_warm_start_learns_from_other_rows_and_with_other_parameters(rows, change):
    model = SVGPClassifier(n_inducing=10, warm_start=True, random_state=0)
    X, y = waves_and_labels(model, 60)
    theta = model.fit(X[:40], y[:40]).kernel_.theta
    model.set_params(**change).fit(X[rows], y[rows])
    assert not np.array_equal(model.kernel_.theta, theta)


def test_warm_start_learns_again_where_learning_did_not_converge():
    model = SVGPClassifier(n_inducing=10, warm_start=True, solver="natural_gradient", max_iter=2)
    X, y = waves_and_labels(model, 42)
    for n_rows in (40, 42):
        before = model.kernel_.theta if n_rows > 40 else None
        with pytest.warns(ConvergenceWarning, match="max_iter=2"):
            model.fit(X[:n_rows], y[:n_rows])
    assert not np.array_equal(model.kernel_.theta, before)


@pytest.mark.parametrize(
    "model",
    [SVGPRegressor(), DecoupledGPRegressor(), QSRVMRegressor(), HybridSVGPRegressor(max_iter=5)],
)
@pytest.mark.parametrize(("scale", "offset"), [(1000, 0), (0.001, 0), (1, 1000)])
def test_warm_start_with_y_in_other_units_starts_anew(model, scale, offset):
    X, y = waves(60, d=2)
    warm = clone(model).set_params(warm_start=True, random_state=0).fit(X, y)
    cold = clone(model).set_params(random_state=0).fit(X, scale * y + offset)
    found = warm.fit(X, scale * y + offset).predict(X, return_std=True)
    assert_all_close(found, cold.predict(X, return_std=True), rtol=1e-12)


@pytest.mark.parametrize(
    "model",
    [
        BayesianSVC(n_inducing=10),
        DecoupledGPClassifier(n_inducing=10),
        DecoupledGPRegressor(),
        EPClassifier(n_inducing=10),
        HybridBayesianSVC(max_iter=5),
        HybridSVGPClassifier(max_iter=5),
        HybridSVGPRegressor(max_iter=5),
        QSGPClassifier(n_basis=60, n_inducing=10),
        QSGPRegressor(n_basis=60, n_inducing=10),
        QSRVMClassifier(n_basis=20),
        QSRVMRegressor(n_basis=20),
        SVGPClassifier(n_inducing=10),
        SVGPRegressor(),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize(("scale", "offset"), [(0.1, 0), (1, 1000)])
def test_warm_start_with_a_feature_in_other_units_starts_anew(model, scale, offset):
    X, y = waves_and_labels(model, 40)
    new = np.column_stack([X[:, 0], scale * X[:, 1] + offset])
    warm = clone(model).set_params(warm_start=True, random_state=0).fit(X, y).fit(new, y)
    cold = clone(model).set_params(random_state=0).fit(new, y)
    assert_array_equal(warm.predict(new), cold.predict(new))
    assert_all_equal(warm.latent_mean_and_variance(new), cold.latent_mean_and_variance(new))


@pytest.mark.parametrize("model", [SVGPRegressor(), DecoupledGPRegressor(), QSGPRegressor()])
def test_rows_of_tiny_weight_do_not_count(model):
    X, y = waves(100, d=2)
    counts = np.arange(100) < 70
    y[~counts] *= -1
    found, expected = (
        clone(model).set_params(random_state=0).fit(X, y, np.where(counts, 1.0, tiny))
        for tiny in (1e-12, 0.0)
    )
    # Learning may end elsewhere within its tolerance. Without scaling, two noises were 5e-5 and .5.
    assert_allclose(found.noise_variance_, expected.noise_variance_, rtol=0.01)
    assert_all_close(
        found.predict(X, return_std=True), expected.predict(X, return_std=True), atol=0.01
    )


def test_warm_start_in_units_like_those_before_continues():
    X, y = waves(60, d=2)
    X[:, 1] = np.arange(60) == 0  # constant in some of the rows
    model = SVGPRegressor(warm_start=True, random_state=0).fit(X, y)
    scale = model._y_std
    model.fit(2 * X, 2 * y + 0.5).fit(X[1:], y[1:])
    with pytest.warns(UserWarning, match="far from those of the first call"):
        model.partial_fit(1000 * X, 1000 * y)  # which never starts anew
    assert_array_equal(model._y_std, scale)


def test_warm_start_keeps_the_classes():
    X, y = blobs()
    model = quick(warm_start=True).fit(X, y).fit(X[y < 2], y[y < 2])
    assert_array_equal(model.classes_, [0, 1, 2])
    with pytest.raises(ValueError, match="not among"):
        model.fit(X, y + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model, X, y: model.fit(X[:, :1], y), "expecting 2 features"),
        (lambda model, X, y: model.fit(np.where(X > 1, np.nan, X), y), "X contains NaN"),
        (lambda model, X, y: model.set_params(max_iter=0).fit(X, y), "max_iter=0"),
        (lambda model, X, y: model.set_params(multi_class="ovr").fit(X, y), "multi_class"),
    ],
)
def test_failing_warm_start_leaves_the_model_as_it_was(change, message):
    X, y = blobs()
    model = quick(warm_start=True, optimizer="auto").fit(X, y)
    before = predictions(model, X)
    with pytest.raises(ValueError, match=message):
        change(model, X, y)
    assert_all_equal(predictions(model, X), before)


# Failures


@pytest.fixture
def diverging(monkeypatch):
    """Make the objective of the second sweep infinite in a test."""
    values = iter([0.0, np.inf])

    def sweep(ascent, state):
        return ascent.sweep(state) + next(values, 0.0)

    monkeypatch.setattr(CoordinateInference, "sweep", staticmethod(sweep))


def test_divergence_is_spoken_and_leaves_the_model_unfitted(diverging):
    X, y = blobs()
    model = quick()
    with pytest.raises(DivergenceError, match=r"became inf in iteration 2 .* lower learning_rate"):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_divergence_of_a_warm_start_leaves_the_model_as_it_was(request):
    X, y = blobs()
    model = quick(warm_start=True, tol=0).set_params(max_iter=5)
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    before = predictions(model, X)
    request.getfixturevalue("diverging")
    with pytest.raises(DivergenceError):
        model.fit(X, y)
    assert_all_equal(predictions(model, X), before)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda model, X, y: model.fit(np.where(X > 1, np.nan, X), y),
        lambda model, X, y: model.fit(X, np.zeros(60)),
        lambda model, X, y: model.set_params(tol=-1).fit(X, y),
        lambda model, X, y: model.set_params(kernel=PairwiseKernel()).fit(X, y),
    ],
)
def test_failing_fit_leaves_the_model_unfitted(spoil):
    X, y = blobs()
    model = quick().fit(X, y)
    with pytest.raises((ValueError, TypeError)):
        spoil(model, X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


@modes_and_learned_kernel
def test_reaching_max_iter_warns(mode):
    X, y = blobs()
    model = quick(**{**mode, "max_iter": 1, "tol": 0})
    with pytest.warns(ConvergenceWarning, match="Raise max_iter, or tol"):
        model.fit(X, y)
    assert model.n_iter_ == 1
    assert model.objective_curve_.shape == (1,)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_html_representation_describes_every_parameter(kind):
    html = kind()._repr_html_()
    page = f"../generated/skgpsvm.{kind.__name__}.html"
    for name in kind().get_params():
        assert f"--doc-link-{name};" in html, name
    assert html.count(f'href="{page}#:~:text=') == len(kind().get_params())
    assert "Documentation for" in html


# Tools that log every fit of scikit-learn's estimators see only ours


def every_fit():
    """Yield scikit-learn's classes with the methods that fit them."""
    for _, kind in all_estimators():
        for method in ("fit", "fit_transform", "fit_predict"):
            if method in vars(kind):
                yield kind, method


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_no_estimator_of_scikit_learn_is_fitted_inside(kind, monkeypatch):
    def refuse(estimator, *args, **kwargs):
        raise AssertionError(f"{type(estimator).__name__} was fitted")

    for owner, method in every_fit():
        monkeypatch.setattr(owner, method, refuse)
    X, y = blobs(60, d=3, n_classes=2)
    X = np.c_[X, np.exp(2 * X[:, 0]), X[:, 0] > 0]  # a skewed feature, and one with few values
    options = {"n_inducing": 8, "max_iter": 3, "random_state": 0, "categorical_features": [4]}
    known = kind().get_params()
    model = kind(**{name: value for name, value in options.items() if name in known})
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        model.fit(X, y)
    assert len(model.predict(X)) == 60


# Latent functions


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", every_estimator.ESTIMATORS)
def test_latent_covariances_are_those_of_the_latent_functions(name):
    model = every_estimator.fitted(name, n=40)
    X, _ = every_estimator.problem(model, n=40)
    _, variance = model.latent_mean_and_variance(X)
    cov = model.latent_covariance(X)
    assert cov.shape == (40, *variance.shape)
    assert_allclose(np.einsum("ii...->i...", cov), variance, rtol=1e-4, atol=1e-6 * variance.max())
    assert_allclose(cov, cov.swapaxes(0, 1), rtol=0, atol=1e-9 * variance.max())
    if is_regressor(model):
        noise = model.predict_noise_variance(X)
        _, with_noise = model.predict(X, return_cov=True)
        assert_allclose(with_noise, cov + np.diag(noise), rtol=1e-12)


@pytest.mark.parametrize("multi_class", ["crammer_singer", "ovr"])
@pytest.mark.parametrize(("n_classes", "n_latents"), [(2, 1), (3, 3)])
def test_latent_moments_are_those_of_the_draws(multi_class, n_classes, n_latents):
    X, y = blobs(n_classes=n_classes)
    model = quick(multi_class=multi_class).fit(X, y)
    mean, variance = model.latent_mean_and_variance(X)
    assert mean.shape == variance.shape == ((60,) if n_latents == 1 else (60, n_latents))
    assert (variance > 0).all()
    n = 4000
    draws = model.sample_latent(X, n, random_state=0)
    assert draws.shape == (n, 60, n_latents)
    draws = draws.reshape(n, *mean.shape)
    # Five standard errors of n draws.
    assert (np.abs(draws.mean(0) - mean) < 5 * np.sqrt(variance / n)).all()
    assert_allclose(draws.var(0), variance, rtol=5 * np.sqrt(2 / n))


def test_draws_are_joint():
    X, y = blobs()
    model = quick().fit(X, y)
    pair = np.vstack([X[:1], X[:1] + 1e-6])
    draws = model.sample_latent(pair, 50)
    assert_allclose(draws[:, 0], draws[:, 1], atol=1e-3)
    assert draws[:, 0].std() > 0.1


def test_draws_are_as_random_as_asked_for():
    X, y = blobs()
    model = quick().fit(X, y)
    assert_array_equal(model.sample_latent(X, 3), model.sample_latent(X, 3))
    assert not np.array_equal(model.sample_latent(X, 3), model.sample_latent(X, 3, 1))
    assert not np.array_equal(*model.sample_latent(X, 2))


@pytest.mark.parametrize("probability", ["calibrated", "argmax"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_average_those_of_draws(probability, n_classes):
    X, y = blobs(n_classes=n_classes)
    model = quick(probability=probability).fit(X, y)
    draws = model.sample_latent(X, 4000)
    P = model.predict_proba_from_latent(draws)
    assert P.shape == (4000, 60, n_classes)
    assert_allclose(P.sum(-1), 1, atol=1e-12)
    # Four standard errors of 4000 draws; the calibrated average is an approximation, too.
    error = 4 * np.sqrt(0.25 / 4000) + (0.05 if probability == "calibrated" else 0)
    assert_allclose(P.mean(0), model.predict_proba(X), atol=error)


def test_latents_of_another_shape_are_refused():
    X, y = blobs()
    model = quick().fit(X, y)
    with pytest.raises(ValueError, match="last axis must have length 3"):
        model.predict_proba_from_latent(np.zeros((5, 2)))


# Arbitrary data


@st.composite
def problems(draw):
    """Draw a small, valid data set of any kind, and a model."""
    n_classes = draw(st.integers(2, 4))
    counts = draw(st.lists(st.integers(1, 8), min_size=n_classes, max_size=n_classes))
    n, d = sum(counts), draw(st.integers(1, 4))
    rng = np.random.RandomState(draw(st.integers(0, 1000)))
    y = rng.permutation(np.repeat(rng.permutation(n_classes), counts))
    X = rng.normal(size=(n, d)) + draw(st.sampled_from([0, 1, 5])) * y[:, None]
    X = X[rng.randint(n, size=n)] if draw(st.booleans()) else X  # repeated rows
    X = np.round(X) if draw(st.booleans()) else X
    X[:, rng.uniform(size=d) < draw(st.sampled_from([0, 0.5]))] = 1  # constant features
    X = X * 10.0 ** rng.choice(draw(st.sampled_from([[0], [-12], [12], [-12, 0, 12]])), size=d)
    X = X.astype(draw(st.sampled_from([np.float64, np.float32])))
    weights = {
        "none": None,
        "uniform": rng.uniform(0.01, 3, size=n),
        "integers": rng.randint(3, size=n),
        "tiny": np.full(n, 1e-12),
        "large": np.full(n, 1e6),
        "mixed": 10.0 ** rng.uniform(-8, 4, size=n),
    }[draw(st.sampled_from(["none", "uniform", "integers", "tiny", "large", "mixed"]))]
    multi_class = draw(st.sampled_from(["crammer_singer", "ovr"]))
    model = BayesianSVC(
        multi_class=multi_class,
        contrast="soft" if multi_class == "ovr" else draw(st.sampled_from(["soft", "hard"])),
        probability=draw(st.sampled_from(["calibrated", "argmax"])),
        inducing_points=draw(st.sampled_from(["kmeans", "random"])),
        n_inducing=draw(st.sampled_from([1, 6, 256])),
        optimizer=draw(st.sampled_from([None, "auto"])),
        solver=CoordinateAscent(batch_size=draw(st.sampled_from([None, 7]))),
        class_weight=draw(st.sampled_from([None, "balanced"])),
        random_state=0,
    )
    return model, X, y, weights


@given(problems())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_valid_data_always_work(problem):
    model, X, y, weights = problem
    positive = np.ones(len(y), bool) if weights is None else weights > 0
    with warnings.catch_warnings():
        for expected in (ConvergenceWarning, NumericalWarning):
            warnings.simplefilter("ignore", expected)
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
        warnings.filterwarnings("ignore", "The mean of sample_weight is")
        if len(np.unique(y[positive])) < 2:
            with pytest.raises(ValueError, match="class"):
                model.fit(X, y, weights)
            return
        model.fit(X, y, weights)
    assert_array_equal(model.classes_, np.unique(y[positive]))
    assert_probabilities(model.predict_proba(X), len(model.classes_))
    assert np.isfinite(model.decision_function(X)).all()
    assert all(np.isfinite(part).all() for part in model.latent_mean_and_variance(X))


labels_of_six = st.just(np.array([0, 1, 0, 1, 2, 2]))
six_rows = hnp.arrays(
    st.sampled_from([np.float64, np.float32]),
    st.tuples(st.just(6), st.integers(1, 3)),
    elements=st.one_of(
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e30]),
    ),
)
numbers = hnp.arrays(
    st.sampled_from([np.float64, np.float32]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6),
)
others = hnp.arrays(
    st.sampled_from([np.int64, np.uint8, bool, "U2", complex]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=6),
)
row_weights = hnp.arrays(np.float64, 6)


@pytest.mark.parametrize(
    ("rows", "labels", "weights"),
    [
        (six_rows, labels_of_six, st.none()),
        (six_rows, labels_of_six, row_weights),
        (six_rows, numbers | others, st.none()),
        (numbers | others, labels_of_six, st.none()),
        (six_rows, labels_of_six, numbers | others),
    ],
    ids=["rows", "row weights", "labels", "any rows", "any weights"],
)
@given(st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_anything_works_or_is_refused_in_words(rows, labels, weights, data):
    X, y, weights = data.draw(rows), data.draw(labels), data.draw(weights)
    model = quick(n_inducing=4, max_iter=20)
    refusal = None
    with warnings.catch_warnings(action="ignore"):  # scikit-learn and NumPy warn about such data
        try:
            model.fit(X, y, weights)
        except (ValueError, TypeError, DivergenceError) as error:
            refusal = str(error)
    if refusal is None:
        assert_probabilities(model.predict_proba(X), len(model.classes_))
    else:
        assert len(refusal) > 15
        assert "torch" not in refusal
        with pytest.raises(NotFittedError):
            model.predict(np.zeros((1, 1)))
