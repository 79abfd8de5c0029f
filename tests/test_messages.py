"""Messages of errors that a user is likely to meet: what came, what is allowed, what to do."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.gaussian_process.kernels import RBF, CompoundKernel, WhiteKernel

from skgpsvm import (
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPRegressor,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm.active_learning import diverse_sampling, least_confident, margin, predictive_entropy
from skgpsvm.solvers import Exact

N = 12
NUMBERS = np.linspace(0, 1, N)[:, None]
CODES = np.arange(N) % 2
STRINGS, DATES = ["u", "v"] * (N // 2), pd.date_range("2020-01-01", periods=N)
ENCODE = "TargetEncoder or OneHotEncoder, or use AdditiveGPRegressor"


@pytest.mark.parametrize("make", [SVGPRegressor, BayesianSVC, HybridSVGPRegressor])
@pytest.mark.parametrize("table", [pd.DataFrame, pl.DataFrame, None], ids=["pandas", "polars", ""])
def test_columns_of_strings_and_dates_are_named(make, table):
    columns = {"a": NUMBERS[:, 0], "text": STRINGS}
    X = table(columns) if table else np.array(list(columns.values()), dtype=object).T
    column = "'text'" if table else "1"
    with pytest.raises(
        ValueError, match=f"^Column {column} of X has strings such as 'u'.*{ENCODE}"
    ):
        make().fit(X, CODES)
    if table:
        with pytest.raises(TypeError, match=r"^Column 'when' of X has dates or times"):
            make().fit(table({"a": NUMBERS[:, 0], "when": DATES}), CODES)


def test_new_rows_of_strings_are_named():
    model = SVGPRegressor(RBF(), optimizer=None).fit(pd.DataFrame({"a": CODES}), CODES)
    with pytest.raises(ValueError, match=r"^Column 'a' of X has strings such as 'u'"):
        model.predict(pd.DataFrame({"a": STRINGS}))
    assert len(model.predict(pd.DataFrame({"a": ["1.5", "2"]}))) == 2  # texts of numbers are taken


@pytest.mark.parametrize("make", [SVGPRegressor, AdditiveGPRegressor, HybridSVGPRegressor])
@pytest.mark.parametrize("dtype", [str, object])
def test_labels_of_regressors_lead_to_classifiers(make, dtype):
    y = np.array(["1.5"] * (N - 1) + ["green"], dtype)
    with pytest.raises(ValueError, match=r"^y has 'green', which is not a number.*SVGPClassifier"):
        make().fit(NUMBERS, y)


@pytest.mark.parametrize("make", [SVGPRegressor, AdditiveGPRegressor, HybridSVGPRegressor])
def test_missing_targets_are_counted_and_the_message_says_what_to_do(make):
    y = np.arange(2.0 * N).reshape(N, 2)
    y[[3, 5]] = np.nan
    with pytest.raises(ValueError, match=r"^Input y contains NaN in 2 of .* row 3\. Leave.* y\.$"):
        make().fit(NUMBERS, y[:, 0])
    with pytest.raises(ValueError, match=r"^Input y contains NaN in 2 of .* row 3\. Leave.* y\.$"):
        make().fit(NUMBERS, y)
    with pytest.raises(ValueError, match=r"^Input y contains NaN in 2 of .* row 3\. Leave.* y\.$"):
        BayesianSVC().fit(NUMBERS, y[:, 0] // 8)
    y[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"in 3 of .* fit a model for each output"):
        make().fit(NUMBERS, y)
    y = y[:, 0].astype(object)
    y[:4] = None
    with pytest.raises(ValueError, match=r"^Input y contains NaN in 5 of .* row 0\. Leave.* y\.$"):
        make().fit(NUMBERS, y)


@pytest.mark.parametrize("make", [SVGPRegressor, AdditiveGPRegressor, HybridSVGPRegressor])
@pytest.mark.parametrize("dtype", ["datetime64[s]", "timedelta64[D]"])
def test_targets_that_are_dates_need_a_unit(make, dtype):
    with pytest.raises(TypeError, match=r"^y has dates or times \(.*Convert them to numbers"):
        make().fit(NUMBERS, np.arange(N).astype(dtype))


def test_columns_of_a_table_that_are_no_categories():
    table, model = pd.DataFrame({"a": STRINGS}), AdditiveGPRegressor(categorical_features=None)
    with pytest.raises(ValueError, match=r"such as 'u'.*list the column in categorical_features"):
        model.fit(table, CODES)
    with pytest.raises(TypeError, match="'a' of X has values of type list, which are neither num"):
        AdditiveGPRegressor().fit(pd.DataFrame({"a": [[1, 2]] * N}), CODES)


def test_missing_values_lead_to_additive_models():
    with pytest.raises(ValueError, match=r"NaN(.|\n)*AdditiveGPRegressor and AdditiveGPClassifier"):
        SVGPRegressor().fit(np.r_[[[np.nan]], NUMBERS[1:]], CODES)


@pytest.mark.parametrize(
    ("estimator", "error", "message"),
    [
        (SVGPRegressor(optimizer="adam"), ValueError, "'auto', None, or a function, which only SV"),
        (SVGPRegressor(optimizer="fmin_l_bfgs_b"), ValueError, "Use 'auto', which is L-BFGS-B"),
        (DecoupledGPRegressor(optimizer=max), ValueError, "only SVGPRegressor with Gaussian noise"),
        (SVGPRegressor(solver=Exact), ValueError, r"Pass an instance, Exact\(\)\.$"),
        (SVGPRegressor(CompoundKernel([RBF()])), TypeError, "CompoundKernel .* Give one kernel"),
        (SVGPClassifier(RBF() + WhiteKernel()), ValueError, "only EPClassifier takes it"),
        (
            SVGPRegressor(likelihood="poisson", normalize_y=False),
            ValueError,
            "it is for likelihood='gaussian', 'student_t', 'laplace' or 'heteroscedastic'",
        ),
        (
            SVGPClassifier(class_weight={"zz": 2, 0: 1}),
            ValueError,
            r"class_weight has \['zz'\], which are not among the classes \[0, 1\]",
        ),
    ],
)
def test_what_to_do_with_parameters(estimator, error, message):
    with pytest.raises(error, match=message):
        estimator.fit(NUMBERS, CODES)


@pytest.mark.parametrize("estimator", [SVGPRegressor(), AdditiveGPRegressor()])
def test_there_is_no_kernel_to_set(estimator):
    with pytest.raises(ValueError, match=r"kernel__length_scale is .* Set kernel first"):
        estimator.set_params(kernel__length_scale=2.0)
    both = SVGPRegressor().set_params(kernel=RBF(), kernel__length_scale=2.0)
    assert both.kernel.length_scale == 2.0


@pytest.mark.parametrize("kind", [SVGPRegressor, AdditiveGPRegressor])
def test_methods_say_why_they_are_absent(kind):
    with pytest.raises(AttributeError) as absent:
        kind(likelihood="poisson").predict_noise_variance  # noqa: B018
    assert "predict_noise_variance " in str(absent.value.__cause__)
    assert "likelihood='poisson'" in str(absent.value.__cause__)


@pytest.mark.parametrize("score", [least_confident, margin, predictive_entropy, diverse_sampling])
def test_scores_need_probabilities(score):
    model = SVGPRegressor(RBF(), optimizer=None).fit(NUMBERS, CODES)
    with pytest.raises(TypeError, match="classifier with predict_proba; got SVGPRegressor"):
        score(model, NUMBERS)


@pytest.mark.parametrize("make", [HybridSVGPRegressor, HybridSVGPClassifier])
def test_no_held_out_rows_may_be_asked_for(make):
    options = {"early_stopping": False, "max_iter": 1}
    make(validation_fraction=0, **options).fit(NUMBERS, CODES)
    with pytest.raises(ValueError, match=r"validation_fraction=0.2 has no effect with early_stop"):
        make(validation_fraction=0.2, **options).fit(NUMBERS, CODES)
