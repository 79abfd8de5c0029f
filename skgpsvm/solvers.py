"""Solvers: the ways to fit a model, each with the options that only it has.

The parameter ``solver`` of an estimator takes one of these objects, or a string that is short for
an object with default options. A grid search can vary options: with ``solver=NaturalGradient()``,
the batch size is its parameter ``solver__batch_size``.
"""

from __future__ import annotations

from typing import Literal

from sklearn.base import BaseEstimator

from ._validation import check_bool, check_choice, check_number

__all__ = [
    "Collapsed",
    "ConjugateGradients",
    "ConvergedEP",
    "CoordinateAscent",
    "Exact",
    "Gradient",
    "InterleavedEP",
    "NaturalGradient",
    "QuadruplyStochastic",
    "StochasticGradient",
    "Sweeps",
]


PARAMETRIZATIONS = ("orthogonal", "hybrid", "shared", "decoupled")


class Solver(BaseEstimator):
    """A way to fit a model."""

    # As those of the estimators, see `GPEstimator`.
    _doc_link_module = "skgpsvm"
    _doc_link_template = "../generated/skgpsvm.solvers.{estimator_name}.html"

    def check(self) -> None:
        """Raise ValueError if an option has an invalid value."""


class _Batches(Solver):
    """A solver with minibatches and a learning rate of Adam."""

    def __init__(self, batch_size: int | None = None, learning_rate: float | None = None) -> None:
        self.batch_size = batch_size
        self.learning_rate = learning_rate

    def check(self) -> None:
        check_number("batch_size", self.batch_size, 1, integer=True, besides=(None,))
        check_number("learning_rate", self.learning_rate, 0, besides=(None,), above=True)


class Collapsed(Solver):
    """L-BFGS-B on the collapsed ELBO, that of the optimal posterior given the hyperparameters.

    It is for `SVGPRegressor` with Gaussian noise, where the optimal posterior has a closed form,
    and for `SVGPClassifier`, where natural gradients find it in each evaluation. It has no options;
    the estimator's ``max_iter`` limits its rounds.

    Notes
    -----
    Source: Titsias (2009) for the closed form.
    """


class Exact(Solver):
    """L-BFGS-B on the exact log evidence: every row is an inducing point.

    It is for `SVGPRegressor` with Gaussian noise. It has no options. An evaluation of the evidence
    takes O(n^3) time, and a fit about ``100 * n**2`` bytes of memory.

    Notes
    -----
    Source: Rasmussen and Williams (2006), Algorithm 2.1 and section 5.4.1.
    """


class NaturalGradient(_Batches):
    """Natural gradients for the posterior, alternating with Adam on the hyperparameters.

    It is for `SVGPRegressor` and `SVGPClassifier`.

    Parameters
    ----------
    batch_size : int, default=None
        Rows per minibatch of the natural gradients. None means all of up to 10,000 rows, and 1024
        of more; with noise that is not Gaussian, always all rows. Adam always takes up to 1024
        rows.
    learning_rate : float, default=None
        Learning rate of Adam; None is 0.05. Lower it if the objective diverges.

    Notes
    -----
    Source: Hensman et al. (2013); Khan and Lin (2017) for likelihoods that are not Gaussian.
    """


class Gradient(_Batches):
    """Adam or Adadelta on the posterior and the hyperparameters together.

    It is for `SVGPRegressor`, `SVGPClassifier` and `BayesianSVC`.

    Parameters
    ----------
    batch_size : int, default=None
        Rows per minibatch; None is 256.
    learning_rate : float, default=None
        Learning rate of Adam; None is 0.05. Steps are in units of log hyperparameters, of whitened
        weights and of the features' standard deviations. Lower it if the objective diverges.
    rule : {"adam", "adadelta"}, default="adam"
        Rule of the steps. Use "adadelta" with ``learning_rate=1``.

    Notes
    -----
    Source: Wistuba and Rawat (2018), section 3.2; Hernandez-Lobato and Hernandez-Lobato (2016),
    section 6.4, for Adadelta.
    """

    def __init__(
        self,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        rule: Literal["adam", "adadelta"] = "adam",
    ) -> None:
        super().__init__(batch_size, learning_rate)
        self.rule = rule

    def check(self) -> None:
        super().check()
        check_choice("rule", self.rule, ("adam", "adadelta"))


