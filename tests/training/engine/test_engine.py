"""What the host does around a step: it goes on where a norm has jumped, and there alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import attach
from spectralclip._training.engine.engine import Engine
from spectralclip._training.engine.stage import Stage

JUMPED, OTHER = 0, 1


def model() -> nn.Sequential:
    torch.manual_seed(0)
    channels = [(4, 4), (4, 4), (4, 6)]
    return nn.Sequential(*[nn.Conv2d(*own, 3, padding=1, bias=False) for own in channels])


def trained(jump: float) -> list[Tensor]:
    """The weights after steps in which both grow by 1 %, and the first jumps at the fifth."""
    network, generator = model(), torch.Generator().manual_seed(1)
    attachment = attach(network, None, torch.zeros(1, 4, 9, 9))
    for step in range(8):
        with torch.no_grad():
            for layer in network:
                noise = torch.randn(layer.weight.shape, generator=generator)
                layer.weight.add_(0.01 * layer.weight + 0.003 * noise)
            if step == 4:
                noise = torch.randn(network[JUMPED].weight.shape, generator=generator)
                network[JUMPED].weight.add_(jump * noise)
        attachment.step()
    return [layer.weight.detach().clone() for layer in network]


@pytest.mark.filterwarnings("ignore::spectralclip.NormWarning")
def test_a_layer_that_jumps_leaves_those_of_its_group_bit_for_bit() -> None:
    calm, jumped = trained(0.0), trained(0.5)
    assert not torch.equal(calm[JUMPED], jumped[JUMPED])
    assert torch.equal(calm[OTHER], jumped[OTHER])


@pytest.mark.filterwarnings("ignore::spectralclip.NormWarning")
def test_a_jump_takes_more_than_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    network = model()
    attachment = attach(network, None, torch.zeros(1, 4, 9, 9))
    attachment.step()
    engine = attachment._state._engine  # type: ignore[union-attr]
    assert isinstance(engine, Engine)
    runs: list[tuple[str, ...]] = []
    run = Stage.run

    def counted(stage: Stage, **options: bool) -> list[Tensor]:
        runs.append(tuple(name for group in stage.groups for name in group.names))
        return run(stage, **options)

    monkeypatch.setattr(Stage, "run", counted)
    monkeypatch.setattr(engine, "_runs", [stage.run for stage in engine._stages])
    attachment.step()
    assert len(runs) == 1
    with torch.no_grad():
        network[JUMPED].weight.add_(torch.randn(network[JUMPED].weight.shape))
    attachment.step()
    assert runs[1] == ("0", "1", "2") and set(runs[2:]) == {("0",)}
    assert dense_norm(network[JUMPED], (4, 9, 9)) <= 1.01
