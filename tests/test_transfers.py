"""Copies to a device, and how often the CPU waits for it."""

import torch
from pretend_device import NAME, counts, run_there
from problems import waves
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process.kernels import RBF

from skgpsvm import (
    AdditiveGPClassifier,
    BayesianSVC,
    DecoupledGPRegressor,
    EPClassifier,
    HybridSVGPRegressor,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
    _data,
)
from skgpsvm._transfers import to_device
from skgpsvm.solvers import (
    CoordinateAscent,
    InterleavedEP,
    NaturalGradient,
    QuadruplyStochastic,
    StochasticGradient,
)

FEW = {"n_inducing": 4, "inducing_points": "random", "max_iter": 1}
HELD = {"kernel": RBF(), "optimizer": None, "learn_inducing": False, **FEW}
BATCH = "solver__batch_size"
NETWORK = {
    "module_params": {"hidden_layer_sizes": (2,)},
    "n_inducing": 4,
    "max_iter": 1,
    "early_stopping": False,
}
PASSES = {
    "coordinate ascent": BayesianSVC(**HELD),
    "expectation propagation": EPClassifier(**HELD),
    "natural gradients": SVGPRegressor(**HELD, solver="natural_gradient"),
}
# A fit by minibatches, and for how many values the CPU waits in a step: whether a matrix was
# positive definite, or a network's features are finite. Additive models also copy hyperparameters.
STEPS = {
    "coordinate ascent": (BayesianSVC(**HELD, solver=CoordinateAscent()), BATCH, 1),
    "natural gradients": (SVGPClassifier(**HELD, solver=NaturalGradient()), BATCH, 1),
    "learned": (EPClassifier(RBF(), **FEW, solver=InterleavedEP()), BATCH, 2),
    "decoupled": (
        DecoupledGPRegressor(
            RBF(), n_mean_bases=4, n_inducing=4, max_iter=1, solver=StochasticGradient()
        ),
        BATCH,
        1,
    ),
    "quadruply stochastic": (
        QSGPRegressor(RBF(), optimizer=None, **FEW, n_basis=10, solver=QuadruplyStochastic()),
        BATCH,
        0,
    ),
    "quadruply stochastic, learned": (
        QSRVMRegressor(RBF(), max_iter=1, n_basis=10, solver=QuadruplyStochastic()),
        BATCH,
        0,
    ),
    "network": (HybridSVGPRegressor(**NETWORK), "batch_size", 2),
    "additive": (
        AdditiveGPClassifier(
            n_inducing=4, terms=[(0,), (1,)], interactions=0, max_iter=1, sparse=True
        ),
        "batch_size",
        1,
    ),
}


def counted(estimator, **options):
    """Return the numbers of values and of copies that the CPU waits for in a fit."""
    X, y = waves(40, d=2)
    counts.clear()
    model = clone(estimator).set_params(device=NAME, random_state=0, **options)
    model.fit(X, y > 0 if is_classifier(model) else y)
    assert counts["pinned"] >= 2
    return counts["values"], counts["copies"]


def compare_chunks():
    """Compare fits of rows in one chunk and in eight."""
    _data.HELD_BYTES = 0
    for name, estimator in PASSES.items():
        _data.CHUNK_ROWS = 40
        found = counted(estimator)
        _data.CHUNK_ROWS = 5
        assert counted(estimator) == found, name


def compare_steps():
    """Compare fits by two and by eight minibatches of rows."""
    _data.HELD_BYTES = 0
    for name, (estimator, size, per_step) in STEPS.items():
        (values, copies), more = (counted(estimator, **{size: rows}) for rows in (20, 5))
        copies += 6 * (name == "additive")
        assert more == (values + 6 * per_step, copies), name


def copy():
    """Compare a copy on the device with its source."""
    there = torch.device(NAME)
    for source in (torch.arange(6).view(2, 3).T, torch.ones(0), torch.tensor(2.0)):
        copied = to_device(source, there, torch.float32)
        assert (copied.device.type, copied.dtype) == (NAME, torch.float32)
        assert torch.equal(copied.cpu(), source.float())
    assert counts["pinned"] == 2  # an empty tensor is not copied
    assert to_device(copied, there) is copied


def check():
    """Check copies, fits by passes, and fits by steps."""
    copy()
    compare_chunks()
    compare_steps()


def test_waits_do_not_grow_with_chunks_and_with_steps_only_by_their_checks():
    assert not run_there(check)


def test_a_tensor_that_is_in_place_is_not_copied():
    tensor, cpu = torch.ones(3), torch.device("cpu")
    assert to_device(tensor, cpu) is tensor
    assert to_device(tensor, cpu, torch.float64).dtype == torch.float64
