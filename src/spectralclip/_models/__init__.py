"""The layers inside a model, and how they are connected."""

from spectralclip._models.call_graph import (
    OperationsMode,
    around_calls,
    distinct_shapes,
    in_shape_of,
    tensors_in,
)
from spectralclip._models.candidates import (
    BATCH_NORM,
    BEFORE_A_NORM,
    bare_modules,
    connectors,
    is_container,
)
from spectralclip._models.example_inputs import (
    ExampleInputs,
    Inputs,
    call_arguments,
    with_kwargs,
)
from spectralclip._models.forward_pass import in_evaluation, left_as_it_was, unwrapped
from spectralclip._models.fsdp import (
    gathered,
    is_sharded_tensor,
    local,
    reshard_,
    sharded_modules,
    stand_in,
    unhooked,
)
from spectralclip._models.layers import find_layers, skipped_layers
from spectralclip._models.survey import Compose, FoundLayer, Pairs, Survey

__all__ = [
    "BATCH_NORM",
    "BEFORE_A_NORM",
    "Compose",
    "ExampleInputs",
    "FoundLayer",
    "Inputs",
    "OperationsMode",
    "Pairs",
    "Survey",
    "around_calls",
    "bare_modules",
    "call_arguments",
    "connectors",
    "distinct_shapes",
    "find_layers",
    "gathered",
    "in_evaluation",
    "in_shape_of",
    "is_container",
    "is_sharded_tensor",
    "left_as_it_was",
    "local",
    "reshard_",
    "sharded_modules",
    "skipped_layers",
    "stand_in",
    "tensors_in",
    "unhooked",
    "unwrapped",
    "with_kwargs",
]
