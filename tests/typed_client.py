"""Typical use of the package, which mypy checks. It is read by ``make lint``, and never run."""

from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch

from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    QSGPRegressor,
    QSRVMClassifier,
    SVGPClassifier,
    SVGPRegressor,
)
from skgpsvm.active_learning import (
    ScoreQueryStrategy,
    bald,
    diverse_sampling,
    has_stabilized,
    margin_sampling,
)
from skgpsvm.adversarial import detection_roc, fast_gradient_sign
from skgpsvm.callbacks import Checkpoint
from skgpsvm.data import ParquetRows
from skgpsvm.hybrid import MNISTExtractor
from skgpsvm.inducing import select_inducing_points
from skgpsvm.inspection import ComponentEffectDisplay, ComponentEffects, component_importances
from skgpsvm.kernels import ANOVARBF, Linear, TorchKernel, register_torch_kernel
from skgpsvm.likelihoods import Gaussian, Likelihood
from skgpsvm.solvers import InterleavedEP, NaturalGradient, QuadruplyStochastic, StochasticGradient

Pair = tuple[np.ndarray, np.ndarray]
Tensors = tuple[torch.Tensor, torch.Tensor]


def regression(X: np.ndarray, y: np.ndarray, rng: np.random.RandomState, verbose: bool) -> None:
    gp = SVGPRegressor(1.0 * RBF([1.0, 2.0]), likelihood="student_t", random_state=rng)
    assert_type(gp.fit(X, y), SVGPRegressor)
    assert_type(gp.fit(X.tolist(), y.tolist(), sample_weight=[1.0, 2.0]), SVGPRegressor)
    assert_type(gp.partial_fit(X, y, noise_variance=y**2), SVGPRegressor)
    assert_type(gp.set_params(solver__batch_size=256), SVGPRegressor)
    assert_type(gp.predict(X), np.ndarray)
    assert_type(gp.predict(X, return_std=True), Pair)
    assert_type(gp.predict(X, True), Pair)
    assert_type(gp.predict(X, return_cov=True), Pair)
    assert_type(gp.predict(X, return_std=verbose), np.ndarray | Pair)
    assert_type(gp.predict_interval(X, level=0.95, method="conformal"), Pair)
    assert_type(gp.predict_noise_variance(X), np.ndarray)
    assert_type(gp.sample_y(X, n_samples=3), np.ndarray)
    assert_type(gp.sample_latent(X), np.ndarray)
    assert_type(gp.latent_mean_and_variance(X), Pair)
    assert_type(gp.latent_covariance(X), np.ndarray)
    assert_type(gp.log_marginal_likelihood(), float)
    assert_type(gp.log_marginal_likelihood(gp.kernel_.theta, X=X, y=y), float)
    assert_type(gp.log_marginal_likelihood(eval_gradient=True, X=X, y=y), tuple[float, np.ndarray])
    assert_type(gp.log_marginal_likelihood_value_, float)
    SVGPRegressor(solver=NaturalGradient(batch_size=1024), inducing_points=X[:10], mean="linear")
    DecoupledGPRegressor(solver=StochasticGradient(parametrization="decoupled"), device="cuda")
    QSGPRegressor(solver=QuadruplyStochastic(step="adagrad"), device=torch.device("cpu"))
    SVGPRegressor(random_state=np.random.default_rng(0).integers(2**31))
    gp.fit(ParquetRows([Path("part-0"), "part-1"]), y).set_callbacks(Checkpoint(Path("folder")))


def classification(X: np.ndarray, texts: csr_array, labels: list[str]) -> None:
    svc = BayesianSVC(class_weight={"ham": 1, "spam": 2.5}, random_state=0)
    assert_type(svc.fit(texts, labels), BayesianSVC)
    assert_type(svc.partial_fit(X, labels, classes=["ham", "spam"]), BayesianSVC)
    assert_type(svc.predict(texts), np.ndarray)
    assert_type(svc.predict_proba(X), np.ndarray)
    assert_type(svc.predict_log_proba(X), np.ndarray)
    assert_type(svc.predict_set(X), np.ndarray)
    assert_type(svc.decision_function(X), np.ndarray)
    assert_type(svc.sample_proba(X, 10, random_state=None), np.ndarray)
    counts = {0: 1, 1: 3}
    gp = SVGPClassifier(likelihood="probit", class_weight=counts, optimizer=None)
    assert_type(gp.log_marginal_likelihood(X=X, y=labels), float)
    QSRVMClassifier(class_weight="balanced", covariance="chevron", dtype="float32")
    ep = EPClassifier(solver=InterleavedEP(rule="sign")).fit(X, labels)
    assert_type(ep.log_marginal_likelihood(), float)


