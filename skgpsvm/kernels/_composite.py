"""Constants, sums, products and powers: what other kernels are put together with."""

from functools import partial, reduce
from itertools import chain

import torch
from sklearn.gaussian_process import kernels as sk

from .._torch_kernels import FeatureKernel, TorchKernel, register_torch_kernel, spare, torch_kernel

_MAX_HELD, _HELD_SHARE = 500, 4  # features of a mean function, and times as many as may be exact


def _combined(operation, kernels, values):
    """Combine values of kernels by `torch.add` or `torch.mul`, in new memory.

    Memory that the package made is used again where no graph needs it; what a registered kernel
    returned may be a view, or held by the kernel, and is never overwritten.
    """
    pairs = zip(kernels, values, strict=True)
    kernel, total = next(pairs)
    is_new = kernel.returns_new_memory
    for _, value in pairs:
        total = operation(total, value, out=spare(total, value) if is_new else None)
        is_new = True
    return total if is_new else total.clone()


@register_torch_kernel(sk.ConstantKernel)
class _Constant(FeatureKernel):
    """constant_value everywhere; its values are a view of a single number."""

    returns_new_memory, takes_sparse = False, True

    def __call__(self, X, Z, theta):
        return self.value("constant_value", theta, X).expand(len(X), len(Z))

    def n_exact_features(self, d):
        return 1

    def exact_features(self, X, theta):
        return self.value("constant_value", theta, X).sqrt().expand(X.shape[0], 1)


@register_torch_kernel(sk.WhiteKernel)
class _White(TorchKernel):
    """Noise of variance noise_level, independent from row to row, and absent at any points Z."""

    returns_new_memory = takes_sparse = takes_double_points = True

    def __call__(self, X, Z, theta):
        return torch.zeros(len(X), len(Z), dtype=X.dtype, device=X.device)

    def diag(self, X, theta):
        return self.value("noise_level", theta, X).repeat(len(X))


def _flatten(nodes, composite):
    """Return the nodes, with each of type `composite` replaced by its parts."""
    return [p for node in nodes for p in (node.parts if isinstance(node, composite) else [node])]


class _Sum(TorchKernel):
    returns_new_memory = True

    def __init__(self, parts):
        self.parts = _flatten(parts, _Sum)
        self.takes_sparse = all(part.takes_sparse for part in self.parts)
        self.takes_double_points = all(part.takes_double_points for part in self.parts)

    def __call__(self, X, Z, theta):
        return _combined(torch.add, self.parts, (part(X, Z, theta) for part in self.parts))

    def diag(self, X, theta):
        return _combined(torch.add, self.parts, (part.diag(X, theta) for part in self.parts))

    def vjp(self, X, Z, theta, points=True):
        pairs = (part.vjp(X, Z, theta, points) for part in self.parts)
        values, pull_backs = zip(*pairs, strict=True)

        def pull_back(adjoint):
            terms = zip(*(term(adjoint) for term in pull_backs), strict=True)
            return tuple(reduce(torch.add, gradients) for gradients in terms)

        return reduce(torch.add, values), pull_back

    def diag_gradient(self, X, theta, adjoint):
        return sum(part.diag_gradient(X, theta, adjoint) for part in self.parts)

    def spectra(self):
        return [term for part in self.parts for term in part.spectra()]

    def n_exact_features(self, d):
        sizes = [part.n_exact_features(d) for part in self.parts]
        return None if None in sizes else sum(sizes)

    def exact_features(self, X, theta):
        return torch.cat([part.exact_features(X, theta) for part in self.parts], 1)


