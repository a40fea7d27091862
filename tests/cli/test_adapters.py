"""The command `adapters`: tables, JSON, clipped files, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from adapter_cases import dense, kohya, kohya_base, peft_tensors, write_peft
from cli_cases import Command, files

pytest.importorskip("typer")

from spectralclip.cli import _weights_file

safetensors = pytest.importorskip("safetensors.torch")

CLIPPED = ("a.safetensors", "--max-norm", "1", "--out", "x.safetensors")
CONV, DENSE = "lora_unet_mid_conv", "lora_unet_mid_to_q"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two adapters and their base to work in."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a", "b")):
        safetensors.save_file(kohya(seed), f"{name}.safetensors", {"by": name})
    safetensors.save_file(kohya_base(), "base.safetensors")
    return tmp_path


def norm(path: str, layer: str = DENSE) -> float:
    tensors = safetensors.load_file(path)
    A, B = (tensors[f"{layer}.lora_{side}.weight"] for side in ("down", "up"))
    scale = float(tensors[f"{layer}.alpha"]) / A.shape[0]
    return float(torch.linalg.matrix_norm(dense(A, B, scale).flatten(1), 2))


def test_two_adapters_and_their_base_are_compared(spectralclip: Command, here: Path) -> None:
    args = ("adapters", "a.safetensors", "b.safetensors", "--base", "base.safetensors")
    assert spectralclip(*args, "--json", "found.json") == 0
    rows = [line.split() for line in spectralclip.output.splitlines() if line.startswith(DENSE)]
    assert [row[1] for row in rows] == ["a", "b", "a"]
    assert float(rows[0][7]) == pytest.approx(norm("a.safetensors"), rel=1e-3)
    assert f"{norm('a.safetensors', CONV):.4g} (reshaped)" in spectralclip.output
    assert spectralclip.errors == "wrote found.json\n"
    document = json.loads(Path("found.json").read_text())
    assert document["adapters"] == ["a", "b"]
    assert [one["layer"] for one in document["clashes"]] == [CONV, DENSE]
    update = next(one for one in document["updates"] if one["layer"] == DENSE)
    base = torch.linalg.matrix_norm(kohya_base()["model.mid.to_q.weight"].double(), 2)
    assert update["base"]["key"] == "model.mid.to_q.weight"
    assert update["base"]["norm"] == pytest.approx(float(base), rel=1e-3)
    assert files(here) == {"a.safetensors", "b.safetensors", "base.safetensors", "found.json"}


def test_json_can_go_to_the_output(spectralclip: Command) -> None:
    assert spectralclip("adapters", "a.safetensors", "--json", "-", "-k", 2) == 0
    (_, update) = json.loads(spectralclip.output)["updates"]
    assert len(update["singular_values"]) == 2
    assert update["norm"] == pytest.approx(norm("a.safetensors"))


def test_a_base_may_lie_in_several_files(spectralclip: Command) -> None:
    parts = list(kohya_base().items())
    torch.save(dict(parts[:1]), "first.pt")
    safetensors.save_file(dict(parts[1:]), "second.safetensors")
    args = ("adapters", "a.safetensors", "--json", "-", "--base", "base.safetensors")
    assert spectralclip(*args) == 0
    whole = json.loads(spectralclip.output)
    args = ("adapters", "a.safetensors", "--json", "-", "--base", "first.pt")
    assert spectralclip(*args, "--base", "second.safetensors") == 0
    assert json.loads(spectralclip.output) == whole


def test_folders_of_peft_are_read_with_their_configuration(
    spectralclip: Command, here: Path
) -> None:
    write_peft(here / "style", peft_tensors(), use_rslora=True)
    write_peft(here / "subject", peft_tensors(5), lora_alpha=4)
    assert spectralclip("adapters", "style", "subject", "--json", "-") == 0
    found = json.loads(spectralclip.output)
    assert found["adapters"] == ["style", "subject"]
    assert [one["scale"] for one in found["updates"]] == [4.0, 4.0, 1.0, 1.0]


def test_a_clipped_adapter_keeps_its_form(spectralclip: Command, here: Path) -> None:
    before = (here / "a.safetensors").read_bytes()
    small, large = sorted((DENSE, CONV), key=lambda layer: norm("a.safetensors", layer))
    bound = norm("a.safetensors", small) * (1 + 1e-9)
    args = ("adapters", "a.safetensors", "--max-norm", bound, "--out", "out.safetensors")
    assert spectralclip(*args, "--json", "found.json") == 0
    assert (here / "a.safetensors").read_bytes() == before
    out, source = (safetensors.load_file(f"{name}.safetensors") for name in ("out", "a"))
    assert list(out) == list(source)
    assert all(out[k].dtype == v.dtype and out[k].shape == v.shape for k, v in source.items())
    unmoved = {key for key, value in source.items() if torch.equal(out[key], value)}
    assert unmoved == {key for key in source if small in key or key.endswith("alpha")}
    with pytest.importorskip("safetensors").safe_open("out.safetensors", "pt") as file:
        assert file.metadata() == {"by": "a"}
    assert bound * (1 - 1e-6) <= norm("out.safetensors", large) <= bound
    assert "1 of 2 layers moved; 1 within the bound already." in spectralclip.output
    assert "reshaped kernels were held" in spectralclip.errors
    assert spectralclip.errors.endswith("wrote out.safetensors\nwrote found.json\n")
    clipped = json.loads(Path("found.json").read_text())["clipped"]
    assert clipped[small]["distance"] == 0 < clipped[large]["distance"]


def test_convolutions_are_measured_and_clipped_at_a_size(spectralclip: Command) -> None:
    args = ("adapters", "a.safetensors", "--size", "6,6")
    assert spectralclip(*args, "--max-norm", 1, "-o", "out.safetensors") == 0
    assert "reshaped" not in spectralclip.output + spectralclip.errors
    assert spectralclip("adapters", "out.safetensors", "--size", "6,6", "--json", "-") == 0
    conv = next(one for one in json.loads(spectralclip.output)["updates"] if one["layer"] == CONV)
    assert 0.95 < conv["norm_at"]["lower"] <= conv["norm_at"]["upper"] <= 1.0
    assert conv["in_shape"] == [5, 6, 6]


def test_the_configuration_belongs_beside_the_output(spectralclip: Command, here: Path) -> None:
    write_peft(here / "style", peft_tensors())
    (here / "new").mkdir()
    args = ("adapters", "style", "--max-norm", 0.1, "--out")
    assert spectralclip(*args, "new/adapter_model.safetensors") == 0
    assert "style/adapter_config.json belongs beside it" in spectralclip.errors
    assert spectralclip(*args, "style/clipped.safetensors") == 0
    assert "belongs beside" not in spectralclip.errors
    assert spectralclip("adapters", "style/clipped.safetensors", "--json", "-") == 0
    assert all(one["norm"] <= 0.1 for one in json.loads(spectralclip.output)["updates"])


def test_no_file_is_replaced_unasked(spectralclip: Command, here: Path) -> None:
    (here / "link.safetensors").symlink_to("a.safetensors")
    before = (here / "a.safetensors").read_bytes()
    clip = ("adapters", "a.safetensors", "--max-norm", 0.5, "--out")
    for output, why in {
        "a.safetensors": "is the input itself",
        "link.safetensors": "is the input itself",
        "b.safetensors": "exists already",
    }.items():
        assert spectralclip(*clip, output) == 2
        assert why in spectralclip.errors and "--overwrite" in spectralclip.errors
    assert (here / "a.safetensors").read_bytes() == before
    assert spectralclip(*clip, "a.safetensors", "--overwrite") == 0
    assert norm("a.safetensors") <= 0.5


def test_a_failure_while_writing_leaves_the_folder_as_it_was(
    spectralclip: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device", "out.safetensors")

    monkeypatch.setattr(_weights_file, "packed", full)
    before = files(here)
    args = ("adapters", "a.safetensors", "--max-norm", 0.5, "--json", "found.json")
    assert spectralclip(*args, "--out", "out.safetensors") == 2
    assert spectralclip.errors == "error: cannot write out.safetensors: No space left on device.\n"
    assert files(here) == before


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "Missing argument 'ADAPTER...'"),
        (("gone.safetensors",), "cannot read gone.safetensors: No such file or directory"),
        (("base.safetensors",), "base.safetensors: expected pairs such as lora_A and lora_B"),
        (("nan.safetensors",), f"'{DENSE}.lora_up.weight': {DENSE}: NaN or infinite values in B"),
        (("half.safetensors",), f"'{DENSE}.lora_down.weight' has no partner"),
        (("peft.safetensors",), "adapter_config.json beside the file, got none"),
        (("cut.safetensors",), "expected a safetensors file, but it is truncated"),
        (("a.safetensors", "wide.safetensors"), r"got (12, 20), (12, 21): the adapters belong to"),
        (("a.safetensors", "--base", "a.safetensors"), "expected its layers in the base"),
        (("a.safetensors", "--base", "wrong.safetensors"), "expected a weight of shape (12, 20)"),
        (("a.safetensors", "--max-norm", "1"), "--max-norm and --out go together"),
        (("a.safetensors", "--out", "out.safetensors"), "--max-norm and --out go together"),
        (("a.safetensors", "--max-norm", "0", "--out", "out.safetensors"), "max_norm must be"),
        (("a.safetensors", "--max-norm", "1", "--out", "out.pt"), "the format of the input"),
        (
            ("a.safetensors", "b.safetensors", "--max-norm", "1", "--out", "out.safetensors"),
            "expected one adapter to clip, got 2",
        ),
        (
            (*CLIPPED, "--json", "./x.safetensors"),
            "the same file, x.safetensors: choose two",
        ),
        (("a.safetensors", "--json", "a.safetensors"), "is the file that is read"),
        (
            (*CLIPPED[:-1], "base.safetensors", "--overwrite", "--base", "base.safetensors"),
            "--out base.safetensors is the file that is read",
        ),
        (("a.safetensors", "--size", "6,x"), "--size '6,x': expected positive sides"),
        (("a.safetensors", "--size", "6²"), "--size '6²': expected positive sides"),
        (("a.safetensors", "--size", "6,0"), "size: expected positive sides"),
        (("a.safetensors", "--size", "6"), "expected convolutions of 1 axes; they have 2"),
        (("a.safetensors", "--max-file-size", "1e-9"), "add --max-file-size"),
    ],
)  # fmt: skip
def test_bad_usage_is_told_in_one_line(
    spectralclip: Command, here: Path, args: tuple[str, ...], complaint: str
) -> None:
    good = kohya()
    down, up = f"{DENSE}.lora_down.weight", f"{DENSE}.lora_up.weight"
    for name, tensors in {
        "nan": {**good, up: good[up] * torch.nan},
        "half": {key: value for key, value in good.items() if key != up},
        "wide": {**good, down: torch.ones(4, 21)},
        "wrong": {"model.mid.to_q.weight": torch.ones(12, 19)},
        "peft": peft_tensors(),
    }.items():
        safetensors.save_file(tensors, f"{name}.safetensors")
    Path("cut.safetensors").write_bytes(Path("a.safetensors").read_bytes()[:-40])
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    assert spectralclip("adapters", *args) == 2
    assert spectralclip.output == ""
    assert re.fullmatch(r"error: [^\n]+\n", spectralclip.errors)
    assert complaint in spectralclip.errors
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before
