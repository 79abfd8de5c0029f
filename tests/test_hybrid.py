"""Hybrid network: objective, training, input of any rank, prediction, persistence, errors."""

import json
import pickle
import re
import resource
from functools import partial

import joblib
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from problems import EDGES, Images, WithNoise, assert_all_equal, codes, images, t64, waves
from scipy.optimize import approx_fprime
from sklearn.base import clone
from sklearn.datasets import make_friedman1
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from skgpsvm import HybridBayesianSVC, HybridSVGPClassifier, HybridSVGPRegressor
from skgpsvm._calibration import Calibration
from skgpsvm._data import WeightedDataset, to_tensor
from skgpsvm._hinge_sites import ContrastSites
from skgpsvm._inference.coordinate_ascent import CoordinateAscent
from skgpsvm._isolation import PrivateRandom
from skgpsvm._merging import merged_rows
from skgpsvm._objectives import elbo
from skgpsvm._posteriors import InducingPosterior
from skgpsvm._rows import checked_rows
from skgpsvm._targets import regression_sites
from skgpsvm.callbacks import Checkpoint
from skgpsvm.exceptions import DivergenceError
from skgpsvm.hybrid import MLP, CIFAR10Extractor, MNISTExtractor, _learning, _training
from skgpsvm.hybrid._held_out import _NOISE_PRIOR_STD, CalibratedLoss, observed_hashes, split
from skgpsvm.hybrid._learning import JointTraining
from skgpsvm.hybrid._network import FeatureMap, HybridNetwork, NetworkPosterior
from skgpsvm.hybrid._weights import checksum
from skgpsvm.likelihoods import Gaussian, MulticlassHinge, Softmax

CPU = torch.device("cpu")
NOISY = partial(WithNoise, 2, 3)


class Wrong(nn.Module):
    """Network with an invalid output."""

    def __init__(self, output):
        super().__init__()
        self.weight, self.output = nn.Parameter(torch.ones(1)), output

    def forward(self, X):
        return self.output(self.weight * X)


class Plain(nn.Module):
    """Module without parameters."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, X):
        return self.function(X)


class WithDraws(nn.Module):
    """Network with random values that are not in its state dict."""

    def __init__(self):
        super().__init__()
        self.linear, self.order = nn.Linear(10, 8), torch.randperm(20)[:10]

    def forward(self, X):
        return self.linear(X[:, self.order])


class HalfFrozen(nn.Sequential):
    """Network of two features whose first layer is not trained."""

    def __init__(self):
        super().__init__(nn.Linear(2, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 3))


class Stream(IterableDataset):
    """Dataset without a length."""

    def __iter__(self):
        yield torch.zeros(2), 0


class Ragged(Dataset):
    """Dataset with rows of two shapes."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.zeros(1 if i == 3 else 2), i % 2


def blobs(n=80, n_classes=3, seed=0):
    """Return overlapping, normally distributed classes."""
    rng = np.random.RandomState(seed)
    y = np.arange(n) % n_classes
    return 1.5 * rng.normal(size=(n_classes, 2))[y] + rng.normal(size=(n, 2)), y


@pytest.fixture(scope="module")
def digits():
    """Return training and test images (n, 1, 8, 8) with pixels in [0, 1], and their labels."""
    X, y = images()
    return train_test_split(X, y, train_size=400, test_size=300, random_state=0, stratify=y)


def quick(**options):
    """Return a classifier on a small network of two features."""
    small = {"module_params": {"hidden_layer_sizes": (8,), "n_outputs": 4}, "n_inducing": 8}
    short = {"max_iter": 5, "early_stopping": False, "random_state": 0}
    return HybridBayesianSVC(**{**small, **short, **options})


def network_of(model):
    return model._latents[0].posterior(CPU).network


def training_of(model, monkeypatch, X, y):
    """Fit a model and return its `JointTraining`."""
    made = []
    monkeypatch.setattr(
        JointTraining,
        "init",
        lambda self, old=JointTraining.init: made.append(self) or old(self),
    )
    model.fit(X, y)
    return made[0]


def objective(training, X, y, weights):
    """Return the estimate of the ELBO from a batch."""
    return training._objective(training.network.features.raw(X), y, weights).item()


def assert_same_bits(model, other, X, other_X=None):
    """Assert that two models predict the same, bit for bit."""
    other_X = X if other_X is None else other_X
    assert_array_equal(model.predict_proba(X), other.predict_proba(other_X))
    assert_all_equal(model.latent_mean_and_variance(X), other.latent_mean_and_variance(other_X))


# Mathematics


@pytest.mark.parametrize(
    ("head", "likelihood"),
    [
        (partial(HybridBayesianSVC, contrast="hard"), MulticlassHinge()),
        (HybridSVGPClassifier, Softmax()),
        (HybridSVGPRegressor, Gaussian([0.1])),
    ],
    ids=["hinge", "softmax", "gaussian"],
)
def test_objective_is_that_of_the_likelihood_and_the_posterior(head, likelihood, monkeypatch):
    X, y = blobs()
    model = head(
        n_inducing=8,
        max_iter=1,
        learning_rate=1e-300,  # so that parameters do not change
        early_stopping=False,
        dtype="float64",
        random_state=0,
    )
    if head is HybridBayesianSVC:
        model.set_params(validation_fraction=0.0)
    training = training_of(model, monkeypatch, X, y)
    network, rows = training.network.eval(), training.rows
    whole = rows.take(slice(None))
    if head is HybridSVGPRegressor:  # the noise is learned before
        likelihood = Gaussian(network.noise.detach().exp())
    expected = elbo(NetworkPosterior(network), likelihood, rows)
    # Sums in double precision are taken in another order.
    assert objective(training, *whole) == pytest.approx(expected.item(), rel=1e-9)


def test_objective_of_minibatches_is_unbiased(monkeypatch):
    X, y = blobs()
    training = training_of(quick(validation_fraction=0.0, dtype="float64"), monkeypatch, X, y)
    training.network.eval()
    rows = training.rows
    whole = objective(training, *rows.take(slice(None)))
    parts = [objective(training, *rows.take(i)) for i in torch.arange(80).split(16)]
    assert np.mean(parts) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("head", [HybridBayesianSVC, HybridSVGPClassifier])
def test_head_starts_at_its_optimum_on_the_initial_features(head, monkeypatch):
    X, y = blobs()
    model = head(kernel=ConstantKernel(2.0) * RBF(3.0), n_inducing=8, early_stopping=False)
    model.set_params(dtype="float64", random_state=0, max_iter=1)
    monkeypatch.setattr(JointTraining, "step", lambda self, state: vars(state).update(objective=0))
    training = training_of(model, monkeypatch, X, y)
    training.network.eval()
    # The objective of a pseudo-likelihood does not set hyperparameters.
    names = {"mean", "raw_root"} | (set() if head is HybridBayesianSVC else {"theta"})
    rows, targets, weights = training.rows.take(slice(None))
    with torch.enable_grad():
        raw = training.network.features.raw(rows)
        training._objective(raw, targets, weights).backward()
    slopes = {name: getattr(training.network, name).grad for name in sorted(names)}
    slopes["raw_root"] = slopes["raw_root"].triu()
    for name, slope in slopes.items():
        assert slope.abs().max() < 0.5, name  # nats of all rows


