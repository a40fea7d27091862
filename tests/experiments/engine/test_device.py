"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from experiments.engine.device import require_device


@pytest.mark.parametrize(
    ("device", "complaint"),
    [
        ("foo", "expected one that torch knows, as cpu or cuda, got 'foo'"),
        ("", "expected one that torch knows"),
        ("meta", "expected one of this machine, got 'meta': use --device cpu"),
        ("cuda:2", "expected a GPU for 'cuda:2', got 2: the last is cuda:1"),
    ],
)
def test_devices_are_checked_by_name(
    monkeypatch: pytest.MonkeyPatch, device: str, complaint: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for there in ("cpu", "cuda", "cuda:1"):
        require_device(there)
    with pytest.raises(ValueError, match=complaint) as raised:
        require_device(device)
    assert "\n" not in str(raised.value)


def test_a_cluster_may_have_what_this_machine_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    require_device("cuda", here=False)
    with pytest.raises(ValueError, match="torch knows"):
        require_device("foo", here=False)
