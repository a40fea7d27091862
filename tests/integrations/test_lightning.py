"""The Lightning callback, in real Trainers."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from integration_parts import METHODS, Scale, assert_equal_weights, dense_norm, differ
from seeds import seeded
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from oracle import dense_matrix
from spectralclip import NormWarning
from spectralclip._training.attachment import Attachment
from spectralclip._training.spectral_clip import SpectralClip
from spectralclip.demo import load_digits

pl = pytest.importorskip(
    "lightning.pytorch", reason="lightning is not installed: it is in the integrations extra"
)

from spectralclip.integrations.lightning import SpectralClipCallback  # noqa: E402

BOUND = 0.8
EXAMPLE = torch.zeros(1, 1, 28, 28)

pytestmark = [
    pytest.mark.filterwarnings(message)
    for message in (
        # Lightning asks for worker processes on machines with many cores.
        "ignore:The '.*dataloader' does not have many workers:UserWarning:lightning",
        # Lightning's way to look at nested data is deprecated in torch 2.13.
        "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning:lightning",
    )
]


def batches() -> DataLoader:
    images, labels = load_digits()
    chosen = torch.arange(0, len(images), 16)[:256]
    return DataLoader(TensorDataset(images[chosen], labels[chosen]), batch_size=32)


class Digits(pl.LightningModule):
    def __init__(self, penalty: Callable[[], Tensor] | None = None) -> None:
        super().__init__()
        with seeded(1):
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 10))
        self.penalty, self.seen = penalty, list[float]()

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: Any, index: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.seen.append(loss.item())
        return loss if self.penalty is None else loss + self.penalty()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)

    def norms(self) -> dict[str, float]:
        return {f"net.{index}": dense_norm(self.net[index].weight) for index in (1, 3)}


class Watch(pl.Callback):
    """Notes the true norms after every batch."""

    def __init__(self) -> None:
        self.norms: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.norms.append(pl_module.norms())


def trainer(*callbacks: Any, epochs: int = 1, **settings: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        callbacks=list(callbacks),
        **quiet | settings,
    )


def test_without_the_callback_norms_grow_beyond_the_bound() -> None:
    module, watch = Digits(), Watch()
    trainer(watch).fit(module, batches())
    assert max(watch.norms[-1].values()) > 1.2 * BOUND


@pytest.mark.parametrize("method", METHODS)
def test_norms_are_within_the_bound_after_every_step(method: Any) -> None:
    module, watch = Digits(), Watch()
    callback = SpectralClipCallback(EXAMPLE, method=method(), max_norm=BOUND)
    keys = list(module.state_dict())
    trainer(callback, watch, epochs=2).fit(module, batches())
    assert len(watch.norms) == 16
    assert all(norm <= 1.01 * BOUND for norms in watch.norms for norm in norms.values())
    assert list(module.state_dict()) == keys
    assert sum(module.seen[8:]) < sum(module.seen[:8])


def test_nothing_is_attached_before_and_after() -> None:
    module, callback = Digits(), SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND)
    attached: list[bool] = []

    class Look(pl.Callback):
        def on_fit_start(self, *args: Any) -> None:
            attached.append(callback.attachment is not None)

        def on_train_batch_end(self, *args: Any) -> None:
            attached.append(callback.attachment is not None)

    fitting = trainer(callback, Look(), limit_train_batches=1)
    fitting.fit(module, batches())
    assert attached == [False, True]
    assert callback.attachment is None
    assert float(callback.penalty()) == 0
    (optimizer,) = fitting.optimizers
    for parameter in module.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.param_groups[0].update(lr=-5.0, momentum=0.0)
    optimizer.step()
    assert max(module.norms().values()) > BOUND


@pytest.mark.parametrize("method", METHODS)
def test_resuming_gives_bitwise_the_same_weights(method: Any, tmp_path: Path) -> None:
    whole = Digits()
    trainer(SpectralClipCallback(EXAMPLE, method=method(), max_norm=BOUND), epochs=4).fit(
        whole, batches()
    )

    class Save(pl.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")

    callback = SpectralClipCallback(EXAMPLE, method=method(), max_norm=BOUND)
    first = trainer(callback, Save(), epochs=2)
    first.fit(Digits(), batches())
    first.save_checkpoint(tmp_path / "after.ckpt")
    for name in ("0.ckpt", "1.ckpt", "after.ckpt"):
        resumed, again = Digits(), SpectralClipCallback(EXAMPLE, method=method(), max_norm=BOUND)
        trainer(again, epochs=4).fit(resumed, batches(), ckpt_path=tmp_path / name)
        assert_equal_weights(resumed, whole)


class Images(Digits):
    """With convolutions, of which the library's own method remembers the most."""

    def __init__(self) -> None:
        super().__init__()
        with seeded(2):
            self.net = nn.Sequential(
                nn.Conv2d(1, 4, 3, stride=2, padding=1),
                nn.ReLU(),
                nn.Conv2d(4, 4, 3, stride=2, padding=1, padding_mode="reflect"),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(4 * 7 * 7, 10),
            )

    def norms(self) -> dict[str, float]:
        shapes = {0: (1, 28, 28), 2: (4, 14, 14), 5: (196,)}
        dense = {
            f"net.{index}": dense_matrix(copy.deepcopy(self.net[index]).double(), shape)
            for index, shape in shapes.items()
        }
        return {name: float(np.linalg.norm(matrix, 2)) for name, matrix in dense.items()}


