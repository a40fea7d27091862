"""Models under `fully_shard` stay sharded."""

from __future__ import annotations

from model_cases import IMAGES, network
from sharding import SHARDS
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from spectralclip._models.layers import find_layers


@SHARDS
def test_sharded_models_can_go_on(process_group: None) -> None:
    """A pass gathers weights, and a module under `fully_shard` keeps a record of that."""
    model, bare = network(), network()
    expected = find_layers(bare, IMAGES)
    fully_shard(model[3])
    fully_shard(model)
    for _ in range(2):
        assert list(find_layers(model, IMAGES)) == list(expected)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    model(IMAGES).sum().backward()
    assert list(find_layers(model, IMAGES)) == list(expected)
    assert all(isinstance(parameter.grad, DTensor) for parameter in model.parameters())
    model(IMAGES)
