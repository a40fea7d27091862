"""The nearest layer within a bound."""

from spectralclip._clipping.batch_norm import clamp_batch_norm_
from spectralclip._clipping.clip import ClipResult, clip_
from spectralclip._clipping.clip_model import (
    Targets,
    clip_found_layers_,
    clip_model_,
    layer_targets,
)
from spectralclip._clipping.free_weights import GenericWeights, moving_names
from spectralclip._clipping.set_spectrum import set_spectrum_

__all__ = [
    "ClipResult",
    "GenericWeights",
    "Targets",
    "clamp_batch_norm_",
    "clip_",
    "clip_found_layers_",
    "clip_model_",
    "layer_targets",
    "moving_names",
    "set_spectrum_",
]
