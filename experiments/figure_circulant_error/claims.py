"""How the claims about the circulant approximation are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.experiment import Claim, Record, Verdict
from experiments.figure_circulant_error.errors import CIRCULANT, GRAM, PADDINGS, Error, complete
from experiments.judging import statistics, verdicts

EXACT = 1e-4
RULE = "By the rule for comparisons, over filters in place of seeds."


def _slopes(found: Sequence[Error], place: Callable[[Error], float]) -> list[float]:
    """For each index, how much the error rises with a place, by least squares."""
    by_index: dict[int, list[tuple[float, float]]] = {}
    for e in found:
        by_index.setdefault(e.index, []).append((place(e), e.error))
    found_slopes = map(statistics.slope, by_index.values())
    return [slope for slope in found_slopes if slope is not None]


def _grows(place: Callable[[Error], float], what: str) -> Callable[[Sequence[Record]], Verdict]:
    def judge(records: Sequence[Record]) -> Verdict:
        found = [e for e in complete(records) if e.stride == 1 and e.estimate == CIRCULANT]
        return verdicts.judge(
            [
                verdicts.Question(
                    f"rise of the error with {what}, {padding} padding",
                    _slopes([e for e in found if e.padding == padding], place),
                    unit="",
                )
                for padding in PADDINGS[:3]
            ]
        )

    return judge


def _exact_if_circular(records: Sequence[Record]) -> Verdict:
    worst: dict[int, float] = {}
    for e in complete(records):
        if e.padding == "circular" and e.stride == 1 and e.estimate == CIRCULANT:
            worst[e.index] = max(worst.get(e.index, 0.0), e.error)
    margins = [EXACT - error for error in worst.values()]
    if margins and min(margins) <= 0:
        return Verdict("contradicted", f"An error is {max(worst.values()):.2g}, above {EXACT:g}.")
    return verdicts.judge(
        [verdicts.Question(f"{EXACT:g} less the largest error of a filter", margins, unit="")]
    )


def _totals(
    records: Sequence[Record], estimate: str, padding: str, stride: int
) -> dict[int, float]:
    """The error of each filter, summed over kernels and channels."""
    found: dict[int, float] = {}
    for e in complete(records):
        if (e.estimate, e.padding, e.stride) == (estimate, padding, stride):
            found[e.index] = found.get(e.index, 0.0) + e.error
    return found


def _is_larger(
    what: str, one: tuple[str, int], other: tuple[str, int]
) -> Callable[[Sequence[Record]], Verdict]:
    """Judges whether the error of one estimate at one stride is above that of another."""

    def judge(records: Sequence[Record]) -> Verdict:
        questions = []
        for padding in PADDINGS:
            above, below = (_totals(records, e, padding, stride) for e, stride in (one, other))
            differences = statistics.differences(above, below)
            questions.append(verdicts.Question(f"{what}, {padding} padding", differences, unit=""))
        return verdicts.judge(questions)

    return judge


_WHERE = "Section 3.1 and Appendix C.1"
CLAIMS = (
    Claim(
        "For zeros, reflect and replicate padding, the error of the circulant approximation "
        "grows with the number of channels.",
        _WHERE,
        "For each of the three paddings at stride 1, and for each filter: the least-squares slope "
        f"of the absolute error on the number of channels, all kernels together. {RULE}",
        _grows(lambda e: float(e.channels), "each channel"),
    ),
    Claim(
        "For zeros, reflect and replicate padding, the error grows with the size of the kernel.",
        _WHERE,
        "For each of the three paddings at stride 1, and for each filter: the least-squares slope "
        f"of the absolute error on the kernel's side, all channels together. {RULE}",
        _grows(lambda e: float(e.kernel), "the kernel's side"),
    ),
    Claim(
        "With circular padding the circulant norm is exact.",
        _WHERE,
        f"At stride 1, for each filter: {EXACT:g} less its largest absolute error over kernels and "
        f"channels. {RULE} Contradicted, too, if a single error is above {EXACT:g}.",
        _exact_if_circular,
    ),
    Claim(
        "The method of Delattre et al. takes every stride for 1, and is off by more at stride 2.",
        _WHERE,
        "For each of the four paddings, and for each filter: its error at stride 2 less that at "
        f"stride 1, summed over kernels and channels. {RULE}",
        _is_larger("error at stride 2 less that at stride 1", (GRAM, 2), (GRAM, 1)),
    ),
    Claim(
        "With strides, the method of Delattre et al. is less accurate than that of Senderovich et "
        "al.",
        "Appendix C.1",
        "For each of the four paddings, and for each filter: the error of the one at stride 2 less "
        f"that of the other, summed over kernels and channels. {RULE}",
        _is_larger(
            f"error of {GRAM} less that of {CIRCULANT} at stride 2", (GRAM, 2), (CIRCULANT, 2)
        ),
    ),
)
