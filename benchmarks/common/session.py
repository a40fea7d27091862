"""What the parts of a run share: settings, true values, and what was left out."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks.extraction.layers import BenchmarkLayer
from oracle import leading_values

DEFAULT_INITIALIZATION = -1  # in place of a seed


@dataclass(frozen=True)
class Skip:
    """A combination that was left out, and why."""

    part: str
    layer: str
    method: str
    reason: str
    k: int = 1
    tol: float | None = None


@dataclass
class Session:
    """One run of the benchmark."""

    quick: bool = False
    began: float = field(default_factory=time.perf_counter)
    skipped: list[Skip] = field(default_factory=list)
    _references: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)

    def reference(self, layer: BenchmarkLayer, seed: int = 0) -> np.ndarray:
        """True singular values of `layer.build(seed)`, each computed once.

        As many as the measurements on it need and four more: 24 for the first seed and the
        default initialization (fewer on the largest layer), one for the other seeds. The
        default initialization serves for oracles at 1e-3 alone and is not polished.
        """
        key = (layer.name, seed)
        if key not in self._references:
            default = seed == DEFAULT_INITIALIZATION
            module = layer.build_default() if default else layer.build(seed)
            count = 24 if not layer.large else 9
            if seed > 0 or (default and layer.large):
                count = 1
            self._references[key] = leading_values(
                module, layer.in_shape, count, polish=not default
            )
        return self._references[key]

    def skip(
        self,
        part: str,
        layer: BenchmarkLayer,
        method: str,
        reason: str,
        k: int = 1,
        tol: float | None = None,
    ) -> None:
        self.skipped.append(Skip(part, layer.name, method, reason, k, tol))

    def say(self, text: str) -> None:
        print(f"[{self.seconds():6.1f} s] {text}", file=sys.stderr, flush=True)

    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self.began
