"""Fits and predictions are bit-equal under any torch modes, defaults and threads of the caller."""

import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from every_estimator import ESTIMATORS, Noisy, assert_same, fitted, predictions
from numpy.testing import assert_array_equal
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_info
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from skgpsvm import HybridSVGPClassifier, HybridSVGPRegressor
from skgpsvm._isolation import PrivateRandom, _with_generator
from skgpsvm.adversarial import fast_gradient_sign
from skgpsvm.kernels import ANOVARBF

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
each = pytest.mark.parametrize("name", ESTIMATORS)


@pytest.fixture(scope="module")
def expected():
    """Return all predictions of every estimator, fitted with torch's initial modes and defaults."""
    return {name: predictions(fitted(name)) for name in ESTIMATORS}


@contextmanager
def default_dtype(dtype):
    """Set another default dtype of the process in a block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def modes():
    """Set modes of this thread: no derivatives, lower precision, and tensors without data."""
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        yield


@each
def test_modes_make_no_difference(name, expected):
    with modes():
        model = fitted(name)
        assert_same(predictions(model), expected[name])
        assert torch.is_inference_mode_enabled()
        assert torch.empty(1).is_meta
    assert_same(predictions(model), expected[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=["half", "double"])
@each
def test_default_dtype_makes_no_difference(name, dtype, expected):
    with default_dtype(dtype):
        model = fitted(name)
        assert_same(predictions(model), expected[name])
        assert torch.empty(1).dtype == dtype


def test_gradients_of_kernels_and_attacks_are_taken_in_inference_mode():
    X = np.random.default_rng(0).normal(size=(30, 3))
    y = (X[:, 0] > 0).astype(int)
    kernel, model = ANOVARBF(0.7), HybridSVGPClassifier(max_iter=2, random_state=0).fit(X, y)
    with modes():
        gradient, attacked = kernel(X, eval_gradient=True)[1], fast_gradient_sign(model, X, y, 0.1)
    assert_array_equal(gradient, kernel(X, eval_gradient=True)[1])
    assert_array_equal(attacked, fast_gradient_sign(model, X, y, 0.1))


def test_networks_of_torch_are_as_they_were_made():
    with modes(), default_dtype(torch.float64):
        X = np.random.default_rng(0).normal(size=(30, 3))
        module = HybridSVGPRegressor(max_iter=20, random_state=0).fit(X, X[:, 0]).to_torch()
    rows = torch.from_numpy(X).requires_grad_()
    (gradient,) = torch.autograd.grad(module(rows).sum(), rows)
    assert gradient.abs().max() > 0


# Threads


def state_of_the_process():
    """Return the global state that other threads could notice, except for warning filters.

    scikit-learn's `check_array` changes these for the whole process, by `warnings.catch_warnings`.
    """
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [np.array(part).tolist() for part in check_random_state(None).get_state()],
        "python": random.getstate(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "convolutions": torch.backends.cudnn.allow_tf32,
        "threads": sorted((lib["filepath"], lib["num_threads"]) for lib in threadpool_info()),
    }


def test_threads_fit_and_predict_at_the_same_time_and_none_notices(expected):
    before, noticed = state_of_the_process(), []
    names = [*ESTIMATORS, *(name for name in ESTIMATORS if "hybrid" in name)]
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(lambda name=name: predictions(fitted(name))) for name in names]
        while not all(future.done() for future in found):
            now = state_of_the_process()
            noticed += [name for name in before if now[name] != before[name]]
            time.sleep(0.02)
    for name, future in zip(names, found, strict=True):
        assert_same(future.result(), expected[name])
    assert not noticed


def test_a_model_predicts_in_many_threads(expected):
    models = {name: fitted(name) for name in ESTIMATORS}
    with ThreadPoolExecutor(2) as pool:
        found = {
            name: [pool.submit(predictions, model) for _ in range(2)]
            for name, model in models.items()
        }
    for name, futures in found.items():
        for future in futures:
            assert_same(future.result(), expected[name])


# Random numbers of networks


class Wide(nn.Module):
    """Network that draws random numbers in many ways."""

    def __init__(self):
        super().__init__()
        self.first, self.order = nn.Linear(3, 16), torch.randperm(16)
        self.recurrent = nn.LSTM(16, 8, num_layers=2, dropout=0.3, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
        nn.init.trunc_normal_(self.first.weight)

    def forward(self, X):
        hidden = nn.functional.rrelu(self.first(X), training=self.training)[:, self.order]
        hidden = self.attention(self.recurrent(hidden[:, None])[0])[:, 0]
        if self.training:
            hidden = hidden + 0.1 * torch.randn_like(hidden) * torch.rand(8)
            hidden = nn.functional.gumbel_softmax(hidden) + torch.normal(hidden, 0.1)
            hidden = hidden + torch.poisson(torch.ones(8)) + torch.randint(3, (8,))
        return hidden


def test_a_network_draws_what_it_would_from_the_global_generator():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = Wide()(torch.ones(5, 3))
        state = torch.get_rng_state()
        with PrivateRandom(0):
            found = Wide()(torch.ones(5, 3))
        assert_array_equal(torch.get_rng_state(), state)
    assert_array_equal(found.detach(), expected.detach())


def test_every_random_operation_of_torch_can_be_given_a_generator():
    """Check that operations without such an overload are composite, or fused for GPUs."""
    fused = ("attention", "rnn", "lstm", "gru", "dropout", "_sdp_", "mask", "nested")
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if name.startswith("aten::") and op is not None:
            if torch.Tag.nondeterministic_seeded in op.tags:
                assert _with_generator(op)[0] or any(word in base for word in fused), name


def test_dropout_of_gpus_has_a_mask_and_keeps_the_mean():
    X = torch.ones(20_000, requires_grad=True)
    with PrivateRandom(0) as random:
        values, mask = torch.ops.aten.native_dropout(X, 0.3, True)
    assert random.has_drawn
    assert_array_equal(values.detach(), mask / np.float32(0.7))
    assert values.mean().item() == pytest.approx(1, abs=0.02)  # 4 standard errors
    assert_array_equal(torch.autograd.grad(values.sum(), X)[0], values.detach())
    with PrivateRandom(0):
        assert torch.ops.aten.native_dropout(X, 0.3, False)[1].all()


def test_a_network_without_numbers_draws_none():
    with PrivateRandom(0) as random, torch.device("meta"):
        nn.Dropout()(nn.Linear(3, 4)(torch.rand(2, 3)))
    assert not random.has_drawn


def test_generators_that_a_network_has_itself_are_its_own():
    with PrivateRandom(0):
        own = torch.rand(3, generator=torch.Generator().manual_seed(5))
    assert_array_equal(own, torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_items_of_a_dataset_and_augmentations_draw_by_thread():
    class Items(Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return torch.rand(3) + i % 2, i % 2

    def jittered(batch):
        return batch + 0.1 * torch.randn_like(batch)

    def probabilities(_):
        model = HybridSVGPClassifier(augmentation=jittered, max_iter=3, random_state=0)
        return model.fit(Items()).predict_proba(Items())

    alone = probabilities(0)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(probabilities, range(3)):
            assert_array_equal(found, alone)


def test_layers_that_draw_are_not_repeated_in_the_backward_pass():
    class Checkpointed(Noisy):
        def forward(self, X):
            return checkpoint(super().forward, X, use_reentrant=False)

    X = np.random.default_rng(0).normal(size=(40, 3))
    model = HybridSVGPRegressor(Checkpointed, max_iter=2, random_state=0)
    with pytest.raises(RuntimeError, match="Do not checkpoint layers that draw"):
        model.fit(X, X[:, 0])


FIRST_FITS = """
import sys
import numpy as np
import skgpsvm as sg

X = np.random.default_rng(0).normal(size=(10, 2))
y = (X[:, 0] > 0).astype(int)
classifiers = sg.EPClassifier, sg.SVGPClassifier, sg.DecoupledGPClassifier, sg.HybridBayesianSVC
for make in (*classifiers, sg.SVGPRegressor):
    make(max_iter=2, random_state=0).fit(X, y)
    for module in ("torch._dynamo", "sympy"):
        assert module not in sys.modules, (make, module)
"""


def test_first_fits_do_not_import_torch_s_compiler():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST_FITS], check=True)
