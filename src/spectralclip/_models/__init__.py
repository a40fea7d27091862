"""The layers inside a model, and how they are connected."""

from spectralclip._common import publish
from spectralclip._models.attention import FoundHeads as FoundHeads
from spectralclip._models.attention import HeadProducts as HeadProducts
from spectralclip._models.attention import found_heads as found_heads
from spectralclip._models.attention import head_layers as head_layers
from spectralclip._models.attention import products_of_heads as products_of_heads
from spectralclip._models.call_graph import OperationsMode as OperationsMode
from spectralclip._models.call_graph import around_calls as around_calls
from spectralclip._models.call_graph import distinct_shapes as distinct_shapes
from spectralclip._models.call_graph import in_shape_of as in_shape_of
from spectralclip._models.call_graph import tensors_in as tensors_in
from spectralclip._models.candidates import BATCH_NORM as BATCH_NORM
from spectralclip._models.candidates import BEFORE_A_NORM as BEFORE_A_NORM
from spectralclip._models.candidates import bare_modules as bare_modules
from spectralclip._models.candidates import connectors as connectors
from spectralclip._models.candidates import is_container as is_container
from spectralclip._models.example_inputs import ExampleInputs as ExampleInputs
from spectralclip._models.example_inputs import Inputs as Inputs
from spectralclip._models.example_inputs import call_arguments as call_arguments
from spectralclip._models.example_inputs import with_kwargs as with_kwargs
from spectralclip._models.forward_pass import in_evaluation as in_evaluation
from spectralclip._models.forward_pass import left_as_it_was as left_as_it_was
from spectralclip._models.forward_pass import unwrapped as unwrapped
from spectralclip._models.fsdp import gathered as gathered
from spectralclip._models.fsdp import is_sharded_tensor as is_sharded_tensor
from spectralclip._models.fsdp import local as local
from spectralclip._models.fsdp import reshard_ as reshard_
from spectralclip._models.fsdp import sharded_modules as sharded_modules
from spectralclip._models.fsdp import stand_in as stand_in
from spectralclip._models.fsdp import unhooked as unhooked
from spectralclip._models.layers import find_layers as find_layers
from spectralclip._models.layers import skipped_layers as skipped_layers
from spectralclip._models.parts import parts_of as parts_of
from spectralclip._models.parts import weights_left as weights_left
from spectralclip._models.scores import NORMAL_INPUTS as NORMAL_INPUTS
from spectralclip._models.scores import moments as moments
from spectralclip._models.scores import normal_inputs as normal_inputs
from spectralclip._models.scores import spread_and_gain as spread_and_gain
from spectralclip._models.survey import Compose as Compose
from spectralclip._models.survey import FoundLayer as FoundLayer
from spectralclip._models.survey import Pairs as Pairs
from spectralclip._models.survey import Survey as Survey
from spectralclip._models.survey import check_compose as check_compose
from spectralclip._models.survey import weights_of as weights_of

publish(FoundLayer)
