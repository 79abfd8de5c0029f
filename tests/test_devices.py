"""Fits on a device that is not the CPU."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pretend_device import NAME, run_there
from problems import waves
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process.kernels import RBF

import skgpsvm
from skgpsvm.solvers import InterleavedEP

# Operations on the pretend device take much longer than on the CPU, so that only one case of a
# classifier chooses its kernel.
CASES = {
    "AdditiveGPClassifier": [{}, {"sparse": False}],
    "AdditiveGPRegressor": [
        {"sparse": True},
        {"sparse": False},
        {"covariance": "precision"},
        {"likelihood": "student_t"},
    ],
    "BayesianSVC": [{"multi_class": "ovr", "optimizer": None}, {}],
    "DecoupledGPClassifier": [{}, {"solver": "sgd"}],
    "DecoupledGPRegressor": [{"mean": "linear"}, {"solver": "sgd"}, {"likelihood": "laplace"}],
    "EPClassifier": [
        {"kernel": RBF(), "solver": "sep"},
        {"kernel": RBF(), "solver": InterleavedEP(batch_size=50)},
        {"solver": "gfitc"},
    ],
    "HybridBayesianSVC": [{}],
    "HybridSVGPRegressor": [{}],
    "QSGPClassifier": [{}, {"solver": "sgd"}],
    "QSGPRegressor": [
        {"basis": "inducing"},
        {"solver": "sgd"},
        {"solver": "adagrad", "covariance": "mean_field"},
        {"covariance": "chevron"},
    ],
    "QSRVMClassifier": [{}, {"solver": "quadruply_stochastic"}],
    "QSRVMRegressor": [{}, {"solver": "quadruply_stochastic", "covariance": "chevron"}],
    "SVGPClassifier": [{}, {"likelihood": "robust_max"}],
    "SVGPRegressor": [
        {},
        {"solver": "gradient"},
        {"likelihood": "student_t"},
        {"likelihood": "heteroscedastic"},
    ],
}


# Each process compares several estimators, since to start one takes as long as most comparisons.
N_PROCESSES = 3


def predicted(model, X):
    return model.predict_proba(X) if is_classifier(model) else model.predict(X, return_std=True)


def compare(name, device=NAME):
    """Fit each case on the CPU and on the device, and compare the predictions."""
    kind = getattr(skgpsvm, name)
    X, y = waves(50, d=2)
    if is_classifier(kind()):
        y = np.digitize(y, [-0.5, 0.5])
    steps = {"max_iter": 3} if "max_iter" in kind().get_params() else {}
    for parameters in CASES[name]:
        models = [
            kind(**parameters, **steps, random_state=0, device=place).fit(X, y)
            for place in (None, device)
        ]
        if hasattr(models[0], "partial_fit"):
            models = [model.partial_fit(X[:30], y[:30]) for model in models]
        # Operations are the same and in the same order, except for sums over other memory layouts.
        assert_allclose(*(predicted(model, X) for model in models), rtol=1e-4, atol=1e-5)


def compare_all(*names):
    """Compare the predictions of several estimators; an error names the one that differs."""
    with pytest.raises(RuntimeError, match=r"takes tensors of shape .* on the CPU"):
        torch.ones(3, device=NAME) + torch.ones(3)
    for name in names:
        try:
            compare(name)
        except Exception as error:  # any error: it is raised again, with the estimator's name
            error.add_note(f"The estimator is {name}.")
            raise


@pytest.mark.parametrize("i", range(N_PROCESSES))
def test_every_tensor_is_on_the_device_which_refuses_those_of_the_cpu(i):
    assert not run_there(compare_all, *list(CASES)[i::N_PROCESSES])


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
# Torch tells, once a process, that it makes a context in the thread of the backward pass.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_estimator_agrees_on_cuda(name):
    compare(name, "cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("name", CASES)
def test_model_fitted_on_cuda_predicts_without_it(name):
    kind = getattr(skgpsvm, name)
    X, y = waves(50, d=2)
    if is_classifier(kind()):
        y = np.digitize(y, [-0.5, 0.5])
    model = kind(random_state=0, device="cuda").fit(X, y)
    moved = pickle.loads(pickle.dumps(model)).set_params(device=None)
    # Hybrid networks and defaults in single precision add in another order.
    assert_allclose(predicted(moved, X), predicted(model, X), rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
def test_no_device_memory_is_left_after_many_fits():
    X, y = waves(50, d=2)
    fixed = skgpsvm.BayesianSVC(RBF(), optimizer=None, device="cuda")
    for i in range(50):
        clone(fixed).set_params(random_state=i).fit(X, y > 0).predict_proba(X)
        if i == 0:
            first = torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() == first
