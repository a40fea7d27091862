"""Devices by name, as `--device` gives them."""

from __future__ import annotations


def require_device(device: str, *, here: bool = True) -> None:
    """Check that runs can be done on a device.

    Args:
        device: Its name.
        here: Whether this machine has to have it; those of a cluster are known to the cluster.

    Raises:
        ValueError: There is none of that name.
    """
    import torch

    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device: expected one that torch knows, as cpu or cuda, got {device!r}."
        ) from error
    if here and wanted.type == "cuda":
        _require_gpu(device, wanted.index or 0, torch.cuda.device_count())
    elif here:
        try:
            # Memory alone is not enough: "meta" gives it, and holds no numbers.
            torch.ones(1, device=wanted).item()
        except (RuntimeError, AssertionError, ImportError) as error:
            raise ValueError(
                f"device: expected one of this machine, got {device!r}: use --device cpu."
            ) from error


def _require_gpu(device: str, number: int, count: int) -> None:
    """By its number: one that is opened here may be refused to the processes that run."""
    if not count:
        raise ValueError(f"device: expected a GPU for {device!r}, got none: use --device cpu.")
    if number >= count:
        raise ValueError(
            f"device: expected a GPU for {device!r}, got {count}: the last is cuda:{count - 1}."
        )
