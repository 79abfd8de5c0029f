"""Turn scikit-learn kernel objects into torch functions of their ``theta``."""

from abc import ABC, abstractmethod
from functools import partial, reduce
from itertools import chain

import torch
from sklearn.gaussian_process import kernels as sk

_REGISTRY = {}
_MOST_HELD, _HELD_SHARE = 500, 4  # features of a mean function, and times as many as may be exact


def register_torch_kernel(kernel_class):
    """Declare the torch form of a scikit-learn kernel class; use as a decorator.

    Parameters
    ----------
    kernel_class : type
        Subclass of :class:`sklearn.gaussian_process.kernels.Kernel`. Only objects of exactly this
        type use the registration; a later registration of the same class replaces it.

    Returns
    -------
    decorator : callable
        Registers, and returns unchanged, a `TorchKernel` subclass or any callable
        ``(kernel, start) -> TorchKernel``.

    Raises
    ------
    TypeError
        If `kernel_class` is not a scikit-learn kernel class.

    Notes
    -----
    Source: none; the registered form restates what the scikit-learn kernel computes.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import DotProduct
    >>> from skgpsvm.kernels import TorchKernel, register_torch_kernel
    >>> class Quadratic(DotProduct):
    ...     def __call__(self, X, Y=None):
    ...         return super().__call__(X, Y) ** 2
    ...     def diag(self, X):
    ...         return super().diag(X) ** 2
    >>> @register_torch_kernel(Quadratic)
    ... class TorchQuadratic(TorchKernel):
    ...     def __call__(self, X, Z, theta):
    ...         return (X @ Z.T + self.value("sigma_0", theta, X) ** 2) ** 2
    ...     def diag(self, X, theta):
    ...         return (X.square().sum(1) + self.value("sigma_0", theta, X) ** 2) ** 2
    """
    if not (isinstance(kernel_class, type) and issubclass(kernel_class, sk.Kernel)):
        raise TypeError(
            f"register_torch_kernel takes a subclass of sklearn.gaussian_process.kernels.Kernel, "
            f"got {kernel_class!r}; write @register_torch_kernel(YourKernel) above its torch form."
        )

    def decorator(factory):
        _REGISTRY[kernel_class] = factory
        return factory

    return decorator


def torch_kernel(kernel):
    """Torch form of a scikit-learn kernel.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        Read once and not kept: fixed hyper-parameters become constants, the others are entries of
        `theta`, in the order and the (natural) logarithm of ``kernel.theta``.

    Returns
    -------
    torch_kernel : TorchKernel
        Function of ``(X, Z, theta)``.

    Raises
    ------
    TypeError
        If the type of the kernel, or of a part of it, has no registered torch form.
    ValueError
        If a hyper-parameter has a value that its torch form does not cover.

    Notes
    -----
    Source: Rasmussen and Williams (2006), chapter 4, in the parametrisation of scikit-learn.
    """
    return _build(kernel, 0)


def directions(kernel):
    """Each hyper-parameter of a scikit-learn kernel as a direction of its theta, (k, len(theta)).

    One of several entries, such as the length scales of each feature, moves as one.
    """
    sizes = torch.tensor([h.n_elements for h in kernel.hyperparameters if not h.fixed], dtype=int)
    numbers = torch.arange(len(sizes))
    return (numbers[:, None] == numbers.repeat_interleave(sizes)).double()


def theta_bounds(kernel, device):
    """Bounds of the theta of a scikit-learn kernel, (k, 2), also where it has no entries."""
    return torch.tensor(kernel.bounds, device=device).view(-1, 2)


def _build(kernel, start):
    """Torch form of a kernel whose first free hyper-parameter is entry `start` of theta."""
    if type(kernel) not in _REGISTRY:
        known = ", ".join(sorted(kernel_class.__name__ for kernel_class in _REGISTRY))
        raise TypeError(
            f"No torch form is known for the kernel {kernel!r} of type {type(kernel).__name__}. "
            f"Known are exactly the types {known}. Another is added with the decorator "
            f"skgpsvm.kernels.register_torch_kernel."
        )
    return _REGISTRY[type(kernel)](kernel, start)


