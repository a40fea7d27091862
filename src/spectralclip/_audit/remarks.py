"""What the numbers of a layer mean, and what to do, in a sentence or two."""

from __future__ import annotations

import math
from typing import NamedTuple

from spectralclip._bounds import Interval

# Norms this close to one are called one: measured values and clipped layers are no closer.
NEARLY = 0.02
_FADED, _SUSPICIOUS = 0.1, 100.0


class Numbers(NamedTuple):
    """Of a layer or chain, as in `LayerAudit`.

    `norm` is the best single number for it, `second` the next singular value, and `chain` the
    name of a chain that it is a part of.
    """

    interval: Interval
    norm: float
    second: float
    reshaped_norm: float | None
    batch_norm: float | None
    linear: float | None
    chain: str = ""


def compensates(numbers: Numbers) -> bool:
    """Whether batch norm and the rest of the chain work against each other.

    Either what the rest amplifies most is what batch norm damps, so that the norms multiplied say
    more than twice too much; or the rest has been brought down to one and batch norm takes the
    chain up again, so that bounding the rest alone has not bounded the chain.
    """
    if numbers.batch_norm is None or numbers.linear is None:
        return False
    damped = numbers.interval.upper < numbers.linear * numbers.batch_norm / 2
    return damped or _undone(numbers)


def _undone(numbers: Numbers) -> bool:
    assert numbers.batch_norm is not None and numbers.linear is not None
    return numbers.linear <= 1 + NEARLY < numbers.batch_norm and numbers.interval.lower > 1 + NEARLY


def remark_on(numbers: Numbers) -> str:
    """The remark of a layer, the most telling things first, two sentences at most."""
    if numbers.interval.upper == 0:
        return "Maps every input to the same output: it passes nothing on, and may be dead."
    sentences = [_about_norm(numbers)]
    for about in (_about_batch_norm, _about_reshaped, _about_rank):
        sentences.append(about(numbers))
    return " ".join([sentence for sentence in sentences if sentence][:2])


def _about_norm(numbers: Numbers) -> str:
    interval, norm = numbers.interval, _short(numbers.norm)
    if interval.upper < _FADED:
        return (
            f"Shrinks every difference to {_short(interval.upper)} of its length at most: little "
            "of its input gets through."
        )
    if interval.upper <= 1:
        return "Lengthens no difference between two inputs."
    if interval.upper <= 1 + NEARLY:
        return f"Lengthens differences by {_percent(interval.upper - 1)} % at most: as good as one."
    if interval.lower <= 1:
        return "About one: the interval does not tell on which side; a smaller rtol would."
    if numbers.chain:
        return f"Lengthens some differences {norm} times by itself; what counts is {numbers.chain}."
    if interval.lower > _SUSPICIOUS:
        return f"Lengthens some differences {norm} times: look at its weights before clipping it."
    return f"Lengthens some differences {norm} times; clip_ would bring that down to a bound."


def _about_batch_norm(numbers: Numbers) -> str:
    if not compensates(numbers):
        return ""
    assert numbers.batch_norm is not None and numbers.linear is not None
    apart = (
        f"{_short(numbers.linear)} without batch norm, and batch norm {_short(numbers.batch_norm)}"
    )
    if _undone(numbers):
        return f"The rest alone has norm {apart}: batch norm undoes the bound, so clip the chain."
    return (
        f"The rest alone has norm {apart}, yet together only {_short(numbers.norm)}: bound the "
        "chain as one, since bounds on its parts are far from what it does."
    )


def _about_reshaped(numbers: Numbers) -> str:
    seen = numbers.reshaped_norm
    if seen is None or numbers.batch_norm is not None or not seen:
        return ""
    ratio = numbers.norm / seen
    if 0.9 <= ratio <= 1.1:
        return ""
    wrong = (
        f"{_short(ratio)} times too large" if ratio > 1 else f"{_short(1 / ratio)} times too small"
    )
    return f"torch's spectral_norm would see {_short(seen)} and so leave it {wrong}."


def _about_rank(numbers: Numbers) -> str:
    if not numbers.second or numbers.norm < 3 * numbers.second:
        return ""
    less = _short(numbers.norm / numbers.second)
    return f"One direction stands out: the next is amplified {less} times less."


def _short(value: float) -> str:
    return f"{value:.3g}"


def _percent(share: float) -> str:
    """Rounded up, so that what is said holds."""
    return f"{math.ceil(1000 * share) / 10:g}"
