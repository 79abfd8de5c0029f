"""Sparse X: the same models and predictions as those of the dense array."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import skgpsvm
from skgpsvm import (
    BayesianSVC,
    EPClassifier,
    QSGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
    _csr,
    _estimators,
    inducing,
)
from skgpsvm._csr import CSRRows, array_of, dense_blocks
from skgpsvm._data import WeightedDataset, to_tensor
from skgpsvm._estimators._inputs import TAKING_SPARSE
from skgpsvm._torch_kernels import take_sparse, torch_kernel
from skgpsvm.active_learning import diverse_sampling, least_confident
from skgpsvm.inducing import select_inducing_points
from skgpsvm.kernels import ANOVARBF, Linear

N, D = 90, 12
ESTIMATORS = {
    "svc": BayesianSVC(n_inducing=8, random_state=0),
    "svc steps": BayesianSVC(n_inducing=8, optimizer="adam", max_iter=4, random_state=0),
    "svgp": SVGPClassifier(n_inducing=8, learn_inducing=False, max_iter=2, random_state=0),
    "svgp minibatches": SVGPClassifier(solver="gradient", n_inducing=8, max_iter=2, random_state=0),
    "regressor": SVGPRegressor(
        n_inducing=8, learn_inducing=False, noise_variance=0.1, random_state=0
    ),
    "ep": EPClassifier(n_inducing=8, random_state=0),
    "ep steps": EPClassifier(solver="sep", n_inducing=8, max_iter=4, random_state=0),
}
ARD = np.linspace(1, 2, D)
KERNELS = {
    "isotropic": 2.0 * RBF(1.5) + ConstantKernel(0.5) * Linear(1.2),
    "ARD": 1.0 * Matern(ARD, nu=1.5) + ConstantKernel(0.5) * Linear(ARD, offset=ARD / 9),
    "products": (RBF(1.5) * DotProduct(0.5)) ** 2 + ConstantKernel(0.1, "fixed"),
    "dense only": 1.0 * ANOVARBF(1.0) + 1.0 * RBF(1.5),
}


@pytest.fixture
def data():
    """Return sparse X with an empty row and an empty column, classes, and a float target."""
    rng = np.random.default_rng(0)
    X = sp.random_array((N, D), density=0.3, rng=rng).toarray()
    X[4], X[:, 7] = 0, 0
    f = X @ rng.normal(size=D)
    return sp.csr_array(X), np.digitize(f, np.quantile(f, [0.4, 0.7])), f + 0.1 * rng.normal(size=N)


@pytest.fixture
def stays_sparse(monkeypatch):
    """Let no sparse X become an array, however small it is."""
    monkeypatch.setattr(_estimators._inputs, "MAX_DENSE", 0)
    monkeypatch.setattr(inducing, "MAX_DENSE", 0)


def predictions(model, X):
    if hasattr(model, "predict_proba"):
        return model.predict_proba(X)
    return np.stack(model.predict(X, return_std=True))


def targets_of(estimator, data):
    return data[2] if isinstance(estimator, SVGPRegressor) else data[1]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_sparse_products_give_the_model_of_the_dense_array(estimator, data, stays_sparse):
    X, estimator = data[0], clone(estimator).set_params(kernel=KERNELS["isotropic"])
    y = targets_of(estimator, data)
    dense, sparse = (clone(estimator).fit(rows, y) for rows in (X.toarray(), X))
    # Rounding errors of 1e-15 in the kernel grow by the optimization.
    assert np.allclose(predictions(sparse, X), predictions(dense, X.toarray()), 0, 1e-6)
    assert np.allclose(
        sparse.latent_covariance(X[:5]), dense.latent_covariance(X[:5].toarray()), 0, 1e-5
    )


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_kernel_takes_sparse_rows(kernel, dtype, data, stays_sparse):
    X, y = data[0].astype(dtype), data[1]
    model = BayesianSVC(kernel, n_inducing=8, optimizer=None, random_state=0)
    dense, sparse = (clone(model).fit(rows, y).predict_proba(rows) for rows in (X.toarray(), X))
    assert np.allclose(sparse, dense, 0, 1e-9 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize("name", ["isotropic", "ARD", "products"])
def test_derivatives_of_kernels_at_sparse_rows_are_those_at_dense_rows(name, data):
    kernel, rows = torch_kernel(KERNELS[name]), CSRRows(data[0])
    X, Z = to_tensor(rows, "cpu"), torch.rand(6, D, dtype=torch.float64)
    theta, adjoint = torch.tensor(KERNELS[name].theta), torch.rand(N, 6, dtype=torch.float64)
    assert kernel.takes_sparse
    assert X.is_sparse
    found = []
    for part in (X, X.to_dense()):
        K, pull_back = kernel.vjp(part, Z, theta)
        parts = [K, kernel(part, Z, theta), *pull_back(adjoint), kernel.diag(part, theta)]
        parts.append(kernel.diag_gradient(part, theta, adjoint[:, 0]))
        leaves = theta.clone().requires_grad_(), Z.clone().requires_grad_()
        value = (kernel(part, leaves[1], leaves[0]) * adjoint).sum()
        found.append([*parts, *torch.autograd.grad(value, leaves)])
    for sparse, dense in zip(*found, strict=True):
        torch.testing.assert_close(sparse, dense, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", [f"{f}_{k}" for f in ("csr", "csc", "coo", "lil") for k in
                                  ("array", "matrix")])  # fmt: skip
def test_all_formats_give_the_bits_of_the_dense_array(form, data):
    X, y, _ = data
    model = SVGPClassifier(1.0 * RBF(1.0), n_inducing=8, max_iter=1, random_state=0)
    expected = clone(model).fit(X.toarray(), y).predict_proba(X.toarray())
    other = getattr(sp, form)(X)
    assert np.array_equal(clone(model).fit(other, y).predict_proba(other), expected)


def test_indices_of_64_bits_duplicates_and_explicit_zeros(data, stays_sparse):
    X, y, _ = data
    other = X.copy()
    other.indices, other.indptr = other.indices.astype(np.int64), other.indptr.astype(np.int64)
    other.data[0] = 0
    coo = other.tocoo()
    indices = [np.concatenate([part, part]) for part in coo.coords]
    halves = sp.csr_array(
        (np.concatenate([coo.data / 4, 3 * coo.data / 4]), tuple(indices)), shape=X.shape
    )
    repeated = CSRRows(halves)
    assert np.array_equal(np.asarray(repeated), other.toarray())
    model = BayesianSVC(KERNELS["isotropic"], n_inducing=8, optimizer=None, random_state=0)
    expected = clone(model).fit(other.toarray(), y).predict_proba(other.toarray())
    assert np.allclose(clone(model).fit(halves, y).predict_proba(other), expected, 0, 1e-9)
    assert np.allclose(model.fit(other, y).predict_proba(other[:1]), expected[:1], 0, 1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(value, data):
    X = data[0].copy()
    X.data[3] = value
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)"):
        BayesianSVC().fit(X, data[1])


def test_estimators_that_stay_dense_say_which_take_sparse(data):
    estimators = [
        each for each in map(skgpsvm.__dict__.get, skgpsvm.__all__) if hasattr(each, "fit")
    ]
    names = sorted(each.__name__ for each in estimators if each._takes_sparse)
    assert TAKING_SPARSE == f"{', '.join(names[:-1])} and {names[-1]}"
    for kind in estimators:
        if not kind._takes_sparse:
            with pytest.raises(TypeError, match=f"{kind.__name__} needs a dense.*{TAKING_SPARSE}"):
                kind().fit(data[0], data[1])
    model = QSGPRegressor(n_basis=10).fit(data[0].toarray(), data[2])
    with pytest.raises(TypeError, match="QSGPRegressor needs a dense array"):
        model.predict(data[0])


def test_default_kernel_has_one_length_scale(data):
    X, y, f = data
    for estimator, targets in ((BayesianSVC(), y > 0), (EPClassifier(), y > 0),
                               (SVGPClassifier(max_iter=9), y), (SVGPRegressor(), f)):  # fmt: skip
        estimator.set_params(n_inducing=8, optimizer=None, random_state=0)
        kernel = estimator.fit(X, targets).kernel_
        lengths = [h.n_elements for h in kernel.hyperparameters if "length_scale" in h.name]
        assert set(lengths) == {1}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("first", [0, 1], ids=["sparse", "dense"])
def test_warm_starts_keep_the_number_of_length_scales(estimator, first, data, stays_sparse):
    targets, forms = targets_of(estimator, data), (data[0], data[0].toarray())
    model = clone(estimator).set_params(warm_start=True).fit(forms[first], targets)
    n_dims = model.kernel_.n_dims
    assert model.fit(forms[1 - first], targets).kernel_.n_dims == n_dims
    assert np.isfinite(predictions(model, data[0])).all()


def test_predictions_are_by_the_kernel_of_the_fit(data, stays_sparse):
    model = BayesianSVC(KERNELS["dense only"], n_inducing=8, optimizer=None, random_state=0)
    expected = model.fit(*data[:2]).predict_proba(data[0])
    model.set_params(kernel=None)
    assert np.array_equal(model.predict_proba(data[0]), expected)


def test_stream_warm_start_weights_and_pickle(data, stays_sparse):
    X, y, _ = data
    models = []
    for rows in (X.toarray(), X):
        model = BayesianSVC(KERNELS["isotropic"], n_inducing=8, optimizer=None, random_state=0)
        model.partial_fit(rows[:60], y[:60], sample_weight=np.arange(60) % 3)
        model.partial_fit(rows[60:], y[60:])
        models.append(pickle.loads(pickle.dumps(model)))
    dense, sparse = models
    expected = dense.predict_proba(X.toarray())
    assert np.allclose(sparse.predict_proba(X), expected, 0, 1e-9)
    warm = SVGPRegressor(n_inducing=8, warm_start=True, max_iter=1, random_state=0)
    warm.fit(X, data[2]).fit(X, data[2])
    assert isinstance(warm.inducing_points_, np.ndarray)


def test_pipelines_and_queries():
    texts = ["sun sea sand", "snow ice cold", "sea sand sun hot", "cold snow wind ice"] * 5
    y = [0, 1] * 10
    for steps in (TfidfVectorizer(), CountVectorizer()):
        model = make_pipeline(steps, BayesianSVC(random_state=0)).fit(texts, y)
        assert model.score(texts, y) == 1
    X = steps.transform(texts).tocoo()
    assert len(diverse_sampling(model[-1], X, 3, random_state=0)[0]) == 3
    assert least_confident(model[-1], X).shape == (20,)
    colors = np.array([["red"], ["blue"], ["green"], ["blue"]] * 5)
    model = make_pipeline(OneHotEncoder(), EPClassifier(random_state=0))
    assert model.fit(colors, (colors == "red").ravel()).score(colors, colors.ravel() == "red") == 1


@pytest.mark.parametrize("standardize", [True, False])
def test_kmeans_of_sparse_rows_is_that_of_dense_rows(standardize, data, stays_sparse):
    X = sp.vstack([data[0], data[0][:9]]).tocsr()
    weights = np.arange(len(X.indptr) - 1) % 4.0
    sparse, dense = (
        select_inducing_points(rows, 7, "kmeans", weights, 0, standardize=standardize)
        for rows in (X, X.toarray())
    )
    assert np.allclose(sparse, dense, 0, 1e-9)


@pytest.mark.parametrize("standardize", [True, False])
def test_sparse_rows_that_nearly_agree_are_merged(standardize, data, stays_sparse):
    X = sp.vstack([data[0][:30]] * 3).tocsr()
    X.data *= 1 + 1e-9 * np.random.default_rng(0).normal(size=X.nnz)
    for m in (40, 20):
        sparse, dense = (
            select_inducing_points(rows, m, random_state=0, standardize=standardize)
            for rows in (X, X.toarray())
        )
        assert len(sparse) == min(m, 30)
        # A cell is represented by any of its rows.
        assert np.allclose(sparse[np.lexsort(sparse.round(6).T)],
                           dense[np.lexsort(dense.round(6).T)], 0, 1e-7)  # fmt: skip


def test_kmeans_without_standardization_depends_on_units():
    X = np.array([[0.0, 0.0], [0.0, 1.0], [9.0, 0.0], [9.0, 1.0]]).repeat(3, 0)
    X += np.linspace(0, 0.01, 24).reshape(12, 2)
    Z = select_inducing_points(X, 2, random_state=0, standardize=False)
    assert np.allclose(Z, [[0, 0.5], [9, 0.5]], 0, 0.02)


def test_points_of_many_numbers_stay(data, monkeypatch):
    X, y, _ = data
    model = SVGPClassifier(1.0 * RBF(1.0), n_inducing=8, max_iter=1, random_state=0)
    start = select_inducing_points(X.toarray(), 8, random_state=np.random.RandomState(0))
    assert not np.allclose(clone(model).fit(X, y).inducing_points_, start)
    monkeypatch.setattr(skgpsvm._sparse, "_MAX_MOVED", 8 * D - 1)
    stayed, fixed = (
        clone(model).set_params(learn_inducing=moves).fit(X, y).inducing_points_
        for moves in (True, False)
    )
    assert np.array_equal(stayed, fixed)


def test_sparse_rows_of_a_dataset(data):
    X, y, _ = data
    weights = (np.arange(N) % 3).astype(float)
    options = torch.device("cpu"), torch.float64
    sparse, dense = (
        WeightedDataset(rows, y, weights, *options) for rows in (CSRRows(X), X.toarray())
    )
    index = torch.tensor([3, 0, 7])
    for one, other in zip(sparse.take(index), dense.take(index), strict=True):
        assert torch.equal(one.to_dense(), other)
    some, same = (rows.subset(20, np.random.RandomState(0)) for rows in (sparse, dense))
    assert some.take(slice(None))[0].is_sparse
    assert torch.equal(some.take(slice(None))[0].to_dense(), same.take(slice(None))[0])
    tensor = sparse.take(slice(None))[0]
    assert np.array_equal(np.asarray(array_of(tensor)), X.toarray()[weights > 0])


def test_dense_blocks_of_sparse_rows_are_bounded(data, monkeypatch):
    monkeypatch.setattr(_csr, "LARGE_BLOCK", 5 * D)
    blocks = dense_blocks(CSRRows(data[0]).tensor())
    assert {len(block) for block in blocks} == {5}
    assert np.array_equal(torch.cat(blocks).numpy(), data[0].toarray())


def test_kernels_say_whether_they_take_sparse_rows():
    assert [take_sparse(kernel) for kernel in KERNELS.values()] == [True, True, True, False]
    assert take_sparse(None)
