"""Messages between processes: few of them, and nobody waits forever."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed_cases import BOUND, SHAPE, Run, Scale, error_of, network
from processes import Processes
from sharding import FSDP
from training_cases import layers_of

from spectralclip._training.attach import attach
from spectralclip._training.distributed.consensus import Assignment, Report
from spectralclip._training.distributed.process_group import ProcessGroup


def _messages(frozen: bool) -> list[list[int]]:
    """How many tensors are sent by each rank at each of three steps."""
    model = network()
    attachment = attach(
        model, None, torch.zeros(1, *SHAPE), method=Scale(), max_norm=1e6 if frozen else BOUND
    )
    sent: list[list[int]] = []
    original = ProcessGroup.broadcast

    def spy(group: ProcessGroup, tensors: Mapping[int, Any]) -> None:
        sent.append(sorted(len(part) for part in tensors.values()))
        original(group, tensors)

    ProcessGroup.broadcast = spy  # type: ignore[method-assign]
    try:
        for _ in range(2):
            attachment.step()
        with torch.no_grad():
            model[3].weight.mul_(3.0)
        attachment.step()
    finally:
        ProcessGroup.broadcast = original  # type: ignore[method-assign]
    return sent


def test_only_what_has_changed_is_sent(pair: Processes) -> None:
    sent, other_sent = pair.run(_messages, True)
    assert sent == other_sent == [[], [], []]
    sent, other_sent = pair.run(_messages, False)
    assert sent == other_sent
    assert sum(sent[0]) > 0 and sent[1:] == [[], [1]]


def _elsewhere(kind: str) -> str:
    run = Run(kind, "sgd").train(0, 1)
    attachment = run.attachment
    return error_of(attachment.step if dist.get_rank() else attachment.state_dict)


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_ranks_at_different_things_do_not_wait_forever(pair: Processes, kind: str) -> None:
    for error in pair.run(_elsewhere, kind):
        assert "rank 0 at state_dict() " in error and "rank 1 at " in error
        assert "step" in error and "equally often" in error


def _absent() -> str:
    group = dist.new_group(timeout=timedelta(seconds=2))
    layers = layers_of(network(), SHAPE)
    assignment = Assignment(ProcessGroup(group, torch.device("cpu")), layers)
    return error_of(assignment.reach_consensus, Report("step 7")) if dist.get_rank() == 0 else ""


def test_a_rank_that_does_not_come_is_missed(pair: Processes) -> None:
    error, _ = pair.run(_absent)
    assert "DisagreementError: At step 7, rank 0 did not hear from all others" in error
    assert "equally often" in error
