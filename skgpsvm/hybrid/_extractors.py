"""Feature extractors: a multilayer perceptron for tables, and the paper's networks for images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["MLP", "CIFAR10Extractor", "MNISTExtractor"]


class _Extractor(nn.Sequential):
    """Network that checks the shape of its rows."""

    row_shape: tuple

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        r"""Return the features (b, D) of a batch of rows, (b, \*row_shape)."""
        if X.shape[1:] != self.row_shape:
            raise ValueError(
                f"{type(self).__name__} takes rows of shape {self.row_shape}; got "
                f"{tuple(X.shape[1:])}. Pass rows of that shape, flat rows with input_shape="
                f"{self.row_shape}, or your own network as module."
            )
        return super().forward(X)


class _LinearPlusNetwork(nn.Module):
    """Sum of a linear map and a network, which is zero at first."""

    def __init__(self, linear: nn.Linear, *layers: nn.Module) -> None:
        super().__init__()
        self.linear, self.network = linear, nn.Sequential(*layers)
        nn.init.orthogonal_(linear.weight)
        for parameter in layers[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.linear(X) + self.network(X)


class MLP(_Extractor):
    """Multilayer perceptron with rectified linear units and a linear output layer.

    Parameters
    ----------
    n_inputs : int
        Number of features of X.
    hidden_layer_sizes : tuple of int, default=(128, 128)
    n_outputs : int, default=32
        Number of extracted features.
    linear : bool, default=False
        Whether a linear map of the inputs is added. The untrained network is then this map, a
        random orthogonal one. Hybrid classifiers add it by default: their first model, a Gaussian
        process on the untrained features, finds linear signals that random units hide.

    Examples
    --------
    >>> import torch
    >>> from skgpsvm.hybrid import MLP
    >>> MLP(4, hidden_layer_sizes=(8,), n_outputs=3)(torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        n_inputs: int,
        hidden_layer_sizes: Sequence[int] = (128, 128),
        n_outputs: int = 32,
        linear: bool = False,
    ) -> None:
        sizes = [n_inputs, *hidden_layer_sizes]
        layers = []
        for i in range(len(sizes) - 1):
            layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU()]
        layers.append(nn.Linear(sizes[-1], n_outputs))
        if linear:
            layers = [_LinearPlusNetwork(nn.Linear(n_inputs, n_outputs, bias=False), *layers)]
        super().__init__(*layers)
        self.row_shape = (n_inputs,)


class MNISTExtractor(_Extractor):
    """Convolutional network of the paper for images of shape (1, 28, 28); it has 100 features.

    Notes
    -----
    Source: Wistuba and Rawat (2018), section 4.2. Convolutions are unpadded; there are 8,052,708
    parameters.

    Examples
    --------
    >>> import torch
    >>> from skgpsvm.hybrid import MNISTExtractor
    >>> MNISTExtractor()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 100])
    """

    row_shape = (1, 28, 28)

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 11 * 11, 1024),
            nn.ReLU(),
            nn.Linear(1024, 100),
        )


class CIFAR10Extractor(_Extractor):
    """Convolutional network of the paper for images of shape (3, 32, 32); it has 100 features.

    Notes
    -----
    Source: Wistuba and Rawat (2018), section 4.2. Convolutions are unpadded; there are 1,504,356
    parameters.

    Examples
    --------
    >>> import torch
    >>> from skgpsvm.hybrid import CIFAR10Extractor
    >>> CIFAR10Extractor()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    """

    row_shape = (3, 32, 32)

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 128, 3),
            nn.ReLU(),
            nn.Conv2d(128, 128, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(128, 128, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128 * 6 * 6, 256),
            nn.ReLU(),
            nn.Linear(256, 100),
        )
