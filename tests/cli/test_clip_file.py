"""Checkpoints that are clipped: in the same form, and whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cli_cases import CLIP, NET, Command, dense_norms, files, weights
from torch import Tensor

pytest.importorskip("typer")

from spectralclip.cli import _clip_file

pytestmark = pytest.mark.usefixtures("folder")


def state_of(path: str) -> dict[str, Tensor]:
    return torch.load(path, weights_only=True)["state_dict"]


def test_clip_writes_clipped_weights_in_the_same_form(spectralclip: Command, folder: Path) -> None:
    before = (folder / "in.pt").read_bytes()
    assert spectralclip(*CLIP, "-o", "out.pt", "--max-norm", 0.7) == 0
    out = torch.load("out.pt", weights_only=True)
    assert list(out) == ["state_dict", "epoch"]
    assert out["epoch"] == 3
    assert list(out["state_dict"]) == list(weights())
    norms = dense_norms(out["state_dict"])
    assert norms["conv+bn"] <= 0.7 * 1.002 and norms["fc"] <= 0.7 * 1.002
    # Batch norm and biases do not move.
    for name in ("bn.weight", "bn.running_var", "fc.bias", "bn.num_batches_tracked"):
        assert torch.equal(out["state_dict"][name], weights()[name])
    assert (folder / "in.pt").read_bytes() == before
    rows = [line.split() for line in spectralclip.output.splitlines()]
    table = {row[0]: row[1:] for row in rows if row and row[0] in ("conv+bn", "fc")}
    moved = float((out["state_dict"]["fc.weight"] - weights()["fc.weight"]).norm())
    assert float(table["fc"][0]) == pytest.approx(dense_norms(weights())["fc"], rel=1e-3)
    assert float(table["fc"][1]) == pytest.approx(norms["fc"], rel=1e-3)
    assert float(table["fc"][2]) == pytest.approx(moved, rel=1e-3)


def test_layers_within_the_bound_stay_bit_for_bit(spectralclip: Command) -> None:
    assert spectralclip(*CLIP, "-o", "out.pt", "--max-norm", 1e3) == 0
    out = state_of("out.pt")
    assert all(torch.equal(out[name], value) for name, value in weights().items())
    assert "0 of 2 layers moved; 2 within" in spectralclip.output


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        (("--layers", "fc"), {"fc.weight"}),
        (("--layers", "conv"), {"conv.weight"}),
        (("--layers", "c*", "--layers", "f*"), {"conv.weight", "fc.weight"}),
        (("--compose", "none"), {"conv.weight", "bn.weight", "fc.weight"}),
        (("--compose", "chains", "--certify", "deterministic"), {"conv.weight", "fc.weight"}),
    ],
)
def test_layers_are_chosen(
    spectralclip: Command, options: tuple[str, ...], moved: set[str]
) -> None:
    assert spectralclip(*CLIP, "-o", "out.pt", "--max-norm", 0.5, *options) == 0
    out = state_of("out.pt")
    assert {n for n, value in weights().items() if not torch.equal(out[n], value)} == moved


def test_low_precision_is_measured_as_it_is_stored(spectralclip: Command) -> None:
    low = {
        n: v.to(torch.float8_e4m3fn) if v.is_floating_point() else v for n, v in weights().items()
    }
    torch.save(low, "low.pt")
    assert spectralclip("clip", *NET, "--weights", "low.pt", "-o", "out.pt") == 0
    out = torch.load("out.pt", weights_only=True)
    assert {n: v.dtype for n, v in out.items()} == {n: v.dtype for n, v in low.items()}
    row = next(line.split() for line in spectralclip.output.splitlines() if line[:3] == "fc ")
    stored = dense_norms(out)["fc"]
    assert float(row[2]) == pytest.approx(stored, rel=1e-3)
    assert stored > 1.002
    assert "warning: above the bound, as rounded in the file: " in spectralclip.errors


def test_what_is_not_in_the_file_is_left_alone(spectralclip: Command) -> None:
    torch.save({"fc.weight": weights()["fc.weight"]}, "part.pt")
    args = ("clip", *NET, "--weights", "part.pt", "-o", "out.pt", "--max-norm", 0.1)
    assert spectralclip(*args) == 2
    assert "6 missing in the file" in spectralclip.errors
    assert not Path("out.pt").exists()
    assert spectralclip(*args, "--allow-partial") == 0
    assert "1 of 1 layers moved" in spectralclip.output
    assert "6 missing in the file: conv.weight, " in spectralclip.errors
    assert list(torch.load("out.pt", weights_only=True)) == ["fc.weight"]


def test_no_file_is_replaced_unasked(spectralclip: Command, folder: Path) -> None:
    (folder / "other.pt").write_text("mine")
    (folder / "link.pt").symlink_to("in.pt")
    before = (folder / "in.pt").read_bytes()
    for output, why in {
        "in.pt": "is the input itself",
        "./in.pt": "is the input itself",
        "link.pt": "is the input itself",
        "other.pt": "exists already",
    }.items():
        assert spectralclip(*CLIP, "-o", output) == 2
        assert why in spectralclip.errors and "--overwrite" in spectralclip.errors
    assert (folder / "in.pt").read_bytes() == before
    assert (folder / "other.pt").read_text() == "mine"
    assert spectralclip(*CLIP, "-o", "in.pt", "--overwrite") == 0
    assert dense_norms(state_of("in.pt"))["fc"] <= 1.002


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("-o", "out.safetensors"), "expected the format of the input, .pt, got .safetensors"),
        (("-o", "gone/out.pt"), "cannot write gone/out.pt: No such file or directory"),
        (("-o", "out.pt", "--layers", "none"), "no layer is named as --layers says (none); there"),
        (("-o", "out.pt", "--max-norm", "-1"), "max_norm"),
        (("-o", "out.pt", "--input", "3,7,7"), "cannot be called with"),
    ],
)
def test_clip_refuses_in_one_line(
    spectralclip: Command, folder: Path, options: tuple[str, ...], complaint: str
) -> None:
    assert spectralclip(*CLIP, *options) == 2
    assert spectralclip.errors.startswith("error: ") and spectralclip.errors.count("\n") == 1
    assert complaint in spectralclip.errors
    assert files(folder) == {"nets.py", "in.pt"}


def test_a_failure_while_clipping_writes_nothing(
    spectralclip: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **options: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(_clip_file, "clip_found_layers_", fails)
    assert spectralclip(*CLIP, "-o", "out.pt") == 2
    assert spectralclip.errors == "error: RuntimeError: two lines (--debug shows where)\n"
    assert spectralclip("--debug", *CLIP, "-o", "out.pt") == 2
    assert "Traceback" in spectralclip.errors
    assert files(folder) == {"nets.py", "in.pt"}
