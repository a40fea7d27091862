"""Methods that keep the spectrum of layers in check: ours, and the published ones."""

from spectralclip.methods._registry import available, get
from spectralclip.methods.clip_batch_norm import ClipBatchNorm
from spectralclip.methods.fast_clip import FastClip
from spectralclip.methods.paper_clip import (
    PUBLISHED,
    PUBLISHED_WITHOUT_BATCH_NORM,
    PaperClipResult,
    PaperClipSettings,
    paper_clip_,
)
from spectralclip.methods.spectral_clip import SpectralClip

__all__ = [
    "PUBLISHED",
    "PUBLISHED_WITHOUT_BATCH_NORM",
    "ClipBatchNorm",
    "FastClip",
    "PaperClipResult",
    "PaperClipSettings",
    "SpectralClip",
    "available",
    "get",
    "paper_clip_",
]
