"""Checkpoints from which killed fits resume, progress bars, scores during fits, early stops."""

import errno
import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_config
from numpy.testing import assert_array_equal
from problems import assert_all_equal
from sklearn.base import clone
from sklearn.callback import ProgressBar, ScoringMonitor
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.gaussian_process.kernels import RBF
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

import skgpsvm
from skgpsvm import (
    AdditiveGPClassifier,
    AdditiveGPRegressor,
    BayesianSVC,
    DecoupledGPClassifier,
    DecoupledGPRegressor,
    EPClassifier,
    HybridBayesianSVC,
    HybridSVGPClassifier,
    HybridSVGPRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMClassifier,
    QSRVMRegressor,
    SVGPClassifier,
    SVGPRegressor,
    callbacks,
)
from skgpsvm._fitted_models import LAYOUT
from skgpsvm.bayesian_svm import _kernel_choice
from skgpsvm.callbacks import Checkpoint
from skgpsvm.hybrid import MLP, _training
from skgpsvm.solvers import (
    CoordinateAscent,
    InterleavedEP,
    QuadruplyStochastic,
    StochasticGradient,
)

quick = partial(BayesianSVC, n_inducing=6, optimizer=None, random_state=0)
ep = partial(EPClassifier, solver="sep", n_inducing=6, max_iter=12, tol=0.2, random_state=0)
MODES = {
    "coordinate ascent": quick(),
    "ovr": quick(multi_class="ovr"),
    "gradient": quick(solver="gradient", tol=0.1),
    "minibatches": quick(solver=CoordinateAscent(batch_size=16), tol=0.1),
    "learned inducing points": quick(learn_inducing=True, max_iter=20, tol=0.1),
    "learned kernel": quick(optimizer="auto"),
    "ovr, learned kernels": quick(multi_class="ovr", optimizer="auto", kernel=2.0 * RBF()),
    "EP": ep(),
    "EP, sign rule": ep(solver=InterleavedEP("sign")),
    "EP, minibatches": ep(solver=InterleavedEP(batch_size=16)),
    "EP, GFITC": ep(solver="gfitc", max_iter=15),
    "additive": AdditiveGPClassifier(
        n_inducing=5,
        terms=[..., (0, 1)],
        interactions=None,
        min_gain=0,
        max_iter=20,
        tol=0.02,
        random_state=0,
    ),
    "additive, all rows": AdditiveGPClassifier(
        sparse=False, interactions=None, max_iter=20, tol=0.02, random_state=0
    ),
    "decoupled": DecoupledGPClassifier(n_mean_bases=20, n_inducing=8, random_state=0),
    "quadruply stochastic": QSGPClassifier(n_basis=20, n_inducing=8, random_state=0),
    "quadruply stochastic, steps": QSGPClassifier(
        solver=QuadruplyStochastic(learn_hyperparameters=True, batch_size=16),
        covariance="chevron",
        n_dense_columns=2,
        n_basis=20,
        n_inducing=8,
        max_iter=8,
        random_state=0,
    ),
    "hybrid": HybridBayesianSVC(
        module_params={"hidden_layer_sizes": (4,)}, n_inducing=6, max_iter=4, random_state=0
    ),
    "hybrid, early stopping": HybridSVGPClassifier(
        module_params={"hidden_layer_sizes": (4,), "linear": False},
        n_inducing=6,
        max_iter=12,
        n_iter_no_change=2,
        learning_rate=0.003,
        random_state=0,
    ),
    "decoupled, stochastic gradients": DecoupledGPClassifier(
        solver=StochasticGradient(batch_size=16), n_inducing=8, max_iter=8, random_state=0
    ),
}


def one_by_one(mode):
    """Return whether an estimator fits one model per class."""
    return isinstance(mode, EPClassifier) or getattr(mode, "multi_class", None) == "ovr"


modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def blobs(n=48, n_classes=3, seed=0):
    """Return overlapping, normally distributed classes."""
    rng = np.random.RandomState(seed)
    y = np.arange(n) % n_classes
    return 1.5 * rng.normal(size=(n_classes, 2))[y] + rng.normal(size=(n, 2)), y


class Recorder:
    """Callback that records the path of names of every task that ends."""

    def __init__(self):
        self.tasks = []

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        names = [context.task_name]
        while context.parent is not None:
            context = context.parent
            names.append(context.task_name)
        self.tasks.append(tuple(reversed(names)))

    def iterations(self, stage=None):
        """Return the number of iterations of a stage, or of all stages."""
        stages = [task[-2] for task in self.tasks if task[-1] == "iteration"]
        return len(stages) if stage is None else stages.count(stage)


