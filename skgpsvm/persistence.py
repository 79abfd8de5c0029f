"""Types of which fitted models consist, for tools that load models of trusted types only."""

from functools import partial

from sklearn.gaussian_process import kernels as _kernels

import skgpsvm

from . import kernels, solvers
from ._calibration import Calibration, Tempering
from ._features import FourierFeatures
from ._fitted_models import DecoupledModel, SparseModel, WeightSpaceModel
from ._parameters import Digest, SolverMemory
from ._predictive import LeftOut
from .additive._basis import AdditiveBasis, Feature
from .additive._encoding import TableEncoder
from .additive._latent import AdditiveLatent
from .hybrid._state import HybridLatents, build_extractor
from .quadruply_stochastic._rvm_training import RelevanceModel

__all__ = ["TRUSTED_TYPES"]


def _is_kernel(kind):
    return isinstance(kind, type) and issubclass(kind, _kernels.Kernel)


_TYPES = [
    *(getattr(skgpsvm, name) for name in skgpsvm.__all__ if name != "__version__"),
    *(getattr(solvers, name) for name in solvers.__all__),
    *(kind for kind in vars(kernels).values() if _is_kernel(kind)),
    AdditiveBasis,
    AdditiveLatent,
    Calibration,
    DecoupledModel,
    Digest,
    Feature,
    FourierFeatures,
    HybridLatents,
    LeftOut,
    RelevanceModel,
    SolverMemory,
    SparseModel,
    TableEncoder,
    Tempering,
    WeightSpaceModel,
    build_extractor,
    _kernels.CompoundKernel,
    _kernels.ConstantKernel,
    _kernels.DotProduct,
    _kernels.ExpSineSquared,
    _kernels.Exponentiation,
    _kernels.Matern,
    _kernels.Product,
    _kernels.RBF,
    _kernels.RationalQuadratic,
    _kernels.Sum,
    _kernels.WhiteKernel,
    frozenset,
    partial,
]
#: Names of all types of a fitted model, for the argument ``trusted`` of ``skops.io.load``. The
#: modules of a user, such as the network of a hybrid model, are not among them.
TRUSTED_TYPES = [f"{kind.__module__}.{kind.__qualname__}" for kind in _TYPES]
