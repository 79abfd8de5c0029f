"""A model to fit: random numbers of its own, and the attributes that callbacks see."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from problems import rows_of

from skgpsvm._hyperparameters.default_kernels import feature_scales
from skgpsvm._problem import Problem


@dataclass
class Told:
    """A run that keeps what it is asked to run."""

    calls: list

    def run(self, name, stage, state, max_iter, **options):
        self.calls.append((name, max_iter, options))
        return [1.0]


def problem(**parts):
    X, weights = np.arange(8.0).reshape(4, 2) ** 2, np.array([1.0, 2.0, 0.0, 1.0])
    rows = rows_of(X, np.zeros((4, 1)), weights)
    given = {
        "run": Told([]),
        "prefix": "class a: ",
        "start": None,
        "learns": True,
        "draw_seed": lambda: 7,
    }
    given["fit_scaler"] = partial(feature_scales, X, weights)
    return Problem(X=X, weights=weights, rows=rows, **given | parts)


def test_random_numbers_are_the_seed_s_and_the_seed_is_drawn_when_needed():
    drawn = []
    lazy = problem(draw_seed=lambda: drawn.append(0) or 7)
    assert lazy.scale.shape == (2,)
    assert not drawn
    assert lazy.random_state.randint(100) == np.random.RandomState(7).randint(100)
    expected = torch.rand(3, generator=torch.Generator().manual_seed(7))
    assert torch.equal(torch.rand(3, generator=lazy.generator), expected)
    assert len(drawn) == 1


def test_models_that_draw_alike_share_what_they_draw():
    shared, calls = {}, []

    def draw(model):
        calls.append(model)
        return model.random_state.rand(2)

    first, second = problem(shared=shared), problem(shared=shared)
    found = [each.drawn(("points", 2), lambda each=each: draw(each)) for each in (first, second)]
    assert found[0] is found[1]
    assert calls == [first]
    # As if both had drawn
    assert first.random_state.rand() == second.random_state.rand()
    found = [
        each.drawn(("points", k), lambda each=each: draw(each))
        for each, k in ((first, 2), (second, 3))
    ]
    assert len(calls) == 3  # random numbers, or what else it depends on, differ
    assert_array_equal(found[0], found[1])


def test_features_are_scaled_by_their_weighted_deviations():
    given = problem()
    mean = given.weights @ given.X / 4
    assert_array_equal(given.scale, np.sqrt(given.weights @ (given.X - mean) ** 2 / 4))


@pytest.mark.parametrize("alone", [True, False])
def test_callbacks_see_attributes_of_a_model_that_is_alone(alone):
    attributes = (lambda models, summaries: {"both": (models, summaries)}) if alone else None
    given = problem(attributes=attributes)
    curve = given.run_stage("posterior", None, 3, 5, lambda s: ([s], [-s]), must_converge=False)
    ((name, max_iter, options),) = given.run.calls
    assert (name, max_iter, curve) == ("class a: posterior", 5, [1.0])
    assert not options.pop("must_converge")
    assert bool(options) == alone
    if alone:
        assert options["attributes"](3) == {"both": ([3], [-3])}
