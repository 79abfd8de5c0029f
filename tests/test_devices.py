"""Fits on a device that is not the CPU."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pretend_device import NAME, offer
from problems import waves
from sklearn.base import is_classifier

import skgpsvm

CASES = {
    "AdditiveGPClassifier": [{}],
    "AdditiveGPRegressor": [{}, {"covariance": "precision"}, {"likelihood": "student_t"}],
    "BayesianSVC": [{}, {"multi_class": "ovr"}],
    "DecoupledGPClassifier": [{}, {"solver": "sgd"}],
    "DecoupledGPRegressor": [{"mean": "linear"}, {"solver": "sgd"}, {"likelihood": "laplace"}],
    "EPClassifier": [{}, {"batch_size": 50}, {"approximation": "gfitc"}],
    "HybridBayesianSVC": [{}],
    "HybridSVGPRegressor": [{}],
    "QSGPClassifier": [{}, {"solver": "sgd"}],
    "QSGPRegressor": [
        {"basis": "inducing"},
        {"solver": "sgd"},
        {"solver": "adagrad", "covariance": "mean_field"},
        {"covariance": "chevron"},
    ],
    "QSRVMClassifier": [{}],
    "QSRVMRegressor": [{}],
    "SVGPClassifier": [{}, {"likelihood": "robust_max"}],
    "SVGPRegressor": [{}, {"inference": "gradient"}, {"likelihood": "student_t"}],
}


@pytest.fixture
def pretend(monkeypatch):
    """A device without an accelerator."""
    if not hasattr(torch, NAME):
        pytest.skip("this torch has no devices in Python")
    offer(monkeypatch)
    return NAME


def predicted(model, X):
    return model.predict_proba(X) if is_classifier(model) else model.predict(X, return_std=True)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "parameters"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_every_tensor_is_on_the_device(name, parameters, pretend):
    kind = getattr(skgpsvm, name)
    X, y = waves(100, d=2)
    if is_classifier(kind()):
        y = np.digitize(y, [-0.5, 0.5])
    steps = {"max_iter": 3} if "max_iter" in kind().get_params() else {}
    models = [
        kind(**parameters, **steps, random_state=0, device=device).fit(X, y)
        for device in (None, pretend)
    ]
    if hasattr(models[0], "partial_fit"):
        models = [model.partial_fit(X[:40], y[:40]) for model in models]
    # The same operations in the same order, but of a few sums of other memory layouts.
    assert_allclose(*(predicted(model, X) for model in models), rtol=1e-4, atol=1e-5)


def test_mixed_devices_are_refused(pretend):
    ours, others = torch.ones(3, device=pretend), torch.ones(3)
    with pytest.raises(RuntimeError, match="on the CPU"):
        ours + others