class TorchKernel(ABC):
    """Covariance function of torch tensors.

    A subclass writes ``__call__(X, Z, theta)`` and ``diag(X, theta)``, reading its hyper-parameters
    with `value` or `per_feature`. What both return is new memory that the caller may overwrite.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The kernel whose ``hyperparameters`` are attributes of itself.
    start : int
        Position of its first hyper-parameter that is not fixed in the `theta` of the whole kernel.

    Raises
    ------
    ValueError
        If a hyper-parameter has not as many values as the kernel declares.

    Notes
    -----
    `theta` is always the full vector of the kernel given to `torch_kernel`, of any float dtype;
    the hyper-parameters take the dtype and the device of `X`. Everything is differentiable in `X`,
    `Z` and `theta`; at coinciding points the gradient of a distance is zero.

    Source: the contract of scikit-learn's ``Kernel``, with `theta` as an argument.
    """

    def __init__(self, kernel, start):
        self._kernel_name = type(kernel).__name__
        self._fixed, self._position = {}, {}
        for parameter in kernel.hyperparameters:
            value = torch.tensor(getattr(kernel, parameter.name), dtype=torch.float64).squeeze()
            size = parameter.n_elements
            if value.numel() != size:
                raise ValueError(
                    f"{parameter.name} of {self._kernel_name} must hold {size} value(s), "
                    f"got {value.numel()}."
                )
            if parameter.fixed:
                self._fixed[parameter.name] = value
            else:
                self._position[parameter.name] = start if size == 1 else slice(start, start + size)
                start += size

    @abstractmethod
    def __call__(self, X, Z, theta):
        """Cross-covariance (n, m) of the rows of X (n, d) and Z (m, d)."""

    @abstractmethod
    def diag(self, X, theta):
        """Prior variance of each row.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Rows.
        theta : Tensor of shape (n_dims,)
            Logarithms of the hyper-parameters of the whole kernel.

        Returns
        -------
        variance : Tensor of shape (n,)
            Equal to the diagonal of ``kernel(X)`` of the scikit-learn kernel.
        """

    def value(self, name, theta, X):
        """Value of a hyper-parameter, fixed or taken from `theta`.

        Parameters
        ----------
        name : str
            Its name in the scikit-learn kernel.
        theta : Tensor of shape (n_dims,)
            Logarithms of the hyper-parameters of the whole kernel.
        X : Tensor
            Gives the dtype and the device.

        Returns
        -------
        value : Tensor of shape () or (n_elements,)
            The value itself, not its logarithm; not to be overwritten.
        """
        if name in self._fixed:
            return self._fixed[name].to(X)
        return theta[self._position[name]].exp().to(X)

    def per_feature(self, name, theta, X):
        """Value of a hyper-parameter that is one number or one for each column of `X`.

        Parameters
        ----------
        name, theta : str, Tensor of shape (n_dims,)
            As in `value`.
        X : Tensor of shape (n, d)
            Rows.

        Returns
        -------
        value : Tensor of shape () or (d,)
            As in `value`.

        Raises
        ------
        ValueError
            If there is more than one number, but not d.
        """
        value = self.value(name, theta, X)
        check_per_feature(f"{name} of {self._kernel_name}", value, X.shape[1])
        return value

    def n_exact_features(self, d):
        """Size of an exact finite feature map.

        Parameters
        ----------
        d : int
            Number of columns of X.

        Returns
        -------
        size : int or None
            None if the kernel has no such map (or none is known).
        """
        return None

    def exact_features(self, X, theta):
        """Exact finite feature map F, such that ``k(X, Z) = F(X) F(Z)^T``.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Rows.
        theta : Tensor of shape (n_dims,)
            Logarithms of the hyper-parameters of the whole kernel.

        Returns
        -------
        features : Tensor of shape (n, n_exact_features(d))
            The features of each row.

        Raises
        ------
        NotImplementedError
            If `n_exact_features` is None.
        """
        raise NotImplementedError(f"{type(self).__name__} has no exact finite feature map.")

    def spectra(self):
        """Spectral densities of the terms, for random Fourier features.

        Returns
        -------
        terms : list of tuple
            Of each term the functions ``(theta, X)`` that give its variance, a tensor (), and its
            length scales, (d,) or (); and the degrees of freedom of Student's t-distribution that
            its frequencies have in units of their inverses, infinite for the normal one.

        Raises
        ------
        ValueError
            If a term has none that is known.
        """
        name = getattr(self, "_kernel_name", type(self).__name__)
        raise ValueError(
            f"No spectrum is known of {name}: random Fourier features take RBF and Matern kernels, "
            "times constants, and their sums. Use one of those, or kernels at points of the data."
        )

    def split(self, d, max_features):
        """Split the top-level sum into terms with a small exact feature map and the others.

        Parameters
        ----------
        d : int
            Number of columns of X.
        max_features : int
            Most features that the exact part may have. Terms are taken in order; one that no
            longer fits is left to the rest, and smaller later ones are still taken. Feature
            kernels without free hyper-parameters, as those of a mean function, whose prior may be
            vague, may have four times as many, and 500. Noise alone is no rest, as it says nothing
            at the points: the first other term stays with it.

        Returns
        -------
        exact, rest : TorchKernel or None
            ``k = exact + rest``; either is None if it has no term. Both take the full `theta`.
        """
        exact, rest, most_held = [], [], max(_MOST_HELD, _HELD_SHARE * max_features)
        for term in _flatten([self], _Sum):
            size = term.n_exact_features(d)
            if size is not None and size <= (most_held if _is_held(term) else max_features):
                max_features -= size
                exact.append(term)
            else:
                rest.append(term)
        if rest and all(map(_is_noise, rest)):
            with_noise = [term for term in exact if not _is_held(term)][:1]
            exact, rest = [t for t in exact if t not in with_noise], with_noise + rest
        return _sum_or_none(exact), _sum_or_none(rest)


