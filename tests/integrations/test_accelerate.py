"""Accelerate: wrapped models and optimizers, accumulation, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from integration_parts import METHODS, Scale, assert_equal_weights, dense_norm, differ
from seeds import seeded
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spectralclip.demo import load_digits

accelerate = pytest.importorskip(
    "accelerate", reason="accelerate is not installed: it is in the integrations extra"
)

from spectralclip.integrations import NormLogger  # noqa: E402
from spectralclip.integrations.accelerate import (  # noqa: E402
    AcceleratorWriter,
    attach_accelerated,
)

BOUND = 0.8
EXAMPLE = torch.zeros(1, 1, 28, 28)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate keeps the settings of its first accelerator for the whole process."""

    def forget() -> None:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()

    forget()
    yield
    forget()


def network() -> nn.Sequential:
    with seeded(1):
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 10))


class Loop:
    """A training loop as Accelerate's documentation has it."""

    def __init__(self, method: Any, attached: bool = True, **settings: Any) -> None:
        images, labels = load_digits()
        chosen = torch.arange(0, len(images), 16)[:256]
        data = DataLoader(TensorDataset(images[chosen], labels[chosen]), batch_size=32)
        self.accelerator = accelerate.Accelerator(cpu=True, **settings)
        self.net = network()
        plain = torch.optim.SGD(self.net.parameters(), lr=0.3, momentum=0.9)
        self.model, self.optimizer, self.data = self.accelerator.prepare(self.net, plain, data)
        self.attachment = None
        if attached:
            self.attachment = attach_accelerated(
                self.accelerator,
                self.model,
                self.optimizer,
                EXAMPLE,
                method=method(),
                max_norm=BOUND,
            )
        self.norms: list[float] = []

    def epoch(self) -> None:
        for images, labels in self.data:
            with self.accelerator.accumulate(self.model):
                loss = nn.functional.cross_entropy(self.model(images), labels)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.norms.append(max(dense_norm(self.net[index].weight) for index in (1, 3)))


def test_without_it_norms_grow_beyond_the_bound() -> None:
    loop = Loop(Scale, attached=False)
    loop.epoch()
    assert loop.norms[-1] > 1.2 * BOUND


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_norms_are_within_the_bound_after_every_step(method: Any, precision: str) -> None:
    loop = Loop(method, mixed_precision=precision)
    keys = list(network().state_dict())
    loop.epoch()
    assert len(loop.norms) == 8
    assert max(loop.norms) <= 1.01 * BOUND
    assert list(loop.net.state_dict()) == keys


def test_accumulated_batches_are_one_step() -> None:
    loop = Loop(Scale, gradient_accumulation_steps=4)
    before: list[int] = []
    loop.net.register_forward_pre_hook(lambda *_: before.append(loop.attachment.steps))
    loop.epoch()
    assert before == [0, 0, 0, 0, 1, 1, 1, 1]
    assert loop.attachment.steps == 2


def test_a_step_that_the_scaler_skips_is_skipped() -> None:
    loop = Loop(Scale)
    # Accelerate has a scaler for devices only; on the CPU it is given here by hand.
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    loop.optimizer = accelerate.optimizer.AcceleratedOptimizer(
        loop.optimizer.optimizer, scaler=scaler
    )
    for skipped, steps in ((True, 0), (False, 1)):
        scaler.scale(loop.model(torch.ones(2, 1, 28, 28)).sum()).backward()
        if skipped:
            loop.net[1].weight.grad[0, 0] = torch.inf
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        assert loop.optimizer.step_was_skipped == skipped
        assert loop.attachment.steps == steps