def test_convolutions_are_kept_and_resumed_exactly(tmp_path: Path) -> None:
    path = tmp_path / "some.ckpt"
    whole, watch = Images(), Watch()
    callback = SpectralClipCallback(EXAMPLE, method=SpectralClip(), max_norm=0.5)
    trainer(callback, watch, epochs=2).fit(whole, batches())
    for norms in watch.norms[2:]:
        assert max(norms.values()) <= 1.03 * 0.5

    first = trainer(SpectralClipCallback(EXAMPLE, method=SpectralClip(), max_norm=0.5), epochs=1)
    first.fit(Images(), batches())
    first.save_checkpoint(path)
    resumed = Images()
    again = SpectralClipCallback(EXAMPLE, method=SpectralClip(), max_norm=0.5)
    trainer(again, epochs=2).fit(resumed, batches(), ckpt_path=path)
    assert_equal_weights(resumed, whole)

    content = torch.load(path, weights_only=True)
    content["callbacks"].clear()
    torch.save(content, path)
    forgetful = Images()
    again = SpectralClipCallback(EXAMPLE, method=SpectralClip(), max_norm=0.5)
    trainer(again, epochs=2).fit(forgetful, batches(), ckpt_path=path)
    assert differ(forgetful, whole)


def test_resuming_needs_the_state(tmp_path: Path) -> None:
    whole, path = Digits(), tmp_path / "half.ckpt"
    trainer(SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND), epochs=4).fit(
        whole, batches()
    )
    first = trainer(SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND), epochs=2)
    first.fit(Digits(), batches())
    first.save_checkpoint(path)
    content = torch.load(path, weights_only=True)
    assert content["callbacks"]["SpectralClipCallback[Scale]"]["steps"] == [16]
    content["callbacks"].clear()
    torch.save(content, path)

    resumed = Digits()
    again = trainer(SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND), epochs=4)
    again.fit(resumed, batches(), ckpt_path=path)
    assert differ(resumed, whole)


def test_a_checkpoint_that_was_only_tested_is_not_resumed_from(tmp_path: Path) -> None:
    class Tested(Digits):
        def test_step(self, batch: Any, index: int) -> None:
            pass

    path = tmp_path / "some.ckpt"
    first = trainer(SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND))
    first.fit(Digits(), batches())
    first.save_checkpoint(path)
    steps: list[int] = []

    class Look(pl.Callback):
        def on_train_start(self, *args: Any) -> None:
            assert callback.attachment is not None
            steps.append(callback.attachment.steps)

    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND)
    fitting = trainer(callback, Look(), limit_train_batches=1)
    fitting.test(Tested(), batches(), ckpt_path=path)
    fitting.fit(Digits(), batches())
    assert steps == [0]