class Killed(Exception):
    """Error that interrupts a fit."""


class Interrupt(Recorder):
    """Callback that ends a fit by an error before its iteration number ``n``, counted from 0."""

    def __init__(self, n, error=Killed):
        super().__init__()
        self.n, self.error = n, error

    def on_fit_task_begin(self, estimator, context):
        if context.task_name == "iteration" and self.iterations() == self.n:
            raise self.error


def killed(model, n, *args, method="fit"):
    """Interrupt a fit before its iteration ``n``."""
    before = model._skl_callbacks
    model.set_callbacks(*before, Interrupt(n))
    with pytest.raises(Killed):
        getattr(model, method)(*args)
    model.set_callbacks(*before)


def assert_same_model(model, other, X):
    """Require that two models are equal to the last bit."""
    assert_all_equal(
        (model.predict_proba(X), *model.latent_mean_and_variance(X), model.objective_curve_),
        (other.predict_proba(X), *other.latent_mean_and_variance(X), other.objective_curve_),
    )
    assert getattr(model, "kernel_", None) == getattr(other, "kernel_", None)
    assert model.n_iter_ == other.n_iter_
    assert getattr(model, "temperature_", None) == getattr(other, "temperature_", None)


# Checkpoints


@modes
def test_checkpoint_changes_nothing_and_leaves_nothing(mode, tmp_path):
    X, y = blobs()
    folder = tmp_path / "new" / "folder"
    model = clone(mode).set_callbacks(Checkpoint(folder)).fit(X, y)
    assert_same_model(model, clone(mode).fit(X, y), X)
    assert not list(folder.iterdir())
    assert "_checkpoint" not in vars(model)


@pytest.mark.parametrize(
    ("mode", "every"),
    [*((mode, 1) for mode in MODES.values()), (MODES["learned kernel"], 3)],
    ids=[*MODES, "saved every 3 iterations"],
)
def test_fit_killed_in_every_iteration_ends_the_same(mode, every, tmp_path, monkeypatch):
    # There are enough rows for the second round of the kernel choice, which uses more of them.
    monkeypatch.setattr(_kernel_choice, "_SEARCH_SIZE", (30, 5))
    X, y = blobs()
    recorder = Recorder()
    expected = clone(mode).set_callbacks(recorder).fit(X, y)
    if isinstance(mode, BayesianSVC) and mode.optimizer == "auto":
        assert recorder.iterations("posterior") < recorder.iterations()
    n_killed, n_done = 0, 0
    while True:
        interrupt = Interrupt(every)
        model = clone(mode).set_callbacks(Checkpoint(tmp_path, every), interrupt)
        try:
            model.fit(X, y)
        except Killed:
            with pytest.raises(NotFittedError):
                model.predict(X)
            assert len(list(tmp_path.iterdir())) == 1
            n_killed += 1
        else:
            break
        finally:
            n_done += interrupt.iterations()
    assert_same_model(model, expected, X)
    # Only the iterations since the last save are repeated.
    assert n_killed >= (recorder.iterations() - 1) // every
    if every == 1:
        assert n_done == recorder.iterations()
    assert not list(tmp_path.iterdir())


class InterruptAtEnd(Recorder):
    """Callback that ends a fit by an error when the last iteration of its posterior is saved."""

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "posterior":
            raise Killed


@pytest.mark.parametrize("covariance", ["mean_field", "chevron"])
def test_fit_of_pruned_functions_killed_after_its_last_iteration_ends_the_same(
    covariance, tmp_path
):
    X, y = blobs()
    model = QSRVMClassifier(
        solver=QuadruplyStochastic(step="adagrad", batch_size=16),
        covariance=covariance,
        n_basis=30,
        relevance_threshold=30,
        max_iter=30,
        random_state=0,
    )
    expected = clone(model).fit(X, y)
    assert len(expected.relevance_vectors_) < 30
    with pytest.raises(Killed):
        clone(model).set_callbacks(Checkpoint(tmp_path), InterruptAtEnd()).fit(X, y)
    assert_same_model(model.set_callbacks(Checkpoint(tmp_path)).fit(X, y), expected, X)


