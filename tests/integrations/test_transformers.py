"""The callback for the Trainer of `transformers`, with tiny models made from a configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from integration_parts import METHODS, Scale, assert_equal_weights, dense_norm, differ
from seeds import seeded
from torch import Tensor, nn

from spectralclip._training.method import NormWarning
from spectralclip.integrations._callback import moved

hf = pytest.importorskip(
    "transformers", reason="transformers is not installed: it is in the integrations extra"
)
pytest.importorskip(
    "accelerate", reason="the Trainer of transformers needs accelerate, which is not installed"
)

from spectralclip.integrations.transformers import STATE_FILE, SpectralClipCallback  # noqa: E402

BOUND = 0.3
TOKENS = {"input_ids": torch.ones(1, 6, dtype=torch.long)}


def bert() -> Any:
    with seeded(3):
        config = hf.BertConfig(
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=16,
            num_labels=2,
        )
        return hf.BertForSequenceClassification(config)


def examples() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(32, (64, 6), generator=generator)
    return [{"input_ids": row, "labels": (row[0] > 15).long()} for row in tokens]


def arguments(folder: Path, **settings: Any) -> Any:
    usual = {
        "max_steps": 8,
        "per_device_train_batch_size": 8,
        "learning_rate": 0.02,
        "save_strategy": "no",
        "logging_steps": 2,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return hf.TrainingArguments(str(folder), **usual | settings)


SAVING = {"save_strategy": "steps", "save_steps": 4}


def trained(folder: Path, *callbacks: Any, resume: Any = None, **settings: Any) -> Any:
    trainer = hf.Trainer(
        bert(), arguments(folder, **settings), train_dataset=examples(), callbacks=list(callbacks)
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def norms(model: nn.Module) -> dict[str, float]:
    return {
        name: dense_norm(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def make(method: Any = Scale, **settings: Any) -> SpectralClipCallback:
    return SpectralClipCallback(TOKENS, method=method(), **{"max_norm": BOUND} | settings)


class Watch(hf.TrainerCallback):
    """Notes the true norms after every step."""

    def __init__(self) -> None:
        self.norms: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.norms.append(norms(kwargs["model"]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bf16", [False, True])
def test_norms_are_within_the_bound_after_every_step(
    method: Any, bf16: bool, tmp_path: Path
) -> None:
    watch, keys = Watch(), list(bert().state_dict())
    model = trained(tmp_path, make(method), watch, bf16=bf16).model
    assert len(watch.norms) == 8
    assert len(watch.norms[0]) == 8
    assert max(norm for step in watch.norms for norm in step.values()) <= 1.01 * BOUND
    assert list(model.state_dict()) == keys


def test_without_the_callback_norms_are_beyond_the_bound(tmp_path: Path) -> None:
    assert max(norms(trained(tmp_path).model).values()) > 1.2 * BOUND


@pytest.mark.parametrize("method", METHODS)
def test_resuming_gives_bitwise_the_same_weights(method: Any, tmp_path: Path) -> None:
    whole = trained(tmp_path, make(method), **SAVING).model
    file = tmp_path / "checkpoint-4" / STATE_FILE
    assert torch.load(file, weights_only=True)["run"]["steps"] == [4]
    shutil.rmtree(tmp_path / "checkpoint-8")
    assert_equal_weights(trained(tmp_path, make(method), resume=True).model, whole)


@pytest.mark.parametrize("how", ["resume_from", "resume_from_checkpoint"])
def test_resuming_from_elsewhere(how: str, tmp_path: Path) -> None:
    whole = trained(tmp_path / "there", make(), **SAVING).model
    elsewhere = tmp_path / "there" / "checkpoint-4"
    # A checkpoint of the same step, but of another run.
    trained(tmp_path / "here", make(), max_steps=4, learning_rate=0.01, **SAVING)
    if how == "resume_from":
        callback, settings = make(resume_from=elsewhere), {}
    else:
        callback, settings = make(), {how: str(elsewhere)}
    resumed = trained(tmp_path / "here", callback, resume=str(elsewhere), **settings)
    assert_equal_weights(resumed.model, whole)


def test_the_state_of_another_run_is_not_taken(tmp_path: Path) -> None:
    whole = trained(tmp_path / "there", make(), **SAVING).model
    trained(tmp_path / "here", make(), max_steps=4, learning_rate=0.01, **SAVING)
    elsewhere = tmp_path / "there" / "checkpoint-4"
    with pytest.warns(NormWarning, match=r"resumes at step 4.*here/checkpoint-4.*resume_from"):
        resumed = trained(tmp_path / "here", make(), resume=str(elsewhere))
    assert differ(resumed.model, whole)


def test_resuming_a_run_that_had_no_callback_starts_anew(tmp_path: Path) -> None:
    trained(tmp_path, max_steps=4, **SAVING)
    with pytest.warns(NormWarning, match="starts anew"):
        model = trained(tmp_path, make(), resume=True).model
    assert max(norms(model).values()) <= BOUND


def test_accumulated_batches_are_one_step(tmp_path: Path) -> None:
    trained(tmp_path, make(), gradient_accumulation_steps=2, max_steps=4, **SAVING)
    file = tmp_path / "checkpoint-4" / STATE_FILE
    assert torch.load(file, weights_only=True)["run"]["steps"] == [4]


def test_norms_are_in_the_logs(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    class Reporter(hf.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **kwargs: Any) -> None:
            seen.append(dict(logs))

    watch = Watch()
    trained(tmp_path, make(), watch, Reporter(), **SAVING)
    of_training = [logs for logs in seen if "loss" in logs]
    assert len(of_training) == 4
    for logs, true in zip(of_training, watch.norms[1::2], strict=True):
        assert {name: logs[f"spectral_norm/{name}"] for name in true} == pytest.approx(true)
    saved = json.loads((tmp_path / "checkpoint-8" / "trainer_state.json").read_text())
    assert (
        saved["log_history"][0]["spectral_norm/classifier"] == seen[0]["spectral_norm/classifier"]
    )
    assert "spectral_norm/classifier" not in seen[-1]  # the summary


def test_logging_can_be_left_out(tmp_path: Path) -> None:
    history = trained(tmp_path, make(log=False)).state.log_history
    assert not any(key.startswith("spectral_norm") for logs in history for key in logs)


def test_finalizing_clips_what_the_method_left(tmp_path: Path) -> None:
    class Idle(Scale):
        """Leaves everything to the end."""

        def start(self, *args: Any) -> Any:
            keeper = super().start(*args)
            keeper.after_step = lambda step, bounds: None
            return keeper

    callback = make(Idle, finalize=True)
    model = trained(tmp_path, callback).model
    assert max(norms(model).values()) <= 1.001 * BOUND
    assert set(callback.results) == set(norms(model))
    assert max(result.norm_before for result in callback.results.values()) > 1.2 * BOUND
    assert callback.attachment is None


def test_after_an_exception_it_is_removed_by_hand_or_by_the_next_run(tmp_path: Path) -> None:
    class Fail(hf.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            raise ArithmeticError("on purpose")

    callback = make()
    with pytest.raises(ArithmeticError):
        trained(tmp_path, callback, Fail())
    first = callback.attachment
    assert first is not None
    trained(tmp_path, callback)
    with pytest.raises(RuntimeError, match="removed"):
        first.step()
    with pytest.raises(ArithmeticError):
        trained(tmp_path, callback, Fail())
    callback.remove()
    assert callback.attachment is None


def test_the_models_own_example_is_the_default(tmp_path: Path) -> None:
    model = trained(tmp_path, SpectralClipCallback(method=Scale(), max_norm=BOUND)).model
    assert max(norms(model).values()) <= BOUND


def test_without_an_example_the_error_says_what_to_do(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            scores = self.layer(input_ids.float())
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    def train(*settings: Any) -> Plain:
        callback = SpectralClipCallback(*settings, method=Scale(), max_norm=BOUND)
        args = arguments(tmp_path)
        trainer = hf.Trainer(Plain(), args, train_dataset=examples(), callbacks=[callback])
        trainer.train()
        return trainer.model

    with pytest.raises(ValueError, match=r"Plain once.*pass example_inputs"):
        train()
    example = {**TOKENS, "labels": torch.zeros(1, dtype=torch.long)}
    assert dense_norm(train(example).layer.weight) <= BOUND


def test_a_penalty_in_a_compute_loss_of_ones_own(tmp_path: Path) -> None:
    callback = SpectralClipCallback(TOKENS, method=Scale(penalty=0.1), max_norm=100.0)

    class Penalized(hf.Trainer):
        def compute_loss(self, model: Any, inputs: Any, **settings: Any) -> Tensor:
            loss = super().compute_loss(model, inputs, **settings)
            return loss + callback.penalty()

    args = arguments(tmp_path / "penalized")
    trainer = Penalized(bert(), args, train_dataset=examples(), callbacks=[callback])
    trainer.train()
    plain = trained(tmp_path / "plain").model
    assert sum(norms(trainer.model).values()) < 0.9 * sum(norms(plain).values())


def test_a_tokenizers_encoding_is_an_example(tmp_path: Path) -> None:
    encoding = hf.BatchEncoding({**TOKENS, "attention_mask": torch.ones(1, 6)})
    there = moved(encoding, torch.device("meta"))
    assert {name: x.device.type for name, x in there.items()} == dict.fromkeys(encoding, "meta")
    model = trained(tmp_path, SpectralClipCallback(encoding, method=Scale(), max_norm=BOUND)).model
    assert max(norms(model).values()) <= BOUND