@pytest.mark.parametrize("method", METHODS)
def test_resuming_gives_bitwise_the_same_weights(method: Any, tmp_path: Path) -> None:
    whole = Loop(method)
    for _ in range(2):
        whole.epoch()
    whole.accelerator.save_state(str(tmp_path))
    state = torch.load(tmp_path / "spectralclip.pt", weights_only=True)
    assert state["steps"] == [16]
    for _ in range(2):
        whole.epoch()

    resumed = Loop(method)
    resumed.accelerator.load_state(str(tmp_path))
    assert resumed.attachment.steps == 16
    for _ in range(2):
        resumed.epoch()
    assert_equal_weights(resumed.net, whole.net)

    without = Loop(method)
    without.attachment.remove()
    without.accelerator.load_state(str(tmp_path))
    accelerator, model, optimizer = without.accelerator, without.model, without.optimizer
    attach_accelerated(
        accelerator, model, optimizer, EXAMPLE, method=method(), max_norm=BOUND, checkpoint=None
    )
    for _ in range(2):
        without.epoch()
    if method is Scale:  # whose way depends on its state
        assert differ(without.net, whole.net)


def test_accelerates_own_registration_works_too(tmp_path: Path) -> None:
    loop = Loop(Scale)
    loop.accelerator.register_for_checkpointing(loop.attachment)
    loop.epoch()
    loop.accelerator.save_state(str(tmp_path))
    (tmp_path / "spectralclip.pt").unlink()
    again = Loop(Scale, attached=False)
    attachment = attach_accelerated(
        again.accelerator, again.model, again.optimizer, EXAMPLE, method=Scale(), checkpoint=None
    )
    again.accelerator.register_for_checkpointing(attachment)
    again.accelerator.load_state(str(tmp_path))
    assert attachment.steps == 8
    assert attachment.state_dict()["layers"]["1"] == 8


def test_a_checkpoint_without_the_state_is_refused(tmp_path: Path) -> None:
    Loop(Scale, attached=False).accelerator.save_state(str(tmp_path))
    loop = Loop(Scale)
    with pytest.raises(FileNotFoundError, match=r"no 'spectralclip.pt'.*checkpoint=None"):
        loop.accelerator.load_state(str(tmp_path))


def test_checkpoints_are_written_after_the_end_too(tmp_path: Path) -> None:
    loop = Loop(Scale)
    loop.epoch()
    loop.attachment.finalize()
    loop.accelerator.save_state(str(tmp_path))
    assert not (tmp_path / "spectralclip.pt").exists()
    loop.accelerator.load_state(str(tmp_path))


def test_pairs_are_passed_on() -> None:
    loop, pairs = Loop(Scale, attached=False), [("nowhere", "neither")]
    with pytest.raises(ValueError, match="nowhere"):
        attach_accelerated(
            loop.accelerator, loop.model, loop.optimizer, EXAMPLE, method=Scale(), pairs=pairs
        )


def test_layers_of_a_wrapped_model_have_their_own_names() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    bare = Wrapped()
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(torch.compile(bare, backend="eager"), optimizer)
    attachment = attach_accelerated(accelerator, model, optimizer, EXAMPLE, method=Scale())
    assert list(attachment.layers) == ["net.1", "net.3"]
    assert attachment.layers["net.1"].modules[0] is bare.net[1]


class Notes(accelerate.tracking.GeneralTracker):
    """A tracker that remembers."""

    name, requires_logging_directory = "notes", False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    @property
    def tracker(self) -> list[Any]:
        return self.rows

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        pass

    def log(self, values: dict[str, float], step: int | None = None, **more: Any) -> None:
        self.rows.append((step, values))


def test_norms_go_to_the_trackers() -> None:
    notes = Notes()
    loop = Loop(Scale, log_with=notes)
    loop.accelerator.init_trackers("norms")
    assert loop.attachment is not None
    logger = NormLogger(AcceleratorWriter(loop.accelerator), loop.attachment, every=2)
    loop.attachment.step()
    logger.step()
    assert notes.rows == []
    loop.attachment.step()
    logger.step()
    ((step, values),) = notes.rows
    assert step == 2 and values["spectral_norm_bound/1"] == BOUND
    assert values["spectral_norm/1"] == pytest.approx(dense_norm(loop.net[1].weight), rel=1e-6)