def test_training_leaves_the_plateau_of_zero_latents(digits):
    X, _, y, _ = digits
    model = HybridBayesianSVC(Images, max_iter=30, random_state=0).fit(X, y)
    assert model.objective_curve_[-1] / 360 > -1.0  # the plateau is at -2


def test_head_on_given_features_nears_the_optimum_of_coordinate_ascent(monkeypatch):
    X, y = blobs(150)
    kernel = ConstantKernel(4.0, "fixed") * RBF(1.5, "fixed")
    model = HybridBayesianSVC(
        nn.Identity, kernel=kernel, n_inducing=12, early_stopping=False, validation_fraction=0.0,
        batch_size=150, learning_rate=5e-3, max_iter=400, random_state=0,
    )  # fmt: skip
    training = training_of(model, monkeypatch, X, y)
    network = network_of(model)
    whole = training.rows.take(slice(None))
    reached = objective(training, *whole)
    features = network.features(whole[0]).double()
    rows = training.rows.part(np.arange(len(X)))
    rows.X, rows.dtype = features, torch.float64
    ascent = CoordinateAscent(ContrastSites(3, "soft"), network.posterior().basis, rows)
    state = ascent.init()
    for _ in range(300):
        ascent.sweep(state)
    # Adam's steps end by their schedule, not by convergence, within 0.5 % of the optimum.
    assert reached == pytest.approx(ascent.elbo(state), rel=5e-3)


def test_features_are_normalized_over_the_training_rows(digits):
    X, _, y, _ = digits
    model = HybridBayesianSVC(Images, max_iter=10, random_state=0).fit(X, y)
    features = network_of(model).features(torch.from_numpy(X))
    # Running moments lag by a few steps, and exclude held-out rows.
    assert_allclose(features.mean(0), 0, atol=0.15)
    assert_allclose(features.std(0), 1, atol=0.15)


def test_features_of_ranks_are_normalized_as_those_of_one_process(monkeypatch):
    rng = np.random.default_rng(0)
    raw = t64(7 + rng.normal(size=(30, 3)) * [1.0, 5.0, 0.1])
    slope = t64(rng.normal(size=(30, 3)))
    found = []
    for n_ranks in (1, 2):  # the sums are of one rank in any case
        monkeypatch.setattr("skgpsvm.hybrid._network.n_ranks", lambda n=n_ranks: n)
        moments = t64([6.0, 8.0, 7.0]), t64([1.0, 9.0, 0.1])
        features = FeatureMap(nn.Identity(), (3,), *moments).train()
        values = raw.clone().requires_grad_()
        normalized = features.normalized(values)
        (gradient,) = torch.autograd.grad((normalized * slope).sum(), values)
        one_row = features.train().normalized(raw[:1])
        found.append((normalized.detach(), gradient, one_row, features.state_dict()))
    # Moments are summed in another order.
    torch.testing.assert_close(found[1], found[0], rtol=1e-10, atol=1e-10)


def test_calibration_is_that_of_the_held_out_rows(monkeypatch):
    monkeypatch.setattr(CalibratedLoss, "informed", lambda self, *_: (self, self))
    X, y = blobs(200)
    training = training_of(quick(dtype="float64", validation_fraction=0.25), monkeypatch, X, y)
    assert len(training.rows) == 150
    seen = {tuple(row) for row in training.rows.X.tolist()}
    held = np.array([tuple(row) not in seen for row in X])
    assert held.sum() == 50
    model = quick(dtype="float64", validation_fraction=0.25).fit(X, y)
    spread = model.spread_
    mean, var = model.latent_mean_and_variance(X[held])
    labels = codes(y), torch.ones(200, dtype=torch.float64)
    expected = Calibration.prior(mean.shape[1], *labels).updated(
        t64(mean), t64(var / spread), codes(y[held]), torch.ones(50, dtype=torch.float64)
    )
    assert model.temperature_ == pytest.approx(expected.temperature, rel=1e-3)
    assert spread == pytest.approx(expected.spread, rel=1e-3)
    assert model.intercept_ == pytest.approx(expected.intercept, rel=1e-3)
    assert model.validation_loss_ == pytest.approx(expected.loss / 50, rel=1e-6)


def test_nothing_held_out_leaves_the_latents_as_they_are():
    X, y = blobs()
    model = quick(validation_fraction=0.0).fit(X, y)
    assert (model.temperature_, model.spread_) == (1.0, 1.0)
    assert not model.intercept_.any()
    assert np.isnan(model.validation_loss_)


def test_every_class_is_trained_on_however_much_is_held_out():
    X, _ = blobs(9)
    model = quick(validation_fraction=0.9).fit(X, np.r_[[0] * 7, 1, 2])
    assert model.predict_proba(X).shape == (9, 3)


@pytest.mark.parametrize(
    ("losses", "n_iter"),
    [
        ([[4.0], [3.0], [1.0], [2.0], [2.5], [0.5]], 4),
        # The second loss falls longer.
        (
            [[4, 9.5], [3, 9], [1, 8], [1.5, 7], [1.5, 6], [1.5, 6.5], [1.5, 6], [0.5, 1]],
            6,
        ),
    ],
)
def test_early_stopping_keeps_the_best_weights(losses, n_iter, monkeypatch):
    X, y = blobs(200)
    losses = iter(losses)  # the first before training
    monkeypatch.setattr(CalibratedLoss, "losses", lambda *_: next(losses))
    monkeypatch.setattr(_training, "is_significant_gain", lambda *_: True)
    options = {"max_iter": 30, "batch_size": 9}
    kept = quick(early_stopping=True, n_iter_no_change=2, **options).fit(X, y)
    assert kept.n_iter_ == n_iter
    # The schedule depends on max_iter; the best weights are those of its second epoch.
    whole = quick(**options)
    monkeypatch.setattr(JointTraining, "converged", lambda self, state: state.n_epochs == 2)
    whole.fit(X, y)
    assert_same_bits(kept, whole, X)


def test_early_stopping_keeps_the_initial_weights_if_no_epoch_is_better(monkeypatch):
    X, y = blobs(200)
    made, losses = [], iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(CalibratedLoss, "losses", lambda *_: [next(losses)])
    init = JointTraining.init
    monkeypatch.setattr(JointTraining, "init", lambda self: made.append(init(self)) or made[0])
    kept = quick(early_stopping=True, n_iter_no_change=2).fit(X, y)
    assert kept.n_iter_ == 2
    for name, value in made[0].best_weights.items():
        assert_array_equal(kept._latents[0].weights[name], value)


@pytest.mark.parametrize("head", [HybridBayesianSVC, HybridSVGPClassifier])
def test_initial_network_is_kept_unless_training_gains_clearly(head, monkeypatch):
    # 20 held-out rows cannot tell networks of a weak signal apart.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = rng.random(200) < 1 / (1 + np.exp(-0.5 * X[:, 0]))
    states, initial, init = [], {}, JointTraining.init

    def remembered(training):
        states.append(init(training))
        initial.update(states[-1].weights)
        return states[-1]

    with monkeypatch.context() as patch:
        patch.setattr(JointTraining, "init", remembered)
        model = head(random_state=0).fit(X, y)
    (state,) = states
    assert any((state.best_weights[name] != value).any() for name, value in initial.items())
    for name, value in initial.items():
        assert_array_equal(model._latents[0].weights[name], value)
    # Enough rows tell a network that has learned a wave from its nearly linear start.
    X = rng.normal(size=(600, 2))
    y = np.sin(3 * X[:, 0]) > 0
    assert head(random_state=0).fit(X, y).score(X, y) > 0.9


