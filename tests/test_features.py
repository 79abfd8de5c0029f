"""Random Fourier features: known answers of the counter-based generator, and limit kernels."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import t64
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Matern,
    RationalQuadratic,
)

from skgpsvm import _bases, _features
from skgpsvm._features import (
    FourierBases,
    FourierFeatures,
    NystroemFourierBases,
    counted_normals,
    philox,
)
from skgpsvm._posteriors import WhitenedBasis
from skgpsvm._torch_kernels import torch_kernel

ONES = 0xFFFFFFFF


def bases_of(kernel, d, n_pairs, seed=0, orthogonal=False):
    features = FourierFeatures(n_pairs, seed, orthogonal)
    return FourierBases(torch_kernel(kernel), t64(kernel.theta), features, d)


def points(n=6, d=3, seed=0):
    return t64(np.random.default_rng(seed).normal(size=(n, d)))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_its_known_answers(counter, key, words):
    assert [int(word) for word in philox([torch.tensor(c) for c in counter], key)] == list(words)


def test_normals_are_the_specification_s():
    expected = [
        [-0.97018979, 0.19401896, -1.23562074],
        [-0.07318151, 0.13913750, -1.10666503],
        [1.28212734, -0.04797668, -0.55046044],
    ]
    index = torch.tensor([0, 1, 5_000_000_000])
    assert_allclose(counted_normals(index, 3, 42), expected, rtol=0, atol=5e-9)


def test_normals_depend_on_index_and_seed_alone():
    index = torch.arange(50)
    every = counted_normals(index, 7, 3)
    assert_array_equal(counted_normals(index[[9, 4]], 7, 3), every[[9, 4]])
    assert_array_equal(counted_normals(index, 5, 3), every[:, :5])
    assert not np.isin(counted_normals(index, 7, 4), every).any()


def test_normals_are_normal():
    draws = counted_normals(torch.arange(20_000), 6, 1)
    # Four standard errors of means, variances and correlations of 20,000 draws.
    assert draws.mean(0).abs().max() < 4 / np.sqrt(20_000)
    assert_allclose(np.cov(draws.T), np.eye(6), atol=4 * np.sqrt(2 / 20_000))


def test_features_are_the_specification_s(monkeypatch):
    monkeypatch.setattr(FourierFeatures, "normals", lambda *_: t64([[0.5], [-1.2]]))
    bases = bases_of(ConstantKernel(1.5, "fixed") * RBF(1.0, "fixed"), 1, 2)
    values = bases.values(t64([[-1.0], [0.3]]))
    expected = [0.7600087925, 0.3138110206, -0.4151946957, 0.8071695258]
    assert_allclose(values[0], expected, rtol=0, atol=1e-10)
    assert_allclose(values.square().sum(1), 1.5, rtol=1e-14)


def test_error_of_the_kernel_is_that_of_pairs():
    draws, n_pairs = 40_000, 10
    bases = bases_of(RBF(1.3), 3, draws * n_pairs)
    gap = t64([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    frequencies, _ = bases._drawn(torch.arange(draws * n_pairs))
    kernels = ((gap[1] - gap[0]) @ frequencies.T).cos().view(draws, n_pairs).mean(1)
    rho = np.exp(-0.5 / 1.3**2)
    assert kernels.mean().item() == pytest.approx(rho, abs=4 * np.sqrt(0.01 / draws))
    # This is the specification's tolerance; the standard error of the variance is 0.7 %.
    assert kernels.var().item() == pytest.approx((1 - rho**2) ** 2 / (2 * n_pairs), rel=0.05)


def test_error_falls_with_the_root_of_the_number():
    X = points(40)
    exact = t64(RBF(1.5)(X.numpy()))
    scaled = []
    for n_pairs in (100, 1000, 10_000):
        values = (bases_of(RBF(1.5), 3, n_pairs, seed).values(X) for seed in range(10))
        squares = [((V @ V.T - exact) ** 2).mean().item() for V in values]
        scaled.append(np.sqrt(n_pairs * np.mean(squares)))
    # Ten draws have some hundred dependent entries each. A wrong rate would be off by ten.
    assert_allclose(scaled, scaled[0], rtol=0.25)


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize(
    "kernel",
    [
        2.0 * RBF([1.0, 2.0, 0.5]),
        2.0 * Matern([1.0, 2.0, 0.5], nu=0.5),
        2.0 * Matern([1.0, 2.0, 0.5], nu=1.5),
        2.0 * Matern(1.5, nu=2.5),
        2.0 * Matern(1.5, nu=np.inf),
        0.5 * RBF(1.0) + 2.0 * Matern(2.0, nu=1.5) + ConstantKernel(3.0) + 0.5 * DotProduct(0.1),
    ],
    ids=str,
)
def test_products_of_features_tend_to_the_kernel(kernel, orthogonal):
    X = points()
    values = bases_of(kernel, 3, 60_000, orthogonal=orthogonal).values(X)
    # The variance of each cosine term is at most its squared kernel variance, over its pairs.
    assert_allclose(values @ values.T, kernel(X.numpy()), atol=4 * 2.5 * np.sqrt(1 / 60_000))


def test_orthogonal_frequencies_are_orthogonal_and_of_the_same_lengths():
    features = FourierFeatures(40_000, 3, orthogonal=True)
    drawn = features.normals(torch.arange(8_000), 8).view(-1, 8, 8)
    gram = drawn @ drawn.mT
    off = gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))
    assert off.abs().max() < 1e-12
    lengths = gram.diagonal(dim1=1, dim2=2).flatten()
    # The mean of chi squared with 8 degrees of freedom, to four standard errors.
    assert lengths.mean().item() == pytest.approx(8, abs=4 * np.sqrt(16 / 8000))
    index = torch.tensor([11, 3, 799])
    assert_array_equal(features.normals(index, 8), drawn.view(-1, 8)[index])


def test_orthogonal_frequencies_have_less_error():
    X = 0.5 * points(20, 8)
    exact = t64(RBF(2.0)(X.numpy()))

    def error(orthogonal):
        values = (bases_of(RBF(2.0), 8, 64, s, orthogonal).values(X) for s in range(20))
        return np.mean([((V @ V.T - exact) ** 2).mean().item() for V in values])

    assert error(True) < 0.7 * error(False)


def test_frequencies_drawn_anew_are_those_held(monkeypatch):
    monkeypatch.setattr(_bases, "CACHED_BLOCK", 1000)
    kernel, X = 2.0 * RBF(1.0) + ConstantKernel(3.0), points()
    held = bases_of(kernel, 3, 300)
    coef = t64(np.random.default_rng(1).normal(size=(2, held.size)))
    expected = held.values(X)
    assert held._held is not None
    few = held.chunk_size(X.device)
    assert_allclose(held.mean(X, coef), expected @ coef.T, rtol=1e-12)
    monkeypatch.setattr(_features, "HELD_BYTES", 0)
    monkeypatch.setattr(_features, "LARGE_BLOCK", 100)
    anew = bases_of(kernel, 3, 300)
    assert anew._held is None
    assert few < anew.chunk_size(X.device) == 1024
    assert_allclose(anew.values(X), expected, rtol=1e-12)
    assert_allclose(anew.mean(X, coef), expected @ coef.T, rtol=1e-12)


def test_orthogonal_frequencies_are_drawn_once_for_all_hyper_parameters(monkeypatch):
    bases, X, units = bases_of(2.0 * RBF(1.0), 3, 50, orthogonal=True), points(), torch.arange(9)
    other = 3.0 * RBF(0.5)
    expected = bases_of(other, 3, 50, orthogonal=True).sampled(X, units)
    bases.sampled(X, units)
    monkeypatch.setattr(FourierFeatures, "normals", None)
    assert_array_equal(bases.at(t64(other.theta)).sampled(X, units), expected)


def test_sampled_values_are_those_of_their_coordinates():
    bases, X = bases_of(2.0 * RBF(1.0) + ConstantKernel(3.0), 3, 50), points()
    units = torch.tensor([3, 17, 40])
    coordinates, n_exact = bases.coordinates(units)
    assert n_exact == 1
    assert_allclose(bases.sampled(X, units), bases.values(X)[:, coordinates], rtol=1e-12)


def test_hyper_parameters_are_read_from_theta():
    kernel, other, X = 2.0 * RBF(1.0), 3.0 * RBF(0.5), points()
    moved = bases_of(kernel, 3, 50).at(t64(other.theta)).values(X)
    assert_array_equal(moved, bases_of(other, 3, 50).values(X))


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (RationalQuadratic(), "RationalQuadratic"),
        (RBF() * RBF(), "Product"),
        (RBF() + RationalQuadratic(), "RationalQuadratic"),
        (RBF() ** 2, "Exponentiation"),
    ],
)
def test_kernels_without_a_known_spectrum_are_refused_in_words(kernel, name):
    words = f"No spectrum is known of {name}: .* RBF and Matern .* basis='inducing'"
    with pytest.raises(ValueError, match=words):
        bases_of(kernel, 3, 10)


@pytest.mark.parametrize("nystroem", [False, True])
def test_preconditioners_of_all_rows_are_the_inverses_and_share_their_features(
    nystroem, monkeypatch
):
    monkeypatch.setattr(_features, "_GRAM_BLOCK", 7)
    X, precisions = points(200), torch.linspace(0, 3, 400, dtype=torch.float64).view(2, 200)
    kernel = 2.0 * RBF(1.0)
    bases = bases_of(kernel, 3, 40)
    if nystroem:
        basis = WhitenedBasis(torch_kernel(kernel), t64(kernel.theta), X[:5])
        bases = NystroemFourierBases(basis, FourierFeatures(40, 0), 3)
    monkeypatch.setattr(_bases, "CACHED_BLOCK", 70 * bases.size)
    values = bases.adjoint(bases.values(X))
    vectors = t64(np.random.default_rng(0).normal(size=(2, bases.size)))
    conditions = bases.preconditioners(X, precisions)
    for condition, precision in zip(conditions, precisions, strict=True):
        product = vectors + (vectors @ values.T * precision) @ values
        assert_allclose(condition(product), vectors, atol=1e-10)
    assert len({condition._values.data_ptr() for condition in conditions}) == 1


def test_features_are_stored_as_their_number_and_seed():
    features = FourierFeatures(10**7, 5, True)
    assert len(pickle.dumps(features)) < 200
    assert pickle.loads(pickle.dumps(features)) == features
