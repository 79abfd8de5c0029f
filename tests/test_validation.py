"""Validation of parameters, labels, weights and targets; predictions in chunks."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_all_equal, weighted_rows
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct
from sklearn.utils.class_weight import compute_class_weight

from skgpsvm import _data
from skgpsvm._estimators import GPClassifier, GPRegressor
from skgpsvm._estimators._pipeline import history
from skgpsvm._validation import check_hyperparameters, check_weights, draw_seed
from skgpsvm.kernels import Linear

CPU = torch.device("cpu")
N, D = 50, 3


class Stub(GPClassifier):
    """Minimal classifier for tests of the base class."""

    def __init__(self, device=None, dtype=None, class_weight=None, size=1):
        self.device = device
        self.dtype = dtype
        self.class_weight = class_weight
        self.size = size

    def fit(self, X, y):
        self._check_training_data(X, y, None)
        return self


# Weights


def test_no_weights_are_ones():
    assert_array_equal(check_weights(None, np.zeros((4, 2))), np.ones(4))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], "inconsistent numbers of samples"),
        (np.ones((3, 1)), "has 2 dimensions; it must have one"),
        ([1, -2, -3], r"2 negative values, the least -3\.0"),
        ([1, np.nan, 1], "sample_weight contains NaN"),
        ([1, np.inf, 1], "sample_weight contains infinity"),
        (["a", "b", "c"], "could not convert string to float"),
    ],
)
def test_bad_weights_are_refused_by_name(weights, message):
    with pytest.raises(ValueError, match=message):
        check_weights(weights, np.zeros((3, 2)))


@pytest.mark.parametrize("sample_weight", ["balanced", 2.0])
def test_weights_that_are_no_array_are_refused(sample_weight):
    with pytest.raises(TypeError, match=r"a weight for each row.*class_weight='balanced'"):
        check_weights(sample_weight, np.zeros((3, 2)))


@pytest.mark.parametrize(
    "class_weight", [None, {0: 2.0, 1: 0.5, 2: 3.0}, {1: 4}, {0: 1, 1: 4.0, 2: 1, 7: 2.0}]
)
def test_class_weights_leave_the_weights_of_rows(class_weight):
    X, y, weights = weighted_rows()
    stub = Stub(class_weight=class_weight)
    _, _, got, _ = stub._check_training_data(X, y, weights)
    assert_array_equal(got, weights[weights > 0])
    expected = [(class_weight or {}).get(label, 1.0) for label in range(3)]
    assert_array_equal(stub.class_weight_, np.array(expected))


@pytest.mark.parametrize("weighted", [False, True])
def test_balanced_weights_are_scikit_learn_s(weighted):
    X, y, weights = weighted_rows()
    weights = weights if weighted else None
    stub = Stub(class_weight="balanced")
    stub._check_training_data(X, y, weights)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=y, sample_weight=weights)
    assert_allclose(stub.class_weight_, expected, rtol=1e-14)


def test_balanced_class_without_rows_has_weight_one():
    X, y, _ = weighted_rows()
    stub = Stub(class_weight="balanced")
    stub._check_training_data(X, y, (y != 1).astype(float), classes=[0, 1, 2])
    counts = np.bincount(y)
    assert_allclose(
        stub.class_weight_,
        [counts[[0, 2]].mean() / counts[0], 1, counts[[0, 2]].mean() / counts[2]],
    )


def test_weights_given_are_left_alone():
    X, y, weights = weighted_rows()
    before = weights.copy()
    Stub(class_weight="balanced")._check_training_data(X, y, weights)
    assert_array_equal(weights, before)


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 2.0, 2: 3.0}])
def test_class_without_weight_is_absent(class_weight):
    X, y, _ = weighted_rows()
    stub = Stub(class_weight=class_weight)
    _, codes, weights, _ = stub._check_training_data(X, y, (y != 1).astype(float))
    assert_array_equal(stub.classes_, [0, 2])
    assert_array_equal(stub.classes_[codes], y[y != 1])
    assert (weights > 0).all()


@pytest.mark.parametrize("label", [None, 1, ("b",), b"b"])
def test_labels_of_several_types_are_refused(label):
    X, y, _ = weighted_rows()
    labels = np.array(["a", "b", "c"])[y].astype(object)
    stub = Stub().fit(X, labels)
    labels[4:5] = [label]
    message = r"Labels in {} must be all strings or all numbers or booleans; got "
    with pytest.raises(ValueError, match=message.format("y")):
        stub.fit(X, labels)
    with pytest.raises(ValueError, match=message.format("classes")):
        stub._check_training_data(X, stub.classes_[y], None, classes=labels)


@pytest.mark.parametrize("labels", [[1, 2], [True, False], [1.0, 2]])
def test_numbers_in_an_array_of_objects_are_no_labels(labels):
    y = np.array(labels * 3, dtype=object)
    with pytest.raises(ValueError, match=r"y are numbers .* dtype=object.* y\.astype\(int\)"):
        Stub().fit(np.arange(6.0)[:, None], y)


@pytest.mark.parametrize("seed", [-1, 2**32, "x", np.nan])
def test_random_state_that_is_none(seed):
    with pytest.raises(ValueError, match=r"random_state=.* must be an integer from 0 to 2\*\*32"):
        draw_seed(seed)


@pytest.mark.parametrize("device", [10**30, "nowhere", 1.5])
def test_device_that_is_none(device):
    with pytest.raises(ValueError, match=r"device=.* cannot be used here"):
        Stub(device=device)._torch_options(np.zeros((1, 1)))


@pytest.mark.parametrize("class_weight", ["auto", [1, 2, 3], 2.0])
def test_class_weight_that_is_none(class_weight):
    X, y, _ = weighted_rows()
    with pytest.raises(ValueError, match=r"class_weight=.* must be a dict of classes to numbers"):
        Stub(class_weight=class_weight)._check_training_data(X, y, None)


def test_class_weight_zero_removes_a_class():
    X, y, _ = weighted_rows()
    stub = Stub(class_weight={0: 1, 1: 0, 2: 1})
    stub._check_training_data(X, y, None)
    assert_array_equal(stub.classes_, [0, 2])


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ({0: -1, 1: 1, 2: 1}, "must be finite and not negative"),
        ({0: np.nan, 1: 1, 2: 1}, "must be finite and not negative"),
        ({0: "2", 1: 1, 2: 1}, "must be finite and not negative"),
        ({0: 1, 7: 1}, r"has \[7\], which are not among the classes \[0, 1, 2\]"),
        ("equal", "class_weight"),
        ([1, 2, 3], "class_weight"),
    ],
)
def test_bad_class_weights_are_refused(class_weight, message):
    X, y, _ = weighted_rows()
    with pytest.raises(ValueError, match=message):
        Stub(class_weight=class_weight)._check_training_data(X, y, None)


def test_class_weights_of_classes_that_a_batch_lacks_are_fine():
    X, y, _ = weighted_rows()
    stub = Stub(class_weight={2: 5.0})
    stub._check_training_data(X, y, None)
    first = y != 2
    stub._check_training_data(X[first], y[first], None, classes=stub.classes_, reset=False)
    assert_array_equal(stub.class_weight_, [1, 1, 5])


# Labels


@pytest.mark.parametrize(
    "labels", [["b", "a", "c"], [10, -3, 7], [0.0, 1.0, 2.0], np.array(["x", "yy", "z"], object)]
)
def test_codes_index_the_sorted_classes(labels):
    X, y, _ = weighted_rows()
    labels = np.asarray(labels)
    stub = Stub()
    _, codes, _, _ = stub._check_training_data(X, labels[y], None)
    assert_array_equal(stub.classes_, np.unique(labels))
    assert_array_equal(stub.classes_[codes], labels[y])


def test_classes_may_be_given():
    X, y, _ = weighted_rows()
    stub = Stub()
    _, codes, _, _ = stub._check_training_data(X, y, None, classes=[9, 0, 2, 1])
    assert_array_equal(stub.classes_, [0, 1, 2, 9])
    assert_array_equal(codes, y)


def test_unknown_classes_are_named():
    X, y, _ = weighted_rows()
    with pytest.raises(ValueError, match=r"classes \[2\] that are not among \[0, 1\]"):
        Stub()._check_training_data(X, y, None, classes=[0, 1])


def test_unknown_class_of_weight_zero_is_absent():
    X, y, _ = weighted_rows()
    stub = Stub()
    stub._check_training_data(X, y, (y != 2).astype(float), classes=[0, 1])
    assert_array_equal(stub.classes_, [0, 1])


def test_one_class_is_not_enough():
    X, y, _ = weighted_rows()
    with pytest.raises(ValueError, match=r"at least two classes .* got 1 class: \[1\]"):
        Stub()._check_training_data(X, y, (y == 1).astype(float))


def test_checking_without_reset_changes_nothing():
    X, y, _ = weighted_rows()
    stub = Stub()
    stub._check_training_data(X, y, None)
    before = pickle.dumps(vars(stub))
    with pytest.raises(ValueError, match="expecting 3 features"):
        stub._check_training_data(X[:, :2], y, None, classes=stub.classes_, reset=False)
    stub._check_training_data(X, y, None, classes=stub.classes_, reset=False)
    assert pickle.dumps(vars(stub)) == before


# Device and dtype


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        (None, np.float32, torch.float32),
        (None, np.float64, torch.float64),
        ("float32", np.float64, torch.float32),
        ("float64", np.float32, torch.float64),
    ],
)
@pytest.mark.parametrize("device", [None, "cpu", CPU])
def test_options_are_a_device_and_a_dtype(device, dtype, given, expected):
    assert Stub(device, dtype)._torch_options(np.zeros((2, 2), given)) == (CPU, expected)


@pytest.mark.parametrize("dtype", ["float16", "double", np.float32, torch.float32, ["float32"]])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match=r"dtype=.* is not one of 'float32', 'float64', None"):
        Stub(dtype=dtype)._torch_options(np.zeros((2, 2)))


@pytest.mark.parametrize("device", ["gpu", "cuda:99", ["cpu"], 3.5])
def test_absent_devices_are_refused(device):
    with pytest.raises(ValueError, match=r"device=.* cannot be used here: .* Use None or 'cpu'"):
        Stub(device=device)._torch_options(np.zeros((2, 2)))


@pytest.mark.parametrize("value", ["c", 1, True, ["a"], np.array(["a"])])
def test_choices_are_checked(value):
    with pytest.raises(ValueError, match=r"size=.* is not one of 'a', 'b', None"):
        Stub(size=value)._check_choice("size", ("a", "b", None))


@pytest.mark.parametrize("value", [0, -1.0, np.nan, "3", None, True, [1], 1 + 0j])
def test_numbers_are_checked(value):
    with pytest.raises(ValueError, match=r"size=.* must be a number of at least 1\."):
        Stub(size=value)._check_number("size", 1)


@pytest.mark.parametrize("value", [2.0, np.float64(2), 0])
def test_integers_are_checked(value):
    with pytest.raises(ValueError, match=r"must be an integer of at least 1, or None\."):
        Stub(size=value)._check_number("size", 1, integer=True, besides=(None,))


@pytest.mark.parametrize("integer", [True, False])
def test_numbers_that_no_array_holds_are_refused(integer):
    with pytest.raises(ValueError, match=r"size=1\d{30} does not fit in 64 bits"):
        Stub(size=10**30)._check_number("size", 1, integer=integer)


@pytest.mark.parametrize("value", [1, 2, np.int64(3), None])
def test_good_numbers_pass(value):
    Stub(size=value)._check_number("size", 1, integer=True, besides=(None,))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBF([]), r"length_scale=\[\] must be finite and above 0"),
        (Linear([]), r"length_scale=\[\] must be finite and above 0"),
        (1.0 * RBF([]) + 1.0, r"k1__k2__length_scale=\[\] must be"),
        (RBF(np.nan), "length_scale=nan must be finite and above 0"),
        (RBF([1.0, -2.0]), r"length_scale=\[1.0, -2.0\] must be finite and above 0"),
        (RBF(0.0), "length_scale=0.0 must be finite and above 0"),
        (ConstantKernel(-1.0, "fixed"), "constant_value=-1.0 must be finite and at least 0"),
        (RBF([[1.0, 2.0]]), "length_scale=.* one number or"),
        (RBF("long"), "length_scale='long' must be finite"),
        (RBF(1.0, (2.0, 1.0)), r"length_scale_bounds=\(2.0, 1.0\) must be a pair of numbers"),
        (RBF(1.0, (1.0, 2.0, 3.0)), "length_scale_bounds=.* must be a pair of numbers"),
        (RBF(1.0, "constant"), "length_scale_bounds='constant' must be a pair of numbers"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused_by_name(kernel, message):
    with pytest.raises(ValueError, match=f"The kernel's {message}"):
        check_hyperparameters(kernel)


@pytest.mark.parametrize(
    "kernel",
    [DotProduct(0.0, "fixed"), RBF(1, (0, np.inf)), Linear([1, 2]), RBF(np.float32(1)) ** 2],
)
def test_good_hyperparameters_pass(kernel):
    check_hyperparameters(kernel)


# Prediction


def test_rows_are_mapped_chunk_by_chunk(monkeypatch):
    monkeypatch.setattr(_data, "CHUNK_ROWS", 7)
    X = weighted_rows()[0]
    seen = []

    def function(chunk):
        seen.append(len(chunk))
        return chunk.exp()

    assert_allclose(Stub()._map_rows(function, X), np.exp(X), rtol=1e-14)  # two libraries
    assert seen == [7] * (N // 7) + [N % 7]


def test_mapped_values_are_float64_and_without_graph():
    X = weighted_rows()[0].astype(np.float32)
    factor = torch.ones(1, requires_grad=True)
    mapped = Stub()._map_rows(lambda chunk: factor * chunk, X)
    assert mapped.dtype == np.float64
    assert_array_equal(mapped, X)


def test_new_rows_are_only_for_fitted_estimators():
    with pytest.raises(NotFittedError):
        Stub()._check_new(np.zeros((2, 2)))


# Targets of a regressor


class Regressor(GPRegressor):
    """Minimal regressor for tests of the base class."""

    likelihood = "gaussian"

    def __init__(self, normalize_y=True):
        self.normalize_y = normalize_y

    def checked(self, X, y, sample_weight=None, reset=True):
        return self._check_training_data(X, y, sample_weight, reset=reset)[:3]


def regression(n=30, seed=0):
    """Return rows, two targets and weights."""
    rng = np.random.RandomState(seed)
    y = rng.normal(size=(n, 2)) * [1.0, 50.0] + [3.0, -200.0]
    return rng.normal(size=(n, D)), y, rng.uniform(0.5, 2, size=n)


def test_targets_are_centered_and_scaled_by_their_weighted_moments():
    X, y, weights = regression()
    weights[:5] = 0
    _, targets, used = Regressor().checked(X, y, weights)
    assert len(targets) == 25
    assert_allclose(np.average(targets, axis=0, weights=used), 0, atol=1e-14)
    assert_allclose(np.average(targets**2, axis=0, weights=used), 1, rtol=1e-13)
    assert_allclose(used.sum(), weights.sum(), rtol=1e-14)


@pytest.mark.parametrize("scale", [1e-4, 0.4, 2.1, 300.0])
def test_inverse_variances_in_other_units_are_told(scale):
    X, y, weights = regression()
    weights *= scale / weights.mean()
    weights[:3] = 0.0
    with pytest.warns(UserWarning, match="Pass known variances of the noise") as told:
        Regressor().checked(X, y, weights)
    assert len(told) == 1
    assert f"is {weights[3:].mean():.3g}." in str(told[0].message)
    assert "these 27 rows" in str(told[0].message)


@pytest.mark.parametrize("weights", [None, np.full(30, 100), np.arange(30), 0.6 * np.ones(30)])
def test_counts_and_weights_of_mean_about_one_are_not_told(weights):
    Regressor().checked(*regression()[:2], weights)


def test_integer_weights_are_repeated_rows_to_the_last_bit():
    X, y, _ = regression()
    counts = np.resize([1, 0, 3, 2], 30)
    index = np.repeat(np.arange(30), counts)
    weighted = Regressor().checked(X, y, counts)
    repeated = Regressor().checked(X[index], y[index])
    assert_all_equal(weighted, repeated)


def test_targets_may_be_left_as_they_are():
    X, y, _ = regression()
    order = np.lexsort(X.T[::-1])
    assert_array_equal(Regressor(normalize_y=False).checked(X, y)[1], y[order])


def test_constant_targets_are_centered_only():
    X, _, _ = regression()
    _, targets, _ = Regressor().checked(X, np.full(30, 7.0))
    assert_array_equal(targets, np.zeros((30, 1)))


def test_later_targets_are_on_the_first_ones_scale():
    X, y, _ = regression()
    model = Regressor()
    model.checked(X, y)
    _, targets, _ = model.checked(X[:7], 2 * y[:7], reset=False)
    order = np.lexsort(X[:7].T[::-1])
    assert_allclose(targets, (2 * y[:7] - y.mean(0))[order] / y.std(0), rtol=1e-12)
    with pytest.raises(ValueError, match="y has 1 outputs, but the model was fitted with 2"):
        model.checked(X, y[:, 0], reset=False)


@pytest.mark.parametrize("columns", [0, [0], [0, 1]])
def test_outputs_have_the_axes_of_the_targets(columns):
    X, y, _ = regression()
    model = Regressor()
    _, targets, _ = model.checked(X, y[:, columns])
    assert targets.shape == (30, np.size(columns))
    assert model._outputs(targets).shape == y[:, columns].shape


# Convergence of fits


def test_history_of_several_fits_is_as_long_as_the_longest():
    found = history([1.0, 2.0, 4.0], [10.0])
    assert found["n_iter_"] == 3
    assert_array_equal(found["objective_curve_"], [11.0, 12.0, 14.0])
