"""The command line as a user meets it: a process of its own, with bad input and bad luck."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cli_cases import NETS, dense_norms, files, run, start, weights, write_malicious

pytest.importorskip("typer")

NET = ("nets.py:Net", "--input", "3,6,6")
AUDIT = ("audit", *NET, "--no-lipschitz", "--weights", "in.pt")
CLIP = ("clip", *NET, "--weights", "in.pt", "-o", "out.pt")
GIVEN = {"nets.py", "in.pt"}

# Imported by every Python that finds it: a disk that is full, or slow, when it comes to writing.
FULL_DISK = """
import errno, os
def fsync(handle):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.fsync = fsync
"""
SLOW_DISK = """
import os, time
def fsync(handle):
    open("running", "w").close()
    time.sleep(60)
os.fsync = fsync
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "nets.py").write_text(NETS)
    torch.save({"state_dict": weights(), "epoch": 3}, work / "in.pt")
    return work


def patched(folder: Path, code: str) -> dict[str, str]:
    """The environment in which Python runs the code first."""
    place = folder.parent / "patch"
    place.mkdir()
    (place / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}


def assert_refused(result: tuple[int, str, str], complaint: str) -> None:
    code, output, errors = result
    assert re.fullmatch(r"error: [^\n]+\n", errors), errors
    assert re.search(complaint, errors)
    assert (code, output) == (2, "")


def test_a_whole_round(folder: Path) -> None:
    code, output, errors = run(*AUDIT, "--json", "a.json", "--fail-above", 1.02, cwd=folder)
    assert code == 1, errors
    assert re.search(r"^above 1\.02: conv\+bn \(", errors, re.MULTILINE)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", output + errors)  # no control characters
    code, output, errors = run(*CLIP, cwd=folder)
    assert code == 0, errors
    assert "2 of 2 layers moved" in output
    assert dense_norms(torch.load(folder / "out.pt", weights_only=True)["state_dict"])["fc"] < 1.002
    code, _, errors = run(*AUDIT, "--weights", "out.pt", "--fail-above", 1.02, cwd=folder)
    assert code == 0, errors
    assert files(folder) == GIVEN | {"a.json", "out.pt"}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((*AUDIT, "--weights", "gone.pt"), "cannot read gone.pt: No such file"),
        ((*AUDIT, "--weights", "cut.pt"), "cut.pt: .* truncated, damaged or something else"),
        ((*AUDIT, "--set", "width=8"), "6 of another shape: conv.weight .* and 1 more"),
        ((*AUDIT, "--input", "3,9,9", "--html", "a.html"), r"cannot be called with"),
        (("audit", "nets:broken", "--input", "3"), "raised ValueError: the width is missing"),
    ],
)
def test_bad_input_is_one_line(folder: Path, args: tuple[str, ...], complaint: str) -> None:
    (folder / "cut.pt").write_bytes((folder / "in.pt").read_bytes()[:2000])
    assert_refused(run(*args, "--json", "a.json", cwd=folder), complaint)
    assert files(folder) == GIVEN | {"cut.pt"}


def test_a_malicious_pickle_does_not_run(folder: Path) -> None:
    write_malicious(folder / "bad.pt", folder / "trace")
    args = ("clip", *NET, "--weights", "bad.pt", "-o", "out.pt")
    assert_refused(run(*args, cwd=folder), r"refused.*posix\.system")
    assert files(folder) == GIVEN | {"bad.pt"}


@pytest.mark.slow
def test_a_read_only_folder_is_found_at_once(folder: Path) -> None:
    if os.geteuid() == 0:
        # The superuser may write anywhere, but not into the kernel's own files.
        place = Path("/proc/self")
    else:
        place = folder.parent / "closed"
        place.mkdir(mode=0o555)
    started = run(*AUDIT, "--html", place / "a.html", cwd=folder)
    assert_refused(started, rf"cannot write {place}/a\.html: ")
    assert files(folder) == GIVEN


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("args", [(*AUDIT, "--json", "a.json", "--html", "a.html"), CLIP])
def test_a_full_disk_leaves_nothing(folder: Path, args: tuple[str, ...]) -> None:
    result = run(*args, cwd=folder, env=patched(folder, FULL_DISK))
    assert_refused(result, r"cannot write (a\.json|a\.html|out\.pt): No space left on device")
    assert files(folder) == GIVEN


@pytest.mark.slow
def test_a_file_that_may_not_grow_leaves_nothing(folder: Path) -> None:
    """The kernel refuses in the middle of a write, where torch hides why."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    result = run(*CLIP, cwd=folder, preexec_fn=limit)
    assert_refused(result, r"cannot write out\.pt: File too large")
    assert files(folder) == GIVEN


def interrupted(process: subprocess.Popen[str], folder: Path, number: int) -> tuple[int, str]:
    """Send a signal once the process says that it is at work; its exit code and errors."""
    for _ in range(1200):
        if (folder / "running").exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[1]
    (folder / "running").unlink()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_the_audit(folder: Path) -> None:
    args = ("audit", "nets.py:slow", "--input", "70", "--json", "a.json", "--html", "a.html")
    code, errors = interrupted(start(*args, cwd=folder), folder, signal.SIGINT)
    assert code == 130
    assert errors == "stopped; nothing was written.\n"
    assert files(folder) - {"running"} == GIVEN


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_a_signal_while_a_file_is_written(folder: Path, number: int, code: int) -> None:
    process = start(*CLIP, cwd=folder, env=patched(folder, SLOW_DISK))
    assert interrupted(process, folder, number)[0] == code
    assert files(folder) == GIVEN


@pytest.mark.slow
def test_a_reader_that_goes_away(folder: Path) -> None:
    with start(*AUDIT, "--json", "a.json", cwd=folder) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (141, "")
    assert files(folder) == GIVEN | {"a.json"}


def test_without_the_packages_of_the_command_line(folder: Path) -> None:
    hide = "import sys\nsys.modules['typer'] = None\n"
    result = run("--version", cwd=folder, env=patched(folder, hide))
    assert_refused(result, r'needs the package typer.*pip install "spectralclip\[cli\]"')


@pytest.mark.slow
def test_completion_is_typers_own(folder: Path) -> None:
    line = {"COMP_WORDS": "spectralclip audit t", "COMP_CWORD": "2"}
    code, output, _ = run(cwd=folder, env={"_SPECTRALCLIP_COMPLETE": "complete_bash", **line})
    assert code == 0
    assert output.split() == ["timm:", "transformers:"]


@pytest.mark.slow
def test_colours_are_for_terminals(folder: Path) -> None:
    """At a terminal of its own, with NO_COLOR."""
    import pty

    main, other = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "spectralclip", *AUDIT]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=other, stderr=subprocess.DEVNULL
    )
    os.close(other)
    shown = b""
    try:
        while part := os.read(main, 65536):
            shown += part
    except OSError:
        pass  # the other end is closed
    os.close(main)
    assert process.wait(timeout=60) == 0
    assert "conv+bn" in shown.decode()
    assert not re.search(rb"\x1b\[[0-9;]*3[0-9]", shown)  # no colours