KILLED_FIT = """
import os, signal, sys

import numpy as np

from skgpsvm import BayesianSVC
from skgpsvm.callbacks import Checkpoint


class Kill:
    def setup(self, estimator, context): pass
    def teardown(self, estimator, context): pass
    def on_fit_task_begin(self, estimator, context): pass

    def on_fit_task_end(self, estimator, context):
        if context.parent and context.parent.task_name == "posterior" and context.task_id == 2:
            os.kill(os.getpid(), signal.SIGKILL)


data = np.load(sys.argv[1])
model = BayesianSVC(n_inducing=6, random_state=0)
model.set_callbacks(Checkpoint(sys.argv[2]), Kill()).fit(data["X"], data["y"])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_fit_of_a_killed_process_ends_the_same_in_another(tmp_path):
    X, y = blobs()
    np.savez(tmp_path / "data.npz", X=X, y=y)
    folder = tmp_path / "checkpoints"
    done = subprocess.run(
        [sys.executable, "-c", KILLED_FIT, tmp_path / "data.npz", folder],
        cwd=Path(skgpsvm.__file__).parents[1],
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert {file.suffix for file in folder.iterdir()} == {".checkpoint", ".lock"}
    expected = BayesianSVC(n_inducing=6, random_state=0)
    whole, rest = Recorder(), Recorder()
    expected.set_callbacks(whole).fit(X, y)
    model = BayesianSVC(n_inducing=6, random_state=0)
    model.set_callbacks(Checkpoint(folder), rest).fit(X, y)
    assert_same_model(model, expected, X)
    assert rest.iterations("kernel") == 0
    assert rest.iterations("posterior") == whole.iterations("posterior") - 2
    assert not list(folder.iterdir())


def test_fit_killed_while_it_saves_ends_the_same(tmp_path, monkeypatch):
    X, y = blobs()
    sync, count = os.fsync, iter(range(100))

    def torn(descriptor):
        if next(count) == 4:
            raise Killed
        sync(descriptor)

    model = quick().set_callbacks(Checkpoint(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", torn)
        with pytest.raises(Killed):
            model.fit(X, y)
    (tmp_path / f"{next(tmp_path.iterdir()).stem}.7-7.tmp").write_bytes(b"half a file")
    assert_same_model(model.fit(X, y), quick().fit(X, y), X)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def global_random_state():
    """Restore NumPy's global random state after a test."""
    random_state = check_random_state(None)
    before = random_state.get_state()
    yield random_state
    random_state.set_state(before)


@pytest.mark.parametrize("mode", ["minibatches", "gradient", "EP, minibatches"])
def test_resumed_fit_keeps_the_seed_it_began_with(mode, tmp_path, global_random_state):
    X, y = blobs()
    seedless = clone(MODES[mode]).set_params(random_state=None, inducing_points="random")
    global_random_state.seed(7)
    expected = clone(seedless).fit(X, y)
    global_random_state.seed(7)
    model = clone(seedless).set_callbacks(Checkpoint(tmp_path))
    killed(model, 2, X, y)
    global_random_state.seed(8)
    assert_same_model(model.fit(X, y), expected, X)


def test_fit_resumes_only_its_own_checkpoint(tmp_path):
    X, y = blobs()
    model = quick().set_callbacks(Checkpoint(tmp_path))
    killed(model, 3, X, y)
    (file,) = tmp_path.iterdir()
    weights = 1.0 + np.arange(len(X)) % 2
    for other, data in [
        (quick(tol=1e-3), (X, y)),
        (quick(kernel=RBF(2.0)), (X, y)),
        (quick(random_state=1), (X, y)),
        (quick(), (X + 1e-9, y)),
        (quick(), (X.astype(np.float32), y)),
        (quick(), (X[:-1], y[:-1])),
        (quick(), (X, (y + 1) % 3)),
        (quick(), (X, y, weights)),
    ]:
        expected = clone(other).fit(*data)
        assert_same_model(other.set_callbacks(Checkpoint(tmp_path)).fit(*data), expected, X)
        assert list(tmp_path.iterdir()) == [file]
    rest = Recorder()
    model.set_callbacks(Checkpoint(tmp_path), rest).fit(X, y)
    assert rest.iterations() == model.n_iter_ - 3
    assert not list(tmp_path.iterdir())


def test_stream_resumes_from_the_model_it_had(tmp_path):
    X, y = blobs(96)
    old, new = (X[:48], y[:48]), (X[48:], y[48:])
    options = {"kernel": RBF(2.0), "inducing_points": X[:6], "tol": 1e-4}
    first = quick(**options).set_callbacks(Checkpoint(tmp_path)).partial_fit(*old)
    expected = pickle.loads(pickle.dumps(first)).set_callbacks().partial_fit(*new)
    stored = pickle.dumps(first)
    killed(first, 2, *new, method="partial_fit")
    other = quick(**options).fit(X[:30], y[:30])
    other_expected = pickle.loads(pickle.dumps(other)).partial_fit(*new)
    assert_same_model(
        other.set_callbacks(Checkpoint(tmp_path)).partial_fit(*new), other_expected, X
    )
    rest = Recorder()
    resumed = pickle.loads(stored).set_callbacks(Checkpoint(tmp_path), rest)
    assert_same_model(resumed.partial_fit(*new), expected, X)
    assert rest.iterations() == expected.n_iter_ - 2
    assert not list(tmp_path.iterdir())


