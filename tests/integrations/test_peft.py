"""Adapters of peft: read from its files and found in its models, against its own merge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spectralclip as sc
from spectralclip.integrations import adapters

peft = pytest.importorskip("peft")


class Net(nn.Module):
    """A layer of each kind that peft adapts, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.fc = nn.Linear(8, 12)
        self.out = nn.Linear(12, 8, bias=False)
        self.conv = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.mix = nn.Conv2d(6, 5, 1)

    def forward(self, ids: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        return self.out(self.fc(self.words(ids))), self.mix(self.conv(image))


LAYERS = ["words", "fc", "out", "conv", "mix"]


def adapted(seed: int = 0, **config: Any) -> Any:
    torch.manual_seed(seed)
    known = {"r": 3, "lora_alpha": 6, "target_modules": LAYERS, **config}
    model = peft.get_peft_model(Net(), peft.LoraConfig(**known))
    for name, parameter in model.named_parameters():
        if "lora_" in name:  # B begins as zero
            nn.init.normal_(parameter)
    return model


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilized": {"use_rslora": True},
    "patterns": {"rank_pattern": {"fc": 2, "conv": 4}, "alpha_pattern": {"out": 1, "^words$": 9}},
}


def weights(model: nn.Module) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    return {layer: parameters[f"{layer}.weight"].detach().double() for layer in LAYERS}


def change_by_merging(model: Any) -> dict[str, Tensor]:
    """What peft itself adds to each weight."""
    with torch.no_grad():
        bases = {layer: model.get_submodule(f"base_model.model.{layer}") for layer in LAYERS}
        before = {layer: one.base_layer.weight.double().clone() for layer, one in bases.items()}
        after = weights(model.merge_and_unload())
    return {layer: after[layer] - before[layer] for layer in LAYERS}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_updates_are_what_peft_merges(tmp_path: Path, config: dict[str, Any]) -> None:
    model = adapted(**config)
    model.save_pretrained(tmp_path)
    from_file, from_model = adapters.load(tmp_path), adapters.from_model(model)
    merged = change_by_merging(model)
    assert set(from_file) == set(from_model) == set(LAYERS)
    for layer, change in merged.items():
        for adapter in (from_file, from_model):
            update = adapter[layer]
            assert update.transposed == (layer == "words")
            delta = update.delta().transpose(0, 1) if update.transposed else update.delta()
            torch.testing.assert_close(delta, change, rtol=1e-5, atol=1e-5)


def test_what_is_clipped_is_what_peft_merges() -> None:
    model = adapted()
    adapter = adapters.from_model(model)
    adapter.clip_(0.7)
    norms = {
        layer: float(torch.linalg.matrix_norm(change.flatten(1), 2))
        for layer, change in change_by_merging(model).items()
    }
    assert norms == pytest.approx(dict.fromkeys(LAYERS, 0.7), rel=1e-4)


def test_a_clipped_file_is_loaded_by_peft(tmp_path: Path) -> None:
    model = adapted()
    model.save_pretrained(tmp_path)
    adapter = adapters.load(tmp_path)
    adapter.clip_(0.7)
    adapter.save(tmp_path / "adapter_model.safetensors")
    torch.manual_seed(0)
    again = peft.PeftModel.from_pretrained(Net(), tmp_path)
    for layer, change in change_by_merging(again).items():
        norm = float(torch.linalg.matrix_norm(change.flatten(1), 2))
        assert norm == pytest.approx(0.7, rel=1e-4), layer


def test_the_base_beneath_is_found(tmp_path: Path) -> None:
    model = adapted()
    torch.manual_seed(0)
    plain = Net()
    live = adapters.report(adapters.from_model(model), base=model, size=(8, 8))
    model.save_pretrained(tmp_path)
    stored = adapters.report(adapters.load(tmp_path), plain.state_dict(), size=(8, 8))
    found = {row.layer: row for row in live.updates}
    for row in stored.updates:
        assert row.base is not None and found[row.layer].base is not None
        if row.layer != "conv":  # whose stride a file does not tell
            assert found[row.layer].base.norm == pytest.approx(row.base.norm, rel=1e-5)
            assert found[row.layer].base.sum_norm == pytest.approx(row.base.sum_norm, rel=1e-5)
    conv = model.base_model.model.conv.base_layer
    assert found["conv"].base is not None
    norm = float(sc.spectral_norm(conv, (4, 8, 8)))
    assert found["conv"].base.norm == pytest.approx(norm, rel=2e-3)


def test_several_adapters_merged_ones_and_dora() -> None:
    model = adapted()
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["fc"]))
    with pytest.raises(ValueError, match="several adapters"):
        adapters.from_model(model)
    assert list(adapters.from_model(model, "other")) == ["fc"]
    adapter = adapters.from_model(model, "default")
    model.merge_adapter()
    with pytest.raises(ValueError, match="unmerge"):
        adapters.report(adapter, base=model)
    dora = adapted(use_dora=True, target_modules=["fc", "out"])
    with pytest.raises(ValueError, match="DoRA"):
        adapters.from_model(dora)


def test_dora_files_are_refused(tmp_path: Path) -> None:
    adapted(use_dora=True, target_modules=["fc", "out"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="DoRA"):
        adapters.load(tmp_path)


# peft asks transformers by a name that is on its way out.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_the_layers_of_gpt2_keep_their_weights_transposed(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 20, "n_positions": 8}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    base = transformers.GPT2LMHeadModel(config)
    base.save_pretrained(tmp_path / "base")
    wanted = {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}
    model = peft.get_peft_model(base, peft.LoraConfig(r=3, **wanted))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "adapter")
    weights = safetensors.load_file(tmp_path / "base" / "model.safetensors")
    found = adapters.report(adapters.load(tmp_path / "adapter"), weights)
    merged = dict(model.merge_and_unload().named_parameters())
    assert len(found.updates) == 3  # c_proj of attention is square, that of the MLP is not
    for row in found.updates:
        true = torch.linalg.matrix_norm(merged[f"{row.layer}.weight"].detach().double(), 2)
        assert row.base is not None
        assert row.base.sum_norm == pytest.approx(float(true), rel=1e-3), row.layer
