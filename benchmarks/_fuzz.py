"""Random fits of any estimator, with random parameters and data, and checks of their results."""

import linecache
import signal
import traceback
import warnings
from inspect import signature
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
import sklearn
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process import kernels as k

import skgpsvm
from skgpsvm import exceptions
from skgpsvm._families import FAMILIES
from skgpsvm.kernels import Linear

ESTIMATORS = sorted(name for name in skgpsvm.__all__ if name[0].isupper())
WRONG = {"another error", "words of another", "not well formed", "no end"}
SECONDS = 60  # limit of processor time of one fit and its predictions; more counts as "no end"
_REFUSALS = (ValueError, TypeError, exceptions.DivergenceError)
_OURS = Path(skgpsvm.__file__).parent
_VALIDATION = [Path(sklearn.__file__).parent / part for part in ("utils", "base.py")]
_JUNK = (None, -1, 0, 1.5, "x", [], {}, np.nan, np.inf, True, 10**30, object(), 1e-300, 1e300)
_LENGTHS = {"few": 3, "one": 1}

_VALUES = {
    "likelihood": ("softmax", "probit", "robust_max"),
    "contrast": ("soft", "hard"),
    "probability": ("calibrated", "argmax"),
    "multi_class": ("crammer_singer", "ovr"),
    "mean": ("zero", "constant", "linear"),
    "optimizer": ("auto", None),
    "parametrization": ("orthogonal", "hybrid", "shared", "decoupled"),
    "rule": ("adam", "sign", "adadelta"),
    "step": ("sgd", "adagrad"),
    "basis": ("fourier", "orthogonal", "inducing"),
    "covariance": ("nystroem", "chevron", "mean_field"),
    "control_variate": ("interpolating", "gram", None),
    "gradient": ("symmetric", "plain"),
    "learn_hyperparameters": (False, True),
    "augment": (False, True),
    "n_inducing": (1, 3, 8),
    "n_basis": (1, 4, 20),
    "n_mean_bases": (1, 4, 20),
    "n_dense_columns": (1, 3),
    "n_support": (1, 8),
    "n_sampled_basis": (1, 16),
    "inducing_points": ("kmeans", "random"),
    "learn_inducing": (True, False),
    "max_iter": (1, 2, 5),
    "tol": (0, 0.01, 1, 100),
    "batch_size": (None, 1, 7, 100),
    "learning_rate": (0.001, 0.05, 0.5),
    "noise_variance": (None, 1e-6, 0.1, 10.0),
    "normalize_y": (True, False),
    "class_weight": (None, "balanced"),
    "warm_start": (False, True),
    "dtype": (None, "float32", "float64"),
    "relevance_threshold": (1.01, 100, 1e4),
    "early_stopping": (True, False),
    "validation_fraction": (0.1, 0.5, 0),
    "n_iter_no_change": (1, 5),
    "module_params": ({"hidden_layer_sizes": (3,), "n_outputs": 2}, {"hidden_layer_sizes": ()}),
    "input_shape": (None, (1, 2), (2,)),
    "length_scale_bounds": ((0.05, 10.0), (1.0, 1.0), (1e-3, 1e3)),
    "kernel_interaction": (None, "rbf", "matern12"),
    "interactions": ("auto", None, 1),
    "terms": (None, [..., (0, 1)], [0], [(0, "linear"), ...]),
    "categorical_features": ("from_dtype", None, [0]),
    "monotonic_cst": (None, {0: 1}, {0: 1, 1: -1}),
    "convex_cst": (None, {0: 1}, {0: -1, 1: 1}),
    "point_masses": ("auto", None),
    "steps": ("auto", None),
    "scaling": ("power", "minmax"),
    "measure": ("empirical", "uniform"),
    "rank": (None, 1, 3),
    "sparse": ("auto", True, False),
    "n_inducing_interaction": ("auto", 2, 4),
    "shrinkage": (0, 0.1, 4.0, 100.0),
    "min_gain": (0, 0.05, 10),
}
_REGRESSION = ("gaussian", "student_t", "laplace")
_OF = {
    ("AdditiveGPClassifier", "likelihood"): ("softmax", "probit", "ordinal"),
    ("SVGPClassifier", "likelihood"): ("softmax", "probit", "robust_max", "ordinal"),
    ("AdditiveGPRegressor", "likelihood"): (*_REGRESSION, "heteroscedastic", *FAMILIES),
    ("SVGPRegressor", "likelihood"): (*_REGRESSION, "heteroscedastic", *FAMILIES),
    ("BayesianSVC", "optimizer"): ("auto", "leave_one_out", "adam", None),
    ("QSRVMRegressor", "covariance"): ("full", "mean_field"),
    ("QSRVMClassifier", "covariance"): ("full", "mean_field"),
    ("AdditiveGPRegressor", "covariance"): ("full", "precision", "mean_field"),
    ("AdditiveGPClassifier", "covariance"): ("full", "precision", "mean_field"),
    ("AdditiveGPRegressor", "kernel"): ("rbf", "matern32", "matern52"),
    ("AdditiveGPClassifier", "kernel"): ("rbf", "matern32", "matern52"),
}


