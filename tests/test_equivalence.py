"""Methods compared with each other on problems for which they must agree, exactly or nearly."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import oracles
import pytest
import torch
from problems import JITTER, FixedContrast, ascent_of, ring, swept, t64, undamped
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Exponentiation

from skgpsvm import BayesianSVC
from skgpsvm._hinge_sites import BinarySites, ContrastSites
from skgpsvm._inference.natural_gradient import AdamSteps, GradientInference, InterleavedState
from skgpsvm._objectives import elbo
from skgpsvm._optim import Free
from skgpsvm._posteriors import InducingPosterior
from skgpsvm._torch_kernels import torch_kernel
from skgpsvm.likelihoods import BinaryHinge, MulticlassHinge
from skgpsvm.solvers import Gradient


def objective_at(ascent, state):
    """Return the objective at the moments of a state."""
    return ascent.sweep(ascent.init(state.mean, state.root))


def maximize_elbo(ascent, kernel, rate, n_steps):
    """Return the state after steps of Adam on the posterior, with all rows in every step."""
    free = ["mean", "raw_root"]
    adam = AdamSteps(
        ascent.likelihood,
        (torch_kernel(kernel),),
        ascent.rows,
        Free(free, t64(kernel.bounds), t64([1.0])),
        rate,
    )
    generator = torch.Generator().manual_seed(0)
    inference = GradientInference(ascent, adam, n_steps, 0.0, None, generator)
    state = inference.init({"theta": ascent.basis.theta, "Z": ascent.basis.Z, "noise": t64([])})
    for _ in range(n_steps):
        inference.step(state)
    return state


@pytest.fixture(scope="module")
def iris():
    """Return X, y, Z and kernel of the problem in section 8.7 of the specification."""
    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    return X, y, X[::10], ConstantKernel(1.0) * RBF(2.0)


# The same objective


@pytest.mark.parametrize(
    ("hinge", "likelihood", "n_classes"),
    [
        (BinarySites(), BinaryHinge(), 2),
        (ContrastSites(3, "hard"), MulticlassHinge(), 3),
        (ContrastSites(2, "soft"), MulticlassHinge(), 2),
    ],
    ids=["binary", "hard", "two classes"],
)
def test_sweeps_gradients_and_elbo_have_one_objective(hinge, likelihood, n_classes):
    X, y = ring(30, n_classes)
    kernel, weights = 2.0 * RBF(1.0) + ConstantKernel(1.0), np.linspace(0.5, 2, 30)
    ascent = ascent_of(hinge, kernel, X, y, X[:6], weights)
    state = swept(ascent, 3)
    posterior = InducingPosterior(ascent.basis, state.mean, state.root)
    value = elbo(posterior, likelihood, ascent.rows)
    adam = AdamSteps(
        hinge,
        (torch_kernel(kernel),),
        ascent.rows,
        Free(["theta"], t64(kernel.bounds), t64([1.0])),
        0.0,
    )
    at_once = ascent.rows.minibatches(30, torch.Generator().manual_seed(0))
    state = InterleavedState(**state.as_dict(), generator=torch.empty(0))
    # The sums are the same, in other orders.
    np.testing.assert_allclose(adam.run(replace(state), at_once), value, rtol=1e-12)
    np.testing.assert_allclose(objective_at(ascent, state), value, rtol=1e-11)


# Coordinate ascent and gradients


def test_fixed_contrast_on_iris_reaches_the_published_optimum(iris):
    X, y, Z, kernel = iris
    ascent = ascent_of(FixedContrast(), kernel, X, y, Z)
    state = ascent.init()
    values = [ascent.sweep(state) for _ in range(400)]
    assert values[0] == pytest.approx(-409.8076211, abs=1e-6)
    # The published value has the same jitter; after 400 simultaneous sweeps about 1e-7 is left.
    assert values[-1] == pytest.approx(-33.3748235, abs=1e-6)


@pytest.mark.parametrize(
    ("hinge", "n_classes"), [(BinarySites(), 2), (FixedContrast(), 3)], ids=["binary", "fixed"]
)
def test_gradients_and_sweeps_find_the_same_unique_optimum(hinge, n_classes):
    X, y = ring(60, n_classes)
    kernel = 1.0 * RBF(1.0)
    ascent = ascent_of(hinge, kernel, X, y, X[:8])
    swept_state, climbed_state = swept(ascent, 200), maximize_elbo(ascent, kernel, 0.05, 300)
    best, found = (objective_at(ascent, state) for state in (swept_state, climbed_state))
    # The objective is concave: the sweeps have reached the optimum, Adam comes close from below.
    assert best - 1e-3 * abs(best) < found < best + 1e-6
    np.testing.assert_allclose(climbed_state.mean, swept_state.mean, rtol=0, atol=0.1)


def soft_objective(A, residual, y, mean, root, sharpness=2.0):
    """Return the objective of section 3.5, with the smooth maximum of the wrong classes' hinges."""
    m = A @ mean.T
    v = residual[:, None] + torch.einsum("np,cpq->ncq", A, root).square().sum(-1)
    if len(mean) == 1:
        b, var = 1 - (2 * y[:, None] - 1) * m, v
    else:
        own = torch.nn.functional.one_hot(y, len(mean)).bool()
        b = (1 + m - m[own][:, None])[~own].reshape(len(y), -1)
        var = (v + v[own][:, None])[~own].reshape(len(y), -1)
    h = b + (b.square() + var).sqrt()
    loss = ((sharpness * h).exp().mean(1).log() / sharpness).sum()
    log_det = root.diagonal(dim1=1, dim2=2).log().sum()
    return -loss - 0.5 * (root.square().sum() + mean.square().sum() - mean.numel()) + log_det