class FeatureKernel(TorchKernel):
    """Covariance given by a finite feature map: ``k(X, Z) = F(X) F(Z)^T``.

    A subclass writes `n_exact_features` and `exact_features`.
    """

    def __call__(self, X, Z, theta):
        return self.exact_features(X, theta) @ self.exact_features(Z, theta).T

    def diag(self, X, theta):
        return self.exact_features(X, theta).square().sum(1)


def check_per_feature(name, value, d):
    """Raise ValueError unless the array or tensor `value` is a scalar or holds d entries."""
    if value.ndim and tuple(value.shape) != (d,):
        raise ValueError(
            f"{name} has shape {tuple(value.shape)} but X has {d} feature(s); "
            f"give a scalar or one entry for each feature."
        )


def spare(*tensors):
    """First tensor, as memory for the result of an operation on all, unless a graph needs it."""
    return None if any(t.requires_grad for t in tensors) else tensors[0]


def _add(a, b):
    """Sum that overwrites a where no graph needs it."""
    return torch.add(a, b, out=spare(a, b))


def _multiply(a, b):
    """Product that overwrites a where no graph needs it."""
    return torch.mul(a, b, out=spare(a, b))


@register_torch_kernel(sk.ConstantKernel)
class _Constant(FeatureKernel):
    """constant_value everywhere."""

    def n_exact_features(self, d):
        return 1

    def exact_features(self, X, theta):
        return self.value("constant_value", theta, X).sqrt().expand(X.shape[0], 1)


@register_torch_kernel(sk.DotProduct)
class _DotProduct(FeatureKernel):
    """sigma_0^2 + x . z."""

    def n_exact_features(self, d):
        return d + 1

    def exact_features(self, X, theta):
        return torch.cat([self.value("sigma_0", theta, X).expand(X.shape[0], 1), X], 1)


@register_torch_kernel(sk.WhiteKernel)
class _White(TorchKernel):
    """Independent noise of the latent at every row: variance noise_level, covariance zero.

    Two rows are never the same draw, equal or not; scikit-learn's ``kernel(X)`` puts the noise on
    the diagonal, ``kernel(X, Z)`` leaves it out just as here.
    """

    def __call__(self, X, Z, theta):
        return X.new_zeros(X.shape[0], Z.shape[0])

    def diag(self, X, theta):
        return self.value("noise_level", theta, X).expand(X.shape[0]).clone()


