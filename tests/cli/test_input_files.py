"""Files that the command line reads and writes: devices, pipes, links, sizes, inputs as outputs."""

from __future__ import annotations

import json
import os
import socket
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from cli_cases import NETS, files, weights

pytest.importorskip("typer")

from spectralclip import cli
from spectralclip.cli import _input_files, _weights_file
from spectralclip.cli._problems import Problem

NET = ("nets.py:Net", "--input", "3,6,6")
CLIP = ("clip", *NET, "--weights", "in.pt")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "nets.py").write_text(NETS)
    torch.save(weights(), tmp_path / "in.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in repr(module):
            del sys.modules[name]


def error_of(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """What a command that fails says, in its one line."""
    assert cli.main(list(map(str, args))) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert errors.startswith("error: ") and errors.count("\n") == 1
    return errors


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)  # in the current folder: such a path may have 108 characters only


STRANGE: dict[str, Callable[[Path], object]] = {
    "a character device (a link to /dev/zero)": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a directory": Path.mkdir,
    "a directory (a link to": lambda path: path.symlink_to("."),
}

READERS = {
    "x.pt": ("audit", *NET, "--weights", "x.pt"),
    "x.safetensors": ("clip", *NET, "--weights", "x.safetensors", "-o", "out.safetensors"),
    "x.py": ("audit", "x.py:Net", "--input", "3,6,6"),
    "x.pt2": ("audit", "x.pt2", "--trust"),
    "x.json": ("compare", "x.json", "x.json"),
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_read(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str, kind: str
) -> None:
    STRANGE[kind](folder / name)
    told = error_of(capsys, *READERS[name])
    assert f" {name}: expected a regular file, got {kind}" in told


@pytest.mark.parametrize("name", [name for name in READERS if name != "x.py"])
@pytest.mark.parametrize("target", ["empty", "/proc/self/environ"])
def test_what_tells_no_size_is_not_read(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str, target: str
) -> None:
    (folder / "empty").touch()
    if not Path(target).exists():
        pytest.skip("there is no /proc")
    (folder / name).symlink_to(target)
    assert "the file is empty (0 bytes)" in error_of(capsys, *READERS[name])


@pytest.mark.parametrize("name", READERS)
def test_a_file_above_the_limit_is_not_read(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str
) -> None:
    (folder / name).touch()
    os.truncate(name, 2**35 + 1)  # of which the disk keeps nothing
    limit = "1 GiB" if name in ("x.py", "x.json") else "16 GiB"
    told = error_of(capsys, *READERS[name])
    assert f"{name}: it has 32 GiB, and at most {limit} are read" in told
    assert "add --max-file-size 33." in told


def test_the_flag_sets_the_limit(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    size = Path("in.pt").stat().st_size
    told = error_of(capsys, "audit", *NET, "--weights", "in.pt", "--max-file-size", 3e-6)
    assert f"it has {size:,} bytes, and at most 3,221 bytes are read" in told
    for bad in ("0", "-1", "nan"):
        told = error_of(capsys, "audit", *NET, "--weights", "in.pt", "--max-file-size", bad)
        assert "--max-file-size: expected a positive number of GiB" in told
    assert cli.main([*CLIP, "-o", "out.pt", "--max-file-size", "inf"]) == 0


def test_an_archive_that_unpacks_to_more_is_not_read(folder: Path) -> None:
    with zipfile.ZipFile("bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**6))
    assert Path("bomb.pt").stat().st_size < 10**4
    with pytest.raises(Problem, match=r"bomb\.pt: unpacked, it has 1,000,000 bytes, and at most"):
        _weights_file.read(Path("bomb.pt"), limit=10**5)


def test_a_path_that_changes_its_meaning_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanged(*args: object) -> None:
        Path("in.pt").unlink()
        os.mkfifo("in.pt")

    monkeypatch.setattr(_input_files, "require_regular", exchanged)
    with pytest.raises(Problem, match=r"in\.pt: expected a regular file, got a pipe"):
        _weights_file.read(Path("in.pt"))


def test_a_file_that_grows_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.json").write_text("{}")
    true_size = os.fstat

    def smaller(descriptor: int) -> os.stat_result:
        found = list(true_size(descriptor))
        found[6] = 1
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", smaller)
    with pytest.raises(Problem, match=r"a\.json: the file grows while it is read"):
        _input_files.read_text(Path("a.json"), "audit", 100)


@pytest.mark.parametrize(
    "content", ['"/dev/zero"', "[1]", "3", "{", "null", "[" * 10**5, '{"format": 1}']
)
def test_text_that_is_no_audit(
    capsys: pytest.CaptureFixture[str], folder: Path, content: str
) -> None:
    Path("a.json").write_text(content)
    assert "a.json: expected an audit as --json writes it" in error_of(
        capsys, "compare", "a.json", "a.json"
    )


def test_a_checkpoint_that_timm_would_run_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = error_of(
        capsys, "audit", "timm:resnet18", "--set", "checkpoint_path=in.pt", "--input", "3,32,32"
    )
    assert "give the file by --weights" in told


# What is written


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_no_report_takes_the_place_of_what_was_read(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    option: str,
    link: Callable[[str, str], None] | None,
) -> None:
    Path("a.json").write_text("{}")
    before = {name: Path(name).read_bytes() for name in ("in.pt", "nets.py", "a.json")}
    for name in before:
        output = name
        if link is not None:
            output = f"other-{name}"
            link(name, output)
        command: tuple[object, ...] = ("audit", *NET, "--weights", "in.pt")
        if name == "a.json":
            command = ("compare", "a.json", "b.json")
        told = error_of(capsys, *command, option, output)
        assert f"{option} {output} is the file that is read, {name}" in told
    assert {name: Path(name).read_bytes() for name in before} == before


def test_clipped_weights_never_replace_the_model(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    told = error_of(capsys, *CLIP, "-o", "nets.py", "--overwrite")
    assert "output nets.py is the file that is read" in told
    assert Path("nets.py").read_text() == NETS


@pytest.mark.parametrize("target", ["/dev/null", "pipe", "around.json", "gone/a.json"])
def test_reports_go_to_regular_files_only(
    capsys: pytest.CaptureFixture[str], folder: Path, target: str
) -> None:
    os.mkfifo("pipe")
    Path("around.json").symlink_to("around.json")
    Path("out.json").symlink_to(target)
    there = files(folder)
    told = error_of(capsys, "audit", *NET, "--json", "out.json")
    assert "cannot write out.json" in told
    assert files(folder) == there


def test_an_older_report_is_replaced(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    Path("a.json").write_text("{}")
    args = ("audit", *NET, "--no-lipschitz", "--weights", "in.pt", "--json", "a.json")
    assert cli.main(list(args)) == 0
    assert json.loads(Path("a.json").read_text())["format"] == "spectralclip.audit"


def test_a_model_that_changes_the_folder_does_not_move_the_output(folder: Path) -> None:
    Path("away").mkdir()
    source = "import os\nfrom torch import nn\ndef net():\n    os.chdir('away')\n"
    Path("moving.py").write_text(source + "    return nn.Sequential(nn.Linear(4, 4))\n")
    args = ("audit", "moving.py:net", "--no-lipschitz", "--input", "4", "--json", "a.json")
    assert cli.main(list(args)) == 0
    assert Path.cwd() == folder
    assert (folder / "a.json").is_file() and not files(folder / "away")


@pytest.mark.parametrize(
    "given", [("--input", "99999999999999999999"), ("--input", "4", "--batch", str(10**17))]
)
def test_inputs_that_no_memory_holds(
    capsys: pytest.CaptureFixture[str], given: tuple[str, ...]
) -> None:
    told = error_of(capsys, "audit", "nets.py:ready", *given)
    assert "--input: no tensors of shape (" in told and len(told) < 300