def test_warm_start_resumes_from_the_model_it_had(tmp_path):
    X, y = blobs(n_classes=2)
    model = quick(warm_start=True).set_callbacks(Checkpoint(tmp_path)).fit(X, y)
    model.set_params(tol=1e-6)
    expected = pickle.loads(pickle.dumps(model)).set_callbacks().fit(X, y)
    killed(model, 2, X, y)
    cold = clone(model)  # the same parameters, but a cold start
    assert_same_model(cold.fit(X, y), quick(tol=1e-6).fit(X, y), X)
    assert_same_model(model.fit(X, y), expected, X)
    assert not list(tmp_path.iterdir())


def test_pipeline_resumes(tmp_path):
    X, y = blobs()
    expected = make_pipeline(StandardScaler(), quick()).fit(X, y)
    pipeline = make_pipeline(
        StandardScaler(), quick().set_callbacks(Checkpoint(tmp_path), Interrupt(3))
    )
    with pytest.raises(Killed):
        pipeline.fit(X, y)
    rest = Recorder()
    pipeline[-1].set_callbacks(Checkpoint(tmp_path), rest)
    assert_array_equal(pipeline.fit(X, y).predict_proba(X), expected.predict_proba(X))
    assert rest.iterations() == expected[-1].n_iter_ - 3
    assert not list(tmp_path.iterdir())


def test_grid_search_resumes_the_fit_that_was_killed(tmp_path):
    X, y = blobs()

    def search(*callbacks):
        pipeline = make_pipeline(StandardScaler(), quick().set_callbacks(*callbacks))
        grid = {"bayesiansvc__n_inducing": [3, 6]}
        return GridSearchCV(pipeline, grid, cv=2, error_score="raise")

    whole, rest = Recorder(), Recorder()
    expected = search(whole).fit(X, y)
    n_first = [task[-1] for task in whole.tasks].index("posterior")  # its iterations
    with pytest.raises(Killed):
        search(Checkpoint(tmp_path), Interrupt(n_first + 2)).fit(X, y)
    resumed = search(Checkpoint(tmp_path), rest).fit(X, y)
    assert rest.iterations() == whole.iterations() - 2
    for scores in ("split0_test_score", "split1_test_score"):
        assert_array_equal(resumed.cv_results_[scores], expected.cv_results_[scores])
    assert_array_equal(resumed.predict_proba(X), expected.predict_proba(X))
    assert not list(tmp_path.iterdir())


def test_one_checkpoint_serves_processes(tmp_path):
    X, y = blobs()
    model = quick().set_callbacks(Checkpoint(tmp_path))
    search = GridSearchCV(model, {"tol": [0.1, 0.01]}, cv=2, n_jobs=2, error_score="raise")
    assert search.fit(X, y).score(X, y) > 0.5
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("every", [0, -1, 1.5, "often", True])
def test_checkpoint_is_saved_every_so_many_iterations(every, tmp_path):
    model = quick().set_callbacks(Checkpoint(tmp_path, every))
    with pytest.raises(ValueError, match=r"every=.* must be an integer of at least 1"):
        model.fit(*blobs())
    assert "_checkpoint" not in vars(model)


@pytest.mark.parametrize("directory", ["", None, 3, b"folder"])
def test_checkpoint_needs_the_path_of_a_folder(directory):
    model = quick().set_callbacks(Checkpoint(directory))
    with pytest.raises(ValueError, match=r"directory=.* must be the path of a folder"):
        model.fit(*blobs())


def test_parameters_that_cannot_be_pickled_are_refused_by_name(tmp_path):
    model = HybridBayesianSVC(lambda: MLP(2, (3,), 2)).set_callbacks(Checkpoint(tmp_path))
    with pytest.raises(ValueError, match=r"module=.* cannot be pickled. Define functions"):
        model.fit(*blobs())


def test_checkpoint_holds_no_code(tmp_path):
    X, y = blobs()
    model = quick().set_callbacks(Checkpoint(tmp_path))
    killed(model, 2, X, y)
    (file,) = tmp_path.iterdir()
    *_, content = file.read_bytes().split(b"\n", 3)
    stages = torch.load(io.BytesIO(content), weights_only=True)
    assert set(stages) == {"seed", "posterior"}
    assert len(stages["posterior"]["curve"]) == 2


