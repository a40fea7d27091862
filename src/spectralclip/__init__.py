"""Extract, bound and clip the spectrum of implicitly linear layers, in PyTorch.

A name is imported when it is first asked for: all of them together take a fifth of a second.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spectralclip import demo as demo
    from spectralclip import integrations as integrations
    from spectralclip import methods as methods
    from spectralclip import nn as nn
    from spectralclip._audit import Audit as Audit
    from spectralclip._audit import AuditComparison as AuditComparison
    from spectralclip._audit import Head as Head
    from spectralclip._audit import HeadAudit as HeadAudit
    from spectralclip._audit import LayerAudit as LayerAudit
    from spectralclip._audit import attention_heads as attention_heads
    from spectralclip._audit import audit as audit
    from spectralclip._bounds import Interval as Interval
    from spectralclip._bounds import norm_bounds as norm_bounds
    from spectralclip._bounds import norm_bounds_all_sizes as norm_bounds_all_sizes
    from spectralclip._clipping import ClipResult as ClipResult
    from spectralclip._clipping import InitResult as InitResult
    from spectralclip._clipping import clip_ as clip_
    from spectralclip._clipping import clip_model_ as clip_model_
    from spectralclip._clipping import set_spectrum_ as set_spectrum_
    from spectralclip._lipschitz import NetworkBound as NetworkBound
    from spectralclip._lipschitz import certified_accuracy as certified_accuracy
    from spectralclip._lipschitz import certified_radius as certified_radius
    from spectralclip._lipschitz import init_at_bound_ as init_at_bound_
    from spectralclip._lipschitz import jacobian_operator as jacobian_operator
    from spectralclip._lipschitz import lipschitz_bounds as lipschitz_bounds
    from spectralclip._lipschitz import margin_cross_entropy as margin_cross_entropy
    from spectralclip._models import FoundLayer as FoundLayer
    from spectralclip._models import find_layers as find_layers
    from spectralclip._models import skipped_layers as skipped_layers
    from spectralclip._operators import LinearOperator as LinearOperator
    from spectralclip._operators import NotAffineError as NotAffineError
    from spectralclip._operators import as_operator as as_operator
    from spectralclip._operators import check_affine as check_affine
    from spectralclip._operators import kernel_operator as kernel_operator
    from spectralclip._spectrum import ConvergenceWarning as ConvergenceWarning
    from spectralclip._spectrum import Exact as Exact
    from spectralclip._spectrum import Lanczos as Lanczos
    from spectralclip._spectrum import PowerQR as PowerQR
    from spectralclip._spectrum import Solver as Solver
    from spectralclip._spectrum import Spectrum as Spectrum
    from spectralclip._spectrum import kernel_norm as kernel_norm
    from spectralclip._spectrum import singular_values as singular_values
    from spectralclip._spectrum import spectral_norm as spectral_norm
    from spectralclip._spectrum import svds as svds
    from spectralclip._training import Attachment as Attachment
    from spectralclip._training import DisagreementError as DisagreementError
    from spectralclip._training import LayerReport as LayerReport
    from spectralclip._training import Method as Method
    from spectralclip._training import MethodState as MethodState
    from spectralclip._training import NormEstimate as NormEstimate
    from spectralclip._training import NormWarning as NormWarning
    from spectralclip._training import Sharing as Sharing
    from spectralclip._training import TrainingReport as TrainingReport
    from spectralclip._training import attach as attach

__version__ = version("spectralclip")

# Where each of them is; a test holds this against what is imported above.
_OFFERED = {
    "_audit": (
        "Audit",
        "AuditComparison",
        "Head",
        "HeadAudit",
        "LayerAudit",
        "attention_heads",
        "audit",
    ),
    "_bounds": ("Interval", "norm_bounds", "norm_bounds_all_sizes"),
    "_clipping": ("ClipResult", "InitResult", "clip_", "clip_model_", "set_spectrum_"),
    "_lipschitz": (
        "NetworkBound",
        "certified_accuracy",
        "certified_radius",
        "init_at_bound_",
        "jacobian_operator",
        "lipschitz_bounds",
        "margin_cross_entropy",
    ),
    "_models": ("FoundLayer", "find_layers", "skipped_layers"),
    "_operators": (
        "LinearOperator",
        "NotAffineError",
        "as_operator",
        "check_affine",
        "kernel_operator",
    ),
    "_spectrum": (
        "ConvergenceWarning",
        "Exact",
        "Lanczos",
        "PowerQR",
        "Solver",
        "Spectrum",
        "kernel_norm",
        "singular_values",
        "spectral_norm",
        "svds",
    ),
    "_training": (
        "Attachment",
        "DisagreementError",
        "LayerReport",
        "Method",
        "MethodState",
        "NormEstimate",
        "NormWarning",
        "Sharing",
        "TrainingReport",
        "attach",
    ),
}
_ROOM_OF = {name: room for room, names in _OFFERED.items() for name in names}
_SUBPACKAGES = ("demo", "integrations", "methods", "nn")
# `from spectralclip import *` is not to take the place of torch's `nn`.
__all__ = sorted({*_ROOM_OF, "methods"})

if not TYPE_CHECKING:  # a checker would take any name for one that is here

    def __getattr__(name: str) -> Any:
        if name in _SUBPACKAGES:
            return import_module(f"{__name__}.{name}")
        if name not in _ROOM_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({"__version__", *__all__, *_SUBPACKAGES})
