"""Fits that three processes share: equal models, the model of all rows, failures reported."""

import os
import re
import subprocess
import sys
from functools import cache
from itertools import permutations
from pathlib import Path

import joblib
import numpy as np
import pytest
import shared_fits
import torch
from every_estimator import ESTIMATORS
from every_estimator import problem as data
from numpy.testing import assert_allclose, assert_array_equal
from problems import assert_all_close, rows_of
from shared_fits import BATCHES, CONTINUED, FITS, ONE_BATCH, STREAMS, N, fit, problem, stream
from sklearn.base import clone

from skgpsvm import AdditiveGPClassifier, AdditiveGPRegressor, SVGPRegressor
from skgpsvm._distributed import (
    all_sum,
    check_equal,
    gather,
    n_ranks,
    raise_on_all_ranks,
    rank,
)
from skgpsvm.exceptions import DistributedError

ROOT = Path(__file__).parents[1]
# Tolerances of fits by L-BFGS-B, whose path amplifies the rounding of sums.
LEARNED = {"gfitc": 1e-7, "svgp, learned": 1e-9, "svgp, heteroscedastic": 1e-9}
# Those of coefficients of kernels at near points, and of products of smooth functions' features,
# where rounding is amplified: an error of 2e-16 in each sum of an additive model changes those of
# two and three classes by 3e-7, those of student_t by 6e-5, and predictions by 1e-11.
COEFFICIENTS = {
    "additive": 1e-4,
    "additive, uniform": 1e-4,
    "additive, student_t": 1e-4,
    "additive, known noise": 1e-5,
    "additive, two classes": 1e-6,
    "additive, three classes": 1e-6,
    "additive, sources": 1e-4,
    "decoupled, some bases": 1e-7,
    "decoupled, panels": 1e-7,
    "decoupled, softmax": 1e-7,
    "decoupled, two classes": 1e-4,
    "qs, chevron": 1e-5,
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return the results of three ranks that torchrun starts."""
    folder = tmp_path_factory.mktemp("ranks")
    joblib.dump({name: alone(name, "continued") for name in CONTINUED}, folder / "starts.joblib")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = subprocess.run(
        [sys.executable, *launch, shared_fits.__file__, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return [joblib.load(folder / f"{i}.joblib") for i in range(3)]


@cache
def alone(name, group="fitted"):
    """Return the fit of one process that has all rows; it is shared, so tests do not change it."""
    return fit(name, fits={"fitted": FITS, "batches": BATCHES, "continued": CONTINUED}[group])


def numbers(model):
    """Return all learned numbers of a model as one vector."""
    names, found = ("Z", "mean", "root"), []
    for latent in model._latents:
        if isinstance(model, AdditiveGPClassifier | AdditiveGPRegressor):
            found += [*latent.theta.values(), *latent.arrays.values()]
            continue
        found += [latent.kernel.theta]
        found += [getattr(latent, name, None) for name in names]
        if isinstance(bases := getattr(latent, "bases", None), np.ndarray):
            order = np.lexsort(bases.T[::-1])  # ranks may have another order of rows
            parts = [getattr(latent, name, None) for name in ("coef", "diag", "columns")]
            found += [bases[order], *(part[:, order] for part in parts if part is not None)]
        found += getattr(latent, "weights", {}).values()
    return np.concatenate([np.ravel(array) for array in found if array is not None])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", FITS)
def test_ranks_have_the_same_model_which_is_that_of_all_rows(ranks, name):
    models, whole = [found["fitted"][name] for found in ranks], alone(name)
    for model in models[1:]:
        assert_array_equal(numbers(model), numbers(models[0]))
        assert vars(model).keys() == vars(whole).keys()
        assert_array_equal(model.objective_curve_, models[0].objective_curve_)
    X, _, _, _ = problem(2)
    tol = LEARNED.get(name, 1e-9)
    assert_allclose(numbers(models[0]), numbers(whole), atol=COEFFICIENTS.get(name, tol))
    curve = whole.objective_curve_  # which may pass zero
    assert_allclose(models[0].objective_curve_, curve, rtol=0, atol=tol * abs(curve).max())
    assert_all_close(
        models[0].latent_mean_and_variance(X), whole.latent_mean_and_variance(X), atol=tol
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", BATCHES)
def test_ranks_have_the_same_model_from_minibatches(ranks, name):
    models = [found["batches"][name] for found in ranks]
    for model in models[1:]:
        assert_array_equal(numbers(model), numbers(models[0]))
        assert_array_equal(model.objective_curve_, models[0].objective_curve_)
    # Draws differ, so that only the levels agree, in the mean of the seeds of a fit.
    seeds = [
        other for other in BATCHES if other.partition(", seed")[0] == name.partition(", seed")[0]
    ]
    fits = [(ranks[0]["batches"][other], alone(other, "batches")) for other in seeds]
    per_row = np.mean([[own.objective_curve_[-1] / N for own in pair] for pair in fits], 0)
    # Few epochs of a network depend on its draws more than others do.
    tol = 0.4 if "hybrid" in name else 0.05
    assert per_row[0] == pytest.approx(per_row[1], abs=tol, rel=0.02)


@pytest.mark.parametrize("name", CONTINUED)
def test_ranks_train_a_network_as_one_process_does(ranks, name):
    models = [found["continued"][name] for found in ranks]
    whole = fit(name, fits=CONTINUED, start=alone(name, "continued"))
    for model in models[1:]:
        assert_array_equal(numbers(model), numbers(models[0]))
    assert_allclose(numbers(models[0]), numbers(whole), atol=1e-9)
    assert_allclose(models[0].objective_curve_, whole.objective_curve_, rtol=1e-9)
    assert models[0].validation_loss_ == pytest.approx(whole.validation_loss_, rel=1e-9)


def test_module_of_a_shared_warm_start_may_be_a_lambda(ranks):
    assert [found["unnamed"] for found in ranks] == [None] * 3


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ONE_BATCH)
def test_ranks_take_the_steps_of_one_process_on_one_batch(ranks, name):
    models, whole = [found["one batch"][name] for found in ranks], fit(name, fits=ONE_BATCH)
    X, _, _, _ = problem(2)
    for model in models:
        assert_allclose(model.objective_curve_, whole.objective_curve_, rtol=1e-9)
        assert_all_close(
            model.latent_mean_and_variance(X), whole.latent_mean_and_variance(X), atol=1e-9
        )


@pytest.mark.parametrize(("n_rows", "n_batches"), [(5, 3), (2, 5), (0, 4)])
def test_every_rank_has_its_share_of_every_minibatch(n_rows, n_batches, monkeypatch):
    rows = rows_of(np.zeros((7, 1)), np.arange(7.0))
    rows.targets, rows.n_rows = rows.targets[:n_rows], 10 * n_batches
    orders = [torch.tensor(order, dtype=torch.int64) for order in permutations(range(n_rows))]
    remaining, values = iter(orders), []
    monkeypatch.setattr("skgpsvm._data.n_ranks", lambda: 3)
    monkeypatch.setattr(torch, "randperm", lambda n, generator: next(remaining))
    for _ in orders:
        batches = rows.minibatches(10, torch.Generator())
        assert len(batches) == n_batches
        values.append([(rows.scale_of(i) * rows.targets[i].sum()).item() for i in batches])
        if n_rows >= n_batches:
            assert torch.equal(torch.cat(batches).sort().values, torch.arange(n_rows))
    # In the mean over all orders, every minibatch gives the sum of this rank's rows.
    assert_allclose(np.mean(values, 0), rows.targets.sum(), rtol=1e-14)


@pytest.mark.parametrize("n_rows", [7, 2, 0])
def test_without_repeats_a_row_is_in_one_minibatch(n_rows, monkeypatch):
    rows = rows_of(np.zeros((7, 1)), np.arange(7.0))
    rows.targets, rows.n_rows = rows.targets[:n_rows], 40
    monkeypatch.setattr("skgpsvm._data.n_ranks", lambda: 3)
    batches = rows.minibatches(10, torch.Generator(), repeat=False)
    assert len(batches) == 4
    assert torch.equal(torch.cat(batches).sort().values, torch.arange(n_rows))


@pytest.mark.parametrize("name", ["sep", "sep, three classes", "sep, sign rule, empty shard"])
def test_every_rank_has_the_left_out_probabilities_of_its_rows(ranks, name):
    shards = [found["fitted"][name].loo_proba_ for found in ranks]
    whole = alone(name)
    assert_allclose(np.concatenate(shards), whole.loo_proba_, atol=1e-9)
    for found in ranks:
        assert found["fitted"][name].loo_log_loss_ == pytest.approx(whole.loo_log_loss_, abs=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_shared_too(ranks, name):
    models, whole = [found["streamed"][name] for found in ranks], stream(name)
    for model in models[1:]:
        assert_array_equal(numbers(model), numbers(models[0]))
    assert_allclose(numbers(models[0]), numbers(whole), atol=COEFFICIENTS.get(name, 1e-8))
    X, _, _, _ = problem(2)
    assert_all_close(
        models[0].latent_mean_and_variance(X), whole.latent_mean_and_variance(X), atol=1e-9
    )


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("estimator", "rank 0 has estimator 'EPClassifier'; .* rank 2 has estimator 'BayesianSVC'"),
        ("method", "rank 0 has method 'fit'; rank 1 has method 'partial_fit'"),
        ("kinds of parameter", "rank 0 has parameter tol 1.0; rank 1 has parameter tol 1;"),
        ("callbacks", r"rank 0 has callbacks \[\]; rank 1 has callbacks \['ScoringMonitor'\]"),
        ("random_state", "rank 1 failed: ValueError: random_state='seed' must be an integer"),
        ("labels", "rank 0 has labels that are 'integers'; .* rank 2 has .* 'strings'"),
        ("kinds of number", "'integers'; rank 1 has labels that are 'floats'; .* 'booleans'"),
        ("precision", "rank 0 has X of dtype 'float64'; rank 1 has X of dtype 'float32'"),
        ("outputs", r"rank 0 has outputs \(1,\); rank 1 has outputs \(2,\)"),
        ("names", "rank 0 has feature names"),
        ("lambda", r"must be a torch\.nn\.Module class or a function"),
        ("exact", r"AdditiveGPRegressor without inducing points .* are 3\. Set sparse=True\."),
        ("rates", "rank 1 failed: ValueError: likelihood='poisson' needs counts or rates"),
        ("levels", "Categories of column 3 of X are of types int, str"),
        ("categories", r"rank 0 has categorical features None; rank 1 has .* \[False, False"),
        ("augmentation", "rank 1 failed: RuntimeError: a broken row"),
        ("row shapes", r"rank 0 has rows of shape \(2, 2\); rank 1 has rows of shape \(4,\)"),
        ("NaN", "rank 1 failed: ValueError: Input X contains NaN"),
        ("parameter", "rank 1 has parameter max_iter 5; rank 2 has parameter max_iter 6"),
        ("features", "rank 0 has n_features 3; rank 1 has n_features 2"),
        ("earlier model", "rank 0 has a model to start from"),
        ("classes", r"rank 0 has classes \['ham', 'spam'\]; rank 1 has classes"),
        ("device", "rank 1 failed: ValueError: device='nowhere' cannot be used here"),
        ("weights", "All values of sample_weight are zero"),
        (
            "known noise",
            "rank 0 has noise_variance given False; rank 1 has noise_variance given True",
        ),
        ("one class", r"needs rows of at least two classes .* got 1 class: \[0.0\]"),
    ],
)
def test_a_failure_on_one_rank_is_told_on_all(ranks, failure, message):
    of_one_rank = dict.fromkeys(("NaN", "device", "random_state", "rates"), ValueError)
    of_one_rank |= {"augmentation": RuntimeError}
    of_all = dict.fromkeys(("weights", "one class", "exact"), ValueError)
    of_all |= dict.fromkeys(("lambda", "levels"), TypeError)
    for i, found in enumerate(ranks):
        expected, told = of_all.get(failure, DistributedError), message
        if i == 1 and failure in of_one_rank:
            expected = of_one_rank[failure]
            told = message.removeprefix(f"rank 1 failed: {expected.__name__}: ")
        assert type(found["failures"][failure]) is expected
        assert re.search(told, str(found["failures"][failure]))


def test_a_rank_that_has_ended_makes_the_others_fail(ranks):
    assert "left" not in ranks[1]
    for i in (0, 2):
        assert isinstance(ranks[i]["left"], DistributedError)
        assert f"Rank {i} of 3 could not exchange sums" in str(ranks[i]["left"])


def test_without_a_group_all_is_as_it_was():
    tensor = torch.ones(3)
    assert (n_ranks(), rank()) == (1, 0)
    assert all_sum(tensor)[0] is tensor
    assert gather("value") == ["value"]
    with raise_on_all_ranks() as values:
        values.append("value")
    assert values == ["value"]
    check_equal({"anything": object()})
    with pytest.raises(ZeroDivisionError):
        with raise_on_all_ranks():
            _ = 1 / 0


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_torchrun_without_a_group_is_refused(name, method, monkeypatch):
    model = clone(ESTIMATORS[name])
    if not hasattr(model, method):
        return
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DistributedError, match="as one of 2, but no process group has been"):
        getattr(model, method)(*data(model))
    assert not hasattr(model, "_latents")


def test_torchrun_with_one_process_needs_no_group(monkeypatch):
    X = np.linspace(0, 1, 20)[:, None]
    monkeypatch.setenv("WORLD_SIZE", "1")
    SVGPRegressor(optimizer=None, n_inducing=5).fit(X, X[:, 0])
