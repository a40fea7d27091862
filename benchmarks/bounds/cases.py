"""The layers of the bounds' benchmark, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def layers() -> list[tuple[str, Callable[[], nn.Module], tuple[int, ...], tuple[str, ...]]]:
    """Each with its name, how it is made, its input, and which intervals are asked for."""

    def conv(c_in: int, c_out: int, kernel: int = 3, **options: Any) -> Callable[[], nn.Module]:
        options.setdefault("padding", kernel // 2)
        return lambda: nn.Conv2d(c_in, c_out, kernel, bias=False, **options)

    both = ("default", "deterministic")
    reflect = conv(64, 64, padding_mode="reflect")
    return [
        ("64->64 zeros n16", conv(64, 64), (64, 16, 16), ("default", "tol 1e-3")),
        ("64->64 zeros n32", conv(64, 64), (64, 32, 32), ("default", "tol 1e-3")),
        ("256->256 zeros n8", conv(256, 256), (256, 8, 8), ("default",)),
        ("512->512 zeros n4", conv(512, 512), (512, 4, 4), ("default",)),
        ("64->128 zeros stride 2 n32", conv(64, 128, stride=2), (64, 32, 32), ("default",)),
        ("3->64 7x7 stride 2 n224", conv(3, 64, 7, stride=2), (3, 224, 224), ("default",)),
        ("64->64 circular n32", conv(64, 64, padding_mode="circular"), (64, 32, 32), ("default",)),
        ("64->64 reflect n16", reflect, (64, 16, 16), both),
        ("64->64 reflect n32", reflect, (64, 32, 32), ("default",)),
        (
            "128->128 replicate n16",
            conv(128, 128, padding_mode="replicate"),
            (128, 16, 16),
            ("default",),
        ),
        (
            "256->256 replicate n8",
            conv(256, 256, padding_mode="replicate"),
            (256, 8, 8),
            ("default",),
        ),
        ("16->16 reflect n32", conv(16, 16, padding_mode="reflect"), (16, 32, 32), both),
        ("64->64 every size", conv(64, 64), (64, 32, 32), ("every size",)),
        ("dense 4096->1000", lambda: nn.Linear(4096, 1000), (4096,), ("default",)),
    ]
