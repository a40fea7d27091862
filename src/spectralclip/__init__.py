"""Extract, bound and clip the spectrum of implicitly linear layers, in PyTorch."""

from importlib.metadata import version

from spectralclip import methods
from spectralclip._operators.affine import NotAffineError
from spectralclip._training.attachment import Attachment, NormEstimate
from spectralclip._audit import Audit, Comparison, LayerAudit, audit
from spectralclip._bounds.norm_bounds import Interval, norm_bounds
from spectralclip._operators.check_affine import check_affine
from spectralclip._clipping.clip import ClipResult, clip_
from spectralclip._clipping.clip_model import clip_model_
from spectralclip._spectrum.exact import Exact
from spectralclip._models.layers import FoundLayer, find_layers, skipped_layers
from spectralclip._lipschitz import (
    NetworkBound,
    Step,
    Unbounded,
    certified_radius,
    jacobian_operator,
    lipschitz_bounds,
)
from spectralclip._training.distributed.consensus import DisagreementError
from spectralclip._training.method import Keeper, Method, NormWarning
from spectralclip._operators.operator import LinearOperator, as_operator
from spectralclip._clipping.set_spectrum import set_spectrum_
from spectralclip._spectrum.solvers import Lanczos, PowerQR, Solver
from spectralclip._spectrum.svds import (
    ConvergenceWarning,
    Spectrum,
    singular_values,
    spectral_norm,
    svds,
)
from spectralclip._training.attach import attach
from spectralclip.demo.digits import load_digits

__version__ = version("spectralclip")

__all__ = [
    "Attachment",
    "Audit",
    "ClipResult",
    "Comparison",
    "ConvergenceWarning",
    "DisagreementError",
    "Exact",
    "FoundLayer",
    "Interval",
    "Keeper",
    "Lanczos",
    "LayerAudit",
    "LinearOperator",
    "Method",
    "NetworkBound",
    "NormEstimate",
    "NormWarning",
    "NotAffineError",
    "PowerQR",
    "Solver",
    "Spectrum",
    "Step",
    "Unbounded",
    "as_operator",
    "attach",
    "audit",
    "certified_radius",
    "check_affine",
    "clip_",
    "clip_model_",
    "find_layers",
    "jacobian_operator",
    "lipschitz_bounds",
    "load_digits",
    "methods",
    "norm_bounds",
    "set_spectrum_",
    "singular_values",
    "skipped_layers",
    "spectral_norm",
    "svds",
]