def test_linear_map_of_a_perceptron_is_its_initial_output():
    torch.manual_seed(0)
    network, X = MLP(5, (8,), 3, linear=True).requires_grad_(False), torch.randn(10, 5)
    weights = torch.linalg.lstsq(X, network(X)).solution
    assert_allclose(X @ weights, network(X), atol=1e-5)
    assert_allclose(weights.T @ weights, torch.eye(3), atol=1e-5)


def test_training_ends_after_epochs_without_improvement(monkeypatch):
    X, y = blobs(200)
    losses = iter([4.0, 3.0, 1.0, *[2.0] * 40])
    monkeypatch.setattr(CalibratedLoss, "losses", lambda *_: [next(losses)])
    options = {"early_stopping": True, "n_iter_no_change": 2, "max_iter": 30}
    assert quick(**options, batch_size=90).fit(X, y).n_iter_ == 2 + 2


def test_warm_start_continues_from_the_network():
    X, y = blobs(200)
    model = quick(warm_start=True, max_iter=15).fit(X, y)
    first = model.objective_curve_
    model.fit(X, y)
    assert model.objective_curve_[0] > first[0]
    assert model.objective_curve_[-1] > first[-1]


@pytest.mark.parametrize("kind", [HybridBayesianSVC, HybridSVGPClassifier])
def test_warm_start_solves_an_initial_network_anew(kind, tmp_path):
    X = np.random.default_rng(0).normal(size=(330, 4))
    y = (X[:, 0] + np.random.default_rng(1).normal(size=330) > 0).astype(int)
    options = {"random_state": 0, "warm_start": True, "max_iter": 5}
    model = kind(**options).fit(X[:300], y[:300])
    assert model._latents[0].is_initial  # training gains nothing over the linear effect
    first = model.latent_mean_and_variance(X)
    assert_all_equal(model.fit(X[:300], y[:300]).latent_mean_and_variance(X), first)
    model.save_weights(tmp_path / "initial")
    loaded = kind(**options).load_weights(tmp_path / "initial")
    anew = kind(**options).fit(X, y).latent_mean_and_variance(X)
    for each in (model, loaded):
        assert_all_equal(each.fit(X, y).latent_mean_and_variance(X), anew)


def test_warm_start_with_other_classes_is_refused():
    X, y = blobs()
    model = quick(warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"first call: set warm_start=False to start anew\.$"):
        model.fit(X, y + 1)


def test_model_of_another_likelihood_is_not_continued():
    X, y = waves(60)
    options = {"max_iter": 2, "n_inducing": 8, "warm_start": True, "random_state": 0}
    models = (
        (HybridSVGPRegressor(**options), y, "laplace"),
        (HybridSVGPClassifier(**options), (y > 0).astype(int), "robust_max"),
    )
    for model, targets, other in models:
        model.fit(X, targets)
        before = model.latent_mean_and_variance(X)
        with pytest.raises(ValueError, match=f"likelihood was .* is '{other}' now"):
            model.set_params(likelihood=other).fit(X, targets)
        assert_array_equal(model.latent_mean_and_variance(X), before)
        model.set_params(warm_start=False).fit(X, targets)


@pytest.mark.parametrize("n_levels", [2, 5])
def test_equal_rows_are_not_all_held_out(n_levels):
    rng = np.random.RandomState(0)
    level = rng.randint(n_levels, size=600)
    X, y = np.eye(n_levels)[level], 10.0 * level + rng.normal(size=600)
    model = HybridSVGPRegressor(random_state=0, max_iter=80).fit(X, y)
    assert_allclose(model.predict(np.eye(n_levels)), 10.0 * np.arange(n_levels), atol=2)


def test_warm_start_of_a_regressor_holds_out_what_it_did(monkeypatch):
    X, y = make_friedman1(300, random_state=0)
    model = HybridSVGPRegressor(
        module_params={"hidden_layer_sizes": (8,), "n_outputs": 4},
        n_inducing=8,
        max_iter=3,
        warm_start=True,
        random_state=0,
    )
    held = []
    for n in (250, 300):
        training = training_of(model, monkeypatch, X[:n], y[:n] + 100)
        seen = {tuple(row) for row in training.rows.X.tolist()}
        held.append({tuple(row) for row in X[:n].tolist()} - seen)
    assert len(held[0]) == 25
    assert held[0] == held[1] & {tuple(row) for row in X[:250].tolist()}


def test_warm_start_holds_out_what_it_did(monkeypatch):
    X, y = blobs(300)
    model = quick(warm_start=True, random_state=None, validation_fraction=0.2)
    held = []
    for n in (250, 300):
        training = training_of(model, monkeypatch, X[:n], y[:n])
        seen = {tuple(row) for row in training.rows.X.tolist()}
        held.append({tuple(row) for row in X[:n].tolist()} - seen)
    assert len(held[0]) == 50
    assert held[0] == held[1] & {tuple(row) for row in X[:250].tolist()}
    assert len(held[1]) > 52


@pytest.mark.parametrize("n_distinct", [1, 5, 300])
def test_rows_are_held_out_whatever_other_rows_there_are(n_distinct):
    rng = np.random.RandomState(0)
    X = rng.randint(n_distinct, size=(300, 1)).astype(float)
    y = rng.normal(size=(300, 2))

    def parts(n, threshold=None):
        arrays = merged_rows(X[:n], y[:n], np.ones(n))[:3]
        *both, threshold = split(WeightedDataset(*arrays, CPU, torch.float64), 0.1, 3, threshold)
        return *({tuple(target) for target in part.targets.tolist()} for part in both), threshold

    training, held_out, threshold = parts(200)
    _, more_held_out, _ = parts(300, threshold)
    assert len(held_out) == 20
    assert held_out <= more_held_out
    assert not training & more_held_out


@pytest.mark.parametrize("n_first", [3, 8])
def test_warm_start_from_few_rows_holds_out_others(n_first, tmp_path, monkeypatch):
    X, y = blobs(300)
    model = quick(warm_start=True).fit(X[:n_first], y[:n_first])
    assert np.isnan(model.validation_loss_)
    # A fit to many more rows starts anew, but for that of a network from a file.
    model.save_weights(tmp_path / "weights")
    model.load_weights(tmp_path / "weights")
    training = training_of(model, monkeypatch, X, y)
    seen = {tuple(row) for row in training.rows.X.tolist()}
    assert {tuple(row) for row in X[:n_first].tolist()} <= seen
    assert 0 < len(X) - len(seen) < 50
    assert model.temperature_ != 1.0


@pytest.mark.parametrize(("first", "second"), [("float64", "float32"), ("float32", "float64")])
def test_warm_start_follows_the_dtype_and_holds_out_what_it_did(first, second, monkeypatch):
    X, y = blobs(200)
    model = quick(warm_start=True, validation_fraction=0.2, dtype=first)
    held = []
    for dtype in (first, second):
        training = training_of(model.set_params(dtype=dtype), monkeypatch, X, y)
        seen = {tuple(row) for row in training.rows.X.float().tolist()}
        held.append({tuple(row) for row in X.astype(np.float32).tolist()} - seen)
        weights = model._latents[0].weights
        extractor = [weights[name] for name in weights if name.startswith("features.extractor")]
        assert {part.dtype for part in extractor} == {np.dtype(dtype)}
    assert len(held[0]) == 40
    assert held[0] == held[1]


