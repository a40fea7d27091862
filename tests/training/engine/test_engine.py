"""What the host does around a step: it goes on where a norm has jumped, and there alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from oracle import dense_norm
from spectralclip import Attachment, attach
from spectralclip._training.engine.engine import Engine
from spectralclip._training.engine.stage import Stage
from spectralclip.methods import SpectralClip

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


def reflected() -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect", bias=False)


def engine_of(attachment: Attachment) -> Engine:
    engine = attachment._state._engine  # type: ignore[union-attr]
    assert isinstance(engine, Engine)
    return engine


def test_a_measured_norm_above_the_bound_scales_a_layer_once() -> None:
    layer = reflected()
    engine = engine_of(attach(layer, None, torch.zeros(1, 3, 9, 9)))
    assert len(engine._places[""]) == 2  # its modes, and its full vectors
    before = layer.weight.detach().clone()
    engine.correct("", norm=1.25, estimate=1.2, bound=1.0)
    torch.testing.assert_close(layer.weight.detach(), before / 1.25, rtol=1e-6, atol=0)


def test_each_optimizer_brings_its_own_layers_down_at_its_first_step() -> None:
    """By cuts, which leave much more of a layer than a scale does."""

    def kept(together: bool) -> float:
        network = model()
        with torch.no_grad():
            for layer in network:
                layer.weight.mul_(3)
        parts = [[network[0].weight], [network[1].weight, network[2].weight]]
        groups = [parts[0] + parts[1]] if together else parts
        optimizers = [torch.optim.SGD(own, lr=0.0) for own in groups]
        attach(network, optimizers, torch.zeros(1, 4, 9, 9))
        for layer in network:
            layer.weight.grad = torch.zeros_like(layer.weight)
        for optimizer in optimizers:
            optimizer.step()
        return float(network[1].weight.detach().norm())

    assert kept(together=False) == pytest.approx(kept(together=True), rel=0.01)


def test_layers_of_different_precision_are_held_beside_each_other() -> None:
    torch.manual_seed(0)
    network = nn.ModuleDict({"first": nn.Linear(6, 6), "second": nn.Linear(6, 6).double()})

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = network

        def forward(self, x: Tensor) -> Tensor:
            first: Tensor = self.parts["first"](x)
            second: Tensor = self.parts["second"](first.double())
            return second

    both = Both()
    attachment = attach(both, None, torch.zeros(1, 6), max_norm=0.5)
    attachment.step()
    for part in network.values():
        assert dense_norm(part, (6,)) <= 0.5


def test_batch_norms_are_held_at_the_target_of_all_layers() -> None:
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([2.0, 1.0, 0.995, 0.5]))
    network = nn.Sequential(nn.Conv2d(3, 4, 1), norm)
    method = SpectralClip(batch_norm=True, headroom=0.01)
    attachment = attach(network, None, torch.zeros(1, 3, 5, 5), method=method)
    attachment.step()
    root = (1 + norm.eps) ** 0.5
    expected = torch.tensor([0.99 * root, 0.99 * root, 0.99 * root, 0.5])
    torch.testing.assert_close(norm.weight.detach(), expected, rtol=1e-6, atol=0)
    assert float(attachment.norms()["1"]) == pytest.approx(0.99, rel=1e-6)