def selection(X: np.ndarray, y: np.ndarray) -> None:
    grid = {"svgpregressor__solver__batch_size": [256, 1024]}
    pipeline = make_pipeline(StandardScaler(), SVGPRegressor(solver=NaturalGradient()))
    GridSearchCV(pipeline, grid).fit(X, y).predict(X)
    cross_val_score(clone(SVGPRegressor(n_inducing=64, tol=1e-2)), X, y)


def additive(X: np.ndarray, y: np.ndarray) -> None:
    gam = AdditiveGPRegressor(
        terms=[..., "age", 3, ("age", "city"), ("hour", "cyclic", 24)],
        monotonic_cst={"age": 1},
        convex_cst={"age": -1},
        categorical_features=["city"],
    )
    assert_type(gam.fit(X, y), AdditiveGPRegressor)
    assert_type(gam.explain(X), np.ndarray)
    assert_type(gam.explain(X, return_std=True), Pair)
    assert_type(gam.sobol_indices(), Bunch)
    assert_type(component_importances(gam, X), Bunch)
    display = ComponentEffectDisplay.from_estimator(gam, X, features=["age", (0, 1)])
    assert_type(display, ComponentEffectDisplay)
    assert_type(ComponentEffects.from_estimator(gam).to_dict(), dict)
    AdditiveGPClassifier(interactions=None, sparse=True, n_inducing=30).fit(X, y)


def active_learning(pool: np.ndarray, labels: np.ndarray) -> None:
    svc = BayesianSVC().fit(pool, labels)
    assert_type(bald(svc, pool, n_samples=64), np.ndarray)
    assert_type(margin_sampling(svc, pool, n_instances=5), Pair)
    assert_type(diverse_sampling(svc, pool, 5, score=bald, n_samples=64), Pair)
    assert_type(has_stabilized([labels, labels], threshold=0.95), bool)
    assert_type(ScoreQueryStrategy(bald).query(pool, labels, svc, batch_size=2), np.ndarray | Pair)


def hybrid(images: np.ndarray, labels: np.ndarray, path: Path) -> None:
    svc = HybridBayesianSVC(MNISTExtractor, input_shape=(1, 28, 28)).fit(images, labels)
    assert_type(svc, HybridBayesianSVC)
    assert_type(svc.to_torch(), torch.nn.Module)
    svc.save_weights(path)
    assert_type(svc.load_weights(str(path)), HybridBayesianSVC)
    attacked = fast_gradient_sign(svc, images, labels, 0.1, clip=(0, 1))
    assert_type(detection_roc(svc, images, attacked), Bunch)


def parts(X: np.ndarray, rows: torch.Tensor) -> None:
    assert_type(select_inducing_points(X, 64, method="random"), np.ndarray)
    assert_type(Linear(length_scale=[1.0, 2.0])(X), np.ndarray)
    assert_type(ANOVARBF(feature=1)(X, eval_gradient=True), Pair)
    likelihood: Likelihood = Gaussian(0.1)
    assert_type(likelihood.log_prob(rows, rows), torch.Tensor)
    assert_type(
        likelihood.expected_derivatives(rows, rows, rows), tuple[torch.Tensor, torch.Tensor]
    )


class Quadratic(Linear):
    """A kernel of one's own."""


@register_torch_kernel(Quadratic)
class TorchQuadratic(TorchKernel):
    """Its torch form."""

    def __call__(self, X: torch.Tensor, Z: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return (X @ Z.T / self.value("length_scale", theta, X) ** 2) ** 2

    def diag(self, X: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return (X.square().sum(1) / self.value("length_scale", theta, X) ** 2) ** 2


def mistakes(X: np.ndarray, y: np.ndarray) -> None:
    """Each of these lines has an error that mypy must find: it reports ignores without use."""
    SVGPRegressor(likelihood="gausian")  # type: ignore[arg-type]
    SVGPRegressor(n_inducing="many")  # type: ignore[arg-type]
    SVGPRegressor(n_inducin=10)  # type: ignore[call-arg]
    BayesianSVC(class_weight=2.0)  # type: ignore[arg-type]
    SVGPRegressor().fit(None, y)  # type: ignore[arg-type]
    SVGPRegressor().predict_interval(X, method="bayesian")  # type: ignore[arg-type]
    SVGPRegressor().predict(X).columns()  # type: ignore[attr-defined]
