"""What is switched while a layer is evaluated, and switched back afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from spectralclip._common import explained
from spectralclip._linalg import full_precision


@contextmanager
def evaluation_mode(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switch modules to evaluation for the block, flag by flag, and back.

    `Module.eval()` is not called: it is often overridden, and its inverse is not known. Parts that
    are frozen have no flag. Attention goes its usual way: torch's faster one in evaluation computes
    the same, but has no derivatives and calls none of its modules.
    """
    training = [
        part for module in modules for part in module.modules() if getattr(part, "training", False)
    ]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    for part in training:
        part.training = False
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for part in training:
            part.training = True


@contextmanager
def plain_numerics() -> Iterator[None]:
    """Full precision, and autograd at hand, whatever the caller has switched on around us.

    All that the library computes for a caller is computed in here: so this is also where faults of
    the machine are told from those of a layer.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(full_precision())
        try:
            yield
        except Exception as error:
            fault = explained(error)
            if fault is None or fault is error:
                raise
            raise fault from error


@contextmanager
def unchanged_rng(device: torch.device) -> Iterator[None]:
    """Put torch's global random state back, should a layer have drawn from it."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