def attempt(seed, i):
    """Return the estimator's name, the outcome and its details for trial ``i`` of a seed."""
    rng = np.random.default_rng([seed, 2, i])
    name = ESTIMATORS[i % len(ESTIMATORS)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        params, data = _params(rng, name), _data(rng, name)
        told = _told(name, params, data)
        try:
            signal.signal(signal.SIGVTALRM, _ring)
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            return name, *_outcome(rng, name, params, data, told)
        except _TooLong:
            return name, "no end", told
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _told(name, params, data):
    try:
        return f"{name}({params}) on {data}"
    except IndexError:  # scikit-learn's repr of RBF([]) raises it
        return f"{name} with a kernel without length scales"


class _TooLong(BaseException):
    pass


def _ring(*_):
    raise _TooLong


def _outcome(rng, name, params, data, told):
    X, y, options = data
    try:
        model = getattr(skgpsvm, name)(**params).fit(X, y, **options)
        new = _new_rows(rng, X)
        fault = _fault(model, new, X)
    except _REFUSALS as error:
        return _judged(error, told)
    except Exception:  # such errors are what the fuzzing looks for
        return "another error", f"{traceback.format_exc()}{told}"
    if fault:
        return "not well formed", f"{fault}: {told}"
    return "fitted", told


def _judged(error, told):
    """Return "refused" and the text of an error raised by us or by scikit-learn's validation.

    Any other error is returned as "words of another".
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    path, line = Path(frame.filename), linecache.getline(frame.filename, frame.lineno).strip()
    spoken = path.is_relative_to(_OURS) and line.startswith("raise ")
    if spoken or any(path.is_relative_to(part) for part in _VALIDATION):
        return "refused", str(error)
    text = "".join(traceback.format_exception(error))
    return "words of another", f"{text}{told}"


def _fault(model, new, X):
    """Return a description of what is wrong with a fitted model's predictions, or None."""
    n = new.shape[0] if sp.issparse(new) else len(new)
    mean, var = model.latent_mean_and_variance(new)
    if not (np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all()):
        return "latent moments are not finite"
    predicted = model.predict(new)
    if len(predicted) != n:
        return "predict has another length"
    if is_classifier(model):
        P = model.predict_proba(new)
        if P.shape != (n, len(model.classes_)):
            return "predict_proba has another shape"
        if not (np.isfinite(P).all() and (P >= 0).all() and np.allclose(P.sum(1), 1)):
            return "predict_proba is no probability"
        if not np.isfinite(model.decision_function(new)).all():
            return "decision_function is not finite"
        own = P[np.arange(n), np.searchsorted(model.classes_, predicted)]
        if not (own >= P.max(1) - 1e-12).all():
            return "predict is not the argmax of predict_proba"
        if not model.predict_set(new)[P.argmax(1)[:, None] == np.arange(P.shape[1])].all():
            return "predict_set lacks the most probable class"
        return None
    if not np.isfinite(predicted).all():
        return "predict is not finite"
    if "return_std" in model.predict.__code__.co_varnames:
        std = model.predict(new, return_std=True)[1]
        if std.shape != predicted.shape or not (np.isfinite(std).all() and (std >= 0).all()):
            return "standard deviations are not finite"
    low, high = model.predict_interval(new)
    if low.shape != predicted.shape or not (np.isfinite(high - low).all() and (low <= high).all()):
        return "intervals are not finite"
    if hasattr(model, "predict_noise_variance"):
        noise = model.predict_noise_variance(new)
        if not (np.isfinite(noise).all() and (noise >= 0).all()):
            return "noise variances are not finite"
    return None


def _new_rows(rng, X):
    """Return a few rows of the same kind as the training rows, some of them far away."""
    if isinstance(X, pd.DataFrame):
        return X.head(4)
    if sp.issparse(X):
        return X[:4]
    rows = np.array(X[:4])
    if rows.dtype.kind == "f" and rng.random() < 0.3:
        rows = (rows * 10.0 ** rng.integers(0, 4)).astype(rows.dtype)
    return rows


# Parameters


def _params(rng, name):
    """Return random parameters of an estimator, some of them invalid."""
    defaults = getattr(skgpsvm, name)().get_params(deep=False)
    params = {"random_state": int(rng.integers(100))}
    for cheap in ("n_inducing", "max_iter", "n_basis", "n_mean_bases", "module_params"):
        if cheap in defaults:
            params[cheap] = _value(rng, name, cheap)
    share = rng.choice([0.05, 0.25])
    for other in defaults:
        if other not in params and rng.random() < share:
            if (found := _value(rng, name, other)) is not _LENGTHS:
                params[other] = found
    if rng.random() < 0.08:
        params[str(rng.choice([*defaults]))] = _JUNK[rng.integers(len(_JUNK))]
    return params


def _value(rng, name, parameter):
    values = _OF.get((name, parameter), _VALUES.get(parameter))
    if parameter == "kernel" and values is None:
        return _kernel(rng)
    if parameter == "solver":
        return _solver(rng, name)
    if parameter == "likelihood" and name.endswith("Regressor") and values[0] == "softmax":
        values = _REGRESSION
    if values is None:
        return _LENGTHS  # dummy: the parameter has no valid values to choose from
    return values[rng.integers(len(values))]


def _solver(rng, name):
    """Return a solver of an estimator: a string, or an object with random options."""
    solvers = getattr(skgpsvm, name)._rules.solvers
    chosen = str(rng.choice([*solvers]))
    if solvers[chosen] is None or rng.random() < 0.3:
        return chosen
    solver = clone(solvers[chosen])
    for option in solver.get_params():
        if rng.random() < 0.3:
            solver.set_params(**{option: _value(rng, name, option)})
        elif rng.random() < 0.03:
            solver.set_params(**{option: _JUNK[rng.integers(len(_JUNK))]})
    return solver


def _kernel(rng, depth=0):
    if depth < 2 and rng.random() < 0.5:
        one, other = _kernel(rng, depth + 1), _kernel(rng, depth + 1)
        return one + other if rng.random() < 0.5 else one * other
    kinds = (
        lambda: k.RBF(),
        lambda: k.RBF(10.0 ** rng.integers(-8, 8)),
        lambda: k.RBF([1.0, 2.0]),
        lambda: k.RBF(1.0, "fixed"),
        lambda: k.RBF([]) if rng.random() < 0.1 else k.RBF(),
        lambda: k.Matern(nu=rng.choice([0.5, 1.5, 2.5, np.inf])),
        lambda: k.RationalQuadratic(),
        lambda: k.ConstantKernel(10.0 ** rng.integers(-6, 6)),
        lambda: k.ConstantKernel(1.0, "fixed"),
        lambda: k.WhiteKernel(),
        lambda: k.DotProduct(),
        lambda: k.ExpSineSquared(),
        lambda: Linear(),
        lambda: k.RBF() ** 2,
    )
    return kinds[rng.integers(len(kinds))]()


# Data


def _data(rng, name):
    """Return random X and y and options of `fit`, some of them invalid or unusual."""
    n = int(rng.choice([1, 2, 3, 5, 12, 25, 40], p=[0.02, 0.04, 0.06, 0.08, 0.2, 0.3, 0.3]))
    d = int(rng.choice([1, 2, 3, 6, 45], p=[0.25, 0.35, 0.25, 0.1, 0.05]))
    X = rng.normal(size=(n, d))
    odd = rng.random() < 0.45
    X = _odd_rows(rng, X) if odd else X
    classes = name.endswith(("Classifier", "SVC"))
    y = _labels(rng, n) if classes else _targets(rng, n)
    options = {"sample_weight": _weights(rng, n)}
    if "noise_variance" in signature(getattr(skgpsvm, name).fit).parameters:
        options["noise_variance"] = _weights(rng, n)
    return X, y, options


def _odd_rows(rng, X):
    n, d = X.shape
    huge = 10.0 ** rng.choice([-300, -150, -30, -5, 3, 8, 30, 150, 300])

    def spoiled(value):
        spoilt = X.copy()
        spoilt[rng.integers(n), rng.integers(d)] = value
        return spoilt

    kinds = (
        lambda: X.astype(np.float32),
        lambda: (X * min(huge, 1e37)).astype(np.float32),
        lambda: X * huge,
        lambda: X + huge,
        lambda: X * 10.0 ** rng.integers(-20, 20, size=d),
        lambda: np.repeat(X[:1], n, 0),
        lambda: X[rng.integers(max(n // 4, 1), size=n)],
        lambda: np.where(np.arange(d) == 0, 3.0, X),
        lambda: rng.integers(3, size=(n, d)),
        lambda: rng.integers(2, size=(n, d)).astype(bool),
        lambda: rng.integers(256, size=(n, d)).astype(np.uint8),
        lambda: np.zeros((n, d)),
        lambda: np.asfortranarray(X),
        lambda: X.astype(object),
        lambda: X.tolist(),
        lambda: pd.DataFrame(X, columns=[f"a{j}" for j in range(d)]),
        lambda: pd.DataFrame(X).assign(kind=np.array(["u", "v"])[rng.integers(2, size=n)]),
        lambda: spoiled(np.nan),
        lambda: spoiled(np.inf),
        lambda: spoiled(huge),
        lambda: X[:, 0],
        lambda: X[None],
        lambda: X[:, :0],
        lambda: X[:0],
        lambda: sp.csr_array(X),
        lambda: _Source(X),
        lambda: _Source(spoiled(np.nan)),
        lambda: X + 1j,
        lambda: X.astype(str),
    )
    return kinds[rng.integers(len(kinds))]()


class _Source:
    """Rows that are read by slices, as those of a file are."""

    def __init__(self, rows):
        self.shape, self.dtype, self._rows = rows.shape, rows.dtype, rows

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, index):
        return self._rows[index]


def _labels(rng, n):
    codes = rng.integers(rng.choice([1, 2, 3, 5], p=[0.05, 0.5, 0.35, 0.1]), size=n)
    if rng.random() < 0.7:
        return codes
    strings = np.array(["b", "a", "c", "e", "d"])[codes]

    def spoiled(value):
        spoilt = strings.astype(object)
        spoilt[rng.integers(n)] = value
        return spoilt

    kinds = (
        lambda: strings,
        lambda: strings.astype(object),
        lambda: strings.tolist(),
        lambda: codes.astype(bool),
        lambda: codes.astype(float) - 1.0,
        lambda: codes * 10**15,
        lambda: codes.astype(np.uint8),
        lambda: codes[:, None],
        lambda: np.eye(5)[codes],
        lambda: codes + 0.5,
        lambda: spoiled(None),
        lambda: spoiled(np.nan),
        lambda: spoiled(1),
        lambda: spoiled(("a",)),
        lambda: np.where(codes == 0, np.nan, codes),
        lambda: pd.Series(strings).astype("category"),
        lambda: pd.Series(strings),
        lambda: strings.astype(bytes),
        lambda: codes.astype("datetime64[s]"),
        lambda: None,
        lambda: codes[:-1],
    )
    return kinds[rng.integers(len(kinds))]()


def _targets(rng, n):
    y = rng.normal(size=n)
    if rng.random() < 0.6:
        return y
    huge = 10.0 ** rng.choice([-300, -150, -30, -5, 3, 8, 30, 150, 300])

    def spoiled(value):
        spoilt = y.astype(object)
        spoilt[rng.integers(n)] = value
        return spoilt

    kinds = (
        lambda: y * huge,
        lambda: y + huge,
        lambda: np.full(n, 2.0),
        lambda: np.zeros(n),
        lambda: rng.poisson(3, size=n),
        lambda: rng.integers(2, size=n).astype(bool),
        lambda: y.astype(np.float32),
        lambda: y.tolist(),
        lambda: np.stack([y, y * huge], 1),
        lambda: np.stack([y, np.ones(n)], 1),
        lambda: y[:, None],
        lambda: y[:, None, None],
        lambda: np.where(np.arange(n) == 0, huge, y),
        lambda: spoiled(None),
        lambda: spoiled("a"),
        lambda: spoiled(1.5),
        lambda: np.where(np.arange(n) == 0, np.nan, y),
        lambda: np.where(np.arange(n) == 0, np.inf, y),
        lambda: y.astype(str),
        lambda: y + 1j,
        lambda: pd.Series(y),
        lambda: None,
        lambda: y[:-1],
    )
    return kinds[rng.integers(len(kinds))]()


def _weights(rng, n):
    if rng.random() < 0.8:
        return None
    w = rng.uniform(0.5, 2, size=n)
    kinds = (
        lambda: w,
        lambda: rng.integers(3, size=n),
        lambda: np.zeros(n),
        lambda: -w,
        lambda: w * 10.0 ** rng.choice([-300, -20, -5, 5, 20, 300]),
        lambda: np.where(np.arange(n) == 0, 1e8, w),
        lambda: np.where(np.arange(n) == 0, np.nan, w),
        lambda: w.tolist(),
        lambda: w[:, None],
        lambda: w[:-1],
        lambda: "balanced",
        lambda: 2.0,
    )
    return kinds[rng.integers(len(kinds))]()
