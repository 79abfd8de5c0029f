"""Faults: killed fits, damaged files and fuzzed fits, over all estimators.

The report counts the outcomes. The exit status is an error if an outcome is wrong:

- a resumed fit is not bit-equal to an uninterrupted one;
- a rank outlives another that was killed without a `DistributedError`, or longer than the time-out;
- a damaged file gives another model, or takes much memory;
- a fuzzed fit has a result that is not finite and well formed, or raises an error that comes
  neither from the package nor from scikit-learn's validation.

Run it by ``python -m benchmarks.faults [kills ranks damage fuzz]``; ``--help`` lists the options.
Trial I of a seed is always the same, except for the moment of a kill. POSIX only; one thread.
"""

import argparse
import gc
import hashlib
import io
import itertools
import json
import os
import pickle
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.base import clone, is_classifier
from sklearn.gaussian_process.kernels import RBF

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
)
from skgpsvm.callbacks import Checkpoint
from skgpsvm.exceptions import DistributedError
from skgpsvm.solvers import InterleavedEP, QuadruplyStochastic, StochasticGradient

from . import _fuzz

TRIALS = {"kills": 300, "ranks": 630, "damage": 500, "fuzz": 5000}
MAX_MEMORY = 200 * 2**20  # bytes by which memory may grow when a damaged file is read
_LONGEST = 900  # seconds after which a child process is considered hung
_TIMEOUT = 20  # seconds after which a rank gives up on another

_small = {"n_inducing": 6, "random_state": 0}
_net = {"module_params": {"hidden_layer_sizes": (4,), "n_outputs": 3}, **_small}
FITS = {
    "BayesianSVC": BayesianSVC(**_small),
    "BayesianSVC, gradient": BayesianSVC(solver="gradient", tol=0.1, **_small),
    "EPClassifier": EPClassifier(max_iter=12, **_small),
    "EPClassifier, minibatches": EPClassifier(
        solver=InterleavedEP(batch_size=8), max_iter=12, **_small
    ),
    "EPClassifier, GFITC": EPClassifier(solver="gfitc", max_iter=6, **_small),
    "SVGPRegressor": SVGPRegressor(max_iter=5, **_small),
    "SVGPRegressor, natural": SVGPRegressor(solver="natural_gradient", max_iter=6, **_small),
    "SVGPClassifier": SVGPClassifier(max_iter=10, **_small),
    "DecoupledGPRegressor": DecoupledGPRegressor(**_small),
    "DecoupledGPClassifier": DecoupledGPClassifier(max_iter=10, **_small),
    "DecoupledGPClassifier, sgd": DecoupledGPClassifier(
        solver=StochasticGradient(batch_size=16), max_iter=10, **_small
    ),
    "QSGPRegressor": QSGPRegressor(n_basis=20, **_small),
    "QSGPClassifier": QSGPClassifier(n_basis=20, max_iter=10, **_small),
    "QSGPClassifier, sgd": QSGPClassifier(
        solver=QuadruplyStochastic(batch_size=16),
        covariance="chevron",
        n_basis=20,
        max_iter=10,
        **_small,
    ),
    "QSRVMRegressor": QSRVMRegressor(RBF(), optimizer=None, max_iter=10, random_state=0),
    "QSRVMClassifier": QSRVMClassifier(RBF(), optimizer=None, max_iter=10, random_state=0),
    "AdditiveGPRegressor": AdditiveGPRegressor(max_iter=6, random_state=0),
    "AdditiveGPClassifier": AdditiveGPClassifier(
        n_inducing=5, terms=[..., (0, 1)], interactions=None, max_iter=6, random_state=0
    ),
    "HybridBayesianSVC": HybridBayesianSVC(max_iter=8, **_net),
    "HybridSVGPClassifier": HybridSVGPClassifier(max_iter=8, **_net),
    "HybridSVGPRegressor": HybridSVGPRegressor(max_iter=8, **_net),
}


