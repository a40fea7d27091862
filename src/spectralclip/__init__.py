"""Extract, bound and clip the spectrum of implicitly linear layers, in PyTorch."""

from importlib.metadata import version

from spectralclip._affine import NotAffineError
from spectralclip._check import check_affine
from spectralclip._exact import Exact
from spectralclip._operator import LinearOperator, as_operator
from spectralclip._solvers import Lanczos, PowerQR, Solver
from spectralclip._svds import (
    ConvergenceWarning,
    Spectrum,
    singular_values,
    spectral_norm,
    svds,
)
from spectralclip.digits import load_digits

__version__ = version("spectralclip")

__all__ = [
    "ConvergenceWarning",
    "Exact",
    "Lanczos",
    "LinearOperator",
    "NotAffineError",
    "PowerQR",
    "Solver",
    "Spectrum",
    "as_operator",
    "check_affine",
    "load_digits",
    "singular_values",
    "spectral_norm",
    "svds",
]