def test_accumulated_batches_are_one_step() -> None:
    module, callback = Digits(), SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND)
    trainer(callback, accumulate_grad_batches=4).fit(module, batches())
    assert callback.state_dict()["steps"] == [2]
    assert max(module.norms().values()) <= BOUND


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precisions(method: Any, precision: str) -> None:
    module, watch = Digits(), Watch()
    callback = SpectralClipCallback(EXAMPLE, method=method(), max_norm=BOUND)
    trainer(callback, watch, precision=precision).fit(module, batches())
    slack = 1.01 if precision != "bf16-true" else 1.03
    assert max(norm for norms in watch.norms for norm in norms.values()) <= slack * BOUND


class Pair(pl.LightningModule):
    """Two networks with an optimizer each; the second moves every other time."""

    def __init__(self, penalty: Callable[[], Tensor] | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        with seeded(1):
            self.first, self.second = nn.Linear(784, 16), nn.Linear(16, 10)
        self.penalty = penalty

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images.flatten(1)).relu())

    def training_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.manual_backward(loss if self.penalty is None else loss + self.penalty())
        for number, optimizer in enumerate(self.optimizers()):
            if number == 0 or index % 2:
                optimizer.step()
                optimizer.zero_grad()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [
            torch.optim.SGD(self.first.parameters(), lr=0.3, momentum=0.9),
            torch.optim.Adam(self.second.parameters(), lr=0.02),
        ]


@pytest.mark.parametrize("method", METHODS)
def test_each_of_several_optimizers_keeps_its_own_layers(method: Any, tmp_path: Path) -> None:
    bounds = {"first": 0.5, "second": 0.9}

    def make() -> SpectralClipCallback:
        return SpectralClipCallback(EXAMPLE, method=method(), max_norm=bounds)

    whole, callback = Pair(), make()
    trainer(callback, epochs=4).fit(whole, batches())
    state = callback.state_dict()
    assert state["steps"] == [32, 16]
    assert list(state["norms"]) == ["first", "second"]
    assert dense_norm(whole.first.weight) <= 1.01 * 0.5
    assert dense_norm(whole.second.weight) <= 1.01 * 0.9

    half = trainer(make(), epochs=2)
    half.fit(Pair(), batches())
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Pair()
    trainer(make(), epochs=4).fit(resumed, batches(), ckpt_path=tmp_path / "half.ckpt")
    assert_equal_weights(resumed, whole)


# As above, but pytest.warns raises it again, in this file.
@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
def test_a_layer_that_joins_one_of_several_optimizers_later_is_kept_from_then_on() -> None:
    class Joining(Pair):
        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            self.other = torch.optim.SGD([self.second.bias], lr=0.02)
            return [torch.optim.SGD(self.first.parameters(), lr=0.3), self.other]

        def on_train_epoch_start(self) -> None:
            seen.append(dense_norm(self.second.weight))
            if self.current_epoch == 1:
                self.other.add_param_group({"params": [self.second.weight]})

    seen: list[float] = []
    module, callback = Joining(), SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=0.4)
    with pytest.warns(NormWarning, match=r"\['second'\] are not held"):
        trainer(callback, epochs=2).fit(module, batches())
    assert seen[0] == seen[1] > 0.4
    assert dense_norm(module.second.weight) <= 0.4
    assert dense_norm(module.first.weight) <= 0.4


def test_several_optimizers_without_any_layer_are_refused() -> None:
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=lambda name, layer: None)
    with pytest.raises(ValueError, match=r"No layer is left .* \['first', 'second'\]"):
        trainer(callback).fit(Pair(), batches())


def test_other_layers_than_those_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    first = trainer(SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=0.5))
    first.fit(Pair(), batches())
    first.save_checkpoint(tmp_path / "some.ckpt")
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm={"first": 0.5})
    with pytest.raises(ValueError, match=r"speaks of the layers \['second'\]"):
        trainer(callback, epochs=2).fit(Pair(), batches(), ckpt_path=tmp_path / "some.ckpt")
    assert callback.attachment is None


def test_a_penalty_counts_each_layer_once() -> None:
    callback = SpectralClipCallback(EXAMPLE, method=Scale(penalty=0.5), max_norm=100.0)
    seen: list[tuple[float, float]] = []

    class Penalized(Pair):
        def training_step(self, batch: Any, index: int) -> None:
            squares = self.first.weight.square().sum() + self.second.weight.square().sum()
            seen.append((callback.penalty().item(), 0.5 * squares.item()))
            super().training_step(batch, index)

    trainer(callback).fit(Penalized(callback.penalty), batches())
    assert len(seen) == 8
    assert [mine for mine, _ in seen] == pytest.approx([true for _, true in seen], rel=1e-6)


