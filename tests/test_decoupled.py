"""Decoupled variational GPs: acceptance numbers, dense oracles, both solvers, streams."""

import pickle
from itertools import combinations, product

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from oracles import collapsed, means_at
from problems import EDGES, R, gaussian_sites, given, sinc, solve_of, t64, unit_gram, upper, waves
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.kernel_ridge import KernelRidge

from skgpsvm import (
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
    _bases,
    _solve,
)
from skgpsvm._bases import KernelBases
from skgpsvm._posteriors import DecoupledPosterior, WhitenedBasis
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.decoupled import _stochastic
from skgpsvm.decoupled._stochastic import PARAMETRIZATIONS, StochasticBound
from skgpsvm.kernels import MultiscaleRBF
from skgpsvm.likelihoods import Logistic

X, Y, X_NEW, ALPHA, BETA = R.X, R.Y, R.X_new, R.alpha, R.beta
RHO, NOISE, KERNEL, MULTIPLIERS = R.rho, R.noise, R.kernel, R.multipliers
COEF = t64([[0.4, 0.7, -0.3]])
FACTOR = t64([[[1.5, 0], [-0.5, 0.8]]])
ROWS = torch.ones(5, dtype=torch.float64)
BASES = torch.arange(3)
DIGITS = {"rtol": 0, "atol": 6e-9}  # of a gradient's printed ones
FACTORS, WHITENED = PARAMETRIZATIONS[2:], PARAMETRIZATIONS[:2]


@pytest.fixture
def no_jitter(monkeypatch):
    """Kernel matrices of bases as they are, so that printed digits are reached."""
    monkeypatch.setattr(_bases, "JITTER", 0)
    monkeypatch.setattr(_stochastic, "_JITTER", 0)


# The stochastic bound


def bound_of(form, kernel=KERNEL, likelihood=None):
    return StochasticBound(torch_kernel(kernel), likelihood or gaussian_sites(), form)


def shared(kernel=KERNEL):
    return {"theta": t64(kernel.theta), "noise": t64([np.log(NOISE)]), "Z": BETA, "bases": ALPHA}


def decoupled():
    return {**shared(), "coef": COEF, "factor": FACTOR}


def whitened(form):
    """The parameters of section 8.4."""
    chol = torch.linalg.cholesky(unit_gram(BETA, BETA))
    inverse = torch.linalg.inv(chol)
    raw = upper(inverse @ t64([(0.3, 0.1), (0.1, 0.4)]) @ inverse.T)
    raw.diagonal().log_()
    coef = t64([[0.2, -0.1, 0.15]])
    if form == "orthogonal":
        coef = coef * left_of_bases(BETA, ALPHA).sqrt()
    mean = (inverse @ t64((0.2, -0.1)))[None]
    return {**shared(), "coef": coef, "mean": mean, "raw_root": raw[None]}


def left_of_bases(Z, bases):
    """Squared norms of what inducing points leave of bases."""
    cross = unit_gram(Z, bases)
    left = 1 - (cross * torch.linalg.solve(unit_gram(Z, Z), cross)).sum(0)
    return left.clamp_min(1e-2)


def leaves_of(parameters):
    return {name: part.clone().requires_grad_() for name, part in parameters.items()}


def posterior_of(bound, parameters):
    mean, root, bases, coef = bound.posterior(parameters)
    basis = WhitenedBasis(bound.kernel, parameters["theta"], parameters["Z"], _stochastic._JITTER)
    bases = KernelBases(bound.kernel, parameters["theta"], bases)
    return DecoupledPosterior(basis, mean, root, bases, coef)


def full(bound, parameters):
    """The bound of data R."""
    return bound.value(parameters, X, Y, ROWS, 1.0, torch.arange(bound.n_bases(parameters)))