def test_frozen_layers_stay_as_they_are_in_a_warm_start():
    X, y = blobs()
    options = {"early_stopping": False, "warm_start": True}
    model = HybridBayesianSVC(HalfFrozen, max_iter=3, n_inducing=8, **options)
    before = model.fit(X, y)._latents[0].weights
    after = model.fit(X, y)._latents[0].weights
    for name, same in (("0.weight", True), ("2.weight", False)):
        name = f"features.extractor.{name}"
        assert np.array_equal(before[name], after[name]) == same


def test_heads_of_one_extractor_learn_the_same_rows(digits):
    X, X_test, y, y_test = digits
    for head in (HybridBayesianSVC, HybridSVGPClassifier):
        model = head(Images, max_iter=20, early_stopping=False, random_state=0).fit(X, y)
        assert model.score(X_test, y_test) > 0.88


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
def test_regression_head_predicts_with_its_error(likelihood):
    X, y = make_friedman1(600, noise=1.0, random_state=0)
    X_test, y_test = make_friedman1(500, noise=1.0, random_state=1)
    model = HybridSVGPRegressor(likelihood=likelihood, random_state=0).fit(X, y)
    mean, std = model.predict(X_test, return_std=True)
    assert model.score(X_test, y_test) > 0.8
    assert 0.8 < np.mean(np.abs(y_test - mean) < 2 * std) < 1
    assert 0 < model.noise_variance_ < y.var()


def noisy_friedman(n, share, random_state):
    """Return rows, targets whose noise has a share of their deviation, and its variance."""
    X, f = make_friedman1(n, random_state=random_state)
    std = share / np.sqrt(1 - share**2) * f.std()
    return X, f + std * np.random.RandomState(random_state).normal(size=n), std**2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_intervals_of_a_regression_head_are_right_whatever_the_noise(share):
    X, y, noise_variance = noisy_friedman(2000, share, 0)
    model = HybridSVGPRegressor(random_state=0).fit(X[:1000], y[:1000])
    mean, std = model.predict(X[1000:], return_std=True)
    assert 0.9 < np.mean(np.abs(y[1000:] - mean) < 1.96 * std) < 0.98
    # Errors of the network count as noise, and dominate where there is little noise.
    assert 0.6 * noise_variance < model.noise_variance_ < noise_variance + 0.03 * y.var()


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
def test_noise_of_a_regression_head_maximizes_the_held_out_density(likelihood, monkeypatch):
    X, y, _ = noisy_friedman(300, 0.5, 0)
    y = np.c_[y, 100 * np.random.RandomState(1).permutation(y)]
    model = HybridSVGPRegressor(likelihood=likelihood, max_iter=5, dtype="float64", random_state=0)
    training = training_of(model, monkeypatch, X, y)
    seen = {tuple(row) for row in training.rows.X.tolist()}
    held = np.array([tuple(row) not in seen for row in X])
    scale = y.std(axis=0)
    mean, var = model.latent_mean_and_variance(X[held])
    moments = t64(y[held] / scale), t64(mean / scale), t64(var / scale**2)

    def density(factor):
        sites = regression_sites(likelihood, t64(factor * model.noise_variance_ / scale**2))
        shift = sites.parameters() - t64(model._latents[0].weights["noise"])
        log_p = sites.likelihood.log_marginal(*moments).sum()
        return (log_p - 0.5 * (shift / _NOISE_PRIOR_STD).square().sum()).item()

    for factors in np.vstack([np.eye(2), -np.eye(2)]):
        assert density(1.05**factors) < density(1.0)


def test_validation_loss_of_a_regressor_is_in_units_of_y():
    X, y = make_friedman1(200, random_state=0)
    one, hundred = (
        HybridSVGPRegressor(max_iter=3, dtype="float64", random_state=0).fit(X, scale * y)
        for scale in (1, 100)
    )
    # The fits differ by rounding of the normalized targets, which steps of Adam amplify.
    assert hundred.validation_loss_ == pytest.approx(one.validation_loss_ + np.log(100), abs=1e-6)


def test_regression_head_has_several_outputs():
    X, y = make_friedman1(300, random_state=0)
    targets = np.c_[y, 100 - 10 * y]
    model = HybridSVGPRegressor(random_state=0, max_iter=20).fit(X, targets)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == (300, 2)
    assert model.score(X, targets) > 0.8


# Input


def test_flat_rows_images_datasets_and_memmaps_give_one_model(digits, tmp_path):
    X, X_test, y, _ = digits
    X, X_test, y = X[:200], X_test[:50], y[:200]
    options = {"max_iter": 3, "n_inducing": 16, "random_state": 0}
    images = HybridBayesianSVC(Images, **options).fit(X, y)
    flat = HybridBayesianSVC(Images, input_shape=(1, 8, 8), **options)
    flat.fit(X.reshape(200, -1), y)
    assert images.input_shape_ == flat.input_shape_ == (1, 8, 8)
    assert images.n_features_in_ == 64
    assert_same_bits(images, flat, X_test, X_test.reshape(50, -1))
    assert_same_bits(images, images, X_test, X_test.reshape(50, -1))
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    data = HybridBayesianSVC(Images, **options).fit(pairs)
    assert_same_bits(images, data, X_test, TensorDataset(torch.from_numpy(X_test)))
    given = HybridBayesianSVC(Images, **options).fit(TensorDataset(torch.from_numpy(X)), y)
    assert_same_bits(images, given, X_test)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    assert_same_bits(images, HybridBayesianSVC(Images, **options).fit(mapped, y), X_test)


def test_bytes_are_read_without_scaling(digits):
    X, _, y, _ = digits
    pixels = np.round(16 * X).astype(np.uint8)
    options = {"max_iter": 2, "n_inducing": 16, "random_state": 0}
    stored = HybridBayesianSVC(Images, **options).fit(pixels, y)
    floats = HybridBayesianSVC(Images, **options).fit(pixels.astype(np.float32), y)
    assert_same_bits(stored, floats, pixels[:20])


def test_rows_of_a_dataset_are_read_when_they_are_used():
    class Counted(Dataset):
        read, targets = 0, [0, 1] * 5

        def __len__(self):
            return 10

        def __getitem__(self, i):
            self.read += 1
            return torch.full((2, 3), float(i)), i % 2

    data = Counted()
    rows = checked_rows(data)
    assert (rows.shape, rows.row_shape, rows.dtype) == ((10, 6), (2, 3), np.float32)
    before = data.read
    assert_array_equal(rows[2:4], np.repeat([[2.0], [3.0]], 6, 1))
    assert_array_equal(rows[np.array([7, 1])][:, 0], [7, 1])
    assert data.read == before + 4
    assert_array_equal(rows.source.targets(), data.targets)
    assert data.read == before + 10  # a few items are compared with the targets
    for other in ([5] * 10, [0] * 10, [0, 1] * 3):
        data.targets = other
        assert_array_equal(rows.source.targets(), [0, 1] * 5)


def test_datasets_are_distinguished_by_their_rows():
    def table(scale):
        return checked_rows(TensorDataset(scale * torch.arange(60.0).reshape(20, 3)))

    assert joblib.hash(table(1.0)) == joblib.hash(table(1.0))
    assert joblib.hash(table(1.0)) != joblib.hash(table(2.0))