class CoordinateAscent(_Batches):
    """Closed-form sweeps over the rows, for `BayesianSVC`.

    Parameters
    ----------
    batch_size : int, default=None
        Rows per minibatch; None means all rows.
    learning_rate : float, default=None
        Learning rate of Adam between the sweeps; None is 0.05. It is for ``learn_inducing=True``
        and for ``optimizer="adam"``.

    Notes
    -----
    Source: Wistuba and Rawat (2018), Algorithm 1.
    """


class ConvergedEP(Solver):
    """L-BFGS-B on the evidence of converged sites, for `EPClassifier`.

    It has no options. ``solver="gfitc"`` is short for it.

    Notes
    -----
    Source: Naish-Guzman and Holden (2007), generalized FITC.
    """


class InterleavedEP(_Batches):
    """A step on the hyperparameters after each update of the sites, for `EPClassifier`.

    ``solver="sep"`` is short for it.

    Parameters
    ----------
    rule : {"adam", "sign", "adadelta"}, default="adam"
        Rule of the steps. "sign" and "adadelta" are those of the paper. "sign" is for updates of
        all rows: the rate of each parameter grows by 2 % while its derivative keeps its sign, and
        is halved otherwise. "adadelta" is for minibatches; use ``learning_rate=1``.
    batch_size : int, default=None
        Rows per minibatch, after each of which posterior and hyperparameters change. None means
        all rows.
    learning_rate : float, default=None
        Step size of the rule; None is 0.05.
    gradient : {"exact", "approximate"}, default="exact"
        Derivatives of the evidence. They differ only before the sites have converged. "exact"
        holds the parameters of the sites fixed, which is closer to the derivatives at convergence.
        "approximate", the paper's eq. 4, holds the cavities of the inducing values fixed, at the
        same cost; it is for updates of all rows.

    Notes
    -----
    Source: Hernandez-Lobato and Hernandez-Lobato (2016), sections 3 and 5.
    """

    def __init__(
        self,
        rule: Literal["adam", "sign", "adadelta"] = "adam",
        batch_size: int | None = None,
        learning_rate: float | None = None,
        gradient: Literal["exact", "approximate"] = "exact",
    ) -> None:
        super().__init__(batch_size, learning_rate)
        self.rule = rule
        self.gradient = gradient

    def check(self) -> None:
        super().check()
        check_choice("rule", self.rule, ("adam", "sign", "adadelta"))
        check_choice("gradient", self.gradient, ("exact", "approximate"))
        if self.gradient == "approximate" and self.batch_size is not None:
            raise ValueError(
                "gradient='approximate' is for updates of all rows; got "
                f"batch_size={self.batch_size}. Set batch_size=None or gradient='exact'."
            )


class ConjugateGradients(_Batches):
    """Preconditioned conjugate gradients for the coefficients of the mean.

    They are for `DecoupledGPRegressor`, `DecoupledGPClassifier`, `QSGPRegressor` and
    `QSGPClassifier`. First, a sparse GP on some of the rows learns the hyperparameters. With
    Gaussian noise, and by default in classifiers, it uses L-BFGS-B. Otherwise, or if an option
    below is given, it alternates natural gradients with Adam.

    Parameters
    ----------
    batch_size : int, default=None
        Rows per minibatch of the natural gradients; None means all of up to 10,000 rows.
    learning_rate : float, default=None
        Learning rate of Adam; None is 0.05.

    Notes
    -----
    Source: Rudi, Carratino and Rosasco (2017) for the preconditioner.
    """


