"""Holding a function against the suite: what it says of each layer, and what that is worth."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, final

import torch

from spectralclip._common import checked_seed, one_line, positive_number
from spectralclip.integrations.conformance._suite import VERSION, ConformanceLayer

Verdict: TypeAlias = Literal["right", "above", "below", "wrong", "raised"]
Requirement: TypeAlias = Literal["right", "upper", "lower"]
VERDICTS: tuple[Verdict, ...] = ("right", "above", "below", "wrong", "raised")
# What rounding to float32 may take from a bound: a few of its roundings.
ROUNDING = 1e-6


@final
@dataclass(frozen=True)
class Outcome:
    """What a function said of one layer.

    Attributes:
        name: The layer.
        kind: The part of the suite that it belongs to.
        verdict: "right" (within the tolerance; an interval that holds the norm), "above" and
            "below" (by more than that), "wrong" (no number, a negative one, or an interval without
            the norm) or "raised".
        truth: The norm.
        lower: Of what was returned; both ends are the same for a single number.
        upper: The other end.
        seconds: What the call took.
        error: What was raised, or why it is wrong.
    """

    name: str
    kind: str
    verdict: Verdict
    truth: float
    lower: float | None
    upper: float | None
    seconds: float
    error: str = ""

    @property
    def ratio(self) -> float | None:
        """What was returned over the norm; of an interval its upper end."""
        if self.upper is None or math.isnan(self.upper):
            return None
        if self.truth == 0:
            return 1.0 if self.upper == 0 else math.inf
        return self.upper / self.truth

    def meets(self, requirement: Requirement) -> bool:
        """Whether the answer is right, or a bound of the norm on the side that is asked for."""
        if self.verdict in ("wrong", "raised") or self.lower is None or self.upper is None:
            return False
        if requirement == "upper":
            return self.upper >= self.truth * (1 - ROUNDING)
        if requirement == "lower":
            return self.lower <= self.truth * (1 + ROUNDING)
        return self.verdict == "right"


@final
@dataclass(frozen=True)
class Report:
    """All outcomes of one function.

    Attributes:
        outcomes: One for each layer, in the order of the suite.
        tol: The relative tolerance within which a number is right.
    """

    outcomes: tuple[Outcome, ...]
    tol: float

    def count(self, verdict: Verdict, kind: str | None = None) -> int:
        """How many layers of a kind, or of all, have a verdict."""
        return sum(
            one.verdict == verdict for one in self.outcomes if kind is None or one.kind == kind
        )

    def failures(self, requirement: Requirement) -> list[str]:
        """The layers on which the answer is not right, or no bound of the kind asked for."""
        return [one.name for one in self.outcomes if not one.meets(requirement)]

    @property
    def conclusion(self) -> str:
        """What the function is, on these layers, in a sentence."""
        answered = [one for one in self.outcomes if one.lower is not None]
        parts = [f"right on {self.count('right')} of {len(self.outcomes)} layers"]
        for requirement, word in (("upper", "an upper bound"), ("lower", "a lower bound")):
            held = sum(one.meets(requirement) for one in answered)  # type: ignore[arg-type]
            parts.append(f"{word} on {held} of {len(answered)} that it answers")
        return "; ".join(parts) + "."

    def to_json(self) -> str:
        """The outcomes as a JSON document; what is not finite is written as text."""
        rows = [
            {name: _plain(value) for name, value in asdict(one).items()} for one in self.outcomes
        ]
        counts = {verdict: self.count(verdict) for verdict in VERDICTS}
        document = {"suite": VERSION, "tol": self.tol, "counts": counts, "layers": rows}
        return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def run(
    estimate: Callable[..., Any],
    layers: Iterable[ConformanceLayer],
    *,
    tol: float = 1e-3,
    seed: int = 0,
    tell: Callable[[Outcome], object] | None = None,
) -> Report:
    """Hold a function against layers of the suite.

    Args:
        estimate: Called with a torch module and the shape of one input. Returns a number, or the
            two ends of an interval: a pair, or an object with `lower` and `upper`.
        layers: What `load` returns, or some of it.
        tol: Within which relative tolerance a number is right.
        seed: Of torch's random numbers before each call; its state is as before afterwards.
        tell: Called with each outcome, as it comes.

    Example:
        >>> import torch
        >>> from spectralclip.integrations import conformance
        >>> def as_matrix(module, in_shape):
        ...     return torch.linalg.matrix_norm(module.weight.flatten(1), 2)
        >>> dense = [layer for layer in conformance.load() if layer.kind == "dense"]
        >>> conformance.run(as_matrix, dense).count("right")
        16
    """
    positive_number(tol, "tol")
    checked_seed(seed)
    outcomes = []
    for layer in layers:
        outcome = _outcome(estimate, layer, tol, seed)
        outcomes.append(outcome)
        if tell is not None:
            tell(outcome)
    return Report(tuple(outcomes), tol)


def _outcome(
    estimate: Callable[..., Any], layer: ConformanceLayer, tol: float, seed: int
) -> Outcome:
    module = layer.make()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the layers are on the CPU; others stay
        began = time.perf_counter()
        try:
            returned = estimate(module, layer.in_shape)
            seconds = time.perf_counter() - began
            lower, upper, is_interval = _ends(returned)
        except Exception as error:
            seconds = time.perf_counter() - began
            text = f"{type(error).__name__}: {one_line(error)}"
            return Outcome(layer.name, layer.kind, "raised", layer.value, None, None, seconds, text)
    verdict, why = _judged(lower, upper, layer, tol, is_interval)
    return Outcome(layer.name, layer.kind, verdict, layer.value, lower, upper, seconds, why)


def _ends(returned: Any) -> tuple[float, float, bool]:
    pair = _pair(returned)
    if pair is not None:
        return _number(pair[0]), _number(pair[1]), True
    value = _number(returned)
    return value, value, False


def _pair(returned: Any) -> tuple[Any, Any] | None:
    """The ends of an interval; None if it is something else."""
    if isinstance(returned, str):  # whose `lower` and `upper` are methods
        return None
    if hasattr(returned, "lower") and hasattr(returned, "upper"):
        return returned.lower, returned.upper
    # Tensors and NumPy's arrays are no sequences, but have axes.
    is_list = isinstance(returned, Sequence) or getattr(returned, "ndim", 0) == 1
    return (returned[0], returned[1]) if is_list and len(returned) == 2 else None


def _number(returned: Any) -> float:
    # A norm that carries a gradient is a number all the same, of which torch would warn.
    value = returned.detach() if isinstance(returned, torch.Tensor) else returned
    try:
        if isinstance(value, (str, bool)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"expected a number or the two ends of an interval, got {returned!r:.80}"
        ) from error


def _judged(
    lower: float, upper: float, layer: ConformanceLayer, tol: float, is_interval: bool
) -> tuple[Verdict, str]:
    truth = layer.norm
    if math.isnan(lower) or math.isnan(upper):
        return "wrong", "it is not a number"
    if math.isinf(upper) or upper < 0:
        return "wrong", "a norm is finite and not negative"
    if is_interval:
        holds = lower <= truth.upper and upper >= truth.lower
        return ("right", "") if holds else ("wrong", "the interval does not hold the norm")
    if upper > truth.upper * (1 + tol):
        return "above", ""
    return ("below" if upper < truth.lower * (1 - tol) else "right"), ""
