"""Extract, bound and clip the spectrum of implicitly linear layers, in PyTorch."""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from spectralclip import methods, nn
from spectralclip._audit import (
    Audit,
    AuditComparison,
    Head,
    HeadAudit,
    LayerAudit,
    attention_heads,
    audit,
)
from spectralclip._bounds import Interval, norm_bounds, norm_bounds_all_sizes
from spectralclip._clipping import (
    ClipResult,
    InitResult,
    clip_,
    clip_model_,
    set_spectrum_,
)
from spectralclip._lipschitz import (
    NetworkBound,
    certified_accuracy,
    certified_radius,
    init_at_bound_,
    jacobian_operator,
    lipschitz_bounds,
    margin_cross_entropy,
)
from spectralclip._models import FoundLayer, find_layers, skipped_layers
from spectralclip._operators import (
    LinearOperator,
    NotAffineError,
    as_operator,
    check_affine,
    kernel_operator,
)
from spectralclip._spectrum import (
    ConvergenceWarning,
    Exact,
    Lanczos,
    PowerQR,
    Solver,
    Spectrum,
    kernel_norm,
    singular_values,
    spectral_norm,
    svds,
)
from spectralclip._training import (
    Attachment,
    DisagreementError,
    LayerReport,
    Method,
    MethodState,
    NormEstimate,
    NormWarning,
    Sharing,
    TrainingReport,
    attach,
)

__version__ = version("spectralclip")

__all__ = [
    "Attachment",
    "Audit",
    "AuditComparison",
    "ClipResult",
    "ConvergenceWarning",
    "DisagreementError",
    "Exact",
    "FoundLayer",
    "Head",
    "HeadAudit",
    "InitResult",
    "Interval",
    "Lanczos",
    "LayerAudit",
    "LayerReport",
    "LinearOperator",
    "Method",
    "MethodState",
    "NetworkBound",
    "NormEstimate",
    "NormWarning",
    "NotAffineError",
    "PowerQR",
    "Sharing",
    "Solver",
    "Spectrum",
    "TrainingReport",
    "as_operator",
    "attach",
    "attention_heads",
    "audit",
    "certified_accuracy",
    "certified_radius",
    "check_affine",
    "clip_",
    "clip_model_",
    "find_layers",
    "init_at_bound_",
    "jacobian_operator",
    "kernel_norm",
    "kernel_operator",
    "lipschitz_bounds",
    "margin_cross_entropy",
    "methods",
    "nn",
    "norm_bounds",
    "norm_bounds_all_sizes",
    "set_spectrum_",
    "singular_values",
    "skipped_layers",
    "spectral_norm",
    "svds",
]

# Errors, tracebacks and pickles name these classes by where users find them.
for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__


def __getattr__(name: str) -> ModuleType:
    # The demo with its digits is imported when it is asked for.
    if name == "demo":
        return import_module("spectralclip.demo")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
