"""Methods that control the spectrum of layers: the published ones, for comparison."""

from spectralclip.methods.paper_clip import (
    PUBLISHED,
    PUBLISHED_WITHOUT_BATCH_NORM,
    PaperClipResult,
    PaperClipSettings,
    paper_clip_,
)

__all__ = [
    "PUBLISHED",
    "PUBLISHED_WITHOUT_BATCH_NORM",
    "PaperClipResult",
    "PaperClipSettings",
    "paper_clip_",
]
