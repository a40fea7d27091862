"""Processes that do not agree find out, and say on what."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from distributed_cases import BOUND, SHAPE, Run, Scale, error_of, network, wrapped
from processes import Processes
from sharding import SHARDS
from torch import nn

from spectralclip._training.attach import attach


def _attach_apart(kind: str, what: str) -> str:
    rank = dist.get_rank()
    model = network()
    if what == "shapes" and rank:
        model[3] = nn.Linear(8 * 16, 11)
    elif what == "layers" and rank:
        model.append(nn.Linear(10, 10))
    elif what == "frozen" and rank:
        model[3].weight.requires_grad_(False)
    elif what == "weights" and rank:
        with torch.no_grad():
            model[1][0].weight[0, 0, 0, 0] += 1e-6
    model = wrapped(model, "fsdp") if kind == "fsdp" else model
    return error_of(
        lambda: attach(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            torch.zeros(1, *SHAPE),
            method=Scale(breaks="here" if what == "settings" and rank else ""),
            max_norm={"0.0": 1.0, "3": 1.0 + 0.5 * (what == "bounds") * rank}
            if what != "layers"
            else 1.0,
            seed=rank if what == "seed" else 0,
        )
    )


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("bounds", r"on the bound of layer '3': rank 0 has 1.0, rank 1 has 1.5"),
        ("seed", "on the seed: rank 0 has 0, rank 1 has 1"),
        ("settings", "on the method: .*'breaks': ''.*'breaks': 'here'"),
        ("shapes", "on the shapes of the weights of layer '3': .*10, 128.*11, 128"),
        ("layers", "on the layers: .*'4'"),
        ("frozen", "on the training of layer '3': rank 0 has True, rank 1 has False"),
    ],
)
def test_attaching_different_things_is_refused(pair: Processes, what: str, message: str) -> None:
    for error in pair.run(_attach_apart, "plain", what):
        assert error.startswith("DisagreementError")
        assert re.search(message, error), error


@SHARDS
def test_sharded_models_are_compared_too(pair: Processes) -> None:
    for error in pair.run(_attach_apart, "fsdp", "bounds"):
        assert "on the bound of layer '3': rank 0 has 1.0, rank 1 has 1.5" in error


def test_replicas_that_differ_at_the_start_are_refused(pair: Processes) -> None:
    # Of the layers that are taken care of, none differs.
    assert pair.run(_attach_apart, "plain", "weights") == ["no error"] * 2
    for error in pair.run(_diverged, 0):
        assert "At attach() the weights of layer '1.0' on rank 1 are not those on rank 0" in error


def _diverged(step: int) -> str:
    model = network()

    def diverge() -> None:
        with torch.no_grad():
            model[1][0].weight[0, 0, 0, 0] += 1e-6 * dist.get_rank()

    def go() -> None:
        if step == 0:
            diverge()
        attachment = attach(model, None, torch.zeros(1, *SHAPE), method=Scale(), max_norm=BOUND)
        for number in range(1, 103):
            if number == step:
                diverge()
            # The others' work would hide it.
            attachment._state.after_step = lambda step, bounds: None  # type: ignore[union-attr]
            attachment.step()

    return error_of(go)


@pytest.mark.parametrize("step", [1, 50])
def test_replicas_that_come_apart_are_found(pair: Processes, step: int) -> None:
    for error in pair.run(_diverged, step):
        assert "the weights of layer '1.0' on rank 1 are not those on rank 0" in error


def _unfrozen_apart() -> str:
    run = Run("fsdp", "sgd").train(0, 1)
    run.model[3].weight.requires_grad_(dist.get_rank() == 0)
    return error_of(run.attachment.step)


@SHARDS
def test_layers_frozen_on_one_rank_alone_are_refused(pair: Processes) -> None:
    for error in pair.run(_unfrozen_apart):
        assert "the requires_grad flags of layer '3' on rank 1 are not those on rank 0" in error
