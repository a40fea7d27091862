"""Files of adapters: which keys are pairs, what their scale is, and writing them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_cases import KOHYA_LAYERS, dense, factors, kohya, peft_tensors, write_peft
from torch import Tensor

from spectralclip.integrations.adapters import Adapter, Update, from_tensors, load, report

safetensors = pytest.importorskip("safetensors.torch")


def assert_update(adapter: Adapter, layer: str, A: Tensor, B: Tensor, scale: float) -> None:
    torch.testing.assert_close(adapter[layer].delta(), dense(A, B, scale), rtol=1e-12, atol=1e-12)


# Names


@pytest.mark.parametrize(
    ("first", "second", "layer"),
    [
        ("base_model.model.a.q.lora_A.weight", "base_model.model.a.q.lora_B.weight", "a.q"),
        ("a.q.lora_A.default.weight", "a.q.lora_B.default.weight", "a.q"),
        ("unet.a.to_q.lora_A.weight", "unet.a.to_q.lora_B.weight", "unet.a.to_q"),
        (
            "lora_unet_a_to_q.lora_down.weight",
            "lora_unet_a_to_q.lora_up.weight",
            "lora_unet_a_to_q",
        ),
        ("a.to_q.lora.down.weight", "a.to_q.lora.up.weight", "a.to_q"),
        ("a.to_q_lora.down.weight", "a.to_q_lora.up.weight", "a.to_q"),
        ("a.lora_linear_layer.down.weight", "a.lora_linear_layer.up.weight", "a"),
        ("a.lora_a.weight", "a.lora_b.weight", "a"),
        ("a.lora_A", "a.lora_B", "a"),
    ],
)
def test_pairs_are_found_in_every_form(first: str, second: str, layer: str) -> None:
    A, B = factors(0, 12, 20, 4)
    adapter = from_tensors({second: B, first: A}, alpha=4.0)
    assert list(adapter) == [layer] and len(adapter) == 1
    assert_update(adapter, layer, A, B, 1.0)
    assert not adapter[layer].transposed


def test_embeddings_are_transposed() -> None:
    A, B = factors(0, 12, 20, 4)
    keys = [f"base_model.model.words.lora_embedding_{one}" for one in "AB"]
    adapter = from_tensors(dict(zip(keys, (A, B), strict=True)), alpha=8.0)
    assert adapter["words"].transposed
    assert_update(adapter, "words", A, B, 2.0)


def test_other_tensors_are_left_out_and_named() -> None:
    tensors = kohya()
    tensors |= {
        "base_model.model.score.weight": torch.ones(3, 3),
        "lora_unet_mid_to_q.dora_scale": torch.ones(12, 1),
        "lora_unet_mid_conv.lora_up.bias": torch.ones(6),
    }
    adapter = from_tensors(tensors)
    assert list(adapter) == ["lora_unet_mid_conv"]
    assert "no low-rank update" in adapter.left_out["score.weight"]
    assert "DoRA" in adapter.left_out["lora_unet_mid_to_q"]
    assert "lora_unet_mid_conv.lora_up.bias" in adapter.left_out


def test_third_factors_and_groups_are_left_out() -> None:
    tensors = kohya()
    tensors["lora_unet_mid_conv.lora_mid.weight"] = torch.ones(3, 3, 3, 3)
    A, B = torch.ones(4, 5, 3, 3), torch.ones(6, 2, 1, 1)  # of two groups
    tensors |= {"grouped.lora_down.weight": A, "grouped.lora_up.weight": B}
    adapter = from_tensors(tensors)
    assert list(adapter) == ["lora_unet_mid_to_q"]
    assert "third factor" in adapter.left_out["lora_unet_mid_conv"]
    assert "grouped" in adapter.left_out["grouped"]


# Scales


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, (2.0, 2.0)),
        ({"use_rslora": True}, (4.0, 4.0)),
        ({"lora_alpha": 6.0}, (1.5, 1.5)),
        ({"alpha_pattern": {"layers.1.q_proj": 2}}, (2.0, 0.5)),
        ({"alpha_pattern": {r"layers\.\d.q_proj": 2, "q_proj": 4}}, (0.5, 0.5)),
        ({"r": 16, "rank_pattern": {"q_proj": 4}}, (2.0, 2.0)),
        ({"alpha_pattern": {"proj": 2}}, (2.0, 2.0)),  # no name of a layer ends in .proj
    ],
)
def test_the_configuration_tells_the_scale(
    tmp_path: Path, config: dict[str, Any], scales: tuple[float, float]
) -> None:
    folder = write_peft(tmp_path / "mine", peft_tensors(), **config)
    for place in (folder, folder / "adapter_model.safetensors"):
        adapter = load(place)
        assert adapter.name == "mine"
        assert tuple(update.scale for update in adapter.values()) == scales


def test_alpha_beside_the_factors_wins() -> None:
    assert [one.scale for one in from_tensors(kohya(alpha=6.0)).values()] == [2.0, 1.5]
    assert [one.scale for one in from_tensors(kohya(alpha=6.0), alpha=100).values()] == [2.0, 1.5]


def test_without_an_alpha_the_factors_are_taken_as_they_are() -> None:
    tensors = {key: value for key, value in kohya().items() if not key.endswith("alpha")}
    assert [one.scale for one in from_tensors(tensors).values()] == [1.0, 1.0]
    assert [one.scale for one in from_tensors(tensors, alpha=12.0).values()] == [4.0, 3.0]


@pytest.mark.parametrize("prefix", ["", "unet."])
def test_the_header_tells_the_scale(prefix: str) -> None:
    A, B = factors(0, 12, 20, 4)
    tensors = {"unet.a.q.lora_A.weight": A, "unet.a.q.lora_B.weight": B}
    told = {"r": 4, "lora_alpha": 8, "alpha_pattern": {"a.q": 2}}
    entries = {f"{prefix}{key}": value for key, value in told.items()}
    header = {"lora_adapter_metadata": json.dumps(entries)}
    assert from_tensors(tensors, metadata=header)["unet.a.q"].scale == 0.5


def test_fan_in_fan_out_and_dora_are_read(tmp_path: Path) -> None:
    adapter = load(write_peft(tmp_path / "a", peft_tensors(), fan_in_fan_out=True))
    assert all(update.transposed for update in adapter.values())
    with pytest.raises(ValueError, match=r"got none.*DoRA"):
        load(write_peft(tmp_path / "b", peft_tensors(), use_dora=True))


# Files


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_clipped_file_keeps_everything_else(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {key: value.to(dtype) for key, value in kohya().items()}
    safetensors.save_file(tensors, tmp_path / "in.safetensors", {"by": "us"})
    adapter = load(tmp_path / "in.safetensors")
    assert adapter.name == "in"
    small, large = sorted(adapter, key=lambda layer: adapter[layer].norm)
    bound = adapter[small].norm
    results = adapter.clip_(bound)
    adapter.save(tmp_path / "out.safetensors")
    out = safetensors.load_file(tmp_path / "out.safetensors")
    assert {k: (v.shape, v.dtype) for k, v in out.items()} == {
        k: (v.shape, v.dtype) for k, v in tensors.items()
    }
    with pytest.importorskip("safetensors").safe_open(tmp_path / "out.safetensors", "pt") as file:
        assert file.metadata() == {"by": "us"}
    moved = {key for key in out if not torch.equal(out[key], tensors[key])}
    assert moved == {f"{large}.lora_down.weight", f"{large}.lora_up.weight"}
    assert results[small].distance == 0 < results[large].distance
    again = load(tmp_path / "out.safetensors")
    assert again[large].norm <= bound and again.clip_(bound)[large].distance == 0


def test_convolutions_are_clipped_at_a_size() -> None:
    adapter = from_tensors(kohya())
    adapter.clip_(1.0, size=(6, 6))
    assert adapter["lora_unet_mid_conv"].norm_at((5, 6, 6)).upper <= 1.0
    assert adapter["lora_unet_mid_conv"].norm < 0.95  # of the reshaped kernel
    assert adapter["lora_unet_mid_to_q"].norm == pytest.approx(1.0, rel=1e-6)
    assert set(adapter) == set(KOHYA_LAYERS)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((6,), r"size \(6,\): expected convolutions of 1 axes; they have 2"),
        ((5, 6, 6), "convolutions of 3 axes; they have 2. .* without channels"),
        ((0, 6), r"expected positive sides such as \(32, 32\), got \(0, 6\)"),
        ("6,6", "expected sides such as"),
    ],
)
def test_a_size_that_fits_no_convolution_is_refused_before_anything_moves(
    size: Any, message: str
) -> None:
    tensors = dict(reversed(kohya().items()))  # the dense layer first
    before = {key: tensor.clone() for key, tensor in tensors.items()}
    adapter = from_tensors(tensors)
    with pytest.raises((TypeError, ValueError), match=message):
        adapter.clip_(0.5, size=size)
    with pytest.raises((TypeError, ValueError), match=message):
        report(adapter, size=size)
    assert all(torch.equal(tensors[key], before[key]) for key in before)


def test_an_adapter_of_a_model_is_not_saved_here(tmp_path: Path) -> None:
    adapter = Adapter("one", {"a": Update(*factors(0, 12, 20, 4))})
    with pytest.raises(ValueError, match="save_pretrained"):
        adapter.save(tmp_path / "out.safetensors")


# What is refused


def without(key: str) -> dict[str, Tensor]:
    return {k: v for k, v in peft_tensors().items() if k != key}


def with_value(key: str, value: Tensor) -> dict[str, Tensor]:
    return {**kohya(), key: value}


Q = "base_model.model.layers.0.q_proj"


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ({}, {}, "file: expected pairs such as lora_A and lora_B.*got none"),
        ({"fc.weight": torch.ones(2, 2)}, {}, r"got none \(fc.weight: "),
        (without(f"{Q}.lora_B.weight"), {}, rf"'{Q}.lora_A.weight' has no partner"),
        (without(f"{Q}.lora_A.weight"), {}, rf"expected '{Q}.lora_A.weight'"),
        (peft_tensors(), {}, f"keys '{Q}.lora_A.weight' and .*adapter_config.json"),
        (
            {**peft_tensors(), f"{Q}.lora_B.weight": torch.ones(12, 3)},
            {"alpha": 1.0},
            rf"file: keys '{Q}.lora_A.weight'.*A \(4, 20\) and B \(12, 3\)",
        ),
        (
            with_value("lora_unet_mid_to_q.lora_up.weight", torch.full((12, 4), torch.nan)),
            {},
            "lora_unet_mid_to_q.lora_up.weight.*NaN or infinite values in B",
        ),
        (with_value("lora_unet_mid_to_q.alpha", torch.ones(2)), {}, "one finite number"),
        (with_value("lora_unet_mid_to_q.alpha", torch.tensor(torch.inf)), {}, "one finite number"),
        (
            {f"a.lora_{f}.{name}.weight": torch.ones(2, 2) for f in "AB" for name in ("x", "y")},
            {},
            "several adapters",
        ),
        (
            {
                **peft_tensors(),
                "layers.0.q_proj.lora_A": torch.ones(4, 20),
                "layers.0.q_proj.lora_B": torch.ones(12, 4),
            },
            {"alpha": 1.0},
            rf"'{Q}.lora_A.weight' and 'layers.0.q_proj.lora_A' are of the same layer",
        ),
        ({"a.lora_a": torch.ones(9, 2), "a.lora_b": torch.ones(2, 9)}, {}, "to be transposed"),
        ({"a.lora_a": torch.ones(9, 2), "a.lora_b": torch.ones(2, 7)}, {}, "not transposed"),
        (peft_tensors(), {"config": {"r": 8, "lora_alpha": 8}}, "the rank 8 .* got 4"),
        (peft_tensors(), {"config": {"r": "4", "lora_alpha": 8}}, "the rank '4' .* got 4"),
        (peft_tensors(), {"config": {"peft_type": "LOHA"}}, "expected peft_type LORA, got 'LOHA'"),
        (peft_tensors(), {"config": {"r": 4, "lora_alpha": "8"}}, "a number for lora_alpha"),
        (peft_tensors(), {"config": {"alpha_pattern": {"(": 1}, "r": 4}}, "alpha_pattern holds no"),
        (peft_tensors(), {"config": "{"}, "the configuration of file is no JSON"),
        (peft_tensors(), {"config": "[]"}, "expected a JSON object, got list"),
    ],
)
def test_what_is_no_adapter_is_refused(
    tensors: dict[str, Tensor], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        from_tensors(tensors, **options, name="file")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors"):
        load(tmp_path / "gone.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{bad")
    with pytest.raises(ValueError, match=r"bad\.safetensors: expected a safetensors file"):
        load(tmp_path / "bad.safetensors")
    with pytest.raises(FileNotFoundError):
        write_peft(tmp_path / "mine", peft_tensors())
        load(tmp_path / "mine", config=tmp_path / "gone.json")


def test_a_file_of_others_does_not_look_beside_it(tmp_path: Path) -> None:
    write_peft(tmp_path, peft_tensors(), lora_alpha=100)
    tensors = {key: value for key, value in kohya().items() if not key.endswith("alpha")}
    safetensors.save_file(tensors, tmp_path / "style.safetensors")
    assert [one.scale for one in load(tmp_path / "style.safetensors").values()] == [1.0, 1.0]
