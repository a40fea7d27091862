"""Norms held while a model trains."""

from spectralclip._operators import CONVS, TRANSPOSED
from spectralclip._training.attach import attach
from spectralclip._training.attachment import Attachment, NormEstimate, Schedule
from spectralclip._training.distributed.consensus import DisagreementError
from spectralclip._training.distributed.sharing import Sharing, weights_of
from spectralclip._training.engine.constrained_layer import BatchNorm, Slot
from spectralclip._training.method import Keeper, Method, NormWarning, warn
from spectralclip._training.promise import Promise, promises_of
from spectralclip._training.spectral_clip import SpectralClip
from spectralclip._training.state import saved_vectors

__all__ = [
    "CONVS",
    "TRANSPOSED",
    "Attachment",
    "BatchNorm",
    "DisagreementError",
    "Keeper",
    "Method",
    "NormEstimate",
    "NormWarning",
    "Promise",
    "Schedule",
    "Sharing",
    "Slot",
    "SpectralClip",
    "attach",
    "promises_of",
    "saved_vectors",
    "warn",
    "weights_of",
]