class Hostile:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def sealed(header, content):
    """Return a checkpoint with a matching checksum."""
    body = json.dumps(header).encode() + b"\n" + content
    return callbacks._FIRST_LINE + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def spoiled(way, good, path):
    """Return the bytes of a checkpoint, damaged in some way."""
    header = json.loads(good.split(b"\n", 3)[2])
    if way == "empty":
        return b""
    if way == "truncated":
        return good[:-100]
    if way == "another's":
        return sealed({**header, "fit": "another"}, good.split(b"\n", 3)[3])
    if way == "older layout":
        return sealed({**header, "layout": LAYOUT - 1}, good.split(b"\n", 3)[3])
    if way == "no header":
        return sealed([], b"")
    if way == "state of other names":
        stages = torch.load(io.BytesIO(good.split(b"\n", 3)[3]), weights_only=True)
        stages["posterior"]["outline"] = "{}"
        buffer = io.BytesIO()
        torch.save(stages, buffer)
        return sealed(header, buffer.getvalue())
    if way == "flipped":
        return good[:-2000] + bytes([good[-2000] ^ 8]) + good[-1999:]
    hostile = Hostile(path.with_name("touched"))
    if way == "hostile, zipped":
        buffer = io.BytesIO()
        torch.save(hostile, buffer)
        return sealed(header, buffer.getvalue())
    return pickle.dumps(hostile) if way == "hostile" else sealed(header, pickle.dumps(hostile))


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("empty", "is empty, foreign or of an older version"),
        ("hostile", "is empty, foreign or of an older version"),
        ("truncated", "checksum does not match"),
        ("flipped", "checksum does not match"),
        ("another's", "'fit': 'another'"),
        ("older layout", f"'layout': {LAYOUT - 1}"),
        ("no header", r"it is of \[\]"),
        ("hostile, sealed", "content is not that of a checkpoint"),
        ("hostile, zipped", "torch cannot load it"),
        ("state of other names", "is laid out otherwise"),
    ],
)
def test_bad_checkpoint_is_set_aside_by_name(way, reason, tmp_path):
    X, y = blobs()
    model = quick().set_callbacks(Checkpoint(tmp_path))
    killed(model, 3, X, y)
    (file,) = tmp_path.iterdir()
    bad = spoiled(way, file.read_bytes(), file)
    for names in ({f"{file.stem}.bad"}, {f"{file.stem}.bad", f"{file.stem}.bad-2"}):
        file.write_bytes(bad)
        with pytest.warns(UserWarning, match=f"{file.name} cannot be used: .*{reason}"):
            model.fit(X, y)
        assert_same_model(model, quick().fit(X, y), X)
        assert {left.name for left in tmp_path.iterdir()} == names
    assert file.with_suffix(".bad").read_bytes() == bad


def fit_warned_once(model, X, y, match):
    with pytest.warns(UserWarning, match=match) as told:
        model.fit(X, y)
    assert len(told) == 1
    assert_same_model(model, quick().fit(X, y), X)


def test_trouble_with_the_disk_warns_once_and_the_fit_goes_on(tmp_path, monkeypatch):
    X, y = blobs()
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "folder"):
        model = quick().set_callbacks(Checkpoint(folder))
        fit_warned_once(model, X, y, "could not be saved .* The fit goes on")

    class Vanish(Recorder):
        def on_fit_task_end(self, estimator, context):
            shutil.rmtree(tmp_path / "gone", ignore_errors=True)

    model = quick().set_callbacks(Checkpoint(tmp_path / "gone"), Vanish())
    fit_warned_once(model, X, y, "could not be saved .No such file")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    model = quick().set_callbacks(Checkpoint(tmp_path / "full"))
    fit_warned_once(model, X, y, "could not be saved .No space left")
    assert not list((tmp_path / "full").iterdir())


