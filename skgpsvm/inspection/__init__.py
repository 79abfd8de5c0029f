"""Effects of fitted additive models: plots, tables, and the importance of terms and features."""

from ._contributions import ContributionDisplay
from ._display import ComponentEffectDisplay
from ._importances import component_importances
from ._tables import ComponentEffects

__all__ = [
    "ComponentEffectDisplay",
    "ComponentEffects",
    "ContributionDisplay",
    "component_importances",
]