def data_of(model):
    """Return rows and targets for a model."""
    rng = np.random.RandomState(0)
    codes = np.arange(36) % 3
    X = 1.5 * rng.normal(size=(3, 2))[codes] + rng.normal(size=(36, 2))
    return X, (codes if is_classifier(model) else np.sin(X[:, 0]) + 0.1 * X[:, 1])


def fitted(name, *callbacks):
    """Return the fitted model of a name in `FITS`, and the messages of its warnings."""
    model = clone(FITS[name]).set_callbacks(*callbacks)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(*data_of(model))
    return model, [str(one.message) for one in told]


def digest(model):
    """Return a hash of a model's fitted attributes and predictions."""
    X, _ = data_of(model)
    parts = {name: value for name, value in vars(model).items() if name.endswith("_")}
    parts["predictions"] = model.predict(X)
    parts["moments"] = model.latent_mean_and_variance(X)
    if is_classifier(model):
        parts["probabilities"] = model.predict_proba(X)
    return hashlib.sha256(repr(_bits(parts)).encode()).hexdigest()


def _bits(value):
    if isinstance(value, dict):
        return sorted((repr(name), _bits(part)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return [_bits(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return (repr(value), value.theta.tolist()) if hasattr(value, "theta") else repr(value)


# Children


class Child:
    """Forked process that calls a function once and sends back its result."""

    def __init__(self, function, *args):
        receive, send = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            os.close(receive)
            signal.alarm(_LONGEST)
            try:
                found = pickle.dumps((function(*args), None))
            except BaseException:
                found = pickle.dumps((None, traceback.format_exc()))
            with os.fdopen(send, "wb") as pipe:
                pipe.write(found)
            os._exit(0)
        os.close(send)
        self._pipe = os.fdopen(receive, "rb")

    def kill(self):
        """Kill the process by SIGKILL, and return whether it was still running."""
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        self._pipe.close()
        return os.WIFSIGNALED(status)

    def result(self):
        """Return the function's result; raise RuntimeError with its traceback if it failed."""
        with self._pipe:
            found = self._pipe.read()
        _, status = os.waitpid(self.pid, 0)
        result, failure = pickle.loads(found) if found else (None, f"ended with status {status}")
        if failure:
            raise RuntimeError(failure)
        return result


def in_child(function, *args):
    """Return the result of a function that is called in its own process."""
    return Child(function, *args).result()


# Kills


def saved_fit(name, folder):
    """Return the digest and warnings of a fit that saves checkpoints."""
    model, told = fitted(name, Checkpoint(folder))
    return digest(model), [message for message in told if "checkpoint" in message]


def timed_fit(name):
    """Return seconds and digest of a fit that saves checkpoints, and digest of a fit without."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        found, _ = saved_fit(name, folder)
        return time.monotonic() - start, found, digest(fitted(name)[0])


def kills(trials, first, seed, count):
    """Kill each fit one to three times at random moments, then let it end."""
    known, done, i = {}, 0, first
    while done < trials:
        rng = np.random.default_rng([seed, 0, i])
        name = list(FITS)[i % len(FITS)]
        i += 1
        if name not in known:
            seconds, found, expected = in_child(timed_fit, name)
            count(name, "a checkpoint changes the model", found != expected)
            known[name] = seconds, expected
        seconds, expected = known[name]
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(rng.integers(1, 4)):
                child = Child(saved_fit, name, folder)
                time.sleep(rng.uniform(0.02, 1) * seconds)
                if not child.kill():
                    break
                done += 1
                resumes = any(Path(folder).glob("*.checkpoint"))
                count(name, "killed, resumes" if resumes else "killed before its first save")
            found, told = in_child(saved_fit, name, folder)
            count(name, "another model after a kill", found != expected)
            count(name, "a warning after a kill", bool(told))
            count(name, "files are left", any(Path(folder).iterdir()))
    return {"another model after a kill", "a checkpoint changes the model"} | {
        "a warning after a kill",
        "files are left",
    }


# Ranks


def shared_fit(name, folder, rank, attempt):
    """Return the digest of a fit that two ranks share, or "refused" if the other one has died.

    It is "apart" if the other died before the process group was formed, of which torch tells.
    """
    model = clone(FITS[name]).set_callbacks(Checkpoint(Path(folder) / f"rank-{rank}"))
    if name == "AdditiveGPRegressor":
        model.set_params(sparse=True)
    X, y = data_of(model)
    meeting, timeout = f"file://{folder}/attempt-{attempt}", timedelta(seconds=_TIMEOUT)
    try:
        dist.init_process_group("gloo", meeting, timeout, world_size=2, rank=rank)
    except RuntimeError:
        return "apart"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X[rank::2], y[rank::2])
    except DistributedError:
        return "refused"
    return digest(model)


def _start_ranks(name, folder, attempt):
    return [Child(shared_fit, name, folder, rank, attempt) for rank in range(2)]


def _timed_ranks(name):
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        found = [child.result() for child in _start_ranks(name, folder, 0)]
        return time.monotonic() - start, found


def _killed_rank(name, folder, seconds, rng):
    """Kill one of two ranks in their fit; return result and number of the other, and its time."""
    for attempt in itertools.count():
        children = _start_ranks(name, folder, attempt)
        time.sleep(rng.uniform(0.02, 1) * seconds)
        other = int(rng.integers(2))
        killed, start = children[1 - other].kill(), time.monotonic()
        found = children[other].result()
        if killed and found != "apart":
            return found, other, time.monotonic() - start


def ranks(trials, first, seed, count):
    """Kill one of two ranks of each fit at a random moment, then let both end."""
    known = {}
    for i in range(first, first + trials):
        rng = np.random.default_rng([seed, 3, i])
        name = list(FITS)[i % len(FITS)]
        if name not in known:
            known[name] = in_child(_timed_ranks, name)
        seconds, expected = known[name]
        with tempfile.TemporaryDirectory() as folder:
            found, other, waited = _killed_rank(name, folder, seconds, rng)
            count(name, "the other rank ends too late", waited > _TIMEOUT + seconds)
            count(name, "the other rank is refused" if found == "refused" else "it had ended")
            count(
                name, "the other rank has another model", found not in ("refused", expected[other])
            )
            resumes = any(Path(folder).rglob("*.checkpoint"))
            count(name, "resumes" if resumes else "starts anew")
            found = [child.result() for child in _start_ranks(name, folder, "last")]
            count(name, "another model after a kill", found != expected)
            count(name, "files are left", any(Path(folder).rglob("*.checkpoint")))
    return {
        "the other rank ends too late",
        "the other rank has another model",
        "another model after a kill",
        "files are left",
    }


# Damage


class _Stop(Exception):
    pass


class _StopAt:
    """Callback that ends a fit before an iteration."""

    def __init__(self, n):
        self.n = n

    def setup(self, estimator, context):
        """Do nothing."""

    def teardown(self, estimator, context):
        """Do nothing."""

    def on_fit_task_begin(self, estimator, context):
        """Count the iterations, and end the fit when none is left."""
        if context.task_name == "iteration":
            if self.n == 0:
                raise _Stop
            self.n -= 1

    def on_fit_task_end(self, estimator, context):
        """Do nothing."""


def checkpoint_of(name, n):
    """Return name and bytes of the checkpoint of a fit that ended before iteration n."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            fitted(name, Checkpoint(folder), _StopAt(n))
        except _Stop:
            (file,) = Path(folder).iterdir()
            return file.name, file.read_bytes()
    return checkpoint_of(name, 1)


def weights_of(name):
    """Return the bytes of a fit's weight file, and the digest of the fit."""
    model, _ = fitted(name)
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(Path(folder) / "weights")
        return (Path(folder) / "weights").read_bytes(), digest(model)


def _damaged(rng, good):
    """Return a random way to damage bytes, and the damaged bytes."""
    n = len(good)
    at, size = int(rng.integers(n)), int(rng.integers(1, 200))
    ways = {
        "one bit": lambda: good[:at] + bytes([good[at] ^ (1 << rng.integers(8))]) + good[at + 1 :],
        "some bytes": lambda: good[:at] + rng.bytes(size) + good[at + size :],
        "zeros": lambda: good[:at] + bytes(size) + good[at + size :],
        "truncated": lambda: good[:at],
        "a piece is missing": lambda: good[:at] + good[at + size :],
        "a piece twice": lambda: good[: at + size] + good[at:],
        "longer": lambda: good + rng.bytes(size),
        "garbage": lambda: rng.bytes(size * 50),
        "garbage after its beginning": lambda: good[: min(at, 100)] + rng.bytes(size * 50),
        "empty": lambda: b"",
        "a pickle": lambda: pickle.dumps({"seed": 0}),
        "a file of torch": lambda: _torch_bytes({"seed": 0}),
    }
    way = str(rng.choice([*ways]))
    return way, ways[way]()


def _torch_bytes(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _forged_checkpoint(rng, good):
    """Return a way to forge a checkpoint with a matching checksum, and the forged bytes."""
    line, _, header, content = good.split(b"\n", 3)
    told = json.loads(header)
    huge = {"seed": torch.zeros(1).expand(10**9, 10**9)}
    ways = {
        "forged: another fit": (told | {"fit": "BayesianSVC-0"}, content),
        "forged: another layout": (told | {"layout": 10**9}, content),
        "forged: another version": (told | {"version": "9.0"}, content),
        "forged: no header": ([], content),
        "forged: a pickle": (told, pickle.dumps(_Hostile())),
        "forged: a hostile pickle": (told, _torch_bytes(_Hostile())),
        "forged: a huge tensor": (told, _torch_bytes(huge)),
        "forged: a list": (told, _torch_bytes([1, 2])),
    }
    way = str(rng.choice([*ways]))
    told, content = ways[way]
    body = json.dumps(told).encode() + b"\n" + content
    return way, line + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


class _Hostile:
    def __reduce__(self):
        return os._exit, (66,)


_METADATA = {
    "n_features_in_": (10**9, -1, 0, 2.0, "2", None, [2], 3),
    "input_shape_": ([10**9], [2, 10**9], [-2], [], None, "2", [[2]], [3]),
    "classes_": (
        None,
        [],
        [1],
        {"array": [0, 1], "dtype": "<i8"},
        {"array": [0], "dtype": "<U9"},
        {"array": ["a", "b", "c"], "dtype": "<U1000000000"},
        {"array": [0, 1, 2], "dtype": "V9"},
    ),
    "temperature_": (None, -1, "1", [1.0], {"array": [[1]], "dtype": "x"}, 1e400),
    "spread_": (None, -1, "1", float("nan")),
    "intercept_": (None, 1.0, {"array": [float("nan")], "dtype": "<f8"}),
    "noise_variance_": (None, -1, "1", {"array": [-1.0], "dtype": "<f8"}),
    "n_iter_": (None, -1, "1", [1]),
    "objective_curve_": (None, 1, "1", {"array": [[1.0]], "dtype": "<f8"}),
    "predict": (1, "x"),
    "max_iter": (10**9,),
    "_latents": (1,),
    "_y_mean": (None, {"array": [], "dtype": "<f8"}, {"array": [1.0, 2.0], "dtype": "<f8"}),
    "_y_std": (None, 0, {"array": [0.0], "dtype": "<f8"}, {"array": [-1.0], "dtype": "<f8"}),
    "_y_ndim": (None, -1, 3, "1"),
    "_likelihood": (None, 1, "nothing"),
}


def _forged_weights(rng, good):
    """Return a way to forge a weight file with a matching checksum, and the forged bytes."""
    from safetensors.numpy import load, save

    from skgpsvm.hybrid._weights import checksum

    size = struct.unpack("<Q", good[:8])[0]
    metadata = json.loads(good[8 : 8 + size])["__metadata__"]
    weights, told = load(good), json.loads(metadata["skgpsvm"])
    way = str(rng.choice(["metadata", "value", "shape", "name", "dtype", "structure", "nesting"]))
    tensor = str(rng.choice(sorted(weights)))
    array = weights[tensor]
    if way == "metadata":
        name = str(rng.choice([*_METADATA]))
        tried = _METADATA[name]
        told["attributes"][name] = tried[rng.integers(len(tried))]
        way = f"metadata {name}"
    elif way == "value":
        tensor, array = "mean", weights["mean"]
        weights[tensor] = array.copy()
        weights[tensor].flat[rng.integers(array.size)] = [np.nan, np.inf][rng.integers(2)]
    elif way == "shape":
        shapes = [(0,), (1,), (*array.shape, 1), (10**6, 0), (10**9, 0), (7, 7)]
        shapes = [shape for shape in shapes if shape != array.shape]
        shape = shapes[rng.integers(len(shapes))]
        weights[tensor] = np.ones(shape, array.dtype)
    elif way == "name":
        weights[f"{tensor}x"] = weights.pop(tensor)
    elif way == "dtype":
        weights[tensor] = array.astype(np.float16)
    elif way == "structure":
        name = str(rng.choice([*told]))
        values = [None, "x", [], {}, {"a": []}, -(10**9)]
        told[name] = values[rng.integers(len(values))]
        way = f"structure {name}"
    text = json.dumps(told)
    if way == "nesting":
        text = "[" * 100_000
    metadata = {"skgpsvm": text, "sha256": checksum(weights, text)}
    return f"forged: {way.split()[0]}", save(weights, metadata)


def _within_memory(function):
    """Return the result of a function, and the peak growth of memory in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, limits = _memory("VmRSS"), resource.getrlimit(resource.RLIMIT_AS)
    # The address space is limited too: it includes memory that is allocated but not touched.
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + MAX_MEMORY, limits[1]))
    found = function()
    resource.setrlimit(resource.RLIMIT_AS, limits)
    return found, _memory("VmHWM") - before


def _memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def resumed(name, file, content):
    """Return digest, warnings, memory and remaining files of a fit that finds a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / file).write_bytes(content)
        (found, told), grown = _within_memory(lambda: saved_fit(name, folder))
        kept = sorted(path.suffix for path in Path(folder).iterdir())
    return found, told, grown, kept


def loaded(name, content):
    """Return the digest of a model loaded from a weight file or the refusal, and the memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights"
        path.write_bytes(content)
        model = clone(FITS[name])

        def load():
            try:
                model.load_weights(path)
            except ValueError as error:
                return None, str(error)
            return model, None

        (model, refusal), grown = _within_memory(load)
    return model and digest(model), refusal, grown


def damage(trials, first, seed, count):
    """Damage checkpoints and weight files, and try to use them."""
    hybrids = [name for name in FITS if name.startswith("Hybrid")]
    expected, weights = {}, {}
    for i in range(first, first + trials):
        rng = np.random.default_rng([seed, 1, i])
        forged = rng.random() < 0.3
        if i % 2:
            name = hybrids[i // 2 % len(hybrids)]
            if name not in weights:
                weights[name] = in_child(weights_of, name)
            good, same = weights[name]
            way, bad = (_forged_weights if forged else _damaged)(rng, good)
            found, refusal, grown = in_child(loaded, name, bad)
            what = f"weights, {way}"
            count(what, "refused" if refusal else "the same model" if found == same else "loaded")
            other = found is not None and found != same and not forged
            count(what, "another model from damaged weights", other)
            count(what, "forged weights were loaded", found is not None and forged and bad != good)
        else:
            name = list(FITS)[i // 2 % len(FITS)]
            if name not in expected:
                expected[name] = in_child(lambda name=name: digest(fitted(name)[0]))
            file, good = in_child(checkpoint_of, name, int(rng.integers(1, 6)))
            way, bad = (_forged_checkpoint if forged else _damaged)(rng, good)
            found, told, grown, kept = in_child(resumed, name, file, bad)
            what = f"checkpoint, {way}"
            named = [message for message in told if file in message and "cannot be used" in message]
            count(what, "set aside" if named else "resumed")
            count(what, "another model from a damaged checkpoint", found != expected[name])
            count(what, "no word of a damaged checkpoint", bad != good and not named)
            count(what, "a bad file is not set aside", kept != [".bad"] * bool(named))
        count(what, "took more than 200 MiB", grown > MAX_MEMORY)
    return {
        "another model from damaged weights",
        "forged weights were loaded",
        "another model from a damaged checkpoint",
        "no word of a damaged checkpoint",
        "a bad file is not set aside",
        "took more than 200 MiB",
    }


# Fuzzing


def fuzz(trials, first, seed, count):
    """Fit all kinds of data with all kinds of parameters, and count the outcomes."""
    for i in range(first, first + trials):
        name, outcome, told = _fuzz.attempt(seed, i)
        count(name, outcome)
        if outcome in _fuzz.WRONG:
            print(f"trial {i}: {told}", flush=True)
    return _fuzz.WRONG


# All kinds


def run(kinds, trials, first, seed):
    """Return tables of counts, a list of texts, and the wrong outcomes, a Counter."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # triggers lazy imports before the forks
    texts, wrong = [], Counter()
    for kind in kinds:
        counts, start = Counter(), time.process_time()

        def count(name, outcome, happened=True, kind=kind, counts=counts):
            counts[name, outcome] += happened
            if (so_far := counts.total()) and happened and not so_far % 100:
                print(f"{kind}: {so_far} outcomes", file=sys.stderr, flush=True)

        bad = {"kills": kills, "ranks": ranks, "damage": damage, "fuzz": fuzz}[kind](
            trials[kind], first, seed, count
        )
        for (_, outcome), n in counts.items():
            wrong[outcome] += n * (outcome in bad)
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime + time.process_time() - start
        texts.append(_table(kind, counts, bad, f"{first} to {first + trials[kind] - 1}", used))
    return texts, wrong


def _table(kind, counts, bad, which, used):
    outcomes = Counter()
    for (_, outcome), n in counts.items():
        outcomes[outcome] += n
    lines = [f"{kind}: trials {which}, {used / 60:.1f} processor-minutes"]
    for outcome in sorted(outcomes, key=lambda outcome: (outcome in bad, outcome)):
        lines.append(f"{outcomes[outcome]:6d}  {outcome}{' (must be 0)' * (outcome in bad)}")
    lines.append("by estimator or damage:")
    for name in sorted({name for name, _ in counts}):
        own = {o: n for (who, o), n in sorted(counts.items()) if who == name and n}
        lines.append(f"  {name}: {', '.join(f'{n} {o}' for o, n in own.items())}")
    return "\n".join(lines)


def main():
    """Run all trials, or the requested ones, and write the report."""
    from . import _report

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="kind", help=", ".join(TRIALS))
    parser.add_argument("--trials", type=int, help="of each kind")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few of each, printed only")
    options = parser.parse_args()
    kinds = options.kinds or list(TRIALS)
    trials = {kind: 20 if options.quick else options.trials or TRIALS[kind] for kind in TRIALS}
    torch.set_num_threads(1)
    texts, wrong = run(kinds, trials, options.first, options.seed)
    title = f"Faults: {', '.join(kinds)}"
    parts = [_report.header(title, threads=1, seed=options.seed), *texts]
    whole = options.first == 0 and not (options.quick or options.trials)
    _report.publish(f"faults-{'-'.join(kinds)}", parts, write=whole)
    if wrong.total():
        sys.exit(f"wrong: {dict(wrong)}")


if __name__ == "__main__":
    main()