@pytest.mark.skipif(callbacks.fcntl is None, reason="needs flock")
def test_equal_fits_at_once_share_a_folder(tmp_path):
    X, y = blobs()
    first = quick().set_callbacks(Checkpoint(tmp_path))
    second = quick().set_callbacks(Checkpoint(tmp_path))

    class Meanwhile(Recorder):
        """Callback that fits the second estimator in a thread, during the fit of the first."""

        def on_fit_task_end(self, estimator, context):
            super().on_fit_task_end(estimator, context)
            if self.iterations() == 3 == len(self.tasks):
                self.saved = [file.read_bytes() for file in tmp_path.glob("*.checkpoint")]
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(self.fit_other).result()
                assert [file.read_bytes() for file in tmp_path.glob("*.checkpoint")] == self.saved

        def fit_other(self):
            with pytest.warns(UserWarning, match="Another fit .* goes on without being saved"):
                second.fit(X, y)

    meanwhile = Meanwhile()
    first.set_callbacks(Checkpoint(tmp_path), meanwhile).fit(X, y)
    assert meanwhile.saved
    for model in (first, second):
        assert_same_model(model, quick().fit(X, y), X)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:Another fit of the same")
def test_equal_members_of_an_ensemble_share_a_folder(tmp_path):
    X, y = blobs()
    members = [(f"{i}", quick().set_callbacks(Checkpoint(tmp_path))) for i in range(6)]
    voting = VotingClassifier(members, n_jobs=3, voting="soft")
    with parallel_config(backend="threading"):
        voting.fit(X, y)
    assert_array_equal(voting.estimators_[0].predict_proba(X), quick().fit(X, y).predict_proba(X))
    assert not list(tmp_path.iterdir())


class Store(Recorder):
    """Callback that pickles the estimator during the fit."""

    stored = None

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if fitted_estimator is not None:
            self.stored = pickle.dumps(fitted_estimator.set_callbacks())


def test_fit_inside_a_callback_can_be_pickled(tmp_path):
    X, y = blobs()
    store = Store()
    model = quick().set_callbacks(Checkpoint(tmp_path), store).fit(X, y)
    assert_array_equal(pickle.loads(store.stored).predict_proba(X), model.predict_proba(X))


# Fits that end by an error or an interrupt leave no partly fitted model

REGRESSORS = {
    "SVGPRegressor": SVGPRegressor(n_inducing=6, random_state=0),
    "DecoupledGPRegressor": DecoupledGPRegressor(n_inducing=6, random_state=0),
    "QSGPRegressor": QSGPRegressor(n_basis=20, n_inducing=6, random_state=0),
    "QSRVMRegressor": QSRVMRegressor(n_basis=20, max_iter=5, tol=99, random_state=0),
    "QSRVMClassifier": QSRVMClassifier(n_basis=20, max_iter=5, tol=99, random_state=0),
    "SVGPClassifier": SVGPClassifier(n_inducing=6, max_iter=3, tol=9, random_state=0),
    "AdditiveGPRegressor": AdditiveGPRegressor(interactions=None, random_state=0),
    "HybridSVGPRegressor": HybridSVGPRegressor(n_inducing=6, max_iter=2, random_state=0),
}
_SOME = "learned kernel", "EP", "additive", "decoupled", "hybrid", "hybrid, early stopping"
_STEPS = "quadruply stochastic, steps", "decoupled, stochastic gradients"
EACH = {name: MODES[name] for name in _SOME + _STEPS} | REGRESSORS
every_estimator = pytest.mark.parametrize("model", EACH.values(), ids=EACH)


def interrupted(model, n, *args, method="fit"):
    with pytest.raises(KeyboardInterrupt):
        getattr(model.set_callbacks(Interrupt(n, KeyboardInterrupt)), method)(*args)
    model.set_callbacks()