def test_a_penalty_reaches_the_weights() -> None:
    plain, callback = Digits(), SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=100.0)
    trainer(callback).fit(plain, batches())
    callback = SpectralClipCallback(EXAMPLE, method=Scale(penalty=0.1), max_norm=100.0)
    penalized = Digits(callback.penalty)
    trainer(callback).fit(penalized, batches())
    for name, norm in penalized.norms().items():
        assert norm < 0.8 * plain.norms()[name]


def test_layers_that_are_thawed_later_are_kept_from_then_on() -> None:
    class Thaw(pl.callbacks.BaseFinetuning):
        def freeze_before_training(self, module: Any) -> None:
            self.freeze(module.net[1])

        def finetune_function(self, module: Any, epoch: int, optimizer: Any) -> None:
            if epoch == 1:
                self.unfreeze_and_add_param_group(module.net[1], optimizer)

    class Head(Digits):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            trained = [p for p in self.parameters() if p.requires_grad]
            return torch.optim.SGD(trained, lr=0.3)

    module, watch = Head(), Watch()
    with torch.no_grad():
        module.net[1].weight.mul_(3)
    start = dense_norm(module.net[1].weight)
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND)
    trainer(Thaw(), callback, watch, epochs=2).fit(module, batches())
    assert start > BOUND
    assert [norms["net.1"] for norms in watch.norms[:8]] == [start] * 8
    assert all(norms["net.1"] <= BOUND for norms in watch.norms[8:])


@pytest.mark.parametrize("example", [EXAMPLE, (EXAMPLE,), {"images": EXAMPLE}])
def test_the_modules_own_example_is_the_default(example: Any) -> None:
    module = Digits()
    module.example_input_array = example
    trainer(SpectralClipCallback(method=Scale(), max_norm=BOUND)).fit(module, batches())
    assert max(module.norms().values()) <= BOUND


def test_without_an_example_the_error_says_what_to_do() -> None:
    module = Digits()
    start = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match=r"Digits once.*pass example_inputs.*example_input_array"):
        trainer(SpectralClipCallback(method=Scale())).fit(module, batches())
    assert all(torch.equal(value, start[name]) for name, value in module.state_dict().items())


class Failing(Digits):
    def training_step(self, batch: Any, index: int) -> Tensor:
        if index == 3:
            raise ArithmeticError("on purpose")
        return super().training_step(batch, index)


def test_an_exception_removes_it_and_keeps_the_state(tmp_path: Path) -> None:
    module, callback = Failing(), SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND)
    saving = pl.callbacks.ModelCheckpoint(tmp_path, filename="broken", save_on_exception=True)
    with pytest.raises(ArithmeticError, match="on purpose"):
        trainer(callback, saving, enable_checkpointing=True).fit(module, batches())
    assert callback.attachment is None
    state = torch.load(tmp_path / "broken.ckpt", weights_only=True)["callbacks"]
    assert state["SpectralClipCallback[Scale]"]["steps"] == [3]


def test_after_an_exception_no_process_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectralclip.integrations._callback._among_others", lambda: True)
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND)
    with pytest.raises(ArithmeticError, match="on purpose"):
        trainer(callback).fit(Failing(), batches())
    assert callback.attachment is None
    assert callback.state_dict() == {}


def test_finalizing_clips_what_the_method_left() -> None:
    module = Digits()
    with torch.no_grad():
        module.net[3].weight.mul_(20)
    frozen = dense_norm(module.net[3].weight)
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND, finalize=True)
    trainer(callback).fit(module, batches())
    assert frozen > BOUND
    assert set(callback.results) == {"net.1", "net.3"}
    assert all(norm <= 1.001 * BOUND for norm in module.norms().values())
    for name, result in callback.results.items():
        assert result.norm_after == pytest.approx(module.norms()[name], rel=2e-3)


