"""What a method says of a setting that it does not have."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from spectralclip import Method, methods


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
