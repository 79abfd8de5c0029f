"""Stochastic training whose step depends neither on the rows nor on the functions there are."""

from dataclasses import dataclass

import numpy as np
import torch

from .._collapsed import JITTER
from .._fitting import Stage, State
from .._inference.pcg import features, roots
from .._linalg import add_grams, cholesky, gaussian_kl, mirror
from .._optim import minibatches
from .._posteriors import WeightPosterior, WhitenedBasis
from ..exceptions import DivergenceError
from ._bounds import quadratic_bound
from ._estimates import draw, of_prior, of_rows

_RIDGE = 1e-4  # of the support's kernel matrix, relative to its mean diagonal
_LEAST_AVERAGED = 0.1  # weight of a minibatch's precisions
_LEAST_COVARIANCE = 0.02  # weight of the newest minibatch, where precisions change
_ADAGRAD_RATE = 0.1
_LEARNED_EVERY = 10  # steps to a step on the hyperparameters
_LEARNING_RATE, _MOMENTS = 0.05, (0.9, 0.99)  # of Adam
# Of the inverse of the greatest eigenvalue, by control variate: what noise of the draws allows.
_RATES = {"interpolating": 1.0, "gram": 0.3, None: 0.03}
_TINY = 1e-30
_MOST_LOST = 10.0  # times the loss at the prior, and a nat a row: few rows may be outliers


@dataclass(kw_only=True)
class StochasticState(State):
    """Solution of stochastic steps. c latents, M functions, k dense columns, p support rows.

    Attributes
    ----------
    theta, noise : Tensor of shape (t,), (s,)
        Logarithms of the kernel's and the likelihood's hyperparameters.
    coef : Tensor of shape (c + c k, M)
        Coefficients of the means, then the dense columns of each latent's chevron.
    support : Tensor of shape (p, d)
        Support rows of the control variates.
    support_theta : Tensor of shape (t,)
        Hyperparameters at which `at_support` was last computed anew.
    at_support : Tensor of shape (p, c + c k)
        Functions with the coefficients `coef`, at the support rows.
    mean_precision : Tensor of shape (c,)
        Running mean of the site precisions.
    auxiliary : Tensor of shape (n, ...), or None
        Auxiliary numbers of the quadratic bound; `StochasticSteps.begin` makes them.
    coef_sum : Tensor of shape (c, M)
        Sum of the means' coefficients over the averaged steps, up to `last_averaged`.
    last_averaged : Tensor of shape (M,)
        Number of averaged steps when a function was last drawn.
    n_averaged, n_steps, first_step, n_passes : int
        Averaged steps, all steps, steps before the last call of `StochasticSteps.begin`, passes.
    n_seen : float
        Weight of all rows so far.
    n_summed : float
        Number of minibatches in the running covariance.
    generator_state : Tensor
        State of the random number generator.
    squared_gradients : Tensor of shape (c + c k, M), or None
        Sums of squared gradients, for AdaGrad.
    hyper_gradient : Tensor of shape (t + s,), or None
        Sum of the gradient estimates in theta and noise since the last step of Adam.
    adam_mean, adam_square : Tensor of shape (t + s,), or None
        First and second moments of Adam.
    n_adam_steps : int
    gram : Tensor of shape (c, q, q), or None
        Running sum of the weighted features' outer products, for a "nystroem" covariance.
    root : Tensor of shape (c, q, q), or None
        Root of the covariance that `gram` gives.
    data : Tensor of shape (c, M), or None
        Running sums of the weighted squared functions, for a chevron.
    counts : Tensor of shape (M,), or None
        Minibatches in each of these sums.
    """

    theta: torch.Tensor
    noise: torch.Tensor
    coef: torch.Tensor
    support: torch.Tensor
    support_theta: torch.Tensor
    at_support: torch.Tensor
    mean_precision: torch.Tensor
    coef_sum: torch.Tensor
    last_averaged: torch.Tensor
    generator_state: torch.Tensor
    auxiliary: torch.Tensor | None = None
    n_averaged: int = 0
    n_steps: int = 0
    first_step: int = 0
    n_passes: int = 0
    n_seen: float = 0.0
    n_summed: float = 0.0
    squared_gradients: torch.Tensor | None = None
    hyper_gradient: torch.Tensor | None = None
    adam_mean: torch.Tensor | None = None
    adam_square: torch.Tensor | None = None
    n_adam_steps: int = 0
    gram: torch.Tensor | None = None
    root: torch.Tensor | None = None
    data: torch.Tensor | None = None
    counts: torch.Tensor | None = None

    @classmethod
    def from_arrays(cls, arrays, device):
        """Return the state that `to_arrays` gave, on a device."""
        return cls(
            **{
                name: torch.tensor(part, device=device) if isinstance(part, np.ndarray) else part
                for name, part in arrays.items()
            }
        )

    def to_arrays(self):
        """Return the fields by name, tensors as arrays, without what belongs to the rows."""
        return {
            name: part.cpu().numpy() if isinstance(part, torch.Tensor) else part
            for name, part in self.as_dict().items()
            if name != "auxiliary"
        }