@every_estimator
def test_interrupted_fit_leaves_the_estimator_unfitted_as_a_whole(model):
    X, y = blobs()
    model = clone(model).fit(X, y)
    interrupted(model, 1, X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert not [name for name in vars(model) if name.endswith("_")]


@every_estimator
def test_interrupted_further_fit_leaves_the_model_as_it_was(model):
    X, y = blobs()
    model = clone(model).fit(X, y)
    continued = [name for name in ("partial_fit",) if hasattr(model, name)]
    if "warm_start" in model.get_params():
        model.set_params(warm_start=True)
        continued.append("fit")
    if getattr(model, "sparse_", True) is False:
        continued.remove("partial_fit")  # a model without inducing points does not support it
    for method in continued:
        before = {name: joblib.hash(value) for name, value in vars(model).items()}
        interrupted(model, 0, X[:-1], y[:-1], method=method)
        with pytest.raises(ValueError, match="3 features"):
            getattr(model, method)(np.zeros((3, 3)), y[:3])
        assert {name: joblib.hash(value) for name, value in vars(model).items()} == before


def test_refit_leaves_no_attribute_of_the_model_before():
    X, y = blobs()
    model = AdditiveGPRegressor(interactions=None, random_state=0).fit(X, y)
    assert model.noise_variance_ > 0
    model.set_params(likelihood="poisson").fit(X, y)
    assert vars(model).keys() == vars(clone(model).fit(X, y)).keys()


# Other callbacks


def test_callbacks_see_a_tree_of_stages_and_iterations():
    X, y = blobs(96)
    recorder = Recorder()
    model = quick(optimizer="auto").set_callbacks(recorder).fit(X, y)
    assert recorder.tasks[-1] == ("fit",)
    stages = [task[-1] for task in recorder.tasks if len(task) == 2]
    # A search of the kernel with these length scales follows only where they predict better.
    assert stages == ["kernel", "length scales", "posterior"]
    assert recorder.iterations("posterior") == model.n_iter_


@modes
def test_scores_of_every_iteration(mode, monkeypatch):
    # Otherwise the untrained network may be kept, which is no iteration.
    monkeypatch.setattr(_training, "is_significant_gain", lambda *_: True)
    X, y = blobs()
    table = pd.DataFrame(X, columns=["a", "b"])  # predictions require these names
    monitor = ScoringMonitor(scoring=["accuracy", "neg_log_loss"])
    model = clone(mode).set_callbacks(monitor).fit(table, y)
    assert_same_model(model, clone(mode).fit(table, y), table)
    log = pd.DataFrame(monitor.get_logs().data)
    last = log[log.task_name == "fit"]
    assert last.accuracy.item() == model.score(table, y)
    iterations = log[log.task_name == "iteration"]
    if one_by_one(mode):  # the model of a single class has no score
        assert not len(iterations)
        return
    assert len(iterations) == model.n_iter_
    kept, n = -1, len(iterations)
    stops_early = getattr(mode, "early_stopping", False)
    by_conjugate_gradients = mode in (MODES["decoupled"], MODES["quadruply stochastic"])
    if stops_early or by_conjugate_gradients:
        kept = iterations.neg_log_loss.tolist().index(last.neg_log_loss.item())
        # A fit by conjugate gradients undoes a last step that has lowered the ELBO.
        assert kept < n - 1 if stops_early else kept >= n - 2
    assert iterations.neg_log_loss.iloc[kept] == last.neg_log_loss.item()
    assert iterations.neg_log_loss.iloc[kept] > -np.log(3)


def test_scores_of_one_of_two_classes():
    X, y = blobs(n_classes=2)
    monitor = ScoringMonitor(scoring="roc_auc")
    model = quick(multi_class="ovr").set_callbacks(monitor).fit(X, y)
    log = pd.DataFrame(monitor.get_logs().data)
    assert (log.task_name == "iteration").sum() == model.n_iter_


def test_scores_while_the_collapsed_bound_is_learned():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=100)
    monitor = ScoringMonitor(scoring="r2")
    model = SVGPRegressor(mean="zero", n_inducing=20, random_state=0)
    model.set_callbacks(monitor).fit(X, y)
    log = pd.DataFrame(monitor.get_logs().data)
    scores = log[log.task_name == "iteration"].r2
    assert len(scores) > model.n_iter_
    assert scores.min() < scores.iloc[-1] == model.score(X, y)


def test_progress_bar(capsys):
    X, y = blobs()
    quick().set_callbacks(ProgressBar()).fit(X, y)
    shown = capsys.readouterr().out
    assert "BayesianSVC - fit" in shown
    assert "BayesianSVC - posterior #0 " in shown


def test_progress_bar_of_a_search_reaches_its_fits(capsys):
    X, y = blobs()
    search = GridSearchCV(quick(), {"tol": [0.1, 0.01]}, cv=2)
    search.set_callbacks(ProgressBar(max_propagation_depth=None)).fit(X, y)
    assert capsys.readouterr().out.count("posterior") == 5


def test_callbacks_of_the_guide_in_a_pipeline_in_a_search(capsys, tmp_path):
    X, y = blobs()
    step = quick().set_callbacks(
        monitor := ScoringMonitor(scoring="accuracy"), Checkpoint(tmp_path)
    )
    pipeline = make_pipeline(StandardScaler(), step)
    search = GridSearchCV(pipeline, {"bayesiansvc__tol": [0.1, 0.01]}, cv=2, error_score="raise")
    search.set_callbacks(ProgressBar(max_propagation_depth=None)).fit(X, y)
    shown = capsys.readouterr().out
    assert "GridSearchCV - fit" in shown
    assert shown.count("posterior") == 5
    (log,) = monitor.get_logs(select="all")  # the log of one run, that of the search
    assert (log.data_as_pandas["task_name"] == "fit").sum() == 5
    assert not list(tmp_path.iterdir())