def test_random_datasets_leave_the_global_generator_alone():
    class Noisy(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return torch.full((2,), float(i)) + torch.rand(2), i % 2

    state = torch.get_rng_state()
    first = quick().fit(Noisy())
    assert_array_equal(torch.get_rng_state(), state)
    assert_same_bits(first, quick().fit(Noisy()), blobs()[0])


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (TensorDataset(torch.zeros(0, 2), torch.zeros(0)), ValueError, "the Dataset is empty"),
        (Stream(), TypeError, "Stream has no length"),
        (
            Ragged(),
            ValueError,
            r"Row 3 of the Dataset has shape \(1,\), but row 0 has shape \(2,\)",
        ),
    ],
    ids=["empty", "no length", "rows of two shapes"],
)
def test_bad_datasets_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        quick().fit(data)


def test_large_rows_are_read_in_minibatches(monkeypatch, digits):
    X, X_test, y, _ = digits
    options = {"max_iter": 2, "n_inducing": 16, "random_state": 0}
    held = HybridBayesianSVC(Images, **options).fit(X, y)
    monkeypatch.setattr("skgpsvm._data.HELD_BYTES", 1000)
    read = HybridBayesianSVC(Images, **options).fit(X, y)
    assert_same_bits(held, read, X_test)


def test_no_more_large_rows_are_on_the_device_than_go_through_the_extractor(monkeypatch):
    sizes = []

    def counted(array, *options):
        # Features, of which there are four, may be held.
        sizes.extend([len(array)] if array.ndim == 2 and array.shape[1] == 2 else [])
        return to_tensor(array, *options)

    monkeypatch.setattr("skgpsvm._data.LARGE_BLOCK", 100)
    monkeypatch.setattr("skgpsvm._data.HELD_BYTES", 1000)
    monkeypatch.setattr("skgpsvm._data.to_tensor", counted)
    monkeypatch.setattr("skgpsvm._estimators._base.to_tensor", counted)
    X, y = blobs(600)
    quick(max_iter=1, validation_fraction=0.5).fit(X, y).predict(X)
    assert max(sizes) == 256


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"input_shape": (1, 8, 9)}, (20, 64), "has 72 entries, but rows of X have 64"),
        ({"input_shape": (8, 8, 1)}, (20, 1, 8, 8), r"takes rows of shape \(8, 8, 1\)"),
        ({"early_stopping": True, "validation_fraction": 0.0}, (20, 2), "needs held-out rows"),
        ({"validation_fraction": 1.0}, (20, 2), "below 1"),
        ({"learning_rate": -1}, (20, 2), "above 0"),
    ],
)
def test_bad_input_and_parameters_are_refused(options, shape, message):
    X = np.random.default_rng(0).normal(size=shape)
    with pytest.raises(ValueError, match=message):
        HybridBayesianSVC(**options).fit(X, np.arange(20) % 2)


def test_rows_of_another_shape_are_refused_in_prediction(digits):
    X, _, y, _ = digits
    model = HybridBayesianSVC(Images, max_iter=1, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"takes rows of shape \(1, 8, 8\), or flat rows of 64"):
        model.predict(X.transpose(0, 2, 3, 1))


def test_dataset_without_targets_is_refused():
    with pytest.raises(ValueError, match="has no targets"):
        HybridBayesianSVC().fit(TensorDataset(torch.zeros(5, 2)))


@pytest.mark.parametrize("make", EDGES.values(), ids=EDGES)
@pytest.mark.parametrize("head", [HybridBayesianSVC, HybridSVGPClassifier, HybridSVGPRegressor])
def test_edges_of_data(head, make):
    X = make(blobs(40)[0])
    model = head(n_inducing=8, max_iter=2, random_state=0).fit(X, np.arange(len(X)) % 2)
    mean, var = model.latent_mean_and_variance(X)
    assert np.isfinite(mean).all()
    assert (var >= 0).all()
    assert np.isfinite(model.predict(X)).all()


def test_one_row_is_enough_for_a_regressor():
    model = HybridSVGPRegressor(n_inducing=8, max_iter=2, random_state=0).fit([[1.0, 2.0]], [3.0])
    # The mean of y; random initial posterior means of 0.01 remain.
    assert model.predict([[1.0, 2.0]]) == pytest.approx(3.0, abs=0.03)


# Modules


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        (lambda X: X.sum(1), ValueError, r"returned a tensor of shape \(\d+,\)"),
        (lambda X: X[:, None], ValueError, r"features of shape \(\d+, D\)"),
        (lambda X: X[:3], ValueError, r"a tensor of shape \(3, 2\)"),
        (lambda X: (X, X), ValueError, "returned tuple"),
        (lambda X: X / 0, DivergenceError, "NaN or infinite features for"),
    ],
    ids=["a number a row", "three axes", "too few rows", "a tuple", "not finite"],
)
def test_wrong_output_of_the_module_is_refused(output, error, message):
    X, y = blobs()
    model = HybridBayesianSVC(Wrong, module_params={"output": output})
    with pytest.raises(error, match=message):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


@pytest.mark.parametrize("module", [MLP(2), "MLP", lambda: None], ids=["live", "name", "none"])
def test_module_must_be_a_class_or_a_function_that_makes_one(module):
    X, y = blobs()
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module class or a function"):
        HybridBayesianSVC(module).fit(X, y)


def test_divergence_leaves_a_warm_start_as_it_was():
    X, y = blobs()
    model = quick(warm_start=True).fit(X, y)
    before = model.predict_proba(X)
    model.set_params(learning_rate=1e30)
    with pytest.raises(DivergenceError, match="learning_rate"):
        model.fit(X, y)
    assert_array_equal(model.predict_proba(X), before)


def test_divergence_in_the_last_step_is_refused(monkeypatch):
    X, y = blobs()
    monkeypatch.setattr(
        _learning, "_ascend", lambda group, *_: [p.data.fill_(np.nan) for p in group]
    )
    model = quick(max_iter=1, batch_size=80, validation_fraction=0.0)
    with pytest.raises(DivergenceError, match="learning_rate"):
        model.fit(X, y)


@pytest.mark.parametrize("wrong", [lambda X: None, lambda X: X[:5], lambda X: X[:, :1]])
def test_wrong_augmentation_is_refused(wrong):
    X, y = blobs()
    with pytest.raises(
        ValueError, match=r"augmentation returned .* must return a tensor of the same"
    ):
        quick(augmentation=wrong).fit(X, y)


def test_unsaved_random_values_of_a_module_are_reproduced(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 20)).astype(np.float32)
    model = HybridBayesianSVC(WithDraws, n_inducing=8, max_iter=3, random_state=5)
    training = training_of(model, monkeypatch, X, X[:, 0] > 0)
    mean = training.network.eval().marginals(torch.from_numpy(X))[0].detach()[:, 0]
    assert_allclose(model.latent_mean_and_variance(X)[0], mean, rtol=1e-5, atol=1e-6)


def test_normalization_by_batches_never_meets_a_single_row():
    X, y = blobs(285)  # 257 of them are training rows, one more than a chunk
    HybridBayesianSVC(NOISY, max_iter=1, n_inducing=8, random_state=0).fit(X, y)


LIVE = MLP(2)


@pytest.mark.parametrize("module", [MLP, lambda n_inputs: LIVE], ids=["class", "always the same"])
def test_clones_and_fits_share_no_weights(module):
    X, y = blobs()
    params = {"n_inputs": 2}
    model = HybridBayesianSVC(module, module_params=params, max_iter=2, random_state=0).fit(X, y)
    before = model.predict_proba(X)
    other = clone(model).fit(X[:40], y[:40])
    assert not np.array_equal(other.predict_proba(X), before)
    assert_array_equal(model.predict_proba(X), before)


