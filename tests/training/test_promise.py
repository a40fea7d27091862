"""What methods promise: nothing, unless they say so."""

from __future__ import annotations

from torch import nn

from spectralclip import Method
from spectralclip._training import Promise, SpectralClip


def test_a_method_promises_what_its_class_states() -> None:
    assert Method.promises == ()
    assert [promise.margin for promise in SpectralClip().promises] == [0.01, 0.01]


def test_a_promise_covers_every_layer_by_default() -> None:
    assert Promise().covers(nn.Conv2d(1, 1, 3))
    assert not Promise(covers=lambda module: isinstance(module, nn.Linear)).covers(nn.Identity())
