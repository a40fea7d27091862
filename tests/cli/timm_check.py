"""timm's models through the command line; `make test-timm` runs it in an environment of its own."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from spectralclip import cli

# The newest torchvision may be made for a newer torch than ours, and then stumbles over operators
# that its binary would have brought along. timm needs none of them.
_library = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

timm = importlib.import_module("timm")

RESNET = ("timm:resnet18", "--set", "num_classes=10", "--input", "3,32,32")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    save_file(timm.create_model("resnet18", num_classes=10).state_dict(), "in.safetensors")
    return tmp_path


def test_a_residual_network_audits(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("audit", *RESNET, "--weights", "in.safetensors", "--json", "a.json")
    assert cli.main(args) == 0, capsys.readouterr().err
    rows = {row["name"]: row for row in json.loads(Path("a.json").read_text())["layers"]}
    convolutions = [name for name, row in rows.items() if row["kind"] == "Conv2d"]
    assert len(convolutions) == 20
    assert sum(row["role"] == "chain" for row in rows.values()) >= 20
    weight = load_file("in.safetensors")["fc.weight"].double()
    norm = float(torch.linalg.matrix_norm(weight, 2))
    assert rows["fc"]["norm"]["lower"] * 0.9999 <= norm <= rows["fc"]["norm"]["upper"] * 1.0001


def test_its_weights_are_clipped(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("clip", *RESNET, "--weights", "in.safetensors", "-o", "out.safetensors")
    assert cli.main([*args, "--layers", "fc", "--max-norm", "0.1"]) == 0, capsys.readouterr().err
    before, after = load_file("in.safetensors"), load_file("out.safetensors")
    assert before.keys() == after.keys()
    assert {key for key in before if not torch.equal(before[key], after[key])} == {"fc.weight"}
    assert float(torch.linalg.matrix_norm(after["fc.weight"].double(), 2)) <= 0.1002


def test_a_vision_transformer_audits(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("timm:vit_tiny_patch16_224", "--set", "img_size=32", "--set", "depth=1")
    args = ("audit", *model, "--input", "3,32,32", "--json", "-")
    assert cli.main(args) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["layers"]]
    assert {"patch_embed.proj", "blocks.0.attn.qkv", "head"} <= set(names)


def test_an_unknown_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "timm:resnet_of_nobody", "--input", "3,32,32"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: MODEL 'timm:resnet_of_nobody': ") and errors.count("\n") == 1
