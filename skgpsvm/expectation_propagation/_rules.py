"""Rules for gradient steps on hyperparameters: Adam, Adadelta and the paper's sign rule."""

from functools import partial

import torch

from .._optim import STEPS

_DECAY_SHARE = 0.4  # of the learning
_GROWTH, _SHRINKAGE = 1.02, 0.5
_MAX_STEP = 0.1  # of the sign rule, in logarithms and standard deviations


class SignRule:
    """Gradient ascent whose rate for each parameter follows the signs of its derivatives.

    The rate grows while the sign stays the same, and is halved when it changes.

    Source: Hernandez-Lobato and Hernandez-Lobato (2016), section 5.1. Departs from the source: the
    length of a step is limited.
    """

    stops_at_standstill = False  # the objective may rise again when the rates have grown

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def step(self, memory, gradient, progress):
        """Return the next step for a gradient (k,), and the new memory, which is empty at first.

        ``progress`` is the share of the learning that is done, from 0 to 1.
        """
        rate = memory.get("rate", torch.full_like(gradient, self.learning_rate))
        if memory:
            same = gradient.sign() == memory["sign"]
            rate = torch.where(same, _GROWTH * rate, _SHRINKAGE * rate)
        memory = {"rate": rate, "sign": gradient.sign()}
        return (rate * gradient).clamp(-_MAX_STEP, _MAX_STEP), memory


class DecayingRule:
    """Steps whose learning rate decays to zero in the last 40 % of the learning.

    ``steps`` takes a memory or None, a gradient and a rate; returns a step and a new memory.
    """

    stops_at_standstill = True

    def __init__(self, steps, learning_rate):
        self.steps, self.learning_rate = steps, learning_rate

    def step(self, memory, gradient, progress):
        """Return the next step and the rule's new memory; see `SignRule.step`."""
        rate = self.learning_rate * min(1.0, (1 - progress) / _DECAY_SHARE)
        step, last = self.steps(memory.get("last"), gradient, rate)
        return step, {"last": last}


RULES = {name: partial(DecayingRule, steps) for name, steps in STEPS.items()} | {"sign": SignRule}