def test_seed_determines_weights_and_dropout_and_leaves_the_global_one_alone():
    X, y = blobs()
    options = {"module": NOISY, "n_inducing": 8, "max_iter": 4}
    state = torch.get_rng_state()
    first = HybridBayesianSVC(**options, random_state=0).fit(X, y)
    assert_array_equal(torch.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.rand(5)
        again = HybridBayesianSVC(**options, random_state=0).fit(X, y)
    other = HybridBayesianSVC(**options, random_state=1).fit(X, y)
    assert_same_bits(first, again, X)
    assert not np.array_equal(first.predict_proba(X), other.predict_proba(X))


def test_noisy_layers_are_deterministic_in_prediction():
    X, y = blobs()
    model = HybridBayesianSVC(NOISY, n_inducing=8, max_iter=4, random_state=0).fit(X, y)
    p = model.predict_proba(X)
    assert_array_equal(model.predict_proba(X), p)
    # For a single row, sums in single precision may be taken in another order.
    alone = np.concatenate([model.predict_proba(row[None]) for row in X])
    assert_allclose(alone, p, rtol=1e-4)


@pytest.mark.parametrize("change", [torch.Tensor.sub_, torch.Tensor.mul_])
def test_module_may_change_its_input(change):
    X, y = waves(100)
    options = {"n_inducing": 8, "max_iter": 3, "random_state": 0}
    copied, changed = (
        HybridSVGPRegressor(
            partial(Plain, lambda Z, copy=copy: change(Z.clone() if copy else Z, 0.5)), **options
        ).fit(X, y)
        for copy in (True, False)
    )
    assert_array_equal(changed.predict(X), copied.predict(X))
    assert changed.validation_loss_ == copied.validation_loss_


def test_module_may_compute_in_lower_precision():
    X, y = waves(100)

    def module(kind):
        return nn.Sequential(nn.Linear(3, 8), Plain(lambda Z: Z.to(kind)))

    lowered, single = (
        HybridSVGPRegressor(
            module,
            module_params={"kind": kind},
            n_inducing=8,
            max_iter=10,
            dtype="float32",
            random_state=0,
        ).fit(X, y)
        for kind in (torch.float16, torch.float32)
    )
    assert lowered._latents[0].weights["features.normalizer.running_mean"].dtype == np.float32
    assert_allclose(lowered.predict(X), single.predict(X), atol=0.02)


def test_augmentation_sees_training_batches_only():
    X, y = blobs(100)
    seen = []

    def shifted(batch):
        seen.append(batch.shape)
        return batch + 0.1 * torch.randn_like(batch)

    options = {"batch_size": 30, "max_iter": 2}
    model = quick(augmentation=shifted, **options).fit(X, y)
    assert seen == [(30, 2)] * 6
    assert_same_bits(model, quick(augmentation=shifted, **options).fit(X, y), X)
    n_calls = len(seen)
    model.predict(X)
    assert len(seen) == n_calls
    assert not np.array_equal(model.predict_proba(X), quick(**options).fit(X, y).predict_proba(X))


def test_papers_extractors_have_the_papers_sizes():
    for extractor, shape, size in (
        (MNISTExtractor, (2, 1, 28, 28), 8_052_708),
        (CIFAR10Extractor, (2, 3, 32, 32), 1_504_356),
    ):
        with PrivateRandom(0):
            module = extractor()
        assert sum(p.numel() for p in module.parameters()) == size
        assert module(torch.zeros(shape)).shape == (2, 100)


@pytest.mark.parametrize(
    ("module", "row_shape", "taken"),
    [
        (MNISTExtractor, (1, 8, 8), (1, 28, 28)),
        (MNISTExtractor, (28, 28), (1, 28, 28)),
        (MNISTExtractor, (3, 28, 28), (1, 28, 28)),
        (MNISTExtractor, (64,), (1, 28, 28)),
        (CIFAR10Extractor, (3, 4, 4), (3, 32, 32)),
        (partial(MLP, 5), (3,), (5,)),
        (partial(MLP, 5), (5, 5), (5,)),
    ],
)
def test_extractors_refuse_rows_of_other_shapes(module, row_shape, taken):
    X = np.zeros((6, *row_shape), np.float32)
    message = f"takes rows of shape {taken}; got {row_shape}. Pass rows of that shape"
    with pytest.raises(ValueError, match=re.escape(message)):
        HybridSVGPClassifier(module).fit(X, [0, 1, 0, 1, 0, 1])


def test_error_of_a_module_has_a_note_with_the_shape_of_its_batch():
    X = np.zeros((6, 1, 4, 4), np.float32)
    with pytest.raises(RuntimeError) as caught:
        HybridSVGPClassifier(Images).fit(X, [0, 1, 0, 1, 0, 1])
    assert "for a batch of shape (2, 1, 4, 4)" in caught.value.__notes__[0]


# The fitted network


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("head", [HybridBayesianSVC, HybridSVGPClassifier])
def test_torch_module_gives_the_logits_of_the_probabilities(head, n_classes):
    X, y = blobs(n_classes=n_classes)
    settings = {"n_inducing": 8, "max_iter": 3, "dtype": "float64", "random_state": 0}
    model = head(class_weight={1: 3.0}, **settings).fit(X, y)
    module = model.to_torch()
    assert not module.training
    p = module(torch.from_numpy(X)).softmax(1)
    # The values are the same, computed in another way.
    assert_allclose(p, model.predict_proba(X), atol=1e-10)
    spread = model._latent_spread()
    mean, var = module.latents(torch.from_numpy(X))
    expected = [part.reshape(mean.shape) for part in model.latent_mean_and_variance(X)]
    assert_allclose(mean, expected[0], atol=1e-10)
    assert_allclose(spread * var, expected[1], atol=1e-10)


def test_torch_module_is_differentiable_in_its_input():
    X, y = blobs()
    module = quick(dtype="float64").fit(X, y).to_torch()

    def logit(row):
        return module(t64(row)[None])[0, 1].item()

    row = t64(X[:1]).requires_grad_()
    (gradient,) = torch.autograd.grad(module(row)[0, 1], row)
    # The tolerance is that of a difference quotient in double precision.
    assert_allclose(gradient[0], approx_fprime(X[0], logit, 1e-7), rtol=1e-4, atol=1e-5)


def test_torch_module_is_not_changed_with_its_estimator():
    X, y = blobs()
    model = quick(dtype="float64").fit(X, y)
    module = model.to_torch()
    before = module(torch.from_numpy(X))
    model.set_params(probability="argmax").fit(X[:50], y[:50])
    assert_array_equal(module(torch.from_numpy(X)), before)


def test_torch_module_of_a_regressor_gives_means_in_units_of_y():
    X, y = make_friedman1(200, random_state=0)
    model = HybridSVGPRegressor(max_iter=3, random_state=0).fit(X, 100 * y)
    mean = model.to_torch()(torch.from_numpy(X))[:, 0]
    assert_allclose(mean, model.predict(X), rtol=1e-6)


def test_sampled_latents_have_the_posterior_s_moments():
    X, y = blobs()
    model = quick(dtype="float64").fit(X, y)
    draws = model.sample_latent(X[:6], 4000, random_state=0)
    mean, var = model.latent_mean_and_variance(X[:6])
    # Four standard errors of 4000 draws.
    assert (np.abs(draws.mean(0) - mean) < 4 * np.sqrt(var / 4000)).all()
    assert_allclose(draws.var(0), var, rtol=4 * np.sqrt(2 / 4000))


def test_head_is_factorized_once(monkeypatch):
    X, y = blobs()
    model = quick().fit(X, y)
    before = model.predict_proba(X)
    monkeypatch.delattr(HybridNetwork, "posterior")
    assert_array_equal(model.predict_proba(X), before)


def test_posterior_is_wider_far_from_the_rows():
    X, y = blobs(200)
    model = quick(max_iter=20).fit(X, y)
    assert isinstance(network_of(model).posterior(), InducingPosterior)
    near = model.latent_mean_and_variance(X)[1].mean()
    far = model.latent_mean_and_variance(X + np.array([50.0, -50.0]))[1].mean()
    assert far > 2 * near


# Persistence and meta-estimators


@pytest.mark.parametrize("labels", [np.array(["a", "b", "c"]), np.array([3, 5, 9])])
def test_weights_are_stored_as_arrays_and_as_safetensors(labels, tmp_path):
    pytest.importorskip("safetensors", reason="the extra hybrid is not installed")
    X, y = blobs()
    model = quick().set_callbacks(Checkpoint(tmp_path)).fit(X, labels[y])
    assert all(isinstance(value, np.ndarray) for value in model._latents[0].weights.values())
    assert_same_bits(model, pickle.loads(pickle.dumps(model)), X)
    model.save_weights(tmp_path / "model.safetensors")
    loaded = clone(model).load_weights(tmp_path / "model.safetensors")
    assert_same_bits(model, loaded, X)
    assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.kernel_ == model.kernel_
    # Networks do not depend on the order and the weights of the classes that other methods use.
    unused = {"_skl_callbacks", "_class_order", "_class_totals"}
    assert vars(loaded).keys() >= vars(model).keys() - unused
    loaded.set_params(warm_start=True).fit(X, labels[y])


def test_latents_do_not_change_with_their_network():
    X, y = blobs()
    latents = quick().fit(X, y)._latents[0]
    network = latents.network(torch.device("cpu"))
    found = latents.at(network)
    network.mean.data += 1
    assert_array_equal(found.weights["mean"], latents.weights["mean"])


def test_weights_of_a_regressor_are_stored_as_safetensors(tmp_path):
    pytest.importorskip("safetensors", reason="the extra hybrid is not installed")
    X, y = make_friedman1(200, random_state=0)
    model = HybridSVGPRegressor(max_iter=3, random_state=0).fit(X, 100 * y)
    model.save_weights(tmp_path / "model.safetensors")
    loaded = HybridSVGPRegressor().load_weights(tmp_path / "model.safetensors")
    assert_all_equal(loaded.predict(X, return_std=True), model.predict(X, return_std=True))


def test_weights_of_another_network_are_refused(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason="the extra hybrid is not installed")
    X, y = blobs()
    path = tmp_path / "model.safetensors"
    quick().fit(X, y).save_weights(path)
    other = quick(module_params={"hidden_layer_sizes": (9,), "n_outputs": 4})
    with pytest.raises(ValueError, match=r"extractor.* should be F64 of shape \(9,\) with these"):
        other.load_weights(path)
    with pytest.raises(NotFittedError):
        other.predict(X)
    for another in (HybridSVGPClassifier(), quick(kernel=2.0 * RBF(1.0, "fixed"))):
        with pytest.raises(ValueError, match="has another model"):
            another.load_weights(path)
    numpy.save_file({"a": np.zeros(2)}, path)
    with pytest.raises(ValueError, match="not written by save_weights"):
        other.load_weights(path)


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory):
    """Return a fitted regressor of two outputs, rows, and arrays and description of its file."""
    safetensors = pytest.importorskip("safetensors", reason="the extra hybrid is not installed")
    X, y = waves(40)
    model = HybridSVGPRegressor(module_params={"hidden_layer_sizes": (3,)}, n_inducing=5)
    model.set_params(max_iter=2, early_stopping=False, random_state=0).fit(X, np.stack([y, -y], 1))
    path = tmp_path_factory.mktemp("weights") / "good.safetensors"
    model.save_weights(path)
    with safetensors.safe_open(path, "np") as file:
        description = json.loads(file.metadata()["skgpsvm"])
        weights = {name: file.get_tensor(name) for name in file.keys()}
    return model, X, weights, description


