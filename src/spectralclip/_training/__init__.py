"""Norms held while a model trains."""

from spectralclip._training.attach import attach
from spectralclip._training.attachment import Attachment, NormEstimate, Schedule
from spectralclip._training.distributed.consensus import DisagreementError
from spectralclip._training.distributed.sharing import Sharing, weights_of
from spectralclip._training.engine.constrained_layer import BatchNorm
from spectralclip._training.live import live_operator
from spectralclip._training.method import Method, MethodState, NormWarning, seeded, warn
from spectralclip._training.promise import Promise, promises_of
from spectralclip._training.spectral_clip import SpectralClip
from spectralclip._training.state import saved_vectors

__all__ = [
    "Attachment",
    "BatchNorm",
    "DisagreementError",
    "Method",
    "MethodState",
    "NormEstimate",
    "NormWarning",
    "Promise",
    "Schedule",
    "Sharing",
    "SpectralClip",
    "attach",
    "live_operator",
    "promises_of",
    "saved_vectors",
    "seeded",
    "warn",
    "weights_of",
]