def random_parameters(form, c=1, m=3, M=6, seed=0):
    """In two dimensions."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    spread = torch.tensor([1.0, 1.0, 0.2, 0.2], dtype=torch.float64)
    parameters = {
        "theta": t64(KERNEL.theta),
        "noise": t64([np.log(NOISE)] * c),
        "Z": normal(m, 4) * spread,
        "bases": normal(M, 4) * spread,
        "coef": normal(c, M),
    }
    if form in FACTORS:
        parameters["factor"] = normal(c, m, m).tril()
    else:
        parameters["raw_root"] = 0.5 * normal(c, m, m)
    if form != "decoupled":
        parameters["mean"] = normal(c, m)
    return parameters


def test_one_row_and_one_base_by_hand():
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    parameters = {"theta": t64([0.0]), "noise": t64([0.0]), "Z": zero, "bases": zero}
    parameters |= {"coef": one, "factor": one[None]}
    bound = bound_of("decoupled", MultiscaleRBF(1.0))
    value = bound.value(parameters, zero, zero, one[0], 1.0, torch.arange(1))
    assert value.item() == pytest.approx(-2.2655121235, abs=1e-10)
    posterior = posterior_of(bound, parameters)
    # The jitter of 1e-6.
    assert posterior.kl().item() == pytest.approx(0.5965735903, abs=1e-6)
    assert posterior.marginals(zero)[1].item() == pytest.approx(0.5, abs=1e-6)


def test_decoupled_bound_and_its_gradients_are_the_specification_s():
    parts = leaves_of(decoupled())
    value = full(bound_of("decoupled"), parts)
    value.backward()
    assert value.item() == pytest.approx(-28.5652826758, abs=1e-10)
    assert_allclose(parts["coef"].grad, [[-10.83593145, -5.93652709, -7.77231118]], **DIGITS)
    by_factor = parts["factor"].grad[0]
    assert_allclose(by_factor, [[4.17372901, 0], [2.16817327, 5.99798191]], **DIGITS)
    # The first is the logarithm of the variance, half of which is that of rho.
    by_theta = [-53.05123782 / 2, 2.30121659, -3.48336402]
    assert_allclose(parts["theta"].grad, by_theta, **DIGITS)
    assert_allclose(parts["noise"].grad, [26.65620114], **DIGITS)
    by_bases = [(-2.49277445, 2.16285362), (4.80036171, 2.72592033), (-2.52699204, -0.28600923)]
    assert_allclose(parts["bases"].grad[:, :2], by_bases, **DIGITS)
    by_points = [(-5.06405344, 0.17493946), (0.57490650, -0.20876674)]
    assert_allclose(parts["Z"].grad[:, :2], by_points, **DIGITS)
    by_multipliers = t64([(2.35097281, 1.72591631), (-0.12489266, 0.88390663)])
    assert_allclose(parts["Z"].grad[:, 2:], by_multipliers * MULTIPLIERS, **DIGITS)


def test_decoupled_predictions_are_the_specification_s(no_jitter):
    posterior = posterior_of(bound_of("decoupled"), decoupled())
    assert posterior.kl().item() == pytest.approx(0.5708516031, abs=1e-10)
    mean, var = posterior.marginals(X)
    expected = [0.573045055, 0.358325369, 0.809254640, 0.037475742, 0.229193625]
    assert_allclose(mean[:, 0], expected, rtol=0, atol=6e-10)
    expected = [1.290244426, 0.532845241, 1.053983107, 1.070548807, 0.805780829]
    assert_allclose(var[:, 0], expected, rtol=0, atol=6e-10)
    mean, var = posterior.marginals(X_NEW)
    assert_allclose(mean[:, 0], [0.6479895192, -0.1493415360], rtol=0, atol=1e-10)
    expected = [[0.8031948155, 0.0352173695], [0.0352173695, 1.3911563568]]
    assert_allclose(var[:, 0], np.diag(expected), rtol=0, atol=1e-10)
    assert_allclose(posterior.cov(X_NEW)[0], expected, rtol=0, atol=1e-10)


def test_sampled_columns_have_their_diagonal_exactly():
    bound, parameters = bound_of("decoupled"), decoupled()
    whole = 0.3205172318
    expected = {(0, 2): 0.3205578246}
    # The plain estimates of the specification, M / (2 |S|) times the diagonal of S turned into
    # half of all of it.
    diagonal = COEF[0].square()
    for columns, plain in {(0, 1): 0.4859792870, (1, 2): 0.3375145840}.items():
        inside = 3 / 4 * diagonal[list(columns)].sum() - 0.5 * diagonal.sum()
        expected[columns] = plain - inside.item()
    rest = -28.5652826758 + whole
    for columns, square in expected.items():
        value = bound.value(parameters, X, Y, ROWS, 1.0, torch.tensor(columns))
        assert value.item() == pytest.approx(rest - square, abs=3e-10)
    assert np.mean(list(expected.values())) == pytest.approx(whole, abs=1e-10)


def test_minibatch_estimate_is_the_specification_s():
    some = torch.tensor([1, 3])
    columns = torch.tensor([0, 2])
    value = bound_of("decoupled").value(decoupled(), X[some], Y[some], ROWS[some], 2.5, columns)
    # Printed with plain columns, 0.1380578246; here with their diagonal exactly.
    expected = -23.2145039749 + 0.1380578246 - 0.3205578246
    assert value.item() == pytest.approx(expected, abs=3e-10)


@pytest.mark.parametrize(
    ("form", "divergence", "value", "means"),
    [
        (
            "hybrid",
            0.4771705933,
            -31.0475074825,
            [0.349741529, 0.394524015, -0.064491803, -0.041298703, 0.393185729],
        ),
        (
            "orthogonal",
            0.4405150008,
            -29.5844266532,
            [0.287207174, 0.240000000, -0.122634135, -0.065681791, 0.267127102],
        ),
    ],
)
def test_whitened_forms_are_the_specification_s(form, divergence, value, means, no_jitter):
    bound, parameters = bound_of(form), whitened(form)
    assert full(bound, parameters).item() == pytest.approx(value, abs=1e-10)
    posterior = posterior_of(bound, parameters)
    assert posterior.kl().item() == pytest.approx(divergence, abs=1e-10)
    assert_allclose(posterior.marginals(X)[0][:, 0], means, rtol=0, atol=6e-10)
    empty = {"bases": ALPHA[:0], "coef": COEF[:, :0]}
    posterior = posterior_of(bound, {**parameters, **empty})
    assert posterior.kl().item() == pytest.approx(0.4176590420, abs=1e-10)
    loss = gaussian_sites().loss(Y, *posterior.marginals(X)).sum()
    assert -(loss + posterior.kl()).item() == pytest.approx(-29.1875129905, abs=1e-9)


def test_all_rows_as_bases_are_the_exact_process(no_jitter):
    plain = torch.cat([X, torch.zeros_like(X)], 1)
    coef = [[0.3832781199, -0.0529119633, 0.7244789234, -0.1488941601, -0.6891317511]]
    factor = RHO / np.sqrt(NOISE) * torch.eye(5, dtype=torch.float64)[None]
    parts = {**shared(), "Z": plain, "bases": plain, "coef": t64(coef), "factor": factor}
    bound, leaves = bound_of("decoupled"), leaves_of(parts)
    value = full(bound, leaves)
    assert value.item() == pytest.approx(-5.4115503112, abs=1e-9)
    by_coef, by_factor = torch.autograd.grad(value, (leaves["coef"], leaves["factor"]))
    # Of coefficients with ten digits and a Hessian of size 100; the factor is exact.
    assert_allclose(by_coef, 0, atol=1e-7)
    assert_allclose(by_factor, 0, atol=1e-12)
    posterior = posterior_of(bound, parts)
    assert posterior.kl().item() == pytest.approx(4.3338324079, abs=1e-9)
    assert_allclose(posterior.marginals(X_NEW)[0][:, 0], [0.3936895401, -0.0690578001], atol=1e-9)
    expected = [[0.1497958720, -0.0160051716], [-0.0160051716, 0.8498462346]]
    assert_allclose(posterior.cov(X_NEW)[0], expected, rtol=0, atol=1e-9)


def test_bound_of_classes_is_the_specification_s():
    bound = bound_of("decoupled", likelihood=LikelihoodSites(Logistic(), 1))
    parts = {**decoupled(), "noise": torch.empty(0, dtype=torch.float64)}
    value = bound.value(parts, X, torch.tensor([1, 0, 1, 1, 0]), ROWS, 1.0, BASES)
    # Quadrature.
    assert value.item() == pytest.approx(-4.2750539559, abs=1e-7)


def test_explicit_features_give_the_same_gaussian(no_jitter):
    rng = np.random.default_rng(0)
    grid = np.arange(-9, 9, 0.1)
    variance, scale = 1.7**2, 0.8

    def features(points, logs):
        """On a grid, of norm one."""
        width = scale * np.exp(logs)
        height = (2 / (np.pi * width**2)) ** 0.25
        return np.sqrt(0.1) * height * np.exp(-(((grid[:, None] - points) / width) ** 2))

    alpha, beta = (np.c_[rng.uniform(-3, 3, k), rng.uniform(-0.5, 0.5, k)] for k in (6, 4))
    coef, factor = rng.normal(size=6), np.tril(rng.normal(size=(4, 4)))
    parts = {
        "theta": t64(np.log([variance, scale])),
        "noise": t64([0.0]),
        "Z": t64(beta),
        "bases": t64(alpha),
        "coef": t64(coef[None]),
        "factor": t64(factor[None]),
    }
    kernel = ConstantKernel(variance) * MultiscaleRBF(scale, n_features=1)
    posterior = posterior_of(bound_of("decoupled", kernel), parts)
    mu, psi = features(*alpha.T) @ coef, features(*beta.T) @ factor
    precision = np.eye(len(grid)) + psi @ psi.T
    cov = np.linalg.inv(precision)
    divergence = np.trace(cov) + mu @ mu - len(grid) + np.linalg.slogdet(precision)[1]
    # Of numerical integration, whose error falls faster than any power of the spacing.
    assert posterior.kl().item() == pytest.approx(0.5 * divergence, rel=1e-9)
    x = np.linspace(-3, 3, 7)
    phi = 1.7 * features(x, 0 * x)
    mean, _ = posterior.marginals(t64(x[:, None]))
    assert_allclose(mean[:, 0], phi.T @ mu, rtol=1e-9)
    assert_allclose(posterior.cov(t64(x[:, None]))[0], phi.T @ cov @ phi, rtol=1e-8, atol=1e-9)


def test_shared_form_is_the_decoupled_one_with_all_bases():
    parts = random_parameters("shared")
    bases = torch.cat([parts["bases"], parts["Z"]])
    coef = torch.cat([parts["coef"], parts["mean"]], 1)
    other = {**parts, "bases": bases, "coef": coef}
    del other["mean"]
    one, two = bound_of("shared"), bound_of("decoupled")
    assert one.n_bases(parts) == two.n_bases(other) == 9
    columns = torch.tensor([0, 5, 7])
    values = [
        bound.value(part, X, Y, ROWS, 1.0, columns).item()
        for bound, part in ((one, parts), (two, other))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-13)
    for got, expected in zip(one.posterior(parts), two.posterior(other), strict=True):
        assert_allclose(got, expected, rtol=1e-13)


def test_orthogonal_form_is_the_hybrid_one_with_bases_taken_off(no_jitter):
    parts = leaves_of(random_parameters("orthogonal"))
    unit = left_of_bases(*(parts[name].detach() for name in ("Z", "bases"))).sqrt()
    hybrid = bound_of("hybrid")
    coef = parts["coef"] / unit
    gram = hybrid._gram(parts["Z"], parts["Z"], parts["theta"])
    cross = hybrid._gram(parts["Z"], parts["bases"], parts["theta"])
    taken = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), cross, upper=False)
    moved = {**parts, "coef": coef, "mean": parts["mean"] - coef @ taken.T}
    values = full(bound_of("orthogonal"), parts), full(hybrid, moved)
    assert values[0].item() == pytest.approx(values[1].item(), rel=1e-12)
    # The units of the orthogonal form's coefficients are held in a step.
    for got, expected in zip(
        *(torch.autograd.grad(value, parts.values(), retain_graph=True) for value in values),
        strict=True,
    ):
        assert_allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", ["hybrid", "shared"])
def test_gradient_is_the_derivative_of_the_bound(form):
    bound, parameters = bound_of(form), random_parameters(form)
    leaves = leaves_of(parameters)
    full(bound, leaves).backward()
    generator = torch.Generator().manual_seed(1)
    for name, part in parameters.items():
        along = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        ends = [
            full(bound, {**parameters, name: part + sign * 1e-6 * along}).item() for sign in (1, -1)
        ]
        slope = (leaves[name].grad * along).sum().item()
        # Rounding of values of size 1e2 over the step.
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_estimates_average_to_the_bound_and_its_gradient(form):
    M = 2 if form == "shared" else 3
    bound, leaves = bound_of(form), leaves_of(random_parameters(form, m=2, M=M))
    value = full(bound, leaves)
    expected = value.item(), torch.autograd.grad(value, leaves.values())
    batches, columns = combinations(range(5), 2), combinations(range(bound.n_bases(leaves)), 2)
    values = []
    for some, chosen in product(map(list, batches), map(torch.tensor, columns)):
        values.append(bound.value(leaves, X[some], Y[some], ROWS[some], 2.5, chosen))
    mean = sum(values) / len(values)
    # Rounding: the same jitter on both sides.
    assert mean.item() == pytest.approx(expected[0], rel=1e-12)
    for got, part in zip(torch.autograd.grad(mean, leaves.values()), expected[1], strict=True):
        assert_allclose(got, part, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_posterior_has_the_bound(form, no_jitter):
    likelihood = gaussian_sites(t=2)
    bound, parts = bound_of(form, likelihood=likelihood), random_parameters(form, c=2)
    targets = torch.cat([Y, 1 - 2 * Y], 1)
    value = bound.value(parts, X, targets, ROWS, 1.0, torch.arange(bound.n_bases(parts)))
    posterior = posterior_of(bound, parts)
    loss = likelihood.loss(targets, *posterior.marginals(X)).sum()
    assert -(loss + posterior.kl()).item() == pytest.approx(value.item(), rel=1e-10)


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_chunks_of_bases_change_nothing(form, monkeypatch):
    bound, leaves = bound_of(form), leaves_of(random_parameters(form))
    values = [full(bound, leaves)]
    posteriors = [posterior_of(bound, random_parameters(form))]
    monkeypatch.setattr(_stochastic, "_CHUNK_ENTRIES", 4)
    monkeypatch.setattr(_bases, "_CHUNK_BASES", 2)
    values.append(full(bound, leaves))
    posteriors.append(posterior_of(bound, random_parameters(form)))
    assert values[1].item() == pytest.approx(values[0].item(), rel=1e-13)
    for pair in zip(*(torch.autograd.grad(v, leaves.values()) for v in values), strict=True):
        assert_allclose(*pair, rtol=1e-11, atol=1e-11)
    assert_allclose(*(p.marginals(X_NEW)[0] for p in posteriors), rtol=1e-12)
    assert_allclose(*(p.kl() for p in posteriors), rtol=1e-12)


def test_columns_of_the_orthogonal_form_are_of_what_inducing_points_leave(no_jitter):
    bound, parts = bound_of("orthogonal"), random_parameters("orthogonal")
    Z, bases, M = parts["Z"], parts["bases"], 6
    cross = unit_gram(Z, bases)
    left = unit_gram(bases, bases) - cross.T @ torch.linalg.solve(unit_gram(Z, Z), cross)
    coef = (parts["coef"] / left_of_bases(Z, bases).sqrt())[0]
    diagonal, off = left.diagonal(), left - left.diagonal().diag()
    rest = full(bound, parts) + 0.5 * coef @ left @ coef
    for columns in combinations(range(M), 2):
        some = list(columns)
        square = 0.5 * coef.square() @ diagonal + M / 4 * coef @ off[:, some] @ coef[some]
        value = bound.value(parts, X, Y, ROWS, 1.0, torch.tensor(some))
        assert value.item() == pytest.approx((rest - square).item(), rel=1e-10)


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_row_weights_of_the_bound_are_repetitions(form):
    bound, parts = bound_of(form), random_parameters(form)
    weights, columns = torch.tensor([1, 2, 1, 3, 1]), torch.tensor([0, 4])
    weighted = bound.value(parts, X, Y, weights.double(), 1.5, columns)
    again = torch.arange(5).repeat_interleave(weights)
    ones = torch.ones(8, dtype=torch.float64)
    repeated = bound.value(parts, X[again], Y[again], ones, 1.5, columns)
    assert weighted.item() == pytest.approx(repeated.item(), rel=1e-12)


def test_optimum_is_stationary_for_the_stochastic_bound(no_jitter):
    _, state = solve_of(KERNEL, BETA.numpy(), ALPHA.numpy(), X.numpy(), Y.numpy(), NOISE)
    raw = state["root"].clone()
    raw.diagonal(dim1=1, dim2=2).log_()
    mean = torch.zeros(1, 2, dtype=torch.float64)
    parts = leaves_of({**shared(), "coef": RHO * state["coef"], "mean": mean, "raw_root": raw})
    value = full(bound_of("hybrid"), parts)
    assert value.item() == pytest.approx(-17.7603344451, abs=1e-9)
    for slope in torch.autograd.grad(value, (parts["coef"], parts["raw_root"])):
        assert_allclose(slope, 0, atol=1e-8)


# New bases


def grown(form, Z, bases, c=1):
    """A bound, random parameters, and those with data R as new bases."""
    bound = bound_of(form, likelihood=gaussian_sites(t=c))
    parts = random_parameters(form, c=c)
    return bound, parts, bound.added(parts, X, Y.expand(-1, c), Z=Z, bases=bases)


def test_new_bases_leave_the_hybrid_posterior_as_it_is(no_jitter):
    bound, *both = grown("hybrid", Z=6, bases=8, c=2)
    before, after = (posterior_of(bound, parts) for parts in both)
    assert after.kl().item() == pytest.approx(before.kl().item(), rel=1e-10)
    for got, expected in zip(after.marginals(X_NEW), before.marginals(X_NEW), strict=True):
        assert_allclose(got, expected, rtol=1e-10)
    assert_allclose(after.cov(X_NEW), before.cov(X_NEW), rtol=1e-10)


def test_new_mean_bases_leave_the_orthogonal_posterior_as_it_is():
    bound, *both = grown("orthogonal", Z=3, bases=8)
    before, after = (posterior_of(bound, parts) for parts in both)
    assert len(both[1]["bases"]) == 8
    assert after.kl().item() == pytest.approx(before.kl().item(), rel=1e-10)
    for got, expected in zip(after.marginals(X_NEW), before.marginals(X_NEW), strict=True):
        assert_allclose(got, expected, rtol=1e-10)


@pytest.mark.parametrize("form", FACTORS)
def test_new_bases_leave_the_mean_as_it_is_and_count_as_seen_once(form):
    bound, before, after = grown(form, Z=5, bases=8, c=2)
    means = [posterior_of(bound, parts).marginals(X_NEW)[0] for parts in (before, after)]
    assert_allclose(means[1], means[0], rtol=1e-12)
    factor = after["factor"]
    assert_array_equal(factor[:, :3, :3], before["factor"])
    assert_array_equal(factor[:, 3:, :3], 0)
    new = np.broadcast_to(RHO / np.sqrt(NOISE) * np.eye(2), (2, 2, 2))
    assert_allclose(factor[:, 3:, 3:], new, rtol=1e-12)


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_there_are_never_more_bases_than_told(form):
    _, before, after = grown(form, Z=4, bases=7)
    for name, size in (("Z", 4), ("bases", 7)):
        assert_array_equal(after[name][:-1], before[name])
        assert len(after[name]) == size
        assert_array_equal(after[name][-1], [*X[0], 0, 0])
    _, before, same = grown(form, Z=3, bases=6)
    for name, part in before.items():
        assert_array_equal(same[name], part)
    _, before, all_rows = grown(form, Z=50, bases=50)
    assert len(all_rows["Z"]) == 3 + 5
    assert len(all_rows["bases"]) == 6 + 5


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_rows_that_are_bases_already_are_not_added(form):
    bound = bound_of(form)
    parts = bound.added(random_parameters(form, m=0, M=0), X[:3], Y[:3], Z=9, bases=9)
    assert len(parts["Z"]) == len(parts["bases"]) == 3
    # A covariance of about 1 - 1e-8, and one of 0.99.
    again = torch.cat([X[:3] + 1e-4, X[:1] + 0.1])
    parts = bound.added(parts, again, Y[:4], Z=9, bases=9)
    for name in ("Z", "bases"):
        assert_array_equal(parts[name][3:, :2], again[3:])


# The exact process


def test_all_rows_as_bases_and_inducing_points_are_the_exact_process():
    X, y = waves(100)
    kernel = 1.5 * RBF([1.0, 2.0, 3.0])
    ours = given(kernel, X, noise_variance=0.05).fit(X, y)
    exact = GaussianProcessRegressor(kernel, alpha=0.05, optimizer=None).fit(X, y)
    X_new = waves(50, seed=1)[0]
    mean, std = ours.predict(X_new, return_std=True)
    exact_mean, exact_std = exact.predict(X_new, return_std=True)
    # The jitter of 1e-9 over the noise, summed over rows.
    assert_allclose(mean, exact_mean, atol=5e-6)
    assert_allclose(std, np.sqrt(exact_std**2 + 0.05), atol=1e-6)
    exact_cov = exact.predict(X_new, return_cov=True)[1] + 0.05 * np.eye(50)
    assert_allclose(ours.predict(X_new, return_cov=True)[1], exact_cov, atol=1e-6)
    assert ours.elbo_ == pytest.approx(exact.log_marginal_likelihood_value_, abs=1e-5)
    assert ours.variance_power_ == 1.0
    assert ours.noise_variance_ == pytest.approx(0.05)


def test_mean_is_that_of_kernel_ridge_regression():
    X, y = waves(100)
    ours = given(RBF(1.3), X[:5], noise_variance=0.2).fit(X, y)
    ridge = KernelRidge(alpha=0.2, kernel="rbf", gamma=0.5 / 1.3**2).fit(X, y)
    X_new = waves(50, seed=1)[0]
    assert_allclose(ours.predict(X_new), ridge.predict(X_new), atol=1e-6)


def test_fewer_bases_than_rows_solve_the_normal_equations():
    X, y = waves(100)
    kernel = 1.5 * RBF([1.0, 2.0, 3.0])
    ours = given(kernel, X[:10], n_mean_bases=30, noise_variance=0.05, random_state=0).fit(X, y)
    bases = ours.mean_bases_
    assert len({tuple(base) for base in bases} & {tuple(row) for row in X}) == len(bases) == 30
    X_new = waves(50, seed=1)[0]
    # The jitter of 1e-9 over the noise, summed over rows.
    assert_allclose(ours.predict(X_new), means_at(kernel, bases, X, y, 0.05, X_new), atol=5e-6)
    sparse = SVGPRegressor(
        kernel,
        mean="zero",
        inducing_points=X[:10],
        noise_variance=0.05,
        optimizer=None,
        learn_inducing=False,
        normalize_y=False,
    ).fit(X, y)
    _, variance = ours.latent_mean_and_variance(X_new)
    assert_allclose(variance, sparse.latent_mean_and_variance(X_new)[1], rtol=1e-9)
    assert ours.elbo_ == pytest.approx(collapsed(kernel, X[:10], bases, X, y, 0.05), rel=1e-6)


class Identity:
    """No preconditioner."""

    def __init__(self, bases, gram):
        pass

    def __call__(self, residual):
        return residual


def test_preconditioner_saves_most_iterations(monkeypatch):
    X, y, _ = sinc()
    monkeypatch.setattr(_solve, "_ENTRIES", 0)
    settings = {"n_mean_bases": 100, "noise_variance": 0.01, "random_state": 0}
    model = given(RBF(0.5), X[:20], **settings, tol=1e-6).fit(X, y)
    # The specification's gap falls below 1e-4 in ten; a residual of 1e-6 asks for more.
    assert model.n_iter_ <= 25
    early = clone(model).set_params(tol=1e-2).fit(X, y)
    assert early.n_iter_ < model.n_iter_
    gap = np.abs(early.predict(X) - model.predict(X)).max()
    monkeypatch.setattr(_bases, "Inverse", Identity)
    settings = {"max_iter": 3 * model.n_iter_}
    with pytest.warns(ConvergenceWarning, match=r"reached max_iter=\d+ before its change"):
        plain = clone(model).set_params(**settings).fit(X, y)
    assert plain.elbo_ < early.elbo_ < model.elbo_
    assert np.abs(plain.predict(X) - model.predict(X)).max() > gap


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_passes_that_take_as_long_as_the_matrix_are_followed_by_its_inverse(n_outputs, monkeypatch):
    X, y = waves(600)
    Y = np.c_[y, 2 * X[:, 2] - y][:, :n_outputs]
    kernel, noise = RBF(0.5), 1e-6
    settings = {"n_mean_bases": 150, "noise_variance": noise, "random_state": 0}
    models = [given(kernel, X[:20], **settings, tol=1e-2).fit(X, Y)]
    monkeypatch.setattr(_solve, "_ENTRIES", 0)
    models += [clone(models[0]).fit(X, Y)]
    # Three passes with the first preconditioner, one with the inverse.
    assert models[0].n_iter_ == 4
    assert models[1].n_iter_ > 20
    for model in models:
        mean = model.predict(X).reshape(600, n_outputs)
        for j, target in enumerate(Y.T):
            expected = means_at(kernel, model.mean_bases_, X, target, noise, X)
            # What is left of the bound, a hundredth of a nat a row, is half of this over the noise.
            assert np.square(mean[:, j] - expected).mean() < 2e-2 * noise


def test_exact_processes_stop_when_their_bound_is_near_its_maximum(monkeypatch):
    monkeypatch.setattr(_solve, "_MOST_DENSE", 0)
    # Hundreds of iterations, as of fewer landmarks, are not the same on any number of threads.
    monkeypatch.setattr(_solve, "_MOST_LANDMARKS", 100)
    X, y = waves(300)
    kernel, noise = RBF(1.0), 1e-4
    model = given(kernel, X[:20], noise_variance=noise, tol=1e-2, max_iter=1000).fit(X, y)
    expected = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X, y).predict(X)
    # What is left of the bound, a hundredth of a nat a row, is half of this over the noise; twice
    # that, as the preconditioner of a hundred rows estimates it.
    assert np.square(model.predict(X) - expected).mean() < 4e-2 * noise


def test_iterations_end_where_ten_have_gained_next_to_nothing(monkeypatch):
    monkeypatch.setattr(_solve, "_MOST_WHOLE", 0)
    monkeypatch.setattr(_bases, "Inverse", Identity)
    X, y = waves(600)
    kernel, noise, tol = RBF(0.5), 1e-2, 1e-2
    settings = {"n_mean_bases": 100, "noise_variance": noise, "tol": tol, "random_state": 0}
    model = given(kernel, X[:20], **settings, max_iter=1000).fit(X, y)
    gained = np.subtract(model.objective_curve_[10:], model.objective_curve_[:-10]) / len(X)
    assert gained[-1] < tol < gained[:-1].min()
    # What is left, of a system that has no preconditioner, is twice that.
    expected = means_at(kernel, model.mean_bases_, X, y, noise, X)
    assert np.square(model.predict(X) - expected).mean() < 3 * 2 * tol * noise
    # By what it estimates to be left, it would have gone on.
    monkeypatch.setattr(_solve, "_DELAY", 1000)
    assert model.n_iter_ < clone(model).fit(X, y).n_iter_ - 20


def test_too_few_iterations_are_warned_of(monkeypatch):
    X, y, _ = sinc(200)
    monkeypatch.setattr(_solve, "_ENTRIES", 0)
    model = given(RBF(0.5), X[:20], n_mean_bases=50, noise_variance=0.01, max_iter=2)
    with pytest.warns(ConvergenceWarning, match="reached max_iter=2 before its change"):
        model.fit(X, y)
    assert model.n_iter_ == 2


def test_conjugate_gradients_raise_the_bound_to_its_end():
    X, y, _ = sinc(200)
    model = given(RBF(0.5), X[:20], n_mean_bases=50, noise_variance=0.01, random_state=0)
    curve = model.fit(X, y).objective_curve_
    # Rounding, at the end.
    assert (np.diff(curve) > -1e-12 * np.abs(curve[1:])).all()
    assert curve[-1] > curve[0] + 0.1
    assert model.elbo_ == pytest.approx(curve[-1], rel=1e-9)
    assert model.n_iter_ == len(curve)


def test_multiscale_kernel_is_the_plain_one_between_rows():
    X, y = waves(100)
    settings = {"noise_variance": 0.1, "n_mean_bases": 40, "random_state": 0}
    one = given(1.5 * RBF([1.0, 2.0, 3.0]), X[:10], **settings).fit(X, y)
    two = given(1.5 * MultiscaleRBF([1.0, 2.0, 3.0]), X[:10], **settings).fit(X, y)
    for got, expected in zip(
        two.predict(X, return_std=True), one.predict(X, return_std=True), strict=True
    ):
        assert_allclose(got, expected, rtol=1e-9)
    assert two.elbo_ == pytest.approx(one.elbo_, rel=1e-10)


def test_white_noise_of_the_kernel_is_part_of_the_latent():
    X, y = waves(100)
    settings = {"noise_variance": 0.1, "n_mean_bases": 40, "random_state": 0}
    plain = given(1.5 * RBF(1.0), X[:10], **settings).fit(X, y)
    white = given(1.5 * RBF(1.0) + WhiteKernel(0.2), X[:10], **settings).fit(X, y)
    assert_allclose(white.predict(X), plain.predict(X), rtol=1e-9, atol=1e-12)
    _, var = white.latent_mean_and_variance(X)
    assert_allclose(var, plain.latent_mean_and_variance(X)[1] + 0.2, rtol=1e-9)
    # Its expected square over the noise.
    assert white.elbo_ == pytest.approx(plain.elbo_ - 100 * 0.2 / (2 * 0.1), rel=1e-9)
    learned = DecoupledGPRegressor(RBF([1.0] * 3) + WhiteKernel(0.2), n_inducing=10, random_state=0)
    assert learned.fit(X, y).score(X, y) > 0.9


# Weights and outputs


@pytest.mark.parametrize("solver", ["cg", "sgd"])
def test_weights_are_repetitions_and_zeros_remove(solver):
    X, y = waves(60)
    weights = np.resize([1, 0, 3], 60)
    again = np.repeat(np.arange(60), weights)
    model = DecoupledGPRegressor(
        solver=solver, n_inducing=8, n_mean_bases=30, batch_size=20, max_iter=20, random_state=0
    )
    model.set_params(**{"cg": {"learn_inducing": False}, "sgd": {"max_iter": 2}}[solver])
    weighted = clone(model).fit(X, y, sample_weight=weights)
    repeated = clone(model).fit(X[again], y[again])
    X[1::3], y[1::3] = 1e3, 1e6
    absent = clone(model).fit(X, y, sample_weight=weights)
    X_new = waves(20, seed=1)[0]
    for other in (repeated, absent):
        assert_array_equal(other.mean_bases_, weighted.mean_bases_)
        for got, expected in zip(
            other.predict(X_new, return_std=True),
            weighted.predict(X_new, return_std=True),
            strict=True,
        ):
            # The order of sums.
            assert_allclose(got, expected, rtol=1e-9)


def test_outputs_are_solved_as_if_alone():
    X, y = waves()
    Y = np.c_[y, 3 - 2 * X[:, 0]]
    settings = {"noise_variance": 0.1, "n_mean_bases": 40, "random_state": 0}
    model = given(1.5 * RBF(1.0), X[:10], **settings, normalize_y=True)
    both = clone(model).fit(X, Y)
    assert both.predict(X, return_cov=True)[1].shape == (80, 80, 2)
    alone = [clone(model).fit(X, column) for column in Y.T]
    for j, one in enumerate(alone):
        for got, expected in zip(
            both.predict(X, return_std=True), one.predict(X, return_std=True), strict=True
        ):
            # Of residuals of 1e-10, relative to the first.
            assert_allclose(got[:, j], expected, rtol=1e-7, atol=1e-7)
    assert both.elbo_ == pytest.approx(sum(one.elbo_ for one in alone), rel=1e-9)


# Other likelihoods


def blobs(n, n_classes, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    return 1.5 * rng.normal(size=(n_classes, 2))[y] + rng.normal(size=(n, 2)), y


@pytest.mark.parametrize("case", ["logit", "probit", "softmax", "student_t", "laplace"])
def test_all_rows_as_bases_agree_with_sparse_variational_gps(case):
    fixed = {"optimizer": None, "learn_inducing": False, "mean": "zero"}
    if case in ("student_t", "laplace"):
        X, y = waves(40)
        y[::10] += 5
        X_new = waves(30, seed=1)[0]
        fixed |= {"likelihood": case, "normalize_y": False, "noise_variance": 0.1}
        kernel, models = 1.5 * RBF(1.5), (DecoupledGPRegressor, SVGPRegressor)
    else:
        n_classes = 3 if case == "softmax" else 2
        (X, y), (X_new, _) = blobs(40, n_classes), blobs(30, n_classes, seed=1)
        fixed |= {"likelihood": "probit" if case == "probit" else "softmax"}
        kernel, models = 2.0 * RBF(1.0), (DecoupledGPClassifier, SVGPClassifier)
    fixed |= {"inducing_points": X, "max_iter": 500}
    ours = models[0](kernel, tol=3e-4, **fixed).fit(X, y)
    sparse = models[1](kernel, tol=1e-5, **fixed).fit(X, y)
    (mean, var), (expected_mean, expected_var) = (
        model.latent_mean_and_variance(X_new) for model in (ours, sparse)
    )
    # Means are left at a change of 3e-4, with sites of latents a step ago; the sparse models'
    # jitter is 1e-6.
    assert_allclose(mean, expected_mean, atol=0.01)
    assert_allclose(var, expected_var, atol=3e-3)
    assert ours.elbo_ == pytest.approx(sparse.elbo_, abs=3e-3)
    if models[0] is DecoupledGPClassifier:
        assert_allclose(ours.predict_proba(X_new), sparse.predict_proba(X_new), atol=1e-3)


# Variances and their calibration


@pytest.mark.parametrize("form", FACTORS)
@pytest.mark.parametrize("seed", range(3))
def test_variances_of_any_factor_are_between_zero_and_the_prior(form, seed):
    parts = random_parameters(form, c=2, m=8, seed=seed)
    parts["factor"] = 10.0**seed * parts["factor"]
    bound = bound_of(form, likelihood=gaussian_sites(t=2))
    places = torch.cat([X, parts["Z"][:, :2], 10 * X])
    _, var = posterior_of(bound, parts).marginals(places)
    # Rounding.
    assert (var <= RHO**2 * (1 + 1e-12)).all()
    assert (var >= 0).all()
    assert var.min() < 0.5 * RHO**2
    assert torch.linalg.eigvalsh(posterior_of(bound, parts).cov(places)).min() > -1e-6


@pytest.mark.parametrize("solver", ["cg", "sgd"])
def test_learned_variances_are_between_zero_and_the_prior(solver):
    X, y = waves(80)
    steps = {"max_iter": 10, "batch_size": 40, "learning_rate": 0.1} if solver == "sgd" else {}
    model = DecoupledGPRegressor(
        solver=solver,
        parametrization="decoupled",
        mean="zero",
        n_inducing=10,
        random_state=0,
        **steps,
    ).fit(X, y)
    _, var = model.latent_mean_and_variance(np.r_[X, 100 * X])
    prior = model.kernel_.k1.constant_value * y.var()
    assert (var > 0).all()
    assert (var <= prior * (1 + 1e-12)).all()
    assert var[:80].max() < prior
    assert var[80:].max() == pytest.approx(prior)


def test_power_of_the_variances_is_that_of_their_ratio_to_the_prior():
    parts = random_parameters("hybrid", c=2)
    bound = bound_of("hybrid", likelihood=gaussian_sites(t=2))
    shrunk = parts["raw_root"].diagonal(dim1=1, dim2=2).abs()
    parts["raw_root"] = torch.diag_embed(-shrunk)
    plain = posterior_of(bound, parts)
    arguments = plain.mean, plain.root, plain.bases, plain.coef
    calibrated = DecoupledPosterior(plain.basis, *arguments, power=2.5)
    places = torch.cat([X, 10 * X])
    (mean, var), (expected_mean, expected) = (p.marginals(places) for p in (calibrated, plain))
    assert expected.max() <= RHO**2
    assert_array_equal(mean, expected_mean)
    assert_allclose(var, RHO**2 * (expected / RHO**2) ** 2.5, rtol=1e-10)
    cov = calibrated.cov(places)
    assert_allclose(cov.diagonal(dim1=1, dim2=2).T, var, rtol=1e-10)
    correlations = []
    for c in (cov, plain.cov(places)):
        std = c.diagonal(dim1=1, dim2=2).sqrt()
        correlations.append(c / (std[:, :, None] * std[:, None]))
    assert_allclose(*correlations, rtol=1e-9, atol=1e-12)
    for posterior in (calibrated, plain):
        mean, var = posterior.marginals(places)
        cov = posterior.cov(places).numpy()
        draws = posterior.sample(places, 4000, torch.Generator().manual_seed(0)).numpy()
        # Five standard errors of means and of covariances.
        assert (np.abs(draws.mean(0) - mean.numpy()) < 5 * np.sqrt(var.numpy() / 4000)).all()
        for j in range(2):
            scale = np.sqrt(np.outer(var[:, j], var[:, j]))
            assert (np.abs(np.cov(draws[..., j].T) - cov[j]) < 5 * scale * np.sqrt(2 / 4000)).all()


@pytest.mark.parametrize("seed", range(4, 8))
def test_a_row_repeated_far_away_does_not_set_the_noise(seed):
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (600, 1))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=600)
    X[0], y[0] = 8.0, 2.0
    weights = np.ones(600)
    weights[0] = 300
    model = DecoupledGPRegressor(n_inducing=20, random_state=seed)
    # The truth is .01; .6 where all 300 were held out.
    assert 0.003 < model.fit(X, y, sample_weight=weights).noise_variance_ < 0.04


# Streams


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_stream_of_gaussian_noise_solves_the_normal_equations_of_all_rows(n_outputs):
    X, y = waves(120)
    Y = np.c_[y, X[:, 2] - y][:, :n_outputs]
    kernel = 1.5 * RBF([1.0, 1.5, 2.0])
    weights = np.random.default_rng(1).uniform(0.5, 2, 120)
    stream = given(kernel, X[:10], noise_variance=0.1)
    for part in np.split(np.arange(120), [50, 80]):
        stream.partial_fit(X[part], Y[part], sample_weight=weights[part])
    assert_array_equal(np.sort(stream.mean_bases_, axis=0), np.sort(X[:50], axis=0))
    mean = stream.predict(X).reshape(120, n_outputs)
    for j, target in enumerate(Y.T):
        expected = means_at(kernel, X[:50], X, target, 0.1, X, weights)
        # The jitter of 1e-9 over the noise, summed over rows, through two more factors.
        assert_allclose(mean[:, j], expected, atol=5e-5)
    fixed = {"optimizer": None, "learn_inducing": False, "normalize_y": False, "mean": "zero"}
    sparse = SVGPRegressor(kernel, inducing_points=X[:10], noise_variance=0.1, **fixed)
    sparse.fit(X, Y, sample_weight=weights)
    assert_allclose(
        stream.latent_mean_and_variance(X)[1],
        sparse.latent_mean_and_variance(X)[1],
        rtol=1e-7,
    )


def test_bound_of_a_stream_is_that_of_all_rows():
    X, y = waves(120)
    kernel = 1.5 * RBF([1.0, 1.5, 2.0])
    stream = given(kernel, X[:10], noise_variance=0.1)
    for part in np.split(np.arange(120), [50]):
        stream.partial_fit(X[part], y[part])
    expected = collapsed(kernel, X[:10], X[:50], X, y, 0.1)
    # The jitter of 1e-9 over the noise, summed over rows.
    assert stream.elbo_ == pytest.approx(expected, rel=5e-6)
    assert stream.noise_variance_ == pytest.approx(0.1)


def test_stream_of_classes_approaches_the_fit_of_all_rows():
    X, y = blobs(300, 3)
    model = DecoupledGPClassifier(
        2.0 * RBF(1.0),
        optimizer=None,
        learn_inducing=False,
        inducing_points=X[:60],
        n_mean_bases=150,
        random_state=0,
    )
    whole, stream = clone(model).fit(X, y), clone(model)
    for part in np.split(np.arange(300), 2):
        stream.partial_fit(X[part], y[part])
    first = clone(model).fit(X[:150], y[:150])
    probabilities = whole.predict_proba(X)
    gaps = [np.abs(m.predict_proba(X) - probabilities).mean() for m in (stream, first)]
    # Sites of the first half stay as they were without the second.
    assert gaps[0] < 0.02
    assert gaps[0] < 0.5 * gaps[1]


def test_shuffled_stream_of_stochastic_gradients_approaches_a_fit():
    X, y, f = sinc(1500)
    model = DecoupledGPRegressor(
        solver="sgd",
        parametrization="decoupled",
        n_inducing=10,
        n_mean_bases=50,
        batch_size=25,
        learning_rate=0.1,
        max_iter=1,
        random_state=0,
    )
    whole, stream = clone(model).fit(X, y), clone(model)
    for part in np.split(np.arange(1500), 10):
        stream.partial_fit(X[part], y[part])
    assert len(stream.mean_bases_) == 50
    # Sixty steps each, of other minibatches.
    assert stream.score(X, f) > 0.85
    assert abs(stream.score(X, f) - whole.score(X, f)) < 0.1


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_single_rows_move_bases_in_the_unit_of_the_first_ones(method):
    X, y = waves(60)
    X *= 1e-3
    model = DecoupledGPRegressor(
        solver="sgd", n_inducing=5, n_mean_bases=10, max_iter=3, warm_start=True, random_state=0
    ).fit(X, y)
    before, rate = model.mean_bases_[:, :3], model.learning_rate
    getattr(model.set_params(max_iter=1), method)(X[:1], y[:1])
    # A step of Adam is of about the rate, in units of the features' standard deviation.
    assert np.abs(model.mean_bases_[:, :3] - before).max() < 3 * rate * X.std()


def test_rows_of_a_stream_of_stochastic_gradients_count_by_their_number():
    X, y = waves(60)
    weights = np.random.default_rng(1).uniform(0.5, 2, 60)
    model = DecoupledGPRegressor(
        solver="sgd", n_inducing=8, n_mean_bases=30, normalize_y=False, random_state=0
    )
    for part in (slice(20), slice(20, 60)):
        model.partial_fit(X[part], y[part], sample_weight=weights[part])
    mean, var = model.latent_mean_and_variance(X[20:])
    log_density = norm.logpdf(y[20:], mean[:, 0], np.sqrt(model.noise_variance_))
    expected = log_density - 0.5 * var[:, 0] / model.noise_variance_
    ratio = weights.sum() / weights[20:].sum()
    bound = ratio * (weights[20:] @ expected) - model._latents[0].posterior("cpu").kl().item()
    assert model.elbo_ == pytest.approx(bound, rel=1e-9)
    whole = clone(model).set_params(max_iter=2).fit(X, y)
    mean, var = whole.latent_mean_and_variance(X)
    log_density = norm.logpdf(y, mean[:, 0], np.sqrt(whole.noise_variance_))
    expected = (log_density - 0.5 * var[:, 0] / whole.noise_variance_).sum()
    divergence = whole._latents[0].posterior("cpu").kl().item()
    assert whole.elbo_ == pytest.approx(expected - divergence, rel=1e-9)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"solver": "adam"}, "solver='adam' is not one of 'cg', 'sgd'"),
        ({"parametrization": "jacobi"}, "parametrization='jacobi' is not one of 'orthogonal'"),
        ({"n_mean_bases": 0}, "n_mean_bases=0 must be an integer of at least 1"),
        ({"n_mean_bases": 3.5}, "n_mean_bases=3.5 must be an integer of at least 1"),
    ],
)
@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_parameters_are_refused_in_words(kind, method, parameters, message):
    X, y = blobs(20, 2)
    with pytest.raises(ValueError, match=message):
        getattr(kind(**parameters), method)(X, y)


@pytest.mark.parametrize("part", [ConstantKernel(2.0), WhiteKernel(0.3)], ids=str)
def test_terms_without_bases_are_refused_by_stochastic_gradients(part):
    model = DecoupledGPRegressor(RBF(1.0) + part, solver="sgd")
    with pytest.raises(ValueError, match="no linear and no constant terms of a kernel"):
        model.fit(*waves(20))


@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
def test_mean_function_is_refused_by_stochastic_gradients(kind):
    with pytest.raises(ValueError, match="knows no mean function"):
        kind(solver="sgd", mean="linear", n_inducing=5, max_iter=1).fit(*blobs(20, 2))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("solver", ["cg", "sgd"])
def test_model_of_another_solver_is_not_continued(solver, method):
    X, y = waves(80)
    model = DecoupledGPRegressor(
        solver=solver, n_inducing=8, max_iter=3, tol=0.5, warm_start=True, random_state=0
    ).fit(X, y)
    changes = [{"solver": "sgd" if solver == "cg" else "cg"}]
    if solver == "sgd":
        changes.append({"parametrization": "decoupled"})
    for change in changes:
        with pytest.raises(ValueError, match="model to continue was fitted with solver="):
            getattr(clone_fitted(model).set_params(**change), method)(X, y)


def clone_fitted(model):
    return pickle.loads(pickle.dumps(model))


def test_fewer_bases_than_there_are_add_none():
    X, y = waves(80)
    model = DecoupledGPRegressor(
        solver="sgd", n_inducing=8, n_mean_bases=20, batch_size=40, max_iter=3, random_state=0
    ).fit(X, y)
    model.set_params(n_inducing=3, n_mean_bases=15).partial_fit(X, y)
    assert model.inducing_points_.shape[0] == 8
    assert model.mean_bases_.shape[0] == 20


@pytest.mark.parametrize("case", ["softmax", "student_t"])
def test_tight_tolerances_are_reached(case):
    fixed = {"optimizer": None, "learn_inducing": False, "mean": "zero", "tol": 1e-6}
    if case == "softmax":
        X, y = blobs(60, 3)
        model = DecoupledGPClassifier(2.0 * RBF(1.0), inducing_points=X, **fixed)
    else:
        X, y = waves(60)
        y[::15] += 5
        fixed |= {"noise_variance": 0.1, "normalize_y": False}
        model = DecoupledGPRegressor(1.5 * RBF(1.5), likelihood=case, inducing_points=X, **fixed)
    model.set_params(max_iter=500).fit(X, y)  # a ConvergenceWarning is an error


def test_new_inducing_points_leave_the_orthogonal_posterior_as_it_is(no_jitter):
    bound, *both = grown("orthogonal", Z=6, bases=8)
    before, after = (posterior_of(bound, parts) for parts in both)
    # Rounding of solves with Gram matrices of a condition of about a thousand.
    assert_allclose(after.marginals(X_NEW)[0], before.marginals(X_NEW)[0], rtol=1e-9)
    assert after.kl().item() == pytest.approx(before.kl().item(), rel=1e-9)


# Stochastic gradients


def descended(form, n_mean_bases):
    """Error of the specification's check, in units of the function's variance."""
    X, y, f = sinc()
    model = DecoupledGPRegressor(
        solver="sgd",
        parametrization=form,
        n_mean_bases=n_mean_bases,
        n_inducing=10,
        batch_size=250,
        learning_rate=0.1,
        max_iter=35,
        random_state=0,
    ).fit(X, y)
    assert len(model.inducing_points_) == 10
    assert model.inducing_points_.shape[1] == model.mean_bases_.shape[1] == 2
    assert model.n_iter_ == 35
    return np.mean((model.predict(X) - f) ** 2) / f.var()


def test_more_bases_of_the_mean_follow_more_of_a_function():
    few, many = descended("decoupled", 10), descended("decoupled", 100)
    assert many < 0.02
    assert 3 * many < few


@pytest.mark.parametrize("form", ["orthogonal", "hybrid", "shared"])
def test_every_form_learns_a_function(form):
    assert descended(form, 100) < 0.02


def test_what_is_held_stays():
    X, y = waves(40, d=2)
    kernel = ConstantKernel(1.5) * MultiscaleRBF([1.0, 2.0])
    settings = {"solver": "sgd", "n_inducing": 5, "max_iter": 3, "batch_size": 20}
    settings |= {"normalize_y": False, "random_state": 0}
    model = DecoupledGPRegressor(
        kernel, optimizer=None, learn_inducing=False, noise_variance=0.3, **settings
    ).fit(X, y)
    assert_allclose(model.kernel_.theta, kernel.theta, rtol=1e-14)
    assert model.noise_variance_ == pytest.approx(0.3, rel=1e-12)
    rows = {tuple(row) for row in np.c_[X, np.zeros_like(X)]}
    for points in (model.inducing_points_, model.mean_bases_):
        assert {tuple(point) for point in points} <= rows
    learned = DecoupledGPRegressor(kernel, noise_variance=0.3, **settings).fit(X, y)
    assert (np.abs(learned.kernel_.theta - kernel.theta) > 1e-3).all()
    assert learned.noise_variance_ != pytest.approx(0.3, rel=1e-3)
    assert not {tuple(point) for point in learned.inducing_points_} & rows


def test_multipliers_stay_within_their_limit():
    X, y = waves(40, d=2)
    model = DecoupledGPRegressor(
        solver="sgd", n_inducing=5, max_iter=6, batch_size=20, learning_rate=2.0, random_state=0
    ).fit(X, y)
    for points in (model.inducing_points_, model.mean_bases_):
        widest = np.abs(points[:, 2:]).max()
        assert widest == pytest.approx(1.5)


# Precisions and copies


def test_single_precision_agrees_with_double():
    X, y = waves(200)
    settings = {"noise_variance": 0.1, "n_mean_bases": 60, "random_state": 0, "tol": 1e-3}
    model = given(1.5 * RBF([1.0, 1.5, 2.0]), X[:20], **settings)
    double, single = clone(model).fit(X, y), clone(model).set_params(dtype="float32").fit(X, y)
    (mean, std), (expected_mean, expected_std) = (
        each.predict(X, return_std=True) for each in (single, double)
    )
    # Single precision of products, times the condition number of the bases' kernel matrix over
    # that of the preconditioned system.
    assert_allclose(mean, expected_mean, atol=0.02)
    assert_allclose(std, expected_std, atol=1e-4)
    assert single.elbo_ == pytest.approx(double.elbo_, abs=0.05)
    X, y = blobs(100, 3)
    model = DecoupledGPClassifier(
        2.0 * RBF(1.0),
        optimizer=None,
        learn_inducing=False,
        n_inducing=10,
        n_mean_bases=40,
        random_state=0,
    )
    double, single = clone(model).fit(X, y), clone(model).set_params(dtype="float32").fit(X, y)
    assert_allclose(single.predict_proba(X), double.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("solver", ["cg", "sgd"])
@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
def test_pickled_models_predict_and_go_on_the_same(kind, solver):
    X, y = blobs(60, 2)
    model = kind(solver=solver, mean="zero", n_inducing=8, n_mean_bases=30, random_state=0)
    model.set_params(max_iter=3 if solver == "sgd" else 100).fit(X[:40], y[:40])
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict(X), model.predict(X))
    moments = [each.latent_mean_and_variance(X) for each in (again, model)]
    assert_array_equal(*moments)
    for each in (again, model):
        each.partial_fit(X[40:], y[40:])
    assert_array_equal(*(each.latent_mean_and_variance(X) for each in (again, model)))
    assert np.abs(model.latent_mean_and_variance(X)[0] - moments[0][0]).max() > 1e-3


@pytest.mark.filterwarnings("ignore:.* holds what this first call, of only 2 rows")
@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("solver", ["cg", "sgd"])
@pytest.mark.parametrize("kind", [DecoupledGPRegressor, DecoupledGPClassifier])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_edges_of_data_give_finite_predictions(kind, solver, edge, method):
    X, y = blobs(60, 2)
    X = edge(X)
    model = kind(solver=solver, mean="zero", n_inducing=4, n_mean_bases=7, random_state=0)
    model.set_params(max_iter=3 if solver == "sgd" else 100)
    getattr(model, method)(X, y[: len(X)])
    mean, variance = model.latent_mean_and_variance(X)
    assert np.isfinite(mean).all()
    assert (variance >= 0).all()
    if kind is DecoupledGPClassifier:
        assert_allclose(model.predict_proba(X).sum(1), 1, atol=1e-9)
    else:
        assert np.isfinite(model.predict(X, return_std=True)).all()


# Mean functions, streams and steps back


@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_calibrated_variances_are_the_priors_far_away(mean):
    rng = np.random.default_rng(1)
    X = rng.uniform(0, 20, size=(800, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=800)
    kernel = ConstantKernel(1.0, "fixed") * RBF(0.7, "fixed")
    settings = {"mean": mean, "n_inducing": 10, "random_state": 0}
    for model in (
        DecoupledGPRegressor(kernel, n_mean_bases=300, **settings),
        QSGPRegressor(kernel, n_basis=300, **settings),
    ):
        model.fit(X, y)
        assert model.variance_power_ > 2
        _, var = model.latent_mean_and_variance([[30.0], [60.0]])
        assert_allclose(var[:, 0], y.var(), rtol=0.05)


def test_streams_follow_nearly_straight_functions():
    # Rows of a kernel matrix that is singular to rounding.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    y = X @ [3.0, 2.0, 1.0] + 0.01 * rng.normal(size=120)
    model = DecoupledGPRegressor(random_state=0).fit(X[:80], y[:80]).partial_fit(X[80:], y[80:])
    assert model.score(X, y) > 0.999


@pytest.mark.parametrize("kind", [DecoupledGPClassifier, QSGPClassifier])
def test_separable_classes_are_fitted_as_by_the_sparse_process(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 60))
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    model = kind(random_state=0).fit(X, y)
    assert model.elbo_ > SVGPClassifier(random_state=0).fit(X, y).elbo_ - 3
    assert (np.diff(model.objective_curve_) > -1e-4).all()
    assert model.objective_curve_.max() < 0


def test_steps_go_back_where_the_bound_falls(monkeypatch):
    X, y = blobs(60, 2)
    y = np.where(X[:, 0] > 0, 0, 1)
    model = DecoupledGPClassifier(1e4 * RBF(3.0), optimizer=None, n_inducing=20, random_state=0)
    with pytest.warns(ConvergenceWarning):
        curve = model.set_params(max_iter=6).fit(X, y).objective_curve_
    assert (np.diff(curve) >= 0).all()
    assert model.elbo_ >= curve[-1] - 1e-6 * abs(curve[-1])


def test_failed_streams_leave_the_steps_as_they_were():
    class Failing:
        def setup(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context):
            if context.parent is None:
                raise RuntimeError("at the end")

        def teardown(self, estimator, context):
            pass

    X, y = waves(60)
    model = DecoupledGPRegressor(
        solver="sgd", n_inducing=5, n_mean_bases=10, max_iter=2, random_state=0
    ).fit(X, y)
    before = pickle.dumps(model._latents)
    with pytest.raises(RuntimeError, match="at the end"):
        model.set_callbacks(Failing()).partial_fit(X, y)
    assert pickle.dumps(model._latents) == before
