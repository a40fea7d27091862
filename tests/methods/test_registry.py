"""Methods by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from spectralclip import Method, MethodState, methods
from spectralclip.methods import ClipBatchNorm, FastClip, _registry, available, estimators, get


def test_names() -> None:
    names = available()
    assert names == sorted(names)
    assert {"clip_batch_norm", "fast_clip", "spectral_clip"} <= set(names)
    names.clear()
    assert available()


@pytest.mark.parametrize("name", available())
def test_every_method_can_be_made_without_arguments(name: str) -> None:
    method = get(name)()
    assert isinstance(method, Method)
    assert repr(method).startswith(type(method).__name__)


def test_classes() -> None:
    assert get("fast_clip") is FastClip
    assert get("clip_batch_norm") is ClipBatchNorm


def test_every_file_with_a_method_has_a_name() -> None:
    folder = Path(methods.__file__).parent
    files = {path.stem for path in folder.rglob("[a-z]*.py") if _has_method(path)}
    assert files | {"spectral_clip"} == set(available())  # ours is in the room of training


def _has_method(path: Path) -> bool:
    return bool(
        re.search(r"^class \w+\((\w+, )*\w*Method\):", path.read_text("utf-8"), re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("fastclip", "'fast_clip'"),
        ("FastClip", "'fast_clip'"),
        ("fast-clip", "'fast_clip'"),
        ("SpectralClip", "'spectral_clip'"),
        ("clip_batchnorm", "'clip_batch_norm'"),
    ],
)
def test_unknown_names_with_a_close_match(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"no method '{name}': known are .* mean {hint}\?"):
        get(name)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"known are \['aol', 'cayley', .*\]\.$"):
        get("zzz")
    with pytest.raises(TypeError, match="name must be one of"):
        get(None)  # type: ignore[arg-type]


def test_a_new_method_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Method):
        def start(self, *args: object) -> MethodState: ...

    Mine.__module__ = "spectralclip.methods.my_own"
    monkeypatch.setattr(methods, "Mine", Mine, raising=False)
    assert "my_own" in available()
    assert get("my_own") is Mine


def test_estimators_are_those_of_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    class With:
        @staticmethod
        def estimate(module: nn.Module, in_shape: Any, *, generator: Any = None) -> float:
            return 3.0

    class Without:
        estimate = None

    known: dict[str, Any] = {"with": With, "without": Without, "silent": object}
    monkeypatch.setattr(_registry, "_methods", lambda: known)
    assert estimators() == {"with": With.estimate}