def best_by_lbfgs(ascent, n_latents):
    """Return the maximum of `soft_objective` by L-BFGS over means and triangular roots."""
    X, y, _ = ascent.rows.take(slice(None))
    A, residual = ascent.basis(X)
    p = A.shape[1]
    mean = torch.zeros(n_latents, p, dtype=torch.float64, requires_grad=True)
    raw = torch.zeros(n_latents, p, p, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [mean, raw], max_iter=1000, history_size=30, line_search_fn="strong_wolfe"
    )

    def loss():
        optimizer.zero_grad()
        root = raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=1, dim2=2).exp())
        value = -soft_objective(A, residual, y, mean, root)
        value.backward()
        return value

    optimizer.step(loss)
    return -loss().item()


def scaled(X, y):
    return (X - X.mean(0)) / np.maximum(X.std(0), 1e-9), y


def real_problem(name, request):
    """Return standardized rows, class codes and inducing points."""
    if name in ("iris", "wine"):
        X, y = scaled(*{"iris": load_iris, "wine": load_wine}[name](return_X_y=True))
        return X, y, X[::10]
    if name == "vehicle":
        folder = request.getfixturevalue("benchmark_data")
        data = np.load(folder / "classification" / "vehicle.npz")
        X, y = scaled(data["X"].astype(float), data["y"])
        return X, y, X[::20]
    X, y = load_digits(n_class=int(name.split()[0]), return_X_y=True)
    X, y = scaled(X[:150], y[:150])
    return X, y, X[::6]


@pytest.mark.parametrize(
    "name",
    [
        "iris",
        "wine",
        *(f"{c} digits" for c in (2, 4, 10)),
        *(pytest.param(f"{c} digits", marks=pytest.mark.slow) for c in (3, 5, 6, 7, 8, 9)),
        pytest.param("vehicle", marks=pytest.mark.slow),
    ],
)
def test_default_fit_ends_within_a_thousandth_of_a_nat_per_row_of_the_optimum(name, request):
    X, y, Z = real_problem(name, request)
    kernel = 5.0 * RBF(np.sqrt(X.shape[1] / 2)) + ConstantKernel(5.0)
    model = BayesianSVC(kernel, inducing_points=Z, optimizer=None).fit(X, y)
    n_latents = 1 if y.max() == 1 else y.max() + 1
    hinge = BinarySites() if n_latents == 1 else ContrastSites(n_latents, "soft")
    ascent = ascent_of(hinge, kernel, X, y, Z)
    state = SimpleNamespace(**model._latents[0].state("cpu"))
    best, found = best_by_lbfgs(ascent, n_latents), objective_at(ascent, state)
    assert best - 1e-3 * len(X) < found < best + 1e-5 * len(X)
    # Shrinking steps that contrast two classes took up to 200 sweeps for 0.01 to 0.1 nats per row.
    assert model.n_iter_ < 50
    # `tol` refers to the undamped step.
    nearby = undamped(ascent, state.mean, state.root)
    ascent.sweep(nearby)
    assert nearby.change < model.tol