def test_progress_bar_belongs_on_the_outermost():
    X, y = blobs()
    bar = ProgressBar(max_propagation_depth=None)
    pipeline = make_pipeline(StandardScaler(), quick().set_callbacks(bar))
    for meta in (
        pipeline,
        GridSearchCV(pipeline, {"bayesiansvc__tol": [0.1]}, cv=2, error_score="raise"),
    ):
        with pytest.raises(TypeError, match="Register them directly on the meta-estimator"):
            meta.fit(X, y)


def test_checkpoint_belongs_on_the_estimator(tmp_path):
    X, y = blobs()
    pipeline = make_pipeline(StandardScaler(), quick())
    for meta in (pipeline, GridSearchCV(quick(), {"tol": [0.1]}, cv=2)):
        with pytest.raises(TypeError, match=r"set on (Pipeline|GridSearchCV)\. Set it on the est"):
            meta.set_callbacks(Checkpoint(tmp_path)).fit(X, y)


class StopAt(Recorder):
    """Callback that ends a stage after a number of iterations."""

    def __init__(self, n, stage="posterior"):
        super().__init__()
        self.n, self.stage = n, stage

    def on_fit_task_end(self, estimator, context):
        super().on_fit_task_end(estimator, context)
        in_stage = self.tasks[-1][-2:] == (self.stage, "iteration")
        return in_stage and self.iterations(self.stage) == self.n


@modes
def test_callback_stops_a_fit(mode):
    X, y = blobs()
    hybrid = isinstance(mode, HybridBayesianSVC | HybridSVGPClassifier)
    model = clone(mode).set_params(max_iter=8)
    by_steps = isinstance(getattr(mode, "solver", None), QuadruplyStochastic | StochasticGradient)
    if not hybrid and not by_steps:  # whose `tol` would have no effect
        model.set_params(tol=0)
    stage = "class 0: posterior" if one_by_one(mode) else "posterior"
    stage = "effects" if isinstance(mode, AdditiveGPClassifier) else stage
    stage = "network" if hybrid else stage
    others = "class" in stage or not getattr(mode, "sparse", True)
    with warnings.catch_warnings():
        # The models of the other classes, or of all rows, continue, and do not converge.
        warnings.simplefilter("ignore" if others else "error", ConvergenceWarning)
        model.set_callbacks(StopAt(2, stage)).fit(X, y)
    if not others:
        assert model.n_iter_ == 2
        assert model.objective_curve_.shape == (2,)
    assert model.score(X, y) > 0.4


def test_stop_ends_one_stage_only():
    X, y = blobs()
    stop = StopAt(1, "kernel")
    model = quick(optimizer="auto").set_callbacks(stop).fit(X, y)
    assert stop.iterations("kernel") == 1
    assert model.n_iter_ > 1


def test_stop_is_kept_in_the_checkpoint(tmp_path):
    X, y = blobs(96)
    expected = quick(optimizer="auto").set_callbacks(StopAt(1, "kernel")).fit(X, y)
    model = quick(optimizer="auto")
    interrupt = Interrupt(5)
    with pytest.raises(Killed):
        model.set_callbacks(Checkpoint(tmp_path), StopAt(1, "kernel"), interrupt).fit(X, y)
    rest = Recorder()
    model.set_callbacks(Checkpoint(tmp_path), rest).fit(X, y)
    assert rest.iterations("kernel") == 0
    assert_same_model(model, expected, X)


class EarlyStopping(Recorder):
    """Callback that ends a fit when the log loss on other rows no longer falls."""

    def __init__(self, X, y):
        super().__init__()
        self.X, self.y, self.losses = X, y, []

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if context.task_name != "iteration" or fitted_estimator is None:
            return False
        self.losses.append(log_loss(self.y, fitted_estimator.predict_proba(self.X)))
        return len(self.losses) > 1 and self.losses[-1] > self.losses[-2] - 1e-3


def test_early_stopping_on_rows_of_the_user():
    X, y = blobs(96)
    stopping = EarlyStopping(X[48:], y[48:])
    model = quick(tol=0).set_callbacks(stopping).fit(X[:48], y[:48])
    assert 1 < model.n_iter_ < 100
    assert len(stopping.losses) == model.n_iter_
    assert stopping.losses[-1] == log_loss(y[48:], model.predict_proba(X[48:]))


def test_callbacks_are_no_state_of_the_model():
    X, y = blobs()
    model = quick().set_callbacks(Recorder()).fit(X, y)
    assert set(vars(model)) == {*vars(quick().fit(X, y)), "_skl_callbacks"}