def forged(path, weights, text):
    """Write a weight file with a valid checksum."""
    from safetensors.numpy import save_file

    text = text if isinstance(text, str) else json.dumps(text)
    save_file(weights, path, {"skgpsvm": text, "sha256": checksum(weights, text)})


def refused(model, path, match):
    """Assert that weights are refused and the model is unchanged."""
    before = {name: joblib.hash(value) for name, value in vars(model).items()}
    with pytest.raises(ValueError, match=match):
        model.load_weights(path)
    assert {name: joblib.hash(value) for name, value in vars(model).items()} == before


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("n_features_in_", 10**9, "input_shape_ and n_features_in_ are inconsistent"),
        ("n_features_in_", 10**10, "n_features_in_ is invalid"),
        ("n_features_in_", True, "n_features_in_ is invalid"),
        ("input_shape_", [3, -1, -1], "input_shape_ is invalid"),
        ("input_shape_", None, "input_shape_ is invalid"),
        ("predict", 1, "differ from those of this estimator in predict"),
        ("max_iter", 9, "differ from those of this estimator in max_iter"),
        ("_y_std", {"array": [1.0, 0.0], "dtype": "<f8"}, "_y_std is invalid"),
        ("_y_std", {"array": [1.0], "dtype": "<f8"}, "_y_mean and _y_std are inconsistent"),
        ("_y_mean", {"array": [1.0, 2.0], "dtype": "<U1000000000"}, "an array has dtype"),
        ("_y_mean", {"array": ["a", "b"], "dtype": "<U9999999"}, "labels are too long"),
        ("_y_mean", {"array": [[], 1], "dtype": "<f8"}, "_y_mean"),
        ("_y_ndim", 1, "noise_variance_ and _y_mean and _y_ndim are inconsistent"),
        ("noise_variance_", float("nan"), "noise_variance_ is invalid"),
        ("objective_curve_", {"array": [1.0], "dtype": "<f8"}, "objective_curve_ and n_iter_"),
        ("feature_names_in_", {"array": ["a"], "dtype": "O"}, "feature_names_in_ and n_features"),
        ("_likelihood", None, "_likelihood is invalid"),
        ("_likelihood", "laplace", "its likelihood is 'laplace', and this estimator's is 'gaussi"),
    ],
)
def test_weights_with_invalid_attributes_are_refused(weights_file, tmp_path, name, value, match):
    model, _, weights, description = weights_file
    attributes = description["attributes"] | {name: value}
    forged(tmp_path / "bad", weights, description | {"attributes": attributes})
    refused(model, tmp_path / "bad", match)