@pytest.mark.parametrize(
    "name",
    [
        "iris",
        "4 digits",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("wine", "10 digits", "vehicle")),
    ],
)
def test_gradients_end_where_sweeps_do(name, request):
    X, y, Z = real_problem(name, request)
    kernel = 5.0 * RBF(np.sqrt(X.shape[1] / 2))
    options = {"inducing_points": Z, "optimizer": None, "random_state": 0}
    by_sweeps = BayesianSVC(kernel, **options).fit(X, y)
    by_gradients = BayesianSVC(
        kernel, solver=Gradient(batch_size=len(X)), max_iter=400, tol=0, **options
    )
    with pytest.warns(ConvergenceWarning):
        by_gradients.fit(X, y)
    ascent = ascent_of(ContrastSites(y.max() + 1, "soft"), kernel, X, y, Z)
    values = [
        objective_at(ascent, SimpleNamespace(**model._latents[0].state("cpu")))
        for model in (by_sweeps, by_gradients)
    ]
    assert abs(values[0] - values[1]) < 1e-3 * len(X)


@pytest.mark.parametrize("n", [200, 201])
def test_minibatches_reach_the_optimum_of_all_rows(n):
    X, y = ring(n, 2)
    ascent = ascent_of(BinarySites(), 1.0 * RBF(1.0), X, y, X[:8])
    best = objective_at(ascent, swept(ascent, 60))
    state, generator = ascent.init(), torch.Generator().manual_seed(0)
    for _ in range(60):
        ascent.stochastic_sweep(state, ascent.rows.minibatches(25, generator))
    # Steps of t^-0.6 at t = 480 average over about 40 minibatches, five times all rows. The error
    # of the objective is the square of the remaining noise, 1e-5. With n = 201, a single row is
    # left over by full minibatches.
    assert best - 1e-4 * abs(best) < objective_at(ascent, state) <= best + 1e-9


# One latent and two classes: section 3.7


def test_two_classes_in_the_multiclass_model_reach_the_published_optimum():
    T1 = oracles.T1_BINARY
    K, kappa, kt = oracles.precompute(T1.X, T1.Z, jitter=JITTER)
    L = np.linalg.cholesky(K)
    for contrast in ("hard", "soft"):
        ascent = ascent_of(
            ContrastSites(2, contrast), ConstantKernel(1.0) * RBF(1.0), T1.X, T1.y, T1.Z
        )
        state = swept(ascent, 100)
        mu, root = state.mean.numpy() @ L.T, L @ state.root.numpy()
        Sig = root @ root.transpose(0, 2, 1)
        # With one wrong class, nothing is chosen. The error is due to jitter and shrinking steps.
        assert objective_at(ascent, state) == pytest.approx(-6.6003135164, abs=1e-5)
        np.testing.assert_allclose(mu[1], [-0.7639877532, 0.7728871528], rtol=0, atol=1e-4)
        np.testing.assert_allclose(mu[0], -mu[1], rtol=0, atol=1e-4)
        published = [[0.3881751780, 0.0026460452], [0.0026460452, 0.4543618608]]
        np.testing.assert_allclose(Sig, [published] * 2, rtol=0, atol=1e-4)
        # (S16): the binary objective with twice the kernel, minus the part of f0 + f1.
        delta, total, S = mu[1] - mu[0], mu[0] + mu[1], Sig[0] + Sig[1]
        D = Sig[1] - Sig[0]
        binary = oracles.binary_objective(2 * K, kappa, 2 * kt, delta, S, T1.s)
        turn = D @ np.linalg.inv(S)
        rest = oracles.gaussian_kl(total, S - turn @ D, np.zeros(2), 2 * K)
        spread = 0.5 * np.trace(np.linalg.solve(2 * K, turn @ S @ turn.T))
        assert objective_at(ascent, state) == pytest.approx(binary - rest - spread, abs=1e-9)


def test_one_against_the_rest_is_the_binary_models():
    X, y = ring(45, 3)
    kernel = ConstantKernel(2.0) * RBF(1.0)
    settings = {"inducing_points": X[:8], "optimizer": None}
    whole = BayesianSVC(kernel, multi_class="ovr", **settings).fit(X, y)
    mean, var = whole.latent_mean_and_variance(X)
    var /= whole.spread_
    for j in range(3):
        one = BayesianSVC(kernel, **settings).fit(X, y == j)
        one_mean, one_var = one.latent_mean_and_variance(X)
        for column, alone in ((mean, one_mean), (var, one_var / one.spread_)):
            # The arithmetic is the same.
            np.testing.assert_allclose(column[:, j], alone, rtol=1e-12)
    assert whole.score(X, y) > 0.7


def test_two_classes_are_one_model_whatever_multi_class_says():
    X, y = ring(30, 2)
    models = [
        BayesianSVC(multi_class=name, n_inducing=6, random_state=0).fit(X, y)
        for name in ("crammer_singer", "ovr")
    ]
    np.testing.assert_array_equal(*(model.predict_proba(X) for model in models))


# Bases