class _Product(TorchKernel):
    """Product of kernels; the constants among them multiply last, as numbers."""

    _kernel_name = "Product"
    returns_new_memory = True

    def __init__(self, parts):
        self.parts = _flatten(parts, _Product)
        self.takes_sparse = all(part.takes_sparse for part in self.parts)
        self.takes_double_points = all(part.takes_double_points for part in self.parts)
        self._constants = [part for part in self.parts if isinstance(part, _Constant)]
        self._others = [part for part in self.parts if not isinstance(part, _Constant)]
        if not self._others:
            self._others.append(self._constants.pop())

    def __call__(self, X, Z, theta):
        factors = (part(X, Z, theta) for part in self._others)
        return _combined(torch.mul, self._ordered(), chain(factors, self._values(theta, X)))

    def diag(self, X, theta):
        factors = (part.diag(X, theta) for part in self._others)
        return _combined(torch.mul, self._ordered(), chain(factors, self._values(theta, X)))

    def vjp(self, X, Z, theta, points=True):
        if len(self._others) > 1:
            return super().vjp(X, Z, theta, points)
        constant = self._constant(theta, X)
        values, pull_back_values = self._others[0].vjp(X, Z, theta, points)

        def pull_back(adjoint):  # it is linear, so that the constant multiplies what is small
            by_theta, by_Z = pull_back_values(adjoint)
            self._add_constants(by_theta, values, adjoint)
            return constant.to(theta) * by_theta, constant * by_Z

        return constant * values, pull_back

    def diag_gradient(self, X, theta, adjoint):
        if len(self._others) > 1:
            return super().diag_gradient(X, theta, adjoint)
        constant, other = self._constant(theta, X), self._others[0]
        by_theta = other.diag_gradient(X, theta, adjoint)
        self._add_constants(by_theta, other.diag(X, theta), adjoint)
        return constant.to(theta) * by_theta

    def _add_constants(self, by_theta, values, adjoint):
        """Add derivatives in the logarithms of the free constants, which multiply the values."""
        free = [i for constant in self._constants for i in constant._position.values()]
        if free:
            by_log = torch.dot(values.ravel(), adjoint.ravel())
            for i in free:
                by_theta[i] += by_log

    def _ordered(self):
        return [*self._others, *self._constants]

    def _values(self, theta, X):
        return (part.value("constant_value", theta, X) for part in self._constants)

    def _constant(self, theta, X):
        """Return the product of the constants, ()."""
        one = torch.ones((), dtype=X.dtype, device=X.device)
        return reduce(torch.mul, self._values(theta, X), one)

    def spectra(self):
        if len(self._others) > 1:
            return super().spectra()

        def variance(theta, X, own):
            return reduce(torch.mul, self._values(theta, X), own(theta, X))

        terms = self._others[0].spectra()
        return [(partial(variance, own=own), *others) for own, *others in terms]

    def n_exact_features(self, d):
        return self._others[0].n_exact_features(d) if len(self._others) == 1 else None

    def exact_features(self, X, theta):
        if len(self._others) > 1:
            return super().exact_features(X, theta)
        return reduce(torch.mul, (part.exact_features(X, theta) for part in self._ordered()))


class _Power(TorchKernel):
    """Kernel raised to a fixed exponent."""

    _kernel_name = "Exponentiation"
    returns_new_memory = True

    def __init__(self, base, exponent):
        self._base, self._exponent = base, exponent
        self.takes_sparse = base.takes_sparse
        self.takes_double_points = base.takes_double_points

    def __call__(self, X, Z, theta):
        return self._power(self._base(X, Z, theta))

    def diag(self, X, theta):
        return self._power(self._base.diag(X, theta))

    def _power(self, K):
        """Return K^exponent; zeros by underflow get gradient 0 instead of NaN if exponent < 1."""
        if self._exponent < 1 and K.requires_grad:
            K = torch.where(K == 0, torch.finfo(K.dtype).tiny, K)
        return K.pow(self._exponent)


def _build_pair(kernel, start, combine):
    """Return the torch form of a kernel of two parts, whose thetas follow one another."""
    second = start + kernel.k1.n_dims
    return combine([torch_kernel(kernel.k1, start), torch_kernel(kernel.k2, second)])


register_torch_kernel(sk.Sum)(partial(_build_pair, combine=_Sum))
register_torch_kernel(sk.Product)(partial(_build_pair, combine=_Product))


@register_torch_kernel(sk.Exponentiation)
def _exponentiation(kernel, start):
    return _Power(torch_kernel(kernel.kernel, start), kernel.exponent)


def exact_and_rest(kernel, d, max_features):
    """Split the top-level sum into terms with a small exact feature map and the others.

    Either is None if it has no term; both take the full `theta`. Terms of free hyperparameters may
    have at most ``max_features`` features, of X with d columns. They are taken in order; one that
    no longer fits is left to the rest, and smaller later ones are still taken. Each that is held,
    as of a mean function, whose prior may be vague, may have four times as many, or 500 if that is
    more.
    """
    exact, rest, left = [], [], max_features
    most_held = max(_MAX_HELD, _HELD_SHARE * max_features)
    for term in _flatten([kernel], _Sum):
        size, held = term.n_exact_features(d), _is_held(term)
        if size is not None and size <= (most_held if held else left):
            left -= 0 if held else size
            exact.append(term)
        else:
            rest.append(term)
    return _sum_or_none(exact), _sum_or_none(rest)


def _is_held(term):
    """Return whether a term is a feature kernel without free hyperparameters, up to constants."""
    if isinstance(term, _Product) and len(term._others) == 1:
        [term] = term._others
    return isinstance(term, FeatureKernel) and not term._position


def _sum_or_none(terms):
    """Return the sum of the kernels, a single kernel itself, or None without any."""
    return _Sum(terms) if len(terms) > 1 else next(iter(terms), None)
