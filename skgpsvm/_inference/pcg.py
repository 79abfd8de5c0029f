"""Posteriors whose mean has bases of its own: conjugate gradients, and a closed form."""

import torch

from .._bases import CholeskyPreconditioner, KernelBases
from .._linalg import (
    add_gram,
    add_grams,
    cholesky,
    gaussian_kl,
    mirror,
    relative_change,
    spreads,
    weight_moments,
)

_NEAR, _LEAST_PRECISION = 1e-6, 1e-12
_POINT = ("coef", "means", "root", "linear", "precision")  # that steps may go back to
_ROUNDING = 1e-6  # of the bound, which counts as no fall
_LEAST_RATE = 2.0**-7  # if no longer step raises the bound, it is at its maximum but for _INNER
_MOST_DENSE = 6000  # rows, all of them bases, whose kernel matrix is factorized
_MOST_WHOLE = 4000  # bases whose system is made
_MOST_LANDMARKS = 1000
_MOST_INNER = 4  # iterations that a preconditioner may need before it is made anew
_ENTRIES = 50  # of products of a Gram matrix that take as long as one of a pass
_INNER = 0.1  # residual, relative to its start, at which sites are computed anew
_DELAY = 10  # iterations


class DecoupledInference:
    r"""Posterior whose mean and covariance have bases of their own.

    Row by row, sites with precisions :math:`\Lambda` and linear terms b stand for the likelihood.
    They give the covariance in closed form on the features of the inducing points, and the mean's
    coefficients a by the linear system

    .. math:: (\Phi^\top \Lambda \Phi + S) a = \Phi^\top b,

    solved by conjugate gradients, a pass over the rows each. Sites of Gaussian noise are what they
    are; others are computed anew whenever the residual has fallen to a tenth. For Gaussian noise
    and at most 4,000 bases, passes that have taken as long as the matrix of the system would are
    enough: it is then made, and its inverse is the preconditioner.

    The state of a fit is a dict: ``coef`` (q, M) and ``root`` (c, p, p), what conjugate gradients
    need to go on, and the sites. Further groups of c columns of ``coef`` are the solutions without
    some rows.

    Parameters
    ----------
    likelihood : SiteLikelihood
    basis : WhitenedBasis
        Features of the covariance.
    bases : MeanBases
    rows : Rows
    index : Tensor of shape (k,)
        Rows that stand for all in the preconditioner; those that are bases, where bases are rows.
    tol : float
        At which Gaussian noise is done: the residual norm of the preconditioned system, relative to
        that of the prior mean, and what the bound may still gain, nats a row; or what it has
        gained in ten iterations, nats a row. For other likelihoods, relative change of the means.
    kept : Tensor of shape (n, g), optional
        Share of each row that a group of columns knows: 1.0, or less for rows held out from it.

    Notes
    -----
    Source: Cheng and Boots (2017), eq. 7, collapsed; Rudi et al. (2017) for the preconditioner;
    Strakoš and Tichý (2002) for what iterations have gained, which is most of what was left.
    """

    def __init__(self, likelihood, basis, bases, rows, index, tol, kept=None):
        self.likelihood, self.basis, self.bases, self.rows = likelihood, basis, bases, rows
        self.index, self.tol, self._preconditioners = index, tol, None
        self.conjugate = likelihood.conjugate
        everyone = torch.ones(len(rows), 1, dtype=torch.float64, device=rows.device)
        c = likelihood.n_latents
        self.kept = (everyone if kept is None else kept).repeat_interleave(c, 1)
        self._groups = self.kept.shape[1] // c

    def initial(self, start):
        """The state from which `step` starts.

        Its sites are those at the posterior of the start, or at the prior, as are those of Gaussian
        noise everywhere. Its means are zero; of Gaussian noise, where the bases span them, those of
        the inducing points.
        """
        n, c, p = len(self.rows), self.likelihood.n_latents, self.basis.size
        zeros = torch.zeros(n, c, dtype=torch.float64, device=self.rows.device)
        state = {
            **start,
            "root": torch.eye(p).to(zeros).expand(c, -1, -1),
            "means": zeros,
            "linear": zeros,
            "precision": zeros,
            "n_sweeps": 0,
            "fresh": True,
            "rate": 1.0,
            "best": -float("inf"),
            "counted": None,
            "n_inner": 0,
            "whole": False,
            "change": float("inf"),
            "gains": [],
        }
        gram, cross = zeros.new_zeros(self._groups * c, p, p), zeros.new_zeros(self._groups * c, p)
        state["begun"] = not self.conjugate and "root" in start
        if state["begun"]:
            state |= {name: torch.empty_like(zeros) for name in ("linear", "precision")}
            state["root"] = start["root"]
        before = state["root"]
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            A, var = features(self.basis, X, before)
            if state["begun"]:
                mean = (A @ start["mean"].T.to(A.dtype)).double()
                linear, precision = self._begun(y, mean, var)
                state["linear"][index], state["precision"][index] = linear, precision
            else:
                sites = self.likelihood.sites(y, torch.zeros_like(var), var)
                linear, precision = sites.linear, sites.precision
            held = weights.double()[:, None] * self.kept[index]
            add_grams(gram, A, held * precision.repeat(1, self._groups))
            cross += (held * linear.repeat(1, self._groups)).T @ A.double()
        gram = mirror(gram)
        mean, _ = weight_moments(gram + torch.eye(p).to(gram), cross)
        state["root"] = roots(gram[:c])
        state["coef"] = self.bases.embed(mean if self.conjugate else torch.zeros_like(mean))
        return state

    def _begun(self, y, mean, var):
        """Linear terms and precisions (b, c) of sites at moments from elsewhere.

        Of noise about the targets, the weights of iteratively reweighted least squares: curvatures
        may be negative, and whole steps too long.
        """
        sites = self.likelihood.sites(y, mean, var)
        if not y.is_floating_point():
            return sites.linear, sites.precision
        residual = mean - y
        far = residual.abs() > _NEAR * var.sqrt()
        precision = torch.where(far, sites.gradient / residual, sites.precision)
        precision = precision.clamp_min(_LEAST_PRECISION)
        return precision * y, precision

    def step(self, state):
        """An iteration of conjugate gradients; returns the bound, of other noise at the sites."""
        if state["fresh"]:
            self._linearize(state)
        if self._is_long(state):
            state["whole"], self._preconditioners = True, None
            self._turn(state, state["residual"], None)
            state["first_norm"] = self._norm(state, state["right"])
        direction, norm = state["direction"], state["norm"]
        sums = torch.zeros_like(direction)
        for index, _, _, weights, K, f in self.bases.passes(self.rows, direction):
            precision = state["precision"][index].repeat(1, self._groups)
            sums += self._over_rows(K, weights * precision * f, index)
        product = self.bases.prior_product(direction) + self.bases.adjoint(sums)
        curvature = (direction * product).sum(1, keepdim=True)
        size = torch.where(curvature > 0, norm / curvature, 0.0)
        state["coef"] = state["coef"] + size * direction
        self._turn(state, state["residual"] - size * product, norm)
        state["n_inner"] += 1
        if not self.conjugate:
            state["fresh"] = _relative(state) < _INNER
            return state["objective"]
        gains = 0.5 * size * norm
        state["objective"] += gains[: self.likelihood.n_latents].sum().item()
        state["change"] = min(self._unsolved(state), self._gained(state, gains))
        return state["objective"]

    def _is_long(self, state):
        """Whether passes have taken as long as the matrix of the system would."""
        few = self.conjugate and not state["whole"] and self.bases.size <= _MOST_WHOLE
        return few and state["n_inner"] * _ENTRIES >= self.bases.size

    def _unsolved(self, state):
        """The larger of the residual's norm, relative, and what the bound may gain, nats a row."""
        return max(_relative(state), self._most(self._left(state)))

    def _gained(self, state, gains):
        """What the last iterations have gained, nats a row; in this one the columns' (q, 1)."""
        state["gains"] = [*state["gains"], gains][-_DELAY:]
        enough = len(state["gains"]) == _DELAY
        return self._most(sum(state["gains"])) if enough else float("inf")

    def _most(self, columns):
        """The largest sum over a group's columns (q, 1), a row."""
        sums = columns.view(self._groups, -1).sum(1)
        return sums.max().item() / self.rows.total_weight

    def _left(self, state):
        """What each column (q, 1) may add to the bound, nats, if the preconditioner is right."""
        return 0.5 * state["norm"]

    def converged(self, state):
        """Whether the residual, or the change of the means, is small."""
        return state["change"] < self.tol

    def finish(self, state):
        """Go back to the best bound, where a step that is not over has a lower one."""
        if not self.conjugate and self.bound(state) < state["best"]:
            state |= state["point"]

    def bound(self, state):
        """The bound, nats."""
        return self.evaluate(state)[0]

    def evaluate(self, state):
        """The bound, and means (n, q) and variances (n, c) at the rows."""
        means, variances, loss = [], [], 0.0
        for _, X, y, weights, _, f in self.bases.passes(self.rows, state["coef"]):
            _, var = features(self.basis, X, state["root"])
            mean = f[:, : self.likelihood.n_latents]
            loss += (weights[:, 0] * self.likelihood.loss(y, mean, var)).sum().item()
            means.append(f)
            variances.append(var)
        means = torch.cat(means)
        return -loss - self._divergence(state, means), means, torch.cat(variances)

    def counted(self, state):
        """What the rows of the index count for in the sum over all, (c, k)."""
        precisions = self.rows.weights.double()[:, None] * state["precision"]
        return len(self.rows) / len(self.index) * precisions[self.index].T

    def _divergence(self, state, means):
        """From the prior, nats, at means (n, q) of the rows."""
        coef = state["coef"][: self.likelihood.n_latents]
        of_mean = 0.5 * (coef * self.bases.prior_product(coef)).sum()
        return (of_mean + covariance_divergence(state["root"])).item()

    def _linearize(self, state, again=False):
        """Sites at the present means and variances, with all that follows from them.

        Where the bound is lower there than at the last ones, a shorter step from these, ``again``;
        where that is very short, nothing is to be gained.
        """
        c, before, root = self.likelihood.n_latents, state["means"], state["root"]
        point = {name: state[name] for name in _POINT}
        size = state["rate"] * self.likelihood.step(state["n_sweeps"])
        if state["begun"]:
            size, state["begun"] = 0.0, False
        old = state["linear"], state["precision"]
        state["linear"], state["precision"] = (torch.zeros_like(part) for part in old)
        state["means"] = torch.zeros_like(before)
        sums, right = torch.zeros_like(state["coef"]), torch.zeros_like(state["coef"])
        gram, loss = torch.zeros_like(root), 0.0
        for index, X, y, weights, K, f in self.bases.passes(self.rows, state["coef"]):
            A, var = features(self.basis, X, root)
            state["means"][index] = f[:, :c]
            sites = self.likelihood.sites(y, f[:, :c], var)
            loss += (weights[:, 0] * sites.loss).sum().item()
            state["linear"][index] = linear = old[0][index].lerp(sites.linear, size)
            state["precision"][index] = precision = old[1][index].lerp(sites.precision, size)
            if not self.conjugate:
                add_grams(gram, A, weights * precision)
            linear, precision = (part.repeat(1, self._groups) for part in (linear, precision))
            sums += self._over_rows(K, weights * (linear - precision * f), index)
            if self.conjugate:
                right += self._over_rows(K, weights * linear, index)
        residual = self.bases.adjoint(sums) - self.bases.prior_product(state["coef"])
        value = -loss - self._divergence(state, state["means"])
        state["objective"] = value
        if not self.conjugate:
            if value < state["best"] - _ROUNDING * abs(value):
                state |= {**state["point"], "rate": state["rate"] / 2}
                if state["rate"] < _LEAST_RATE:
                    state["change"] = 0.0
                return self._linearize(state, again=True)
            if state["n_sweeps"] and not again:
                state["change"] = relative_change(state["means"], before) / state["rate"]
                state["rate"] = min(2 * state["rate"], 1.0)
            state["best"], state["point"] = max(value, state["best"]), point
            state["root"] = roots(mirror(gram))
        state["n_sweeps"] += 1
        state["fresh"] = False
        if state["counted"] is None or state["n_inner"] > _MOST_INNER:
            counted = self.counted(state)
            counted = counted.mean(0, keepdim=True) if self.conjugate else counted
            state["counted"], self._preconditioners = counted, None
        state["n_inner"] = 0
        self._turn(state, residual, None)
        state["first_norm"] = state["norm"]
        if self.conjugate:
            state["right"] = self.bases.adjoint(right)
            state["first_norm"] = self._norm(state, state["right"])

    def _norm(self, state, residual):
        return (residual * self._conditioned(state, residual)).sum(1, keepdim=True)

    def _turn(self, state, residual, norm):
        """The next direction, conjugate to the last where there is a norm of its residual."""
        z = self._conditioned(state, residual)
        new = (residual * z).sum(1, keepdim=True)
        if norm is not None:
            z = z + torch.where(norm > 0, new / norm, 0.0) * state["direction"]
        state["residual"], state["direction"], state["norm"] = residual, z, new

    def _conditioned(self, state, residual):
        """Preconditioned residual; outputs of Gaussian noise share what is not of all rows."""
        if self._preconditioners is None and state["whole"]:
            gram, precision = self._gram(), state["precision"][0]
            own = [CholeskyPreconditioner(self.bases, gram * each) for each in precision]
            self._preconditioners = own * self._groups
        elif self._preconditioners is None:
            X = self.rows.take(self.index)[0]
            self._preconditioners = self.bases.preconditioners(X, state["counted"])
        parts = residual.split(len(residual) // len(self._preconditioners))
        pairs = zip(self._preconditioners, parts, strict=True)
        return torch.cat([condition(part) for condition, part in pairs])

    def _gram(self):
        """Sum over all rows, of weight alone, whitened: the lower triangle of (M, M)."""
        none = self.rows.weights.new_zeros(1, self.bases.size, dtype=torch.float64)
        gram = none.new_zeros(self.bases.size, self.bases.size)
        for _, _, _, weights, values, _ in self.bases.passes(self.rows, none):
            values = self.bases.whitened(self.bases.adjoint(values.double()))
            add_gram(gram, values, weights * values)
        return gram

    def _over_rows(self, K, values, index):
        """Sum over rows of a chunk: values (b, q) times the kernel block, (q, M)."""
        return ((values * self.kept[index]).to(K.dtype).T @ K).double()


class ExactInference(DecoupledInference):
    r"""`DecoupledInference` of Gaussian noise whose mean has all rows as bases.

    The mean is that of the exact process: :math:`(K + \Lambda^{-1}) a = y`. Up to 6,000 rows the
    preconditioner is the inverse itself. Beyond them no matrix of n x n is held, and it knows K
    from its Nystroem approximation on 1,000 rows.

    Notes
    -----
    Source: Artemev, Burt and van der Wilk (2021), for the bound of such a solution; Gardner et al.
    (2018) for the iteration.
    """

    def step(self, state):
        """An iteration of conjugate gradients; returns the bound."""
        if state["fresh"]:
            self._start(state)
        direction, norm = state["direction"], state["norm"]
        product = self._product(direction)
        known = state["weight"] > 0
        over = torch.where(known, direction / state["weight"], 0.0) + known * product
        curvature = (direction * over).sum(1, keepdim=True)
        size = torch.where(curvature > 0, norm / curvature, 0.0)
        state["coef"] = state["coef"] + size * direction
        state["means"] = state["means"] + size * product
        self._turn(state, state["residual"] - size * over, norm)
        state["change"] = self._unsolved(state)
        c = self.likelihood.n_latents
        coef, means = state["coef"][:c], state["means"][:c]
        fit = state["weight"][:c] * means * (state["target"] - 0.5 * means)
        return state["base"] + (fit - 0.5 * coef * means).sum().item()

    def _left(self, state):
        of_rows = (state["weight"] * state["residual"].square()).sum(1, keepdim=True)
        return 0.5 * (of_rows - state["norm"])

    def _start(self, state):
        """Targets, their weights, and the landmarks of the preconditioner."""
        linear, precision = (torch.zeros_like(state["linear"]) for _ in range(2))
        loss = 0.0
        for index in self.rows.chunks():
            X, y, weights = self.rows.take(index)
            var = features(self.basis, X, state["root"])[1]
            sites = self.likelihood.sites(y, torch.zeros_like(var), var)
            linear[index], precision[index] = sites.linear, sites.precision
            loss += (weights * sites.loss).sum().item()
        state["precision"], state["target"] = precision, (linear / precision).T
        weights = self.rows.weights.double()[:, None] * precision
        state["weight"] = (weights.repeat(1, self._groups) * self.kept).T
        state["base"] = -loss - covariance_divergence(state["root"]).item()
        state["means"], state["fresh"] = torch.zeros_like(state["coef"]), False
        target = state["target"].repeat(self._groups, 1)
        self._turn(state, (state["weight"] > 0) * target, None)
        state["first_norm"] = state["norm"]

    def _product(self, coef):
        """The kernel matrix of all rows times coefficients (q, n); half of its entries are made."""
        product = torch.zeros_like(coef)
        for index in self.bases.chunks(self.rows):
            X, stop = self.rows.take(index)[0], index.start + len(self.rows.weights[index])
            K = self.bases.sampled(X.double(), slice(index.start, None))
            product[:, index] += coef[:, index.start :] @ K.T
            product[:, stop:] += coef[:, index] @ K[:, stop - index.start :]
        return product

    def _conditioned(self, state, residual):
        if self._preconditioners is None:
            dense = len(self.rows) <= _MOST_DENSE
            self._preconditioners = (self._factors if dense else self._woodbury)(state["weight"])
        pairs = zip(self._preconditioners, residual, strict=True)
        return torch.stack([condition(part) for condition, part in pairs])

    def _factors(self, weights):
        """Products with the inverses of the matrix for weights (q, n)."""
        every = slice(None)
        K = self.bases.prior(every, every)
        factors = []
        for root in weights.sqrt():
            inner = root[:, None] * K * root
            inner.diagonal().add_(1.0)
            factors.append((root, cholesky(inner, "matrix of the mean's system", jitter=0)))

        def product(root, chol):
            return lambda part: root * torch.cholesky_solve((root * part)[:, None], chol)[:, 0]

        return [product(*factor) for factor in factors]

    def _woodbury(self, weights):
        """The same, approximate, by landmarks."""
        every = -(-len(self.rows) // _MOST_LANDMARKS)
        landmarks = KernelBases(self.bases.kernel, self.bases.theta, self.bases.points[::every])
        none = weights.new_zeros(1, landmarks.size)
        low_rank = torch.cat(
            [
                torch.linalg.solve_triangular(landmarks.chol, K.double().T, upper=False)
                for *_, K, _ in landmarks.passes(self.rows, none)
            ],
            1,
        )

        def product(weight):
            inner = (weight * low_rank) @ low_rank.T
            inner.diagonal().add_(1.0)
            chol = cholesky(inner, "preconditioner of the mean's system", jitter=0)

            def apply(part):
                scaled = weight * part
                known = torch.cholesky_solve(low_rank @ scaled[:, None], chol)[:, 0]
                return scaled - weight * (known @ low_rank)

            return apply

        return [product(weight) for weight in weights]

    def _divergence(self, state, means):
        c = self.likelihood.n_latents
        of_mean = 0.5 * (state["coef"][:c].T * means[:, :c]).sum()
        return (of_mean + covariance_divergence(state["root"])).item()


def _relative(state):
    """Norm of the residual relative to that of the prior mean."""
    return (state["norm"] / state["first_norm"]).nan_to_num(0.0).max().sqrt().item()


def covariance_divergence(root):
    """From the prior, nats, of roots (c, p, p) about the mean zero; a tensor."""
    return gaussian_kl(torch.zeros_like(root[..., 0]), root).sum()


def features(basis, X, root):
    """Features of the covariance (b, p), and latent variances (b, c)."""
    A, residual = basis(X)
    return A, (residual[:, None] + spreads(A, root)).double()


def roots(gram):
    """Upper triangular roots of covariances whose precisions are gram + I."""
    precision = gram + torch.eye(gram.shape[-1]).to(gram)
    return weight_moments(precision, torch.zeros_like(gram[..., 0]))[1]