def test_weights_of_a_huge_network_take_no_memory(weights_file, tmp_path):
    model, _, weights, description = weights_file
    attributes = description["attributes"] | {"n_features_in_": 2**31, "input_shape_": [2**31]}
    forged(tmp_path / "bad", weights, description | {"attributes": attributes})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(model, tmp_path / "bad", r"extractor.*should be F64 of shape \(2147483648,\)")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 100_000


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("Z", lambda value: value[:, :-1], "does not fit features"),
        ("Z", lambda value: value[:-1], "mean should be F64 of shape"),
        ("Z", lambda value: np.zeros((10**9, 0)), "does not fit features"),
        ("mean", lambda value: value[:1], "mean should be F64 of shape"),
        ("mean", lambda value: value.astype(np.float32), "mean should be F64 .* is F32"),
        ("raw_root", lambda value: value[:, :1], "raw_root should be"),
        ("raw_root", lambda value: value + 1e4, "raw_root overflows"),
        ("mean", lambda value: value * np.nan, "mean has NaN"),
        ("theta", lambda value: value + 99, "theta is outside its bounds"),
        ("noise", lambda value: value + 99, "noise is outside its bounds"),
        ("features.normalizer.running_var", lambda value: -value, "running_var is negative"),
        ("features.extractor.0.scale", lambda value: value[:-1], "scale should be"),
        ("another", lambda value: np.zeros(2), "another should be absent"),
    ],
)
def test_weights_of_other_shapes_and_values_are_refused(
    weights_file, tmp_path, name, change, match
):
    model, _, weights, description = weights_file
    forged(tmp_path / "bad", weights | {name: change(weights.get(name))}, description)
    refused(model, tmp_path / "bad", match)


@pytest.mark.parametrize(
    ("description", "match"),
    [
        ("{", "its description is damaged"),
        ("[" * 100_000, "its description is damaged"),
        ("[]", "does not describe a model"),
        ({"seed": 0}, "does not describe a model"),
        ({"seed": "0"}, "its seed, threshold or is_initial"),
        ({"threshold": 2}, "its seed, threshold or is_initial"),
        ({"is_initial": 0}, "its seed, threshold or is_initial"),
        ({"attributes": []}, "does not describe fitted attributes"),
        ({"model": []}, "has another model"),
    ],
)
def test_weights_with_a_bad_description_are_refused(weights_file, tmp_path, description, match):
    model, _, weights, good = weights_file
    if isinstance(description, dict) and description != {"seed": 0}:
        description = good | description
    forged(tmp_path / "bad", weights, description)
    refused(model, tmp_path / "bad", match)


def test_weights_with_a_flipped_bit_are_refused(weights_file, tmp_path):
    model, X, _, _ = weights_file
    path = tmp_path / "weights"
    model.save_weights(path)
    good, before = path.read_bytes(), model.predict(X)
    for at in (3, len(good) // 2, len(good) - 3):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        refused(model, path, str(path))
    for bad in (b"", good[:-1], good + b"1", b"garbage" * 9):
        path.write_bytes(bad)
        refused(model, path, str(path))
    path.write_bytes(good)
    assert_array_equal(model.load_weights(path).predict(X), before)
    with pytest.raises(FileNotFoundError):
        model.load_weights(tmp_path / "nowhere")


def test_weights_are_of_the_kernel_that_was_fitted(tmp_path):
    pytest.importorskip("safetensors", reason="the extra hybrid is not installed")
    X, y = blobs()
    path = tmp_path / "model.safetensors"
    model = quick(kernel=1.0 * RBF(3.0)).fit(X, y)
    model.set_params(kernel=1.0 * Matern(3.0)).save_weights(path)
    with pytest.raises(ValueError, match="has another model"):
        quick(kernel=1.0 * Matern(3.0)).load_weights(path)
    loaded = quick(kernel=2.0 * RBF(0.5)).load_weights(path)  # theta is read from the file
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_weights_are_of_the_likelihood_that_was_fitted(tmp_path):
    pytest.importorskip("safetensors", reason="the extra hybrid is not installed")
    X, y = waves(40)
    path = tmp_path / "model.safetensors"
    model = HybridSVGPRegressor(n_inducing=5, max_iter=2, random_state=0).fit(X, y)
    clone(model).fit(X, y).set_params(likelihood="laplace").save_weights(path)
    loaded = clone(model).load_weights(path)
    assert_array_equal(loaded.predict_interval(X), model.predict_interval(X))
    with pytest.raises(ValueError, match=r"its likelihood is 'gaussian', and .* is 'laplace'"):
        clone(model).set_params(likelihood="laplace").load_weights(path)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"likelihood": "cauchy"}, ValueError, "likelihood='cauchy' is not one of"),
        ({"kernel": "rbf"}, TypeError, "kernel='rbf' is not a kernel"),
        ({"input_shape": 1}, ValueError, "input_shape=1 must be the shape"),
        ({"module_params": 3}, TypeError, "module_params=3 must be a dict"),
        ({"n_inducing": -3}, ValueError, "n_inducing=-3 must be an integer"),
    ],
)
def test_weights_are_not_loaded_with_bad_parameters(
    weights_file, tmp_path, options, error, message
):
    model, _, weights, description = weights_file
    forged(tmp_path / "good", weights, description)
    with pytest.raises(error, match=message):
        clone(model).set_params(**options).load_weights(tmp_path / "good")


def test_unfitted_model_has_no_weights(tmp_path):
    with pytest.raises(NotFittedError):
        quick().save_weights(tmp_path / "model.safetensors")
    with pytest.raises(NotFittedError):
        quick().to_torch()


def test_grid_search_over_a_pipeline_and_the_module_s_parameters():
    X, y = blobs()
    pipeline = make_pipeline(MinMaxScaler(), quick(max_iter=15))
    name = "hybridbayesiansvc__module_params"
    grid = {name: [{"hidden_layer_sizes": (n,), "n_outputs": 4} for n in (2, 16)]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(X, y)
    assert search.best_params_[name] in grid[name]
    assert len(cross_val_score(search.best_estimator_, X, y, cv=2)) == 2


@pytest.mark.cuda
def test_network_trained_on_a_gpu_predicts_on_a_cpu(digits):
    X, X_test, y, y_test = digits
    model = HybridBayesianSVC(Images, max_iter=30, device="cuda", random_state=0).fit(X, y)
    on_gpu = model.predict_proba(X_test)
    on_cpu = pickle.loads(pickle.dumps(model)).set_params(device=None).predict_proba(X_test)
    # Sums in single precision are taken in another order.
    assert_allclose(on_cpu, on_gpu, atol=1e-4)
    assert np.mean(model.predict(X_test) == y_test) > 0.88


@pytest.mark.parametrize("early_stopping", [True, False])
def test_rows_are_held_out_for_early_stopping_only(early_stopping, monkeypatch):
    seen, hashed = [], []
    monkeypatch.setattr(
        "skgpsvm.hybrid._training.JointTraining",
        lambda *args, **kwargs: seen.append(len(args[2])) or JointTraining(*args, **kwargs),
    )
    monkeypatch.setattr(
        "skgpsvm.hybrid._held_out.observed_hashes",
        lambda rows, *args: hashed.append(len(rows)) or observed_hashes(rows, *args),
    )
    X, y = waves(100)
    HybridSVGPRegressor(early_stopping=early_stopping, max_iter=2, random_state=0).fit(X, y)
    assert seen == [90 if early_stopping else 100]
    assert hashed == ([100] if early_stopping else [])


def test_few_rows_without_noise_are_not_left_at_the_mean():
    X = np.random.default_rng(0).normal(size=(200, 3))
    model = HybridSVGPRegressor(random_state=0).fit(X[:30], X[:30, 0])
    assert model.score(X[30:], X[30:, 0]) > 0.6
