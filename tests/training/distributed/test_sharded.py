"""Sharded weights: put together layer by layer, and never all at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distributed_cases import (
    BOUND,
    OPTIMIZERS,
    SHAPE,
    Run,
    Scale,
    bare,
    network,
    same,
    sharded,
    whole,
    wrapped,
)
from processes import Processes
from sharding import FSDP, SHARDS
from torch import Tensor, nn
from training_cases import layers_of

from spectralclip._training.attach import attach


def _on_mesh(shape: tuple[int, ...]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    names = ("replicas", "shards")[-len(shape) :]
    model = sharded(network(), mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = attach(model, optimizer, torch.zeros(1, *SHAPE), method=Scale(), max_norm=BOUND)
    run = Run.of(model, optimizer, attachment).train(0, 4)
    return run.weights()


@SHARDS
@pytest.mark.parametrize("shape", [(1, 2), (2, 1)])
def test_meshes_with_replicas(pair: Processes, shape: tuple[int, ...]) -> None:
    weights, other = pair.run(_on_mesh, shape)
    assert same(weights, other)
    for name, value in Run("alone", "sgd").train(0, 4).weights().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 2), (4,)])
def test_four_processes(four: Processes, shape: tuple[int, ...]) -> None:
    weights, *others = four.run(_on_mesh, shape)
    assert all(same(weights, other) for other in others)
    for name, value in Run("alone", "sgd").train(0, 4).weights().items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)


def _held() -> Any:
    """What a process holds beside its shards."""
    model = wrapped(network(), "fsdp")
    mine = attach(model, None, torch.zeros(1, *SHAPE), method=Scale())._sharing.mine()
    return {
        name: [tuple(p.shape) for p in layer.modules[0].parameters()]
        for name, layer in mine.items()
    }, [type(p).__name__ for p in model.parameters()]


@SHARDS
def test_no_process_holds_the_whole_model(pair: Processes) -> None:
    (held, kinds), (other_held, _) = pair.run(_held)
    assert not held.keys() & other_held.keys()
    together = {**held, **other_held}
    expected = {
        n: [tuple(p.shape) for p in layer.modules[0].parameters()]
        for n, layer in layers_of(network(), SHAPE).items()
    }
    assert together == expected
    assert set(kinds) == {"DTensor"}  # the model is sharded as it was


def _frozen_and_thawed(kind: str) -> Any:
    run = Run(kind, "sgd")
    last = bare(run.model)[3]
    last.weight.requires_grad_(False)
    last.bias.requires_grad_(False)
    before = whole(last.weight)
    norms = run.train(0, 2).attachment.norms()
    unmoved = torch.equal(whole(last.weight), before)
    last.weight.requires_grad_(True)
    with torch.no_grad():
        last.weight.mul_(5.0)
    run.attachment.step()
    return norms, unmoved, run.attachment.norms(), whole(last.weight)


@pytest.mark.parametrize("kind", ["plain", FSDP])
def test_frozen_layers_stay_until_they_are_not(pair: Processes, kind: str) -> None:
    for norms, unmoved, later, weight in pair.run(_frozen_and_thawed, kind):
        assert unmoved and "3" not in norms
        assert later["3"] == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=1e-5)


class Diagonal(nn.Module):
    """An affine layer of no known type."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 3.0, 10))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def _each_by_itself(kind: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = network(norm=True).append(nn.Sequential(Diagonal(), nn.ReLU(), Diagonal()))
    if kind == "fsdp":
        for layer in (model[0][0], *model[1][:2], model[4][0], model):
            fully_shard(layer)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    attachment = attach(
        model, optimizer, torch.zeros(1, *SHAPE), method=Scale(compose="conv_bn"), max_norm=BOUND
    )
    run = Run.of(model, optimizer, attachment).train(0, 3)
    return run.weights(), attachment.norms()


@SHARDS
def test_layers_that_are_sharded_one_by_one(pair: Processes) -> None:
    """Their classes and hooks are those of `fully_shard`."""
    (weights, norms), (other_weights, other_norms) = pair.run(_each_by_itself, "fsdp")
    assert same(weights, other_weights) and norms == other_norms
    expected, expected_norms = _each_by_itself("alone")
    assert list(norms) == list(expected_norms) == ["0.0", "1.0+1.1", "3", "4.0", "4.2"]
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-6)
