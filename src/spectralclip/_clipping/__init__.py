"""The nearest layer within a bound."""

from spectralclip._clipping.batch_norm import clamp_batch_norm_ as clamp_batch_norm_
from spectralclip._clipping.clip import Certify as Certify
from spectralclip._clipping.clip import ClipResult as ClipResult
from spectralclip._clipping.clip import clip_ as clip_
from spectralclip._clipping.clip_model import LEAVING_OUT as LEAVING_OUT
from spectralclip._clipping.clip_model import Targets as Targets
from spectralclip._clipping.clip_model import check_bounds as check_bounds
from spectralclip._clipping.clip_model import clip_found_layers_ as clip_found_layers_
from spectralclip._clipping.clip_model import clip_model_ as clip_model_
from spectralclip._clipping.clip_model import layer_targets as layer_targets
from spectralclip._clipping.free_weights import moving_names as moving_names
from spectralclip._clipping.init_at_bound import InitResult as InitResult
from spectralclip._clipping.init_at_bound import init_found_layers_ as init_found_layers_
from spectralclip._clipping.set_spectrum import set_spectrum_ as set_spectrum_
from spectralclip._common import publish

publish(ClipResult, InitResult)