def test_exact_features_are_what_enough_inducing_points_give():
    X, y = ring(40, 3)
    models = []
    # A power has no exact features, but three points in the plane determine a linear function.
    for kernel in (DotProduct(1.0), Exponentiation(DotProduct(1.0), 1)):
        model = BayesianSVC(kernel, inducing_points=X[:3], optimizer=None)
        models.append(model.fit(X, y))
    # The jitter is 1e-6 times a variance of 2, relative to a smallest eigenvalue of about 0.1.
    np.testing.assert_allclose(
        *(np.stack(model.latent_mean_and_variance(X)) for model in models), rtol=0, atol=1e-4
    )


def test_all_rows_as_inducing_points_are_the_dense_model():
    X, y = ring(30, 2)
    s, kernel = 2.0 * y - 1, 2.0 * RBF(1.0)
    ascent = ascent_of(BinarySites(), kernel, X, y, X)
    posterior = swept(ascent, 40)
    m, v = InducingPosterior(ascent.basis, posterior.mean, posterior.root).marginals(t64(X))
    # Wenzel et al. without inducing points: q(f) at the rows, precision K^-1 + diag(w).
    K = kernel(X)
    mean, cov = np.zeros(30), K
    for _ in range(40):
        w = ((1 - s * mean) ** 2 + np.diag(cov)) ** -0.5
        cov = K - K @ np.linalg.solve(K + np.diag(1 / w), K)
        mean = cov @ (s * (1 + w))
    # The jitter is 2e-6, relative to 1 / w of about one.
    np.testing.assert_allclose(m[:, 0], mean, rtol=0, atol=1e-4)
    np.testing.assert_allclose(v[:, 0], np.diag(cov), rtol=0, atol=1e-4)


# Weights, dtypes, initial values


@pytest.mark.parametrize("n_classes", [2, 3])
def test_integer_weights_are_repeated_rows_for_the_whole_fit(n_classes):
    X, y = ring(40, n_classes)
    weights = np.resize([1, 0, 2, 3, 1], 40)
    repeated = np.repeat(np.arange(40), weights)
    settings = {"n_inducing": 8, "random_state": 0}
    a = BayesianSVC(**settings).fit(X, y, sample_weight=weights)
    b = BayesianSVC(**settings).fit(X[repeated], y[repeated])
    # Sums are in another order, and the search and the fit stop by comparisons.
    np.testing.assert_allclose(a.kernel_.theta, b.kernel_.theta, rtol=0, atol=1e-6)
    np.testing.assert_allclose(a.predict_proba(X), b.predict_proba(X), rtol=0, atol=1e-6)
    assert a.loo_log_loss_ == pytest.approx(b.loo_log_loss_, rel=1e-6)
    assert a.temperature_ == pytest.approx(b.temperature_, rel=1e-6)


def test_float32_and_float64_agree():
    X, y = ring(60, 3)
    settings = {"inducing_points": X[:10], "optimizer": None}
    kernel = ConstantKernel(2.0) * RBF(1.0) + ConstantKernel(1.0)
    models = [BayesianSVC(kernel, dtype=d, **settings).fit(X, y) for d in ("float32", "float64")]
    # The error is rounding of 6e-8 in passes over rows, times a projection of norm below 100.
    np.testing.assert_allclose(*(model.predict_proba(X) for model in models), rtol=0, atol=1e-3)


def test_warm_start_stays_at_the_optimum():
    X, y = ring(40, 2)
    kernel = ConstantKernel(2.0) * RBF(1.0)
    model = BayesianSVC(
        kernel, inducing_points=X[:8], optimizer=None, tol=1e-8, warm_start=True
    ).fit(X, y)
    before, curve = model.latent_mean_and_variance(X), model.objective_curve_
    model.fit(X, y)
    assert model.n_iter_ <= 2
    np.testing.assert_allclose(model.latent_mean_and_variance(X), before, rtol=0, atol=1e-6)
    assert model.objective_curve_[0] == pytest.approx(curve[-1], rel=1e-9)


def test_gradient_estimator_agrees_with_the_default_one():
    X, y = ring(60, 3)
    kernel = ConstantKernel(2.0) * RBF(1.0)
    settings = {"inducing_points": X[:10], "optimizer": None, "random_state": 0}
    a = BayesianSVC(kernel, **settings).fit(X, y)
    b = BayesianSVC(kernel, solver="gradient", tol=1e-3, max_iter=500, **settings).fit(X, y)
    assert b.objective_curve_[-1] == pytest.approx(a.objective_curve_[-1], rel=0.02)
    # Both stop near the optimum, but not at it.
    assert np.abs(a.predict_proba(X) - b.predict_proba(X)).mean() < 0.02
