"""Methods by name."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from spectralclip import Method, MethodState, methods
from spectralclip.methods import ClipBatchNorm, FastClip, available, get


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
    return bool(re.search(r"^class \w+\(\w*Method\):", path.read_text("utf-8"), re.MULTILINE))


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


# Settings that do not exist


@pytest.mark.parametrize("name", methods.available())
def test_the_bound_is_no_setting_of_a_method(name: str) -> None:
    kind = methods.get(name)
    for slip in ("max_norm", "bound"):
        with pytest.raises(TypeError, match=rf"{kind.__name__} has no setting '{slip}'") as caught:
            kind(**{slip: 0.5})
        assert f"attach(..., method={kind.__name__}(), max_norm=0.5)" in str(caught.value)
    with pytest.raises(TypeError, match=r"'schedule' goes to attach: .*schedule=\.\.\.\)"):
        kind(**{"schedule": abs})
    with pytest.raises(TypeError, match=f"{kind.__name__} has no setting 'nonsense'"):
        kind(**{"nonsense": 1})


def test_a_misspelled_setting_gets_a_hint() -> None:
    settings: dict[str, Any] = {"inner_step": 3}
    with pytest.raises(TypeError, match="Did you mean 'inner_steps'"):
        methods.FastClip(**settings)


def test_methods_of_ones_own_are_free_in_their_settings() -> None:
    class Bare(Method):
        def start(self, sharing: Any, bounds: Any, seed: int) -> Any:
            """Nothing."""

    class Own(Bare):
        def __init__(self, *sizes: int, max_norm: float) -> None:
            self.sizes, self.max_norm = sizes, max_norm

    @dataclasses.dataclass
    class Stated(Bare):
        max_norm: float = 1.0

    assert Own(1, 2, max_norm=3.0).sizes == (1, 2)
    assert Stated(2.0) == Stated(max_norm=2.0)
    assert copy.deepcopy(pickle.loads(pickle.dumps(methods.Gouk()))) == methods.Gouk()
    options: dict[str, Any] = {"max_norm": 1.0}
    with pytest.raises(TypeError, match="Bare has no setting 'max_norm': it has none"):
        Bare(**options)
    with pytest.raises(TypeError, match="has no settings, got"):
        Bare(*options)