class StochasticGradient(_Batches):
    """Stochastic gradients of all parameters of a decoupled GP, with bases from minibatches.

    They are for `DecoupledGPRegressor` and `DecoupledGPClassifier`; ``solver="sgd"`` is short for
    them. They always take ``max_iter`` passes, without a warning if these are too few.

    Parameters
    ----------
    parametrization : {"orthogonal", "hybrid", "shared", "decoupled"}, default="orthogonal"
        Parametrization of the posterior. With "decoupled", the paper's, the mean has only its own
        bases. With the others it also has the inducing points, as further bases ("shared") or
        through their whitened means ("hybrid"). "orthogonal" is "hybrid" with the bases made
        orthogonal to the points.
    batch_size : int, default=None
        Rows in a minibatch; None is 1024.
    learning_rate : float, default=None
        Learning rate of Adam; None is 0.05. In step t, it is divided by ``1 + 0.1 * sqrt(t)``.

    Notes
    -----
    Source: Cheng and Boots (2017), Algorithm 1; Salimbeni et al. (2018) for the orthogonal form.
    """

    def __init__(
        self,
        parametrization: Literal["orthogonal", "hybrid", "shared", "decoupled"] = "orthogonal",
        batch_size: int | None = None,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__(batch_size, learning_rate)
        self.parametrization = parametrization

    def check(self) -> None:
        super().check()
        check_choice("parametrization", self.parametrization, PARAMETRIZATIONS)


class QuadruplyStochastic(_Batches):
    """Stochastic steps, which sample rows once and basis functions twice.

    The cost of a step does not depend on the number of rows or functions. In `QSGPRegressor` and
    `QSGPClassifier`, ``solver="sgd"`` and ``solver="adagrad"`` are short for them, in
    `QSRVMRegressor` and `QSRVMClassifier` ``solver="quadruply_stochastic"``. They always take
    ``max_iter`` passes, without a warning if these are too few: ``objective_curve_`` then still
    rises at its end, and predictive intervals may be far too narrow.

    Parameters
    ----------
    step : {"sgd", "adagrad"}, default="sgd"
        Steps of "sgd" have a constant size and are averaged. Those of "adagrad", as in the paper,
        are scaled by past gradients.
    control_variate : {"interpolating", "gram", None}, default="interpolating"
        Control variate, computed from the mean at ``n_support`` rows, which reduces the noise of
        the gradient. "interpolating" transfers it to the minibatch by kriging; "gram" is the
        paper's. The gradient is unbiased in any case.
    gradient : {"symmetric", "plain"}, default="symmetric"
        Estimate of the gradient. "symmetric" splits its linear term between the two draws of
        functions. "plain", as in the paper, assigns it to the first.
    n_sampled_basis : int, default=1024
        Number of units in each of the two draws. A unit is a pair of cosine and sine, or a kernel
        at a row.
    n_support : int, default=256
        Number of support rows of the control variate. More rows reduce the gradient's variance.
    decay : float, default=1.0
        Learning rate of the last step divided by that of the first, with an exponential decay
        between. 1 keeps the rate constant. The paper lets it fall, but does not say how far.
    learn_hyperparameters : bool, default=False
        Whether the steps also learn kernel and noise, starting from those that a sparse GP has
        learned or, with ``optimizer=None``, from the given ones. In relevance vector machines,
        whether they learn the kernel, starting from the length scales that cross-validation has
        chosen.
    batch_size : int, default=None
        Number of rows in a minibatch; None is 512.
    learning_rate : float, default=None
        Learning rate. None is 0.1 for "adagrad", and for "sgd" a fraction of the inverse of the
        largest eigenvalue, which is estimated on the support rows. Lower it if the steps diverge.

    Notes
    -----
    Source: Evans and Nair (2020).
    """

    def __init__(
        self,
        step: Literal["sgd", "adagrad"] = "sgd",
        control_variate: Literal["interpolating", "gram"] | None = "interpolating",
        gradient: Literal["symmetric", "plain"] = "symmetric",
        n_sampled_basis: int = 1024,
        n_support: int = 256,
        decay: float = 1.0,
        learn_hyperparameters: bool = False,
        batch_size: int | None = None,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__(batch_size, learning_rate)
        self.step = step
        self.control_variate = control_variate
        self.gradient = gradient
        self.n_sampled_basis = n_sampled_basis
        self.n_support = n_support
        self.decay = decay
        self.learn_hyperparameters = learn_hyperparameters

    def check(self) -> None:
        super().check()
        check_choice("step", self.step, ("sgd", "adagrad"))
        check_choice("control_variate", self.control_variate, ("interpolating", "gram", None))
        check_choice("gradient", self.gradient, ("symmetric", "plain"))
        check_number("n_sampled_basis", self.n_sampled_basis, 1, integer=True)
        check_number("n_support", self.n_support, 1, integer=True)
        check_number("decay", self.decay, 0, above=True)
        check_bool("learn_hyperparameters", self.learn_hyperparameters)


class Sweeps(Solver):
    """Coordinate ascent over the precisions and weights of relevance vector machines.

    It is for `QSRVMRegressor` and `QSRVMClassifier`. It has no options. The first sweeps take
    O(M^3) time and O(M^2) memory for M functions.

    Notes
    -----
    Source: Tipping (2001); Tipping and Faul (2003).
    """
