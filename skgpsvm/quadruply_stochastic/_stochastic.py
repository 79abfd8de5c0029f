"""Quadruply stochastic training: steps whose cost does not depend on rows or basis functions."""

import math

import torch

from .._collapsed import JITTER
from .._fitting import Stage
from .._linalg import cholesky
from .._optim import adam_step
from .._sparse import LEARNING_RATE
from .._transfers import to_device
from ..exceptions import DivergenceError
from ._bounds import quadratic_bound
from ._covariances import ChevronSum, NystroemSum
from ._estimates import LatentEstimates, draw, prior_term, rows_term
from ._step_state import StochasticState

_RIDGE = 1e-4  # of the support rows' kernel matrix, relative to its mean diagonal
# Of the newest minibatch in averages over all, where site precisions change. At 0, a fit from a
# hundred times the noise ends at length scales that are too short.
_MIN_WEIGHT = 0.02
_BATCH_SIZE = 512
_ADAGRAD_RATE = 0.1
_ADAM_EVERY = 10  # minibatches per step on the hyperparameters
# Learning rates by control variate, in units of the inverse of the largest eigenvalue. They are
# limited by the noise of the draws.
_RATES = {"interpolating": 1.0, "gram": 0.3, None: 0.03}
_TINY = 1e-30
# Tolerated loss, relative to that of the prior plus 1 nat per row. A few rows may be outliers.
_DIVERGENCE_FACTOR = 10.0


