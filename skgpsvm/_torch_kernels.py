"""Turn scikit-learn kernel objects into torch functions of their ``theta``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from sklearn.gaussian_process import kernels as sk

from ._transfers import to_device

_REGISTRY: dict[type[sk.Kernel], Callable] = {}
Factory = TypeVar("Factory", bound=Callable)


def register_torch_kernel(kernel_class: type[sk.Kernel]) -> Callable[[Factory], Factory]:
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


def torch_kernel(kernel, start=0):
    """Return the torch form of a scikit-learn kernel, a function of ``(X, Z, theta)``.

    The kernel is read once and not kept: fixed hyperparameters become constants, the others are
    entries of `theta` from ``start`` on, in the order and the natural logarithm of
    ``kernel.theta``. A TypeError is raised if a part of the kernel has no registered torch form.
    """
    if type(kernel) not in _REGISTRY:
        known = ", ".join(sorted(kernel_class.__name__ for kernel_class in _REGISTRY))
        raise TypeError(
            f"No torch form is known for the kernel {kernel!r} of type {type(kernel).__name__}. "
            f"Known are exactly the types {known}. Another is added with the decorator "
            f"skgpsvm.kernels.register_torch_kernel."
        )
    return _REGISTRY[type(kernel)](kernel, start)


def latent_kernels(kernel):
    """Return the kernel of each group of latent functions, a list of scikit-learn kernels.

    A `CompoundKernel` has one kernel for each group. Any other kernel is that of all functions.
    """
    return list(kernel.kernels) if isinstance(kernel, sk.CompoundKernel) else [kernel]


def torch_kernels(kernel):
    """Return the torch forms of `latent_kernels`, a tuple of functions of the whole theta."""
    parts = latent_kernels(kernel)
    starts = np.cumsum([0, *(part.n_dims for part in parts[:-1])]).tolist()
    return tuple(torch_kernel(part, start) for part, start in zip(parts, starts, strict=True))


def take_sparse(kernel):
    """Return whether all parts of a kernel, or of the default for None, take sparse rows."""
    if isinstance(kernel, sk.CompoundKernel):
        return all(map(take_sparse, kernel.kernels))
    if isinstance(kernel, sk.KernelOperator):
        return take_sparse(kernel.k1) and take_sparse(kernel.k2)
    return kernel is None or torch_kernel(kernel).takes_sparse


def with_theta(kernel, theta):
    """Return a kernel with another theta; a `CompoundKernel` takes the parts in order."""
    if not isinstance(kernel, sk.CompoundKernel):
        return kernel.clone_with_theta(theta)
    ends = np.cumsum([part.n_dims for part in kernel.kernels])
    pairs = zip(kernel.kernels, np.split(theta, ends[:-1]), strict=True)
    return sk.CompoundKernel([part.clone_with_theta(own) for part, own in pairs])


def directions(kernel):
    """Return each hyperparameter of a kernel as a direction of its theta, (k, len(theta)).

    One of several entries, such as the length scales of each feature, moves as one.
    """
    sizes = torch.tensor(
        [h.n_elements for h in kernel.hyperparameters if not h.fixed], dtype=torch.int64
    )
    numbers = torch.arange(len(sizes))
    return (numbers[:, None] == numbers.repeat_interleave(sizes)).double()


def theta_bounds(kernel, device):
    """Return the bounds of the theta of a scikit-learn kernel, (k, 2); k may be zero.

    They are read once. ``kernel.bounds`` reads those of a term up to four times for each operator
    that it is nested in.
    """
    parts = [h for part in latent_kernels(kernel) for h in part.hyperparameters if not h.fixed]
    bounds = np.concatenate([np.empty((0, 2)), *(part.bounds for part in parts)])
    return torch.tensor(np.log(bounds), device=device)


class TorchKernel(ABC):
    """Covariance function of torch tensors.

    A subclass writes ``__call__(X, Z, theta)`` and ``diag(X, theta)``, reading its hyperparameters
    with `value` or `per_feature`. What both return is never overwritten: it may be a view, or a
    tensor that the kernel keeps.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The kernel whose ``hyperparameters`` are attributes of itself.
    start : int
        Position of its first hyperparameter that is not fixed in the `theta` of the whole kernel.

    Raises
    ------
    ValueError
        If a hyperparameter has not as many values as the kernel declares.

    Notes
    -----
    `theta` is always the full vector of the kernel given to `torch_kernel`, of any float dtype;
    the hyperparameters take the dtype and the device of `X`. Everything is differentiable in `X`,
    `Z` and `theta`; at coinciding points the gradient of a distance is zero.

    Source: the contract of scikit-learn's ``Kernel``, with `theta` as an argument.
    """

    # Whether sums and products may overwrite what the kernel returns; for kernels of the package.
    returns_new_memory = False
    # Whether X may be sparse; Z is dense in any case. Other kernels get dense rows.
    takes_sparse = False
    # Whether Z may be in float64 where X is in float32; values have the dtype of X in any case.
    takes_double_points = False

    def __init__(self, kernel: sk.Kernel, start: int) -> None:
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
    def __call__(self, X: torch.Tensor, Z: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        """Return the cross-covariance (n, m) of the rows of X (n, d) and Z (m, d)."""

    @abstractmethod
    def diag(self, X: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        """Return the prior variance of each row.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Rows.
        theta : Tensor of shape (n_dims,)
            Logarithms of the hyperparameters of the whole kernel.

        Returns
        -------
        variance : Tensor of shape (n,)
            Equal to the diagonal of ``kernel(X)`` of the scikit-learn kernel.
        """

    def vjp(
        self, X: torch.Tensor, Z: torch.Tensor, theta: torch.Tensor, points: bool = True
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]]:
        """Return the cross-covariance and its vector-Jacobian product.

        Parameters
        ----------
        X, Z, theta : Tensor
            As of ``__call__``.
        points : bool, default=True
            Whether derivatives in Z are wanted. Otherwise they may be zero, of shape ().

        Returns
        -------
        K : Tensor of shape (n, m)
            Not to be overwritten.
        pull_back : callable
            Takes derivatives (n, m) of a scalar in K, and returns those in theta and in Z with X
            held. They are new tensors, in the dtypes of theta and Z.
        """
        theta, Z = theta.detach().requires_grad_(), Z.detach().requires_grad_(points)
        with torch.enable_grad():
            K = self(X, Z, theta)

        def pull_back(adjoint):
            if points:
                return gradients(K, adjoint, theta, Z)
            return *gradients(K, adjoint, theta), theta.new_zeros(())

        return K.detach(), pull_back

    def diag_gradient(
        self, X: torch.Tensor, theta: torch.Tensor, adjoint: torch.Tensor
    ) -> torch.Tensor:
        """Return derivatives of a scalar in theta, given those (n,) in the prior variances."""
        theta = theta.detach().requires_grad_()
        with torch.enable_grad():
            variances = self.diag(X, theta)
        return gradients(variances, adjoint, theta)[0]

    def value(self, name: str, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Return the value of a hyperparameter, fixed or taken from `theta`.

        Parameters
        ----------
        name : str
            Its name in the scikit-learn kernel.
        theta : Tensor of shape (n_dims,)
            Logarithms of the hyperparameters of the whole kernel.
        X : Tensor
            Gives the dtype and the device.

        Returns
        -------
        value : Tensor of shape () or (n_elements,)
            The value itself, not its logarithm; not to be overwritten.
        """
        if name in self._fixed:
            return to_device(self._fixed[name], X.device, X.dtype)
        return theta[self._position[name]].exp().to(X)

    def per_feature(self, name: str, theta: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        """Return the value of a hyperparameter that is one number, or one per column of `X`.

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

    def n_exact_features(self, d: int) -> int | None:
        """Return the size of an exact finite feature map.

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

    def exact_features(self, X: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        """Return exact finite features F, such that ``k(X, Z) = F(X) F(Z)^T``.

        Parameters
        ----------
        X : Tensor of shape (n, d)
            Rows.
        theta : Tensor of shape (n_dims,)
            Logarithms of the hyperparameters of the whole kernel.

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

    def spectra(self) -> list[tuple[Callable, Callable, float]]:
        """Return the spectral densities of the terms, for random Fourier features.

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
            "times constants, and their sums. Use one of those, or kernels at rows: "
            "basis='inducing'."
        )


class FeatureKernel(TorchKernel):
    """Covariance given by a finite feature map: ``k(X, Z) = F(X) F(Z)^T``.

    A subclass writes `n_exact_features` and `exact_features`.
    """

    returns_new_memory = takes_double_points = True

    def __call__(self, X, Z, theta):
        return self.exact_features(X, theta) @ self.exact_features(Z, theta).T.to(X.dtype)

    def diag(self, X, theta):
        return self.exact_features(X, theta).square().sum(1)


def fitting_points(kernel, Z, X):
    """Return the points Z (m, d), float64, as a kernel takes them beside rows X.

    Where features are far from zero, such as days, float32 has few digits left for differences.
    Rows that were given in float32 are exact. Points between rows would be rounded: they would no
    longer be those of `Kzz`, whose inverse amplifies the difference.
    """
    return Z if kernel.takes_double_points else Z.to(X.dtype)


def check_per_feature(name, value, d):
    """Raise ValueError unless the array or tensor `value` is a scalar or holds d entries."""
    if value.ndim and tuple(value.shape) != (d,):
        raise ValueError(
            f"{name} has shape {tuple(value.shape)} but X has {d} feature(s); "
            f"give a scalar or one entry for each feature."
        )


def gradients(output, adjoint, *inputs):
    """Return gradients in the inputs by autograd, zero for inputs that play no part."""
    if not output.requires_grad:
        return tuple(torch.zeros_like(x) for x in inputs)
    total = _Paired.apply(output, adjoint.to(output.dtype))
    return torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)


class _Paired(torch.autograd.Function):
    """A scalar whose derivatives in a tensor are given, to start a backward pass from.

    The argument of `torch.autograd.grad` for this purpose imports sympy, which takes 0.3 s.
    """

    @staticmethod
    def forward(ctx, output, adjoint):
        ctx.save_for_backward(adjoint)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0], None


def spare(*tensors):
    """Return the first tensor as memory for a result of all, unless a graph needs it."""
    return None if any(t.requires_grad for t in tensors) else tensors[0]