@dataclass(frozen=True)
class StepOptions:
    """How stochastic steps sample and move.

    Attributes
    ----------
    n_dense : int or None
        Dense columns of a chevron, k; None is a "nystroem" covariance.
    batch_size, n_sampled : int
        Rows of a minibatch, and units of a draw.
    control_variate : {"interpolating", "gram", None}
    n_steps : int
        In all; coefficients are averaged over the second half.
    symmetric : bool
        Whether the linear term is split between the draws, see `StochasticSteps`.
    adagrad : bool
        Whether steps are scaled by the gradients so far of each coefficient.
    learning_rate : float or None
        None is 0.1 for AdaGrad, else what the support rows say of the greatest eigenvalue.
    """

    n_dense: int | None
    batch_size: int
    n_sampled: int
    control_variate: str | None
    n_steps: int
    symmetric: bool = True
    adagrad: bool = False
    learning_rate: float | None = None


class StochasticSteps(Stage):
    r"""Algorithm A: rows sampled once, functions of the mean twice.

    With independent draws I and J of the functions, half the gradient in the mean's coefficients is
    estimated on I by :math:`\Phi_I^\top (\omega \hat f^J - \tau)` and the prior's part, on J the
    other way round; nothing but the coefficients drawn changes. Control variates compare
    :math:`\hat f` with the mean at some support rows, which is kept up to date: "gram" as in print,
    "interpolating" by kriging from the support rows to the minibatch.

    The covariance is a running sum over minibatches: "nystroem" on the features of the inducing
    points, else the diagonal of a chevron, whose dense columns descend as the mean does, each with
    a logarithmic barrier that keeps its diagonal positive.

    Parameters
    ----------
    likelihood : LikelihoodSites
    bases : MeanBases
    basis : WhitenedBasis
        Features of the "nystroem" covariance.
    rows : Rows
    options : StepOptions
    generator : torch.Generator
    limits : Tensor of shape (k, 2), optional
        Bounds of theta, then of the logarithms of the noise. Where there are any, both are learned,
        by a step of Adam on the estimates of every 10 minibatches, after the first tenth of the
        steps; between them they are what they are in all estimates. Control variates have those
        of some steps ago, since to renew them takes all functions.

    Notes
    -----
    Source: Evans and Nair, sections 3 and 4. Departs from the
    source: the linear term is split, the control variate interpolates, and steps are constant with
    an average, unless asked for otherwise.
    """

    def __init__(self, likelihood, bases, basis, rows, options, generator, limits=None):
        self._likelihood, self._options, self._limits = likelihood, options, limits
        self.bound = quadratic_bound(likelihood.likelihood, likelihood.n_latents)
        self.bases, self.basis, self.rows, self._generator = bases, basis, rows, generator
        self.nystroem = options.n_dense is None
        self.n_dense = min(options.n_dense or 0, bases.size)
        self._n_sampled = min(options.n_sampled, bases.n_units)
        # Of Adam's steps: so that it costs no more than the steps between.
        self._renewed_every = max(-(-bases.n_units // (_LEARNED_EVERY * self._n_sampled or 1)), 1)
        self._fixed = self.bound.fixed and limits is None

    def init(self, theta, noise, support):
        """Return the prior as a state, from which `begin` and `step` go on.

        Parameters
        ----------
        theta, noise : Tensor of shape (t,), (s,)
            Hyperparameters of the bases and of the likelihood.
        support : Tensor of shape (p, d)
            Support rows.
        """
        c, M, k, p = self.bound.n_latents, self.bases.size, self.n_dense, self.basis.size
        zeros = support.new_zeros
        coef = zeros(c * (1 + k), M)
        every = torch.arange(M, device=support.device)
        prior = self.bases.prior_diag(every).expand(c, -1)
        for j in range(c):
            first = c + j * k
            coef[range(first, first + k), range(k)] = prior[j, :k].rsqrt()
        state = StochasticState(
            theta=theta,
            noise=noise,
            coef=coef,
            support=support,
            support_theta=theta,
            at_support=self.bases.mean(support, coef),
            mean_precision=zeros(c),
            coef_sum=torch.zeros_like(coef[:c]),
            last_averaged=zeros(M, dtype=torch.int64),
            generator_state=self._generator.get_state(),
        )
        if self._options.adagrad:
            state.squared_gradients = torch.zeros_like(coef)
        if self._limits is not None:
            size = len(self._limits)
            state.hyper_gradient, state.adam_mean, state.adam_square = zeros(3, size)
        if self.nystroem:
            state.gram, state.root = zeros(c, p, p), torch.eye(p).to(coef).expand(c, -1, -1)
        else:
            state.data, state.counts = zeros(c, M), zeros(M)
        return state

    def begin(self, state, more=False):
        """Start on these rows, all there are or more of them, from the last iterate.

        The average is behind it in slow directions.
        """
        self.bound = self._bound_at(state.noise)
        self._recount(state, state.n_seen if more else 0.0)
        state.n_averaged, state.first_step = 0, state.n_steps
        state.coef_sum, state.last_averaged = (
            torch.zeros_like(state.coef_sum),
            state.last_averaged * 0,
        )
        state.auxiliary = self._first_auxiliary(state)
        precision = self.bound.sites(self.rows.targets, state.auxiliary)[1].double()
        state.mean_precision = (self.rows.weights.double() @ precision) / self.rows.total_weight

    def _first_auxiliary(self, state):
        """Of all rows (n, c), from draws of their own: a stream passes each of its rows once."""
        found = torch.zeros(len(self.rows), self.bound.n_latents).to(state.coef)
        if self._likelihood.conjugate:
            return found
        self._generator.set_state(state.generator_state.cpu())
        self._prepare(state)
        for index in self.rows.chunks(self._options.batch_size):
            X, y, _ = self.rows.take(index)
            draws, latents, _ = self._estimates(state, X)
            if self.nystroem:
                var = features(self.basis, X, state.root)[1]
            else:
                var = self._over_weights(state, draws[0], draws[0].values, latents)
            found[index] = self._best_auxiliary(y, latents, var).to(found)
        state.generator_state = self._generator.get_state()
        return found

    def _best_auxiliary(self, y, found, var):
        """The best at estimates of two draws of the latents, and of their variances."""
        mine, theirs = (f[:, : self.bound.n_latents] for f in found)
        return self.bound.auxiliary(y, 0.5 * (mine + theirs), mine * theirs + var)

    def _estimates(self, state, X):
        """Two draws, estimates with each at rows (b, q), and its errors at the support (p, q)."""
        support = state.support.to(X)
        bases = self.bases, self._support_bases
        draws = [draw(*bases, self._n_sampled, X, support, self._generator) for _ in range(2)]
        sums = [each.sums(state.coef) for each in draws]
        errors = [state.at_support - at_support.double() for _, at_support in sums]
        found = [f.double() for f, _ in sums]
        if self._options.control_variate == "interpolating":
            weight = self._kriging(X, support)
            found = [f + weight @ error for f, error in zip(found, errors, strict=True)]
        return draws, found, errors

    def _recount(self, state, before):
        """What the covariance has of the rows so far becomes what a weight ``before`` of them is.

        Its sums are for all rows, and means over as many minibatches of these rows.
        """
        total = self.rows.total_weight
        n_batches = -(-len(self.rows) // self._options.batch_size)
        n_summed, share = before / total * n_batches, (total + before) / (state.n_seen or 1.0)
        if self.nystroem:
            state.gram = share * state.gram
        else:
            state.data = share * state.data
            state.counts = n_summed / max(state.n_summed, 1) * state.counts
        state.n_seen, state.n_summed = total + before, n_summed

    def step(self, state):
        """Take a pass of minibatches; the objective is the mean estimate of the bound."""
        self._generator.set_state(state.generator_state.cpu())
        self._prepare(state)
        batches = minibatches(len(self.rows), self._options.batch_size, self._generator)
        value = sum(self.move(state, index.to(self.rows.device)) for index in batches)
        state.generator_state = self._generator.get_state()
        state.n_passes += 1
        state.objective = value / len(batches) - self._divergence(state)

    def check(self, state):
        """Refuse a state that is far worse than the prior.

        Raises
        ------
        DivergenceError
            If its bound is below the prior's by ten times as much as that, and as a nat a row.
        """
        prior, share = 0.0, state.n_seen / self.rows.total_weight
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            square = self.bases.kernel.diag(X, self.bases.theta)[:, None]
            square = square.expand(-1, self.bound.n_latents)
            auxiliary = self.bound.auxiliary(y, torch.zeros_like(square), square)
            loss = self.bound.loss(y, auxiliary, torch.zeros_like(square), square)
            prior -= share * (weights * loss).sum().item()
        if state.objective < prior - _MOST_LOST * (abs(prior) + state.n_seen):
            raise DivergenceError(
                f"Stochastic steps ended at an objective of {state.objective:.3g}, where no steps "
                f"at all have {prior:.3g}. Lower learning_rate, raise batch_size or "
                "n_sampled_basis, or use solver='cg'."
            )

    def move(self, state, index):
        """A step on some rows; returns the estimate of the bound but for the covariance's part."""
        c = self.bound.n_latents
        X, y, weights = self.rows.take(index)
        draws, found, errors = self._estimates(state, X)
        auxiliary = state.auxiliary[index]
        if self._limits is not None:
            state.hyper_gradient += self._slope(state, index, draws, found)
        linear, precision, constant = (part.double() for part in self.bound.sites(y, auxiliary))
        stand = self._row_multiplicity(state, weights)
        var = self._spread(state, X, draws, found, stand * precision)
        mine, theirs = (f[:, :c] for f in found)
        value = of_rows(mine, theirs, var, stand * linear, stand * precision)
        value = value + of_prior(self.bases, *draws, state.coef[:c])
        self._descend(state, draws, found, errors, stand * linear, stand * precision)
        best = self._best_auxiliary(y, found, var)
        newest = max(1 / (state.n_passes + 1), self.bound.least_newest)
        state.auxiliary[index] = auxiliary.lerp(best.to(auxiliary), newest)
        here = (stand * precision).sum(0) / stand.sum()
        if not self._fixed:
            state.mean_precision = state.mean_precision.lerp(here, _LEAST_AVERAGED)
        state.n_steps += 1
        if self._limits is not None and state.n_steps % _LEARNED_EVERY == 0:
            self._learn(state)
        return (stand[:, 0] @ constant - 0.5 * value).item()

    def posterior(self, state):
        """Coefficients of the mean, and what the covariance is: parts of `Latents`."""
        c, k, count = self.bound.n_latents, self.n_dense, state.n_averaged
        coef = state.coef[:c]
        if count:
            coef = (state.coef_sum + coef * (count - state.last_averaged)) / count
        if self.nystroem:
            mean = torch.zeros_like(state.root[..., 0])
            return {"coef": coef, "mean": mean, "root": roots(mirror(state.gram))}
        columns = state.coef[c:].view(c, k, self.bases.size).mT.contiguous()
        return {"coef": coef, "diag": self._diag(state), "columns": columns}

    def _prepare(self, state):
        """What holds for a pass: the control variate, a step's rate, the covariance's root."""
        support = state.support
        if self._limits is not None:
            self.bound, self.bases, self.basis = self._at(state.theta, state.noise)
        self._prepare_support(state)
        K = self.bases.kernel(support, support, state.theta)
        greatest = torch.linalg.eigvalsh(K)[-1] / len(K)
        self._rate = self._options.learning_rate
        if self._rate is None and self._options.adagrad:
            self._rate = _ADAGRAD_RATE
        elif self._rate is None:
            scale = 1.0 if self.bases.independent else self.bases.size * greatest
            # What minibatches and draws of few add to the greatest eigenvalue.
            few = K.diagonal().mean() * (1 / self._options.batch_size + 1 / max(self._n_sampled, 1))
            most = scale * (1 + state.n_seen * state.mean_precision.max() * (greatest + few))
            self._rate = (_RATES[self._options.control_variate] / most).item()
        if self.nystroem:
            state.root = roots(mirror(state.gram))

    def _prepare_support(self, state):
        """Functions, kriging and prior of the support rows, at hyperparameters of their own."""
        support, theta = state.support, state.support_theta
        self._support_bases = self.bases
        if not torch.equal(theta, self.bases.theta):
            self._support_bases = self.bases.at(theta)
        K = self.bases.kernel(support, support, theta)
        if self._options.control_variate == "interpolating":
            ridge = _RIDGE * K.diagonal().mean() * torch.eye(len(K)).to(K)
            self._chol = cholesky(K + ridge, "kernel matrix of the support", jitter=0)
        if self._options.control_variate and not self.bases.independent:
            self._prior_chol = cholesky(K, "kernel matrix of the support")

    def _at(self, theta, noise):
        """Bound, bases and features at other hyperparameters."""
        basis = WhitenedBasis(self.bases.kernel, theta, self.basis.Z, JITTER[self.rows.dtype])
        return self._bound_at(noise), self.bases.at(theta), basis

    def _bound_at(self, noise):
        likelihood = self._likelihood.at(noise)
        return quadratic_bound(likelihood.likelihood, likelihood.n_latents)

    @torch.enable_grad()
    def _slope(self, state, index, draws, found):
        """Estimate of the bound's slope in theta and the logarithms of the noise."""
        c, k = self.bound.n_latents, len(state.theta)
        X, y, weights = self.rows.take(index)
        point = torch.cat([state.theta, state.noise]).requires_grad_()
        bound, bases, basis = self._at(*point.split([k, len(point) - k]))
        values = [bases.sampled(X, each.units) for each in draws]
        moved = []
        for each, own, now in zip(draws, values, found, strict=True):
            f = own @ (each.scale * state.coef[:, each.coordinates]).T.to(own)
            moved.append(now + (f - f.detach()).double())
        if self.nystroem:
            var = features(basis, X, state.root)[1]
        else:
            var = self._over_weights(state, draws[0], values[0], moved)
        mine, theirs = (f[:, :c] for f in moved)
        stand = self._row_multiplicity(state, weights)
        sites = bound.sites(y, state.auxiliary[index])
        linear, precision, constant = (part.double() for part in sites)
        value = of_rows(mine, theirs, var, stand * linear, stand * precision)
        if not bases.independent:
            value = value + of_prior(bases, *draws, state.coef[:c])
        return torch.autograd.grad(stand[:, 0] @ constant - 0.5 * value, point)[0]

    def _row_multiplicity(self, state, weights):
        """What each row of a minibatch stands for, (b, 1)."""
        share = state.n_seen / self.rows.total_weight * len(self.rows) / len(weights)
        return share * weights.double()[:, None]

    def _learn(self, state):
        """A step of Adam by the slopes since the last, and what follows from it."""
        slope, state.hyper_gradient = (
            state.hyper_gradient / _LEARNED_EVERY,
            torch.zeros_like(state.hyper_gradient),
        )
        if state.n_steps <= self._options.n_steps // 10:
            return
        state.n_adam_steps += 1
        decay, decay_of_squares = _MOMENTS
        state.adam_mean = slope.lerp(state.adam_mean, decay)
        state.adam_square = slope.square().lerp(state.adam_square, decay_of_squares)
        mean = state.adam_mean / (1 - decay**state.n_adam_steps)
        square = state.adam_square / (1 - decay_of_squares**state.n_adam_steps)
        step = _LEARNING_RATE * mean / (square.sqrt() + _TINY)
        point = torch.cat([state.theta, state.noise]) + step
        sizes = len(state.theta), len(state.noise)
        state.theta, state.noise = point.clamp(*self._limits.unbind(1)).split(sizes)
        renewed = state.n_adam_steps % self._renewed_every == 0
        if renewed:
            state.support_theta = state.theta
        self._prepare(state)
        if renewed:
            state.at_support = self.bases.mean(state.support, state.coef)

    def _kriging(self, X, support):
        """Weights (b, p) of the support rows in the interpolation at rows."""
        cross = self.bases.kernel(X, support, self._support_bases.theta).double()
        return torch.cholesky_solve(cross.T, self._chol).T

    def _spread(self, state, X, draws, found, precision):
        """Latent variances (b, c) at the rows, estimated; the covariance learns of the rows."""
        state.n_summed += 1
        if self.nystroem:
            A, var = features(self.basis, X, state.root)
            gram = torch.zeros_like(state.gram)
            add_grams(gram, A, precision)
            newest = 1 / state.n_summed
            newest = newest if self._fixed else max(newest, _LEAST_COVARIANCE)
            state.gram = state.gram.lerp(gram, newest)
            return var
        for each in draws:
            at = each.coordinates
            state.counts[at] += 1
            newest = 1 / state.counts[at]
            newest = newest if self._fixed else newest.clamp_min(_LEAST_COVARIANCE)
            new = precision.T @ each.values.square().double()
            state.data[:, at] = state.data[:, at].lerp(new, newest)
        return self._over_weights(state, draws[0], draws[0].values, found)

    def _over_weights(self, state, one, values, found):
        """Latent variances of a chevron (b, c), from the values (b, k) of a draw and all sums."""
        c, k = self.bound.n_latents, self.n_dense
        alone = (one.coordinates >= k) * self._diag(state, one.coordinates).square()
        mine, theirs = (f[:, c:].view(len(f), c, k) for f in found)
        return values.square().double() @ (one.scale * alone).T + (mine * theirs).sum(2)

    def _diag(self, state, which=None):
        """Diagonal of the covariance's factor, (c, M) or of some functions."""
        c, k = self.bound.n_latents, self.n_dense
        if which is None:
            which = torch.arange(self.bases.size, device=state.coef.device)
        diag = (state.data[:, which] + self.bases.prior_diag(which)).rsqrt()
        dense = state.coef[c:].view(c, k, self.bases.size).diagonal(dim1=1, dim2=2)
        return torch.where(which < k, dense[:, which.clamp_max(max(k - 1, 0))], diag) if k else diag

    def _divergence(self, state):
        """Of the covariance from the prior's, nats."""
        if self.nystroem:
            root = roots(mirror(state.gram))
            return gaussian_kl(torch.zeros_like(root[..., 0]), root).sum().item()
        parts = self.posterior(state)
        none = torch.zeros_like(parts["coef"])
        return WeightPosterior(self.bases, none, parts["diag"], parts["columns"]).kl().item()

    def _descend(self, state, draws, found, errors, linear, precision):
        """A step on the coefficients that are drawn."""
        coef, c, k = state.coef, self.bound.n_latents, self.n_dense
        precision = torch.cat([precision, precision.repeat_interleave(k, 1)], 1)
        linear = torch.nn.functional.pad(linear, (0, c * k))
        shares = (1.0, 1.0) if self._options.symmetric else (2.0, 0.0)
        gradients = []
        for i, share in enumerate(shares):
            own, other = draws[i], draws[1 - i]
            slope = precision * found[1 - i] - share * linear
            gradient = slope.T @ own.values.double()
            if self._options.control_variate == "gram":
                each = state.n_seen / len(errors[0]) * state.mean_precision
                each = torch.cat([each, each.repeat_interleave(k)])
                gradient += (each * errors[1 - i]).T @ own.support.double()
            part = coef[:, own.coordinates]
            if self.bases.independent:
                gradient += self.bases.prior_diag(own.coordinates) * part
            else:
                S = self.bases.prior(own.coordinates, other.coordinates)
                gradient += (other.scale * coef[:, other.coordinates]) @ S.T
                if self._options.control_variate:
                    left = torch.cholesky_solve(errors[1 - i], self._prior_chol)
                    gradient += left.T @ own.support.double()
            gradients.append(0.5 * own.scale * gradient)
        every = torch.cat([each.coordinates for each in draws])
        at, inverse = torch.unique(every, return_inverse=True)
        places = torch.arange(len(every), device=every.device)
        first = places.new_full((len(at),), len(every)).scatter_reduce(0, inverse, places, "amin")
        gradient = coef.new_zeros(len(coef), len(at))
        gradient.index_add_(1, inverse, torch.cat(gradients, 1))
        rate = torch.full_like(gradient, self._rate)
        if self._options.adagrad:
            state.squared_gradients[:, at] += gradient.square()
            rate /= (state.squared_gradients[:, at] + _TINY).sqrt()
        old = coef[:, at]
        new = old - rate * gradient
        if k:
            share = torch.cat([0.5 * each.scale for each in draws])
            rate *= coef.new_zeros(len(at)).index_add_(0, inverse, share)
            columns, rate = (part[c:].view(c, k, -1) for part in (new, rate))
            new[c:] = _with_barrier(columns, at, rate).flatten(0, 1)
        if state.n_steps - state.first_step >= self._options.n_steps // 2:
            count = state.n_averaged
            state.coef_sum[:, at] += old[:c] * (count - state.last_averaged[at])
            state.last_averaged[at] = count
            state.n_averaged += 1
        coef[:, at] = new
        support = torch.cat([each.support for each in draws], 1)[:, first].double()
        state.at_support += support @ (new - old).T


def _with_barrier(columns, at, rate):
    """Dense columns (c, k, u) with zeros above the diagonal, which a logarithm keeps positive.

    A proximal step: that of the logarithm's barrier is known in closed form.
    """
    order = torch.arange(columns.shape[1], device=at.device)[:, None]
    kept = columns.where(at >= order, 0.0)
    return torch.where(at == order, 0.5 * (kept + (kept.square() + 4 * rate).sqrt()), kept)
