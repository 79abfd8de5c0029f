"""Covariance functions that scikit-learn lacks, and how to give a torch form to one's own."""

from .._torch_kernels import TorchKernel, register_torch_kernel
from ._anova import ANOVARBF, ANOVACategorical, ANOVAMatern
from ._columns import Columns
from ._linear import Linear
from ._multiscale import MultiscaleRBF

__all__ = [
    "ANOVARBF",
    "ANOVACategorical",
    "ANOVAMatern",
    "Columns",
    "Linear",
    "MultiscaleRBF",
    "TorchKernel",
    "register_torch_kernel",
]
