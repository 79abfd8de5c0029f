"""Stochastic gradients of decoupled GPs: the bound in all forms, new bases, descent."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import (
    R,
    assert_all_close,
    gaussian_sites,
    sinc,
    solve_of,
    t64,
    unit_gram,
    upper,
    waves,
)
from sklearn.gaussian_process.kernels import ConstantKernel

from skgpsvm import (
    DecoupledGPRegressor,
    _bases,
)
from skgpsvm._bases import KernelBases
from skgpsvm._posteriors import DecoupledPosterior, WhitenedBasis
from skgpsvm._sites import LikelihoodSites
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.decoupled import _stochastic
from skgpsvm.decoupled._stochastic import StochasticBound
from skgpsvm.kernels import MultiscaleRBF
from skgpsvm.likelihoods import Logistic
from skgpsvm.solvers import PARAMETRIZATIONS, StochasticGradient

X, Y, X_NEW, ALPHA, BETA = R.X, R.Y, R.X_new, R.alpha, R.beta
RHO, NOISE, KERNEL, MULTIPLIERS = R.rho, R.noise, R.kernel, R.multipliers
COEF = t64([[0.4, 0.7, -0.3]])
FACTOR = t64([[[1.5, 0], [-0.5, 0.8]]])
ROWS = torch.ones(5, dtype=torch.float64)
BASES = torch.arange(3)
DIGITS = {"rtol": 0, "atol": 6e-9}  # printed digits of gradients
FACTORS = PARAMETRIZATIONS[2:]


@pytest.fixture
def no_jitter(monkeypatch):
    """Remove the jitter from kernel matrices of bases, so that printed digits are matched."""
    monkeypatch.setattr(_bases, "JITTER", 0)
    monkeypatch.setattr(_stochastic, "_JITTER", 0)


def bound_of(form, kernel=KERNEL, likelihood=None):
    return StochasticBound(torch_kernel(kernel), likelihood or gaussian_sites(), form)


def shared(kernel=KERNEL):
    return {"theta": t64(kernel.theta), "noise": t64([np.log(NOISE)]), "Z": BETA, "bases": ALPHA}


def decoupled():
    return {**shared(), "coef": COEF, "factor": FACTOR}


def whitened(form):
    """Return the parameters of section 8.4."""
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
    """Return the squared norms of bases after projection on inducing points is subtracted."""
    cross = unit_gram(Z, bases)
    left = 1 - (cross * torch.linalg.solve(unit_gram(Z, Z), cross)).sum(0)
    return left.clamp_min(1e-2)


def leaves_of(parameters):
    return {name: part.clone().requires_grad_() for name, part in parameters.items()}


def posterior_of(bound, parameters):
    mean, root, bases, coef = bound.posterior(parameters).values()
    basis = WhitenedBasis(bound.kernel, parameters["theta"], parameters["Z"], _stochastic._JITTER)
    bases = KernelBases(bound.kernel, parameters["theta"], bases)
    return DecoupledPosterior(basis, mean, root, bases, coef)


def full(bound, parameters):
    """Return the bound of data R."""
    return bound.value(parameters, X, Y, ROWS, 1.0, torch.arange(len(bound.span(parameters)[0])))


def random_parameters(form, c=1, m=3, M=6, seed=0):
    """Return random parameters in two dimensions."""
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
    # The tolerance is for the jitter of 1e-6.
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
    # The first entry is for the log variance, which is twice log rho.
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
    # In the specification's plain estimates, the diagonal of S has a factor of M / (2 |S|). Here,
    # half of the whole diagonal replaces it.
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
    # The printed value is for plain columns, 0.1380578246; here the diagonal is exact.
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
    # Coefficients have ten digits and the Hessian is of size 100; the factor is exact.
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
    # The tolerance is for the quadrature.
    assert value.item() == pytest.approx(-4.2750539559, abs=1e-7)


def test_explicit_features_give_the_same_gaussian(no_jitter):
    rng = np.random.default_rng(0)
    grid = np.arange(-9, 9, 0.1)
    variance, scale = 1.7**2, 0.8

    def features(points, logs):
        """Return the features on a grid, with norm one."""
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
    # The error of numerical integration falls faster than any power of the spacing.
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
    assert len(one.span(parts)[0]) == len(two.span(other)[0]) == 9
    columns = torch.tensor([0, 5, 7])
    values = [
        bound.value(part, X, Y, ROWS, 1.0, columns).item()
        for bound, part in ((one, parts), (two, other))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-13)
    assert_all_close(one.posterior(parts).values(), two.posterior(other).values(), rtol=1e-13)


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
    # The units of the orthogonal form's coefficients are constant during a step.
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
        # The error is rounding of values of size 1e2 over the step.
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_estimates_average_to_the_bound_and_its_gradient(form):
    M = 2 if form == "shared" else 3
    bound, leaves = bound_of(form), leaves_of(random_parameters(form, m=2, M=M))
    value = full(bound, leaves)
    expected = value.item(), torch.autograd.grad(value, leaves.values())
    batches, columns = combinations(range(5), 2), combinations(range(len(bound.span(leaves)[0])), 2)
    values = []
    for some, chosen in product(map(list, batches), map(torch.tensor, columns)):
        values.append(bound.value(leaves, X[some], Y[some], ROWS[some], 2.5, chosen))
    mean = sum(values) / len(values)
    # The jitter is the same on both sides, so that the error is rounding.
    assert mean.item() == pytest.approx(expected[0], rel=1e-12)
    assert_all_close(
        torch.autograd.grad(mean, leaves.values()), expected[1], rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
@pytest.mark.parametrize("rows", [([0, 3], [1], []), ([], [0, 1, 2, 3, 4], [])])
def test_parts_of_ranks_sum_to_the_estimate(form, rows):
    bound, leaves, columns = (
        bound_of(form),
        leaves_of(random_parameters(form)),
        torch.tensor([4, 1]),
    )
    every = [i for own in rows for i in own]
    whole = bound.value(leaves, X[every], Y[every], ROWS[every], 1.5, columns)
    parts = [
        bound.value(leaves, X[own], Y[own], ROWS[own], 1.5, columns, (k, 3))
        for k, own in enumerate(torch.tensor(own, dtype=torch.long) for own in rows)
    ]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-12)
    for pair in zip(
        *(torch.autograd.grad(value, leaves.values()) for value in (sum(parts), whole)), strict=True
    ):
        assert_allclose(*pair, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_posterior_has_the_bound(form, no_jitter):
    likelihood = gaussian_sites(t=2)
    bound, parts = bound_of(form, likelihood=likelihood), random_parameters(form, c=2)
    targets = torch.cat([Y, 1 - 2 * Y], 1)
    value = bound.value(parts, X, targets, ROWS, 1.0, torch.arange(len(bound.span(parts)[0])))
    posterior = posterior_of(bound, parts)
    loss = likelihood.loss(targets, *posterior.marginals(X)).sum()
    assert -(loss + posterior.kl()).item() == pytest.approx(value.item(), rel=1e-10)


@pytest.mark.parametrize("form", PARAMETRIZATIONS)
def test_chunks_of_bases_change_nothing(form, monkeypatch):
    bound, leaves = bound_of(form), leaves_of(random_parameters(form))
    values = [full(bound, leaves)]
    posteriors = [posterior_of(bound, random_parameters(form))]
    monkeypatch.setattr(_stochastic, "CACHED_BLOCK", 4)
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
    raw = state.root.clone()
    raw.diagonal(dim1=1, dim2=2).log_()
    mean = torch.zeros(1, 2, dtype=torch.float64)
    parts = leaves_of({**shared(), "coef": RHO * state.coef, "mean": mean, "raw_root": raw})
    value = full(bound_of("hybrid"), parts)
    assert value.item() == pytest.approx(-17.7603344451, abs=1e-9)
    for slope in torch.autograd.grad(value, (parts["coef"], parts["raw_root"])):
        assert_allclose(slope, 0, atol=1e-8)


# New bases


def grown(form, Z, bases, c=1):
    """Return a bound, random parameters, and the parameters with data R as new bases."""
    bound = bound_of(form, likelihood=gaussian_sites(t=c))
    parts = random_parameters(form, c=c)
    return bound, parts, bound.with_new_bases(parts, X, Y.expand(-1, c), Z=Z, bases=bases)


def test_new_bases_leave_the_hybrid_posterior_as_it_is(no_jitter):
    bound, *both = grown("hybrid", Z=6, bases=8, c=2)
    before, after = (posterior_of(bound, parts) for parts in both)
    assert after.kl().item() == pytest.approx(before.kl().item(), rel=1e-10)
    assert_all_close(after.marginals(X_NEW), before.marginals(X_NEW), rtol=1e-10)
    assert_allclose(after.cov(X_NEW), before.cov(X_NEW), rtol=1e-10)


def test_new_mean_bases_leave_the_orthogonal_posterior_as_it_is():
    bound, *both = grown("orthogonal", Z=3, bases=8)
    before, after = (posterior_of(bound, parts) for parts in both)
    assert len(both[1]["bases"]) == 8
    assert after.kl().item() == pytest.approx(before.kl().item(), rel=1e-10)
    assert_all_close(after.marginals(X_NEW), before.marginals(X_NEW), rtol=1e-10)


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
def test_rows_that_are_bases_already_or_repeated_are_not_added(form):
    bound = bound_of(form)
    parts = bound.with_new_bases(random_parameters(form, m=0, M=0), X[:3], Y[:3], Z=9, bases=9)
    assert len(parts["Z"]) == len(parts["bases"]) == 3
    # Their correlations with existing bases are about 1 - 1e-8 and 0.99.
    again = torch.cat([X[:3] + 1e-4, X[:1] + 0.1, X[:1] + 0.1])
    parts = bound.with_new_bases(parts, again, Y[:5], Z=9, bases=9)
    for name in ("Z", "bases"):
        assert_array_equal(parts[name][3:, :2], again[3:4])


def test_new_inducing_points_leave_the_orthogonal_posterior_as_it_is(no_jitter):
    bound, *both = grown("orthogonal", Z=6, bases=8)
    before, after = (posterior_of(bound, parts) for parts in both)
    # The error is rounding of solves with Gram matrices of condition number about 1000.
    assert_allclose(after.marginals(X_NEW)[0], before.marginals(X_NEW)[0], rtol=1e-9)
    assert after.kl().item() == pytest.approx(before.kl().item(), rel=1e-9)


def descended(form, n_mean_bases):
    """Return the error of the specification's check, in units of the function's variance."""
    X, y, f = sinc()
    model = DecoupledGPRegressor(
        solver=StochasticGradient(form, batch_size=250, learning_rate=0.1),
        n_mean_bases=n_mean_bases,
        n_inducing=10,
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
    settings = {"solver": StochasticGradient(batch_size=20), "n_inducing": 5, "max_iter": 3}
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
        solver=StochasticGradient(batch_size=20, learning_rate=2.0),
        n_inducing=5,
        max_iter=6,
        random_state=0,
    ).fit(X, y)
    for points in (model.inducing_points_, model.mean_bases_):
        widest = np.abs(points[:, 2:]).max()
        assert widest == pytest.approx(1.5)


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


@pytest.mark.parametrize("form", FACTORS)
@pytest.mark.parametrize("seed", range(3))
def test_variances_of_any_factor_are_between_zero_and_the_prior(form, seed):
    parts = random_parameters(form, c=2, m=8, seed=seed)
    parts["factor"] = 10.0**seed * parts["factor"]
    bound = bound_of(form, likelihood=gaussian_sites(t=2))
    places = torch.cat([X, parts["Z"][:, :2], 10 * X])
    _, var = posterior_of(bound, parts).marginals(places)
    # The error is rounding.
    assert (var <= RHO**2 * (1 + 1e-12)).all()
    assert (var >= 0).all()
    assert var.min() < 0.5 * RHO**2
    assert torch.linalg.eigvalsh(posterior_of(bound, parts).cov(places)).min() > -1e-6