class Memory(pl.loggers.CSVLogger):
    """A logger that keeps what it gets."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append((step, dict(metrics)))

    def of(self, name: str) -> list[tuple[int, float]]:
        return [(step, line[name]) for step, line in self.lines if name in line]


class Logging(Digits):
    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = super().training_step(batch, index)
        self.log("loss", loss)
        return loss


@pytest.mark.parametrize("certify", [False, True, "deterministic"])
def test_finalizing_may_be_certified(certify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    finalize = Attachment.finalize

    def spy(self: Attachment, **settings: Any) -> Any:
        asked.append(settings)
        return finalize(self, **settings)

    monkeypatch.setattr(Attachment, "finalize", spy)
    callback = SpectralClipCallback(
        EXAMPLE, method=Scale(), max_norm=BOUND, finalize=True, certify=certify
    )
    trainer(callback, limit_train_batches=1).fit(Digits(), batches())
    assert asked == [{"certify": certify}]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_norms_are_logged_beside_the_loss(accumulated: int, tmp_path: Path) -> None:
    memory, watch = Memory(tmp_path), Watch()
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND)
    fitting = trainer(
        callback,
        watch,
        logger=memory,
        log_every_n_steps=2,
        accumulate_grad_batches=accumulated,
    )
    fitting.fit(Logging(), batches())
    logged = memory.of("spectral_norm/net.1")
    assert [step for step, _ in logged] == sorted({step for step, _ in memory.of("loss")})
    assert len(logged) == 4 // accumulated
    true = [norms["net.1"] for norms in watch.norms]
    expected = true[2 * accumulated - 1 :: 2 * accumulated]
    assert [norm for _, norm in logged] == pytest.approx(expected)
    assert len(memory.of("spectral_norm/net.3")) == len(logged)
    assert memory.of("spectral_norm_bound/net.1") == [(step, BOUND) for step, _ in logged]
    assert memory.of("spectral_norm_network/bound") == []  # has to be asked for


def test_the_network_is_logged_where_inputs_are_given(tmp_path: Path) -> None:
    memory, inputs = Memory(tmp_path), load_digits()[0][:8]
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND, log_inputs=inputs)
    trainer(callback, logger=memory, log_every_n_steps=2).fit(Digits(), batches())
    bounds = memory.of("spectral_norm_network/bound")
    assert len(bounds) == len(memory.of("spectral_norm/net.1")) > 0
    assert max(bound for _, bound in bounds) <= BOUND**2 * (1 + 1e-5)
    assert min(spread for _, spread in memory.of("spectral_norm_network/spread")) > 0


def test_logging_can_be_left_out(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), max_norm=BOUND, log=False)
    trainer(callback, logger=memory).fit(Digits(), batches())
    assert memory.of("spectral_norm/net.1") == []


@pytest.mark.parametrize("module", [Digits, Pair])
def test_pairs_are_passed_on(module: Any) -> None:
    callback = SpectralClipCallback(EXAMPLE, method=Scale(), pairs=[("nowhere", "neither")])
    with pytest.raises(ValueError, match="nowhere"):
        trainer(callback).fit(module(), batches())


def test_bad_settings_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"must be a Method.*got 'SpectralClip'"):
        SpectralClipCallback(method="SpectralClip")
    with pytest.raises(ValueError, match=r"certify=True.*finalize=True"):
        SpectralClipCallback(method=Scale(), certify=True)


WITH_PYTORCH_LIGHTNING = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
import pytorch_lightning as pl
import torch
from integration_parts import Scale, dense_norm
from spectralclip.integrations.lightning import SpectralClipCallback

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.example_input_array = torch.zeros(1, 4)
    def forward(self, x):
        return self.layer(x)
    def training_step(self, batch, index):
        return -self(batch).square().sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)

callback = SpectralClipCallback(method=Scale(), max_norm=0.5)
module = Module()
trainer = pl.Trainer(
    accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
)
trainer.fit(module, torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2))
assert isinstance(callback, pl.Callback)
assert "lightning.pytorch" not in sys.modules
assert dense_norm(module.layer.weight) <= 0.5
print("steps", callback.state_dict()["steps"])
"""


@pytest.mark.slow  # importing it in a process of its own
def test_with_the_package_under_its_older_name() -> None:
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    folder = str(Path(__file__).parents[1] / "support")
    finished = subprocess.run(
        [sys.executable, "-c", WITH_PYTORCH_LIGHTNING, folder], capture_output=True, text=True
    )
    assert "steps [4]" in finished.stdout, finished.stderr
