"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from spectralclip._common import files as _atomic
from spectralclip._common.files import replacing, require_writable, write_text, write_texts


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def full_disk(*args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_text(path, "old")
    write_text(path, "né")
    assert path.read_bytes() == "né".encode()
    assert names(tmp_path) == {"report.html"}


def test_an_older_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.touch(mode=0o600)
    write_text(path, "new")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "ours", "")
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert names(tmp_path / "there") == {"real.json"}


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("before", [None, "old"])
def test_what_stops_in_the_middle_leaves_nothing(
    tmp_path: Path, error: BaseException, before: str | None
) -> None:
    path = tmp_path / "weights.pt"
    if before is not None:
        path.write_text(before)
    with pytest.raises(type(error)), replacing(path) as file:
        file.write(b"half")
        assert len(names(tmp_path)) == 1 + (before is not None)
        raise error
    assert names(tmp_path) == (set() if before is None else {"weights.pt"})
    assert before is None or path.read_text() == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(_atomic.os, call, full_disk)
    with pytest.raises(OSError, match="No space left") as caught:
        write_text(path, "new")
    # The file that the user knows, not the temporary one.
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert names(tmp_path) == {"report.html"}


def test_several_files_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.html"
    write_texts({first: "1", second: "2"})
    assert (first.read_text(), second.read_text()) == ("1", "2")
    synced: list[int] = []
    real = os.fsync

    def later_full(handle: int) -> None:
        synced.append(handle)
        if len(synced) > 1:
            full_disk()
        real(handle)

    monkeypatch.setattr(_atomic.os, "fsync", later_full)
    with pytest.raises(OSError, match="No space left"):
        write_texts({first: "3", second: "4"})
    assert (first.read_text(), second.read_text()) == ("1", "2")
    assert names(tmp_path) == {"a.json", "b.html"}


@pytest.mark.parametrize("write", [require_writable, lambda path: write_text(path, "text")])
def test_what_is_no_file_is_refused(tmp_path: Path, write: Any) -> None:
    with pytest.raises(IsADirectoryError):
        write(tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        write(tmp_path / "missing" / "report.html")
    assert caught.value.filename == str(tmp_path / "missing" / "report.html")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="not a regular file"):
        write(pipe)
    assert names(tmp_path) == {"pipe"}


def test_a_read_only_folder_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: object, mode: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(_atomic, "open", read_only, raising=False)
    with pytest.raises(OSError, match="Read-only file system"):
        require_writable(tmp_path / "report.html")
    monkeypatch.undo()
    require_writable(tmp_path / "report.html")
    assert names(tmp_path) == set()
