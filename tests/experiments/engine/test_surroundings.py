"""Which sources and which library a run is of."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from experiments.engine import surroundings


@pytest.mark.parametrize(
    ("answers", "is_its_own", "expected"),
    [
        (["abc", ""], True, "abc"),
        (["abc", ""], False, "abc-dirty"),
        (["abc", " M experiments/norms.py"], True, "abc-dirty"),
        (["abc", None], True, "abc-dirty"),
        ([None], True, None),
    ],
)
def test_the_commit_of_the_sources(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[str | None],
    is_its_own: bool,
    expected: str | None,
) -> None:
    rest = iter(answers)
    monkeypatch.setattr(surroundings, "_git", lambda *command: next(rest))
    monkeypatch.setattr(surroundings, "_is_library_of", lambda repository: is_its_own)
    assert surroundings.commit.__wrapped__() == expected


def test_whether_the_library_that_runs_is_that_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "elsewhere" / "spectralclip"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "norm.py").write_text("one = 1\n")
    (package / "inner" / "norm.pyc").touch()
    spec = importlib.util.spec_from_file_location("spectralclip", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert not surroundings._is_library_of(tmp_path)  # it has none
    there = tmp_path / "src" / "spectralclip"
    shutil.copytree(package, there, ignore=shutil.ignore_patterns("*.pyc"))
    assert surroundings._is_library_of(tmp_path)
    (there / "new.py").touch()
    assert not surroundings._is_library_of(tmp_path)
    (there / "new.py").unlink()
    (there / "inner" / "norm.py").write_text("one = 2\n")
    assert not surroundings._is_library_of(tmp_path)


def test_the_library_of_these_tests_is_that_of_the_repository() -> None:
    assert surroundings._is_library_of(Path(__file__).parents[3])