def _is_held(term):
    """Whether a term is a feature kernel without free hyper-parameters."""
    return isinstance(term, FeatureKernel) and not term._position


def _is_noise(term):
    """Whether the covariance of different rows is zero, however they lie."""
    of_noise = isinstance(term, _Product) and any(map(_is_noise, term.parts))
    return isinstance(term, _White) or of_noise


def _flatten(nodes, composite):
    """The nodes, each of type `composite` replaced by its parts."""
    return [p for node in nodes for p in (node.parts if isinstance(node, composite) else [node])]


class _Sum(TorchKernel):
    """Sum of kernels."""

    def __init__(self, parts):
        self.parts = _flatten(parts, _Sum)

    def __call__(self, X, Z, theta):
        parts = [part for part in self.parts if not isinstance(part, _White)] or self.parts[:1]
        return reduce(_add, (part(X, Z, theta) for part in parts))

    def diag(self, X, theta):
        return reduce(_add, (part.diag(X, theta) for part in self.parts))

    def spectra(self):
        return [term for part in self.parts for term in part.spectra()]

    def n_exact_features(self, d):
        sizes = [part.n_exact_features(d) for part in self.parts]
        return None if None in sizes else sum(sizes)

    def exact_features(self, X, theta):
        return torch.cat([part.exact_features(X, theta) for part in self.parts], 1)


def _sum_or_none(terms):
    """Sum of the kernels, a single one as it is, None without any."""
    return _Sum(terms) if len(terms) > 1 else next(iter(terms), None)


class _Product(TorchKernel):
    """Product of kernels; the constants among them multiply last, as numbers."""

    def __init__(self, parts):
        self.parts = _flatten(parts, _Product)
        self._constants = [part for part in self.parts if isinstance(part, _Constant)]
        self._others = [part for part in self.parts if not isinstance(part, _Constant)]
        if not self._others:
            self._others.append(self._constants.pop())

    def __call__(self, X, Z, theta):
        return self._with_constants((part(X, Z, theta) for part in self._others), theta, X)

    def diag(self, X, theta):
        return self._with_constants((part.diag(X, theta) for part in self._others), theta, X)

    def _with_constants(self, factors, theta, X):
        """Product of the factors and the constants."""
        constants = (part.value("constant_value", theta, X) for part in self._constants)
        return reduce(_multiply, chain(factors, constants))

    def spectra(self):
        if len(self._others) > 1:
            return super().spectra()

        def variance(theta, X, own):
            return self._with_constants([own(theta, X)], theta, X)

        terms = self._others[0].spectra()
        return [(partial(variance, own=own), *others) for own, *others in terms]

    def n_exact_features(self, d):
        return self._others[0].n_exact_features(d) if len(self._others) == 1 else None

    def exact_features(self, X, theta):
        if len(self._others) > 1:
            return super().exact_features(X, theta)
        parts = (*self._others, *self._constants)
        return reduce(torch.mul, (part.exact_features(X, theta) for part in parts))


class _Power(TorchKernel):
    """Kernel raised to a fixed exponent."""

    def __init__(self, base, exponent):
        self._base, self._exponent = base, exponent

    def __call__(self, X, Z, theta):
        return self._power(self._base(X, Z, theta))

    def diag(self, X, theta):
        return self._power(self._base.diag(X, theta))

    def _power(self, K):
        """K^exponent; below exponent one, zeros (underflow far away) get gradient zero, not NaN."""
        if self._exponent < 1 and K.requires_grad:
            K = torch.where(K == 0, torch.finfo(K.dtype).tiny, K)
        return K.pow(self._exponent)


def _build_pair(kernel, start, combine):
    """Torch form of a scikit-learn kernel of two parts, whose thetas follow one another."""
    second = start + kernel.k1.n_dims
    return combine([_build(kernel.k1, start), _build(kernel.k2, second)])


register_torch_kernel(sk.Sum)(partial(_build_pair, combine=_Sum))
register_torch_kernel(sk.Product)(partial(_build_pair, combine=_Product))


@register_torch_kernel(sk.Exponentiation)
def _exponentiation(kernel, start):
    """Torch form of Exponentiation."""
    return _Power(_build(kernel.kernel, start), kernel.exponent)
