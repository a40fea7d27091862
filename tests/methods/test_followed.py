"""A layer whose leading vector is followed: what it costs, and where it fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import train_batch_norm
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode
from training_cases import (
    EXAMPLE,
    assert_identical,
    sgd,
    small_network,
    snapshot,
    train,
    true_norms,
)

from oracle import dense_norm
from spectralclip import Attachment, NormWarning, attach
from spectralclip.methods import FastClip, _followed


class Counting(TorchDispatchMode):
    """Counts convolutions, their transposes and their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = self.backwards = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.convolutions += func is torch.ops.aten.convolution.default
        self.backwards += func is torch.ops.aten.convolution_backward.default
        return func(*args, **(kwargs or {}))


def counted(attachment: Attachment) -> tuple[int, int, int]:
    before = attachment._state.num_matvecs  # type: ignore[union-attr]
    with Counting() as count:
        attachment.step()
    after = attachment._state.num_matvecs  # type: ignore[union-attr]
    return count.convolutions, count.backwards, after - before


def test_one_pair_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1))
    bound = 0.5 * dense_norm(model, (3, 8, 8))
    method = FastClip(lr=0.01, inner_steps=3, every=4)
    attachment = attach(model, None, torch.zeros(1, 3, 8, 8), method=method, max_norm=bound)
    assert counted(attachment) == (22, 0, 22)  # ten to warm up
    assert counted(attachment) == (2, 0, 2)
    assert counted(attachment) == (2, 0, 2)
    # A pair, the target, three steps forward and back, ten pairs.
    assert counted(attachment) == (2 + 1 + 3 + 20, 3, 2 + 1 + 6 + 20)
    assert counted(attachment) == (2, 0, 2)


def test_one_pair_a_step_of_a_composition() -> None:
    """A batch norm costs no application of its own."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4))
    attachment = attach(
        model, None, torch.zeros(1, 3, 8, 8), method=FastClip(concat=True), max_norm=0.1
    )
    attachment.step()
    assert counted(attachment) == (4, 0, 4)


def test_any_other_layer_costs_an_evaluation_at_zero_beside() -> None:
    class Wrapped(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = nn.Sequential(Wrapped(3, 4, 3))
    attachment = attach(model, None, torch.zeros(1, 3, 8, 8), method=FastClip())
    attachment.step()
    assert counted(attachment) == (2, 1, 2)


@pytest.mark.parametrize("method", [FastClip(lr=0.1, every=5), FastClip.published(False)])
def test_tracked_norms_are_lower_bounds(method: FastClip) -> None:
    model = small_network()
    optimizer = sgd(model)
    attachment = attach(model, optimizer, EXAMPLE, method=method, max_norm=0.7)
    for index in range(0, 30, 3):
        train(model, optimizer, 3, first=index)
        for name, norm in true_norms(attachment).items():
            assert 0.5 * norm < attachment.norms()[name] <= norm * (1 + 1e-5)


def smooth_conv() -> nn.Sequential:
    """Its leading vector is constant, so that all nine taps move together: 0.35 is too long."""
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"))
    with torch.no_grad():
        model[0].weight.abs_()
    return model


@pytest.mark.parametrize("lr", [1.0, 1e30])
def test_rounds_that_run_away_are_undone(lr: float) -> None:
    model = smooth_conv()
    before = snapshot(model)
    method = FastClip(lr=lr, inner_steps=3, every=2)
    attachment = attach(model, None, torch.zeros(1, 2, 8, 8), method=method, max_norm=0.5)
    attachment.step()
    with pytest.warns(NormWarning, match=r"FastClip on layer '0': A round .* was undone"):
        attachment.step()
    assert_identical(model.state_dict(), before)
    norm = dense_norm(model, (2, 8, 8))
    assert attachment.norms()["0"] == pytest.approx(norm, rel=1e-3)
    attachment.step()
    assert attachment.norms()["0"] == pytest.approx(norm, rel=1e-3)


def test_a_norm_that_was_missed_is_not_taken_for_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vector followed first is not the leading one; the round on it stays."""
    starts = [torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.1]])]
    monkeypatch.setattr(_followed.FollowedLayer, "_fresh_vector", lambda self: starts.pop(0))
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([3.0, 1.5])))
    attachment = attach(
        nn.Sequential(layer), None, torch.zeros(1, 2), method=FastClip(lr=1.0, every=1)
    )
    attachment.step()
    torch.testing.assert_close(layer.weight.detach(), torch.diag(torch.tensor([3.0, 1.0])))
    assert attachment.norms()["0"] == pytest.approx(3.0, rel=1e-3)


def test_any_layer_is_followed_like_a_plain_one() -> None:
    """Hooks make a layer unknown; the numbers stay, also where they come and go."""
    norms, weights = [], []
    for hooked in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3))
        train_batch_norm(model[1])
        method = FastClip(lr=0.01, every=2, concat=True, concat_lr=1e-3, concat_every=3)
        attachment = attach(model, None, torch.zeros(1, 2, 10, 10), method=method, max_norm=0.3)
        for step in range(8):
            if hooked and step == 2:
                hook = model[1].register_forward_hook(lambda *_: None)
            if hooked and step == 5:
                hook.remove()
            with torch.no_grad():
                model[0].weight.mul_(1.01)
                model[1].running_var.mul_(1.02)
            attachment.step()
        norms.append(list(attachment.norms().values()))
        weights.append(model[0].weight.detach())
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    torch.testing.assert_close(weights[0], weights[1])


def test_parametrized_layers() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(9, 8)))
    bound = 0.7 * dense_norm(model, (9,))
    attachment = attach(
        model, None, torch.zeros(1, 9), method=FastClip(lr=0.1, every=1), max_norm=bound
    )
    for _ in range(60):
        attachment.step()
    assert dense_norm(model, (9,)) <= 1.1 * bound


def test_replaced_weights_are_followed() -> None:
    model = nn.Sequential(nn.Linear(6, 5))
    attachment = attach(model, None, torch.zeros(1, 6), method=FastClip(every=3), max_norm=0.5)
    attachment.step()
    model.load_state_dict({"0.weight": 3 * torch.eye(5, 6), "0.bias": torch.zeros(5)}, assign=True)
    attachment.step()
    assert attachment.norms()["0"] == pytest.approx(3.0, rel=0.1)
    attachment.step()
    assert not torch.equal(model[0].weight, 3 * torch.eye(5, 6))


def test_layers_draw_vectors_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
    model[2].load_state_dict(model[0].state_dict())
    attachment = attach(model, None, torch.zeros(1, 5), method=FastClip())
    attachment.step()
    first, second = attachment.state_dict()["layers"].values()
    assert not torch.equal(first[0]["vector"], second[0]["vector"])


def test_each_fresh_vector_is_another_one() -> None:
    model = nn.Sequential(nn.Linear(5, 5))
    attachment = attach(model, None, torch.zeros(1, 5), method=FastClip())
    followed = attachment._state._followed["0"][0]  # type: ignore[union-attr]
    vectors = [followed._fresh_vector() for _ in range(3)]
    assert not torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[1], vectors[2])
    assert attachment.state_dict()["layers"]["0"][0]["draws"] == 3
