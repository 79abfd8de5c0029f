"""scikit-learn's own tests of Gaussian processes, run on ours by an adapter of the constructor."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import sklearn.gaussian_process
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skgpsvm import EPClassifier, SVGPRegressor
from skgpsvm._noise import split_noise

pytestmark = pytest.mark.filterwarnings("ignore")


class WithRows:
    """Mixin that keeps the rows of a fit, since `log_marginal_likelihood` needs them."""

    def fit(self, X, y):
        self._rows = {"X": X, "y": y}
        return super().fit(X, y)

    def log_marginal_likelihood(self, theta=None, eval_gradient=False):
        found = super().log_marginal_likelihood(theta, eval_gradient, **self._rows)
        return found if eval_gradient else np.float64(found)  # NumPy less float32 is float64


class Regressor(WithRows, SVGPRegressor):
    @property
    def _y_train_std(self):
        return self._y_std[0]


class Classifier(WithRows, EPClassifier):
    pass


DEFAULT_KERNEL = ConstantKernel() * RBF()


def regressor(
    kernel=None,
    *,
    alpha=1e-10,
    optimizer="fmin_l_bfgs_b",
    n_restarts_optimizer=0,
    normalize_y=False,
    random_state=None,
):
    """Return `SVGPRegressor` for the arguments of `GaussianProcessRegressor`."""
    kernel = DEFAULT_KERNEL if kernel is None else kernel
    if not split_noise(kernel)[1]:
        kernel = kernel + WhiteKernel(alpha, "fixed")
    return Regressor(
        kernel,
        solver="exact",
        mean="zero",
        optimizer="auto" if optimizer == "fmin_l_bfgs_b" else optimizer,
        normalize_y=normalize_y,
        tol=1e-9,
        random_state=random_state,
    )


def classifier(
    kernel=None,
    *,
    optimizer="fmin_l_bfgs_b",
    n_restarts_optimizer=0,
    random_state=None,
    n_jobs=None,
):
    """Return `EPClassifier` for the arguments of `GaussianProcessClassifier`."""
    return Classifier(
        DEFAULT_KERNEL if kernel is None else kernel,
        mean="zero",
        optimizer="auto" if optimizer == "fmin_l_bfgs_b" else optimizer,
        tol=1e-11,
        random_state=random_state,
    )


# Where the adapted estimators differ on purpose: parts of the names of tests, and reasons. A test
# that passes nevertheless has to leave the list.
DIFFERENT = {
    "_structured": ("rows are numbers: kernels of strings have no torch form"),
    "predict_input_not_modified": "a kernel of one's own needs a torch form",
    "lml_without_cloning_kernel": "the evidence at a theta never changes the fitted kernel",
    "prior|no_fit_default_predict|n_targets_error": (
        "before fit all estimators raise NotFittedError, so there is no n_targets either"
    ),
    "predict_shapes.1-|sample_y_shapes.1-|non_invertible_kernel": (
        "a y of shape (n, 1) has predictions of shape (n, 1)"
    ),
    "y_multioutput": "samples of two outputs do not begin with those of one",
    "warning_bounds|fit_error|correct_error_message": (
        "warnings and errors have words of their own; alpha=0 is refused"
    ),
    "lml_error": "there is a gradient at kernel_.theta",
    "complain_on_more_than_2_classes": "every class has a latent function to return",
    "constant_target.kernel[012]": "a jitter of 1e-9 of the prior variance is above the tolerance",
}
# Where digits are lost: these tests may pass or fail.
INEXACT = {
    "gpr_lml_gradient.(3.16.*kernel[34]|10.0.*kernel[234]|31.6|100|316)": (
        "the covariance of the rows is singular, which scikit-learn expects to fail too"
    ),
    "duplicate_input.kernel[345]": "optima agree to six digits if the paths to them differ",
}
# Of these parameters of the tests, one value is quick; the tests with all others are slow.
QUICK = {"kernel": -1, "length_scale": 6}
SLOW = ("multi_class_n_jobs", "random_starts")


@pytest.fixture
def global_random_seed():
    return 0


@pytest.fixture(autouse=True)
def _listed(request):
    for strict, listed in ((True, DIFFERENT), (False, INEXACT)):
        for pattern, reason in listed.items():
            if re.search(pattern, request.node.name):
                request.applymarker(pytest.mark.xfail(reason=reason, strict=strict))


def central_differences(theta, function, epsilon):
    """Return derivatives; forward differences of 1e-9, as in the tests, have hardly a digit."""
    ends = [[function(theta + d * step) for d in (1, -1)] for step in 1e-4 * np.eye(len(theta))]
    return [(up - down) / 2e-4 for up, down in ends]


def with_slow_values(mark):
    """Return a mark of a test whose values of the parameters in `QUICK` are slow but one."""
    if mark.name != "parametrize" or mark.args[0] not in QUICK:
        return mark
    name, values = mark.args
    quick = list(values)[QUICK[name]]
    slow = [
        value if value is quick or value == quick else pytest.param(value, marks=pytest.mark.slow)
        for value in values
    ]
    return pytest.mark.parametrize(name, slow).mark


def aimed_at(estimator, file):
    """Yield name and function of each test of a file of scikit-learn, with our estimator."""
    path = Path(sklearn.gaussian_process.__file__).parent / "tests" / f"{file}.py"
    spec = importlib.util.spec_from_file_location(f"aimed_{file}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("GaussianProcessRegressor", "GaussianProcessClassifier"):
        setattr(module, name, estimator)
    module.approx_fprime = central_differences
    for name, test in vars(module).items():
        if name.startswith("test_"):
            marks = getattr(test, "pytestmark", [])
            test.pytestmark = [with_slow_values(mark) for mark in marks if mark.name != "xfail"]
            if name.endswith(SLOW):
                test.pytestmark.append(pytest.mark.slow.mark)
            yield name.replace("test_", f"{file}_"), test


for file, estimator in (("test_gpr", regressor), ("test_gpc", classifier)):
    globals().update(aimed_at(estimator, file))
