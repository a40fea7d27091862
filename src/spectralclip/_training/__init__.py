"""Norms held while a model trains."""

from spectralclip._common import publish
from spectralclip._training.attach import attach as attach
from spectralclip._training.attachment import Attachment as Attachment
from spectralclip._training.attachment import Schedule as Schedule
from spectralclip._training.distributed.consensus import DisagreementError as DisagreementError
from spectralclip._training.distributed.sharing import Sharing as Sharing
from spectralclip._training.engine.constrained_layer import BatchNorm as BatchNorm
from spectralclip._training.method import Method as Method
from spectralclip._training.method import MethodState as MethodState
from spectralclip._training.method import NormWarning as NormWarning
from spectralclip._training.method import seeded as seeded
from spectralclip._training.method import warn as warn
from spectralclip._training.norm_estimate import NormEstimate as NormEstimate
from spectralclip._training.promise import Promise as Promise
from spectralclip._training.report import LayerReport as LayerReport
from spectralclip._training.report import TrainingReport as TrainingReport
from spectralclip._training.spectral_clip import SpectralClip as SpectralClip
from spectralclip._training.state import saved_vectors as saved_vectors

publish(
    Attachment,
    DisagreementError,
    LayerReport,
    Method,
    MethodState,
    NormEstimate,
    NormWarning,
    Sharing,
    TrainingReport,
)