class StochasticSteps(Stage):
    r"""Algorithm A of Evans and Nair: rows are sampled once, basis functions of the mean twice.

    Let I and J be independent draws of basis functions. Half of the gradient in the mean's
    coefficients is estimated for the functions in I by :math:`\Phi_I^\top (\omega \hat f^J - \tau)`
    and the prior's term. The other half is estimated with I and J exchanged. Only the coefficients
    of drawn functions change. Control variates compare :math:`\hat f` with the mean at the support
    rows, which every step updates. "gram" is the one in print; "interpolating" transfers the errors
    from the support rows to the minibatch by kriging.

    The covariance is a running sum over minibatches. A "nystroem" covariance uses the features of
    the inducing points. Otherwise the running sum is the diagonal of a chevron, whose dense columns
    take gradient steps as the mean does. A logarithmic barrier keeps their diagonal positive.

    ``basis`` has the features of the "nystroem" covariance. Without it, the covariance is a chevron
    with ``n_dense`` dense columns. The options of the ``solver`` are those of
    `QuadruplyStochastic`. Coefficients are averaged over the second half of the steps in so many
    ``passes``. A rate of "sgd" that is not given is a fraction of the inverse of the largest
    eigenvalue, which is estimated on the support rows.

    ``limits`` (t + s, 2) are bounds of theta and of the logarithms of the noise. If given, both are
    learned by Adam, with a step every 10 minibatches after the first tenth of all steps. Between
    these steps all estimates use the same hyperparameters. The control variates use those of some
    steps ago, since to renew them takes all basis functions.

    Source: Evans and Nair, sections 3 and 4. Departs from the source: by default the linear term is
    split, the control variate interpolates, and steps have a constant size with an average.
    """

    state_class = StochasticState

    def __init__(
        self, likelihood, bases, basis, rows, generator, solver, *, passes, n_dense=0, limits=None
    ):
        self._likelihood, self._solver, self._limits = likelihood, solver, limits
        self.bound = quadratic_bound(likelihood.likelihood, likelihood.n_latents)
        self.bases, self.rows, self._generator = bases, rows, generator
        if basis is None:
            self._covariance = ChevronSum(bases, min(n_dense, bases.size))
        else:
            self._covariance = NystroemSum(basis, JITTER[rows.dtype])
        self._batch_size = min(solver.batch_size or _BATCH_SIZE, rows.n_rows)
        self._n_steps = passes * math.ceil(rows.n_rows / self._batch_size)
        self._is_adagrad = solver.step == "adagrad"
        self._n_sampled = min(solver.n_sampled_basis, bases.n_units)
        # Steps of Adam between renewals of the control variates. A renewal then costs no more than
        # the minibatches between.
        self._renewal_interval = (
            math.ceil(bases.n_units / (_ADAM_EVERY * self._n_sampled or 1)) or 1
        )
        self._fixed_precision = self.bound.fixed_precision and limits is None
        self._min_weight = 0.0 if self._fixed_precision else _MIN_WEIGHT

    def init(self, theta, noise, support):
        """Return the prior as a state, which `begin` prepares for the first `step`."""
        c, M, k = self.bound.n_latents, self.bases.size, self._covariance.n_dense
        zeros = support.new_zeros
        coef = zeros(c * (1 + k), M)
        prior = self.bases.prior_diag(torch.arange(k, device=support.device))
        coef[c:].view(c, k, M).diagonal(dim1=1, dim2=2)[:] = prior.rsqrt()
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
        if self._is_adagrad:
            state.squared_gradients = torch.zeros_like(coef)
        self._covariance.init(state)
        return state

    def begin(self, state, more=False):
        """Start on these rows from the last iterate.

        They replace those seen before, or come in addition if they are ``more``. The average of the
        coefficients starts anew: in slow directions it lags behind the iterates.
        """
        if self._limits is not None and state.hyper_gradient is None:
            zeros = state.coef.new_zeros(3, len(self._limits))
            state.hyper_gradient, state.adam_mean, state.adam_square = zeros
        self.bound = self._bound_at(state.noise)
        before, total = (state.n_seen if more else 0.0), self.rows.total_weight
        # The covariance's sums stand for all rows. Those of rows before are means over their share
        # of so many minibatches.
        n_summed = before / total * math.ceil(self.rows.n_rows / self._batch_size)
        self._covariance.rescale(state, (total + before) / (state.n_seen or 1.0), n_summed)
        state.n_seen, state.n_summed = total + before, n_summed
        state.first_step = state.n_steps
        self._restart_average(state)
        state.auxiliary = self._initial_auxiliary(state)
        (precision,) = self.rows.sum(self.row_precisions(state).sum(0))
        state.mean_precision = precision / total

    def row_precisions(self, state):
        """Return the site precisions of this rank's rows, times their weights, (n, c)."""
        precision = self.bound.sites(self.rows.targets, state.auxiliary)[1].double()
        return self.rows.weights.double()[:, None] * precision

    def step(self, state):
        """Take one pass of minibatches; the objective is the mean of the ELBO's estimates."""
        self._generator.set_state(state.generator_state.cpu())
        self._prepare(state)
        batches = self.rows.minibatches(self._batch_size, self._generator)
        value = sum(self.update(state, index) for index in batches)
        (value,) = self.rows.sum(value)
        state.generator_state = self._generator.get_state()
        state.n_passes += 1
        state.objective = (value / len(batches)).item() - self._covariance.kl(state)

    def update(self, state, index):
        """Take a step on one minibatch; return an estimate of the ELBO before it, in nats.

        It is without the covariance's divergence from the prior. Where ranks share the rows, it is
        this rank's part of it, and ``index`` its part of the minibatch.
        """
        c = self.bound.n_latents
        X, y, weights = batch = self.rows.take(index)
        estimates = self._estimate_latents(state, X, self._generator)
        index = to_device(index, X.device)
        auxiliary = state.auxiliary[index]
        if self._limits is not None:
            (gradient,) = self.rows.sum(self._hyper_gradient(state, batch, auxiliary, estimates))
            state.hyper_gradient += gradient
        linear, precision, constant = (part.double() for part in self.bound.sites(y, auxiliary))
        multiplicity = self._row_multiplicity(state, weights)
        linear, precision = multiplicity * linear, multiplicity * precision
        state.n_summed += 1
        options = self._min_weight, self.rows.sum
        var = self._covariance.update(state, X, estimates, precision, *options)
        f_i, f_j = (f[:, :c] for f in estimates.f)
        value = rows_term(f_i, f_j, var, linear, precision)
        prior = prior_term(self.bases, *estimates.draws, state.coef[:c])
        value = value + prior / self.rows.n_shards
        self._update_coefficients(state, estimates, linear, precision)
        optimal = self._optimal_auxiliary(y, estimates.f, var)
        weight = max(1 / (state.n_passes + 1), self.bound.min_auxiliary_weight)
        state.auxiliary[index] = auxiliary.lerp(optimal.to(auxiliary), weight)
        if not self._fixed_precision:
            total, n = self.rows.sum(precision.sum(0), multiplicity.sum())
            weight = max(1 / state.n_summed, self._min_weight)
            state.mean_precision = state.mean_precision.lerp(total / n, weight)
        state.n_steps += 1
        if self._limits is not None and state.n_steps % _ADAM_EVERY == 0:
            self._update_hyperparameters(state)
        return multiplicity[:, 0] @ constant - 0.5 * value

    def posterior(self, state):
        """Return the averaged coefficients and the covariance, by field of the fitted model."""
        coef, count = state.coef[: self.bound.n_latents], state.n_averaged
        if count:
            coef = (state.coef_sum + coef * (count - state.last_averaged)) / count
        return {"coef": coef, **self._covariance.posterior(state)}

    def check(self, state):
        """Raise a `DivergenceError` if the state is far worse than the prior.

        Its objective is then below the prior's by more than ten times the sum of the prior's
        absolute objective and 1 nat per row.
        """
        prior, share = 0.0, state.n_seen / self.rows.total_weight
        bound = self._bound_at(state.noise)
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            square = self.bases.kernel.diag(X, state.theta)[:, None].expand(-1, bound.n_latents)
            zero = torch.zeros_like(square)
            loss = bound.loss(y, bound.auxiliary(y, zero, square), zero, square)
            prior -= share * (weights * loss).sum()
        prior = self.rows.sum(prior)[0].item()
        if state.objective < prior - _DIVERGENCE_FACTOR * (abs(prior) + state.n_seen):
            raise DivergenceError(
                f"Stochastic steps ended at an objective of {state.objective:.3g}, far below the "
                f"prior's {prior:.3g}. Lower learning_rate, raise batch_size or n_sampled_basis, "
                "or use another solver."
            )

    def _restart_average(self, state):
        state.n_averaged = 0
        state.coef_sum = torch.zeros_like(state.coef_sum)
        state.last_averaged = torch.zeros_like(state.last_averaged)

    # Estimates

    def _estimate_latents(self, state, X, generator):
        """Draw basis functions twice, and return the `LatentEstimates` at rows (b, d)."""
        support = state.support.to(X)
        bases = self.bases, self._support_bases
        draws = [draw(*bases, self._n_sampled, X, support, generator) for _ in range(2)]
        sums = [each.sums(state.coef) for each in draws]
        errors = [state.at_support - at_support.double() for _, at_support in sums]
        estimates = [f.double() for f, _ in sums]
        if self._solver.control_variate == "interpolating":
            weight = self._kriging(X, support)
            estimates = [f + weight @ error for f, error in zip(estimates, errors, strict=True)]
        return LatentEstimates(draws, estimates, errors)

    def _row_multiplicity(self, state, weights):
        """Return how many rows each row of a minibatch represents, (b, 1)."""
        share = state.n_seen / self.rows.total_weight * self.rows.scale_of(weights)
        return share * weights.double()[:, None]

    def _initial_auxiliary(self, state):
        """Return auxiliary variables (n, c) of all rows at the current state.

        They have draws of their own, since a stream passes over each row only once.
        """
        auxiliary = torch.zeros(len(self.rows), self.bound.n_latents).to(state.coef)
        if self._likelihood.conjugate:
            return auxiliary
        self._generator.set_state(state.generator_state.cpu())
        self._prepare(state)
        generator = self.rows.own_generator(self._generator)
        for index in self.rows.chunks(self._batch_size):
            X, y, _ = self.rows.take(index)
            draws, f, _ = self._estimate_latents(state, X, generator)
            var = self._covariance.variances(state, X, draws[0], draws[0].values, f)
            auxiliary[index] = self._optimal_auxiliary(y, f, var).to(auxiliary)
        state.generator_state = self._generator.get_state()
        return auxiliary

    def _optimal_auxiliary(self, y, f, var):
        """Return the auxiliary variables at two estimates of the latents."""
        f_i, f_j = (each[:, : self.bound.n_latents] for each in f)
        return self.bound.auxiliary(y, 0.5 * (f_i + f_j), f_i * f_j + var)

    # Parts that are computed once for a pass

    def _prepare(self, state):
        """Compute the control variate, the learning rate and the covariance's root."""
        if self._limits is not None:
            self.bound, self.bases, self._covariance = self._model_at(state.theta, state.noise)
        self._prepare_control_variate(state)
        self._rate = self._learning_rate(state)
        self._covariance.prepare(state)

    def _learning_rate(self, state):
        """Return the given learning rate, or one for the largest eigenvalue at the support rows."""
        if self._solver.learning_rate is not None:
            return self._solver.learning_rate
        if self._is_adagrad:
            return _ADAGRAD_RATE
        products = self._support_products(state)
        largest = torch.linalg.eigvalsh(products)[..., -1] / products.shape[-1]
        scale = 1.0 if self.bases.independent else self.bases.size * largest
        # Small minibatches and draws add to the largest eigenvalue.
        sampling = products.diagonal(dim1=-2, dim2=-1).mean(-1)
        sampling = sampling * (1 / self._batch_size + 1 / max(self._n_sampled, 1))
        precision = state.n_seen * state.mean_precision
        curvature = scale * (self._prior_curvature() + precision * (largest + sampling))
        return _RATES[self._solver.control_variate] / curvature.max().item()

    def _prior_curvature(self):
        """Return the prior's curvature, in units of its precision.

        The prior's gradient in a drawn function stands for those of all functions of its stratum.
        """
        return max(self.bases.n_units / max(self._n_sampled, 1), 1.0)

    def _decay(self, state):
        """Return the rate of the next step, in units of the first's."""
        share = (state.n_steps - state.first_step) / max(self._n_steps - 1, 1)
        return self._solver.decay**share

    def _support_products(self, state):
        """Return inner products (p, p) or (c, p, p) of the functions' values at the support rows.

        They are in coordinates in which the steps are scaled by `_inverse_scale`.
        """
        return self.bases.kernel(state.support, state.support, state.theta)

    def _inverse_scale(self, state, at):
        """Return factors of the rates of some coefficients, 1 or of shape (c + c k, u)."""
        return 1.0

    def _prepare_control_variate(self, state):
        """Compute the kriging and the prior of the support rows at ``support_theta``."""
        support, theta = state.support, state.support_theta
        self._support_bases = self.bases
        if not torch.equal(theta, self.bases.theta):
            self._support_bases = self.bases.at(theta)
        K = self.bases.kernel(support, support, theta)
        if self._solver.control_variate == "interpolating":
            ridge = _RIDGE * K.diagonal().mean() * torch.eye(len(K)).to(K)
            self._chol = cholesky(K + ridge, "kernel matrix of the support rows", jitter=0)
        if self._solver.control_variate and not self.bases.independent:
            self._prior_chol = cholesky(K, "kernel matrix of the support rows")

    def _kriging(self, X, support):
        """Return the weights (b, p) of the interpolation from the support rows to rows."""
        cross = self.bases.kernel(X, support, self._support_bases.theta).double()
        return torch.cholesky_solve(cross.T, self._chol).T

    def _model_at(self, theta, noise):
        """Return the bound, the bases and the covariance at other hyperparameters."""
        bases = self.bases.at(theta)
        return self._bound_at(noise), bases, self._covariance.at(bases)

    def _bound_at(self, noise):
        likelihood = self._likelihood.at(noise)
        return quadratic_bound(likelihood.likelihood, likelihood.n_latents)

    # Hyperparameters

    @torch.enable_grad()
    def _hyper_gradient(self, state, batch, auxiliary, estimates):
        """Estimate the ELBO's gradient in theta and the logarithms of the noise, (t + s,)."""
        c, k = self.bound.n_latents, len(state.theta)
        X, y, weights = batch
        point = torch.cat([state.theta, state.noise]).requires_grad_()
        bound, bases, covariance = self._model_at(*point.split([k, len(point) - k]))
        values = [bases.sampled(X, each.units) for each in estimates.draws]
        # Values are those of the estimates, control variates included; gradients are the sums'.
        f = []
        for each, phi, estimate in zip(estimates.draws, values, estimates.f, strict=True):
            total = phi @ (each.scale * state.coef[:, each.coordinates]).T.to(phi)
            f.append(estimate + (total - total.detach()).double())
        var = covariance.variances(state, X, estimates.draws[0], values[0], f)
        f_i, f_j = (each[:, :c] for each in f)
        multiplicity = self._row_multiplicity(state, weights)
        linear, precision, constant = (part.double() for part in bound.sites(y, auxiliary))
        value = rows_term(f_i, f_j, var, multiplicity * linear, multiplicity * precision)
        if not bases.independent:
            prior = prior_term(bases, *estimates.draws, state.coef[:c])
            value = value + prior / self.rows.n_shards
        return torch.autograd.grad(multiplicity[:, 0] @ constant - 0.5 * value, point)[0]

    def _update_hyperparameters(self, state):
        """Take a step of Adam with the mean gradient since the last one."""
        gradient = state.hyper_gradient / _ADAM_EVERY
        state.hyper_gradient = torch.zeros_like(state.hyper_gradient)
        if state.n_steps <= self._n_steps // 10:
            return
        memory = state.n_adam_steps, state.adam_mean, state.adam_square
        rate = LEARNING_RATE * self._decay(state)
        step, memory = adam_step(memory, gradient, rate)
        state.n_adam_steps, state.adam_mean, state.adam_square = memory
        point = torch.cat([state.theta, state.noise]) + step
        sizes = len(state.theta), len(state.noise)
        state.theta, state.noise = point.clamp(*self._limits.unbind(1)).split(sizes)
        is_renewal = state.n_adam_steps % self._renewal_interval == 0
        if is_renewal:
            state.support_theta = state.theta
        self._prepare(state)
        if is_renewal:
            state.at_support = self.bases.mean(state.support, state.coef)

    # Coefficients

    def _update_coefficients(self, state, estimates, linear, precision):
        """Take a gradient step on the coefficients of the drawn functions; return their indices.

        Site parameters (b, c) are times the multiplicity of each row.
        """
        draws, coef = estimates.draws, state.coef
        c, k = self.bound.n_latents, self._covariance.n_dense
        gradients = self._coefficient_gradients(state, estimates, linear, precision)
        # Functions in both draws get the sum of both gradients.
        every = torch.cat([each.drawn for each in draws])
        merged, inverse = torch.unique(every, return_inverse=True)
        places = torch.arange(len(every))
        first = places.new_full(merged.shape, len(every)).scatter_reduce(0, inverse, places, "amin")
        at, inverse, first = (to_device(part, coef.device) for part in (merged, inverse, first))
        gradient = coef.new_zeros(len(coef), len(at))
        gradient.index_add_(1, inverse, torch.cat(gradients, 1))
        rate = torch.full_like(gradient, self._rate * self._decay(state))
        rate *= self._inverse_scale(state, at)
        if self._is_adagrad:
            # A gradient is that of all rows seen, estimated from a minibatch: in later calls its
            # deviation grows with the rows, and is larger where minibatches are smaller.
            unit = state.n_seen / math.sqrt(max(self._batch_size, 1))
            state.squared_gradients[:, at] += (gradient / unit).square()
            rate /= (unit**2 * state.squared_gradients[:, at] + _TINY).sqrt()
        old = coef[:, at]
        new = old - rate * gradient
        if k:
            share = torch.cat([0.5 * each.scale for each in draws])
            rate *= coef.new_zeros(len(at)).index_add_(0, inverse, share)
            columns, rate = (part[c:].view(c, k, -1) for part in (new, rate))
            new[c:] = _with_barrier(columns, at, rate).flatten(0, 1)
        if state.n_steps - state.first_step >= self._n_steps // 2:
            count = state.n_averaged
            state.coef_sum[:, at] += old[:c] * (count - state.last_averaged[at])
            state.last_averaged[at] = count
            state.n_averaged += 1
        coef[:, at] = new
        support = torch.cat([each.support for each in draws], 1)[:, first].double()
        state.at_support += support @ (new - old).T
        return at

    def _coefficient_gradients(self, state, estimates, linear, precision):
        """Return gradients (c + c k, u) in the coefficients of each draw's functions, two."""
        draws, f, errors = estimates
        coef, c, k = state.coef, self.bound.n_latents, self._covariance.n_dense
        control_variate = self._solver.control_variate
        precision = with_columns(precision, k, 1)
        linear = torch.nn.functional.pad(linear, (0, c * k))
        shares = (1.0, 1.0) if self._solver.gradient == "symmetric" else (2.0, 0.0)
        of_rows = [
            (precision * f[1 - i] - share * linear).T @ this.values.double()
            for i, (this, share) in enumerate(zip(draws, shares, strict=True))
        ]
        gradients = []
        for i, gradient in enumerate(self.rows.sum(*of_rows)):
            this, other = draws[i], draws[1 - i]
            if control_variate == "gram":
                weight = state.n_seen / len(errors[0]) * state.mean_precision
                weight = with_columns(weight, k)
                gradient += (weight * errors[1 - i]).T @ this.support.double()
            part = coef[:, this.coordinates]
            if self.bases.independent:
                prior = self.bases.prior_diag(this.coordinates).expand(c, -1)
                gradient += with_columns(prior, k) * part
            else:
                S = self.bases.prior(this.coordinates, other.coordinates)
                gradient += (other.scale * coef[:, other.coordinates]) @ S.T
                if control_variate:
                    left = torch.cholesky_solve(errors[1 - i], self._prior_chol)
                    gradient += left.T @ this.support.double()
            gradients.append(0.5 * this.scale * gradient)
        return gradients


def with_columns(values, k, axis=0):
    """Return values of c latents, followed by those of each latent repeated for its k columns."""
    return torch.cat([values, values.repeat_interleave(k, axis)], axis)


def _with_barrier(columns, at, rate):
    """Return dense columns (c, k, u) with zeros above the diagonal and a positive diagonal.

    ``columns`` are those after the gradient step, at the functions ``at``. The diagonal takes a
    proximal step of its logarithmic barrier, which has a closed form; ``rate`` is the learning rate
    times the share of the barrier in a step.
    """
    order = torch.arange(columns.shape[1], device=at.device)[:, None]
    kept = columns.where(at >= order, 0.0)
    return torch.where(at == order, 0.5 * (kept + (kept.square() + 4 * rate).sqrt()), kept)
