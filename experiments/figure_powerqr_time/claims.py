"""What the paper says of PowerQR's time, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from experiments.experiment import Claim, Record, Verdict
from experiments.figure_powerqr_time.grid import COUNTS
from experiments.figure_powerqr_time.run import DEFLATED, OURS, OURS_PLAIN, POWER_QR, REPEATED
from experiments.figure_powerqr_time.section import measured
from experiments.judging import statistics, verdicts
from experiments.measuring.stopwatch import UNDISTURBED, undisturbed

FROM = 10  # the smallest k that a claim speaks of
AHEAD = 2.0  # what we take "much more efficient" to mean, at the least


def _longest(record: Record, names: Sequence[str]) -> float:
    return max(measured(record, name, "seconds") for name in names)


def _faster(
    fast: Sequence[str], slow: Sequence[str], factor: float, least: int
) -> Callable[[Sequence[Record]], Verdict]:
    """Judges whether all of `fast` take less than a share of the time of each of `slow`."""

    def judge(records: Sequence[Record]) -> Verdict:
        quiet = undisturbed(records)
        counts = sorted({*COUNTS, *(int(r.config["k"]) for r in records)})
        questions = []
        for k in (count for count in counts if count >= least):
            ours = verdicts.by_seed(quiet, lambda r: factor * _longest(r, fast), k=k)
            for name in slow:
                theirs = verdicts.by_seed(quiet, partial(_longest, names=[name]), k=k)
                share = "" if factor == 1 else f"{factor:g} times "
                words = f"k = {k}: {name} over {share}{fast[0]}"
                ratios = statistics.log_ratios(theirs, ours)
                questions.append(verdicts.Question(words, ratios, unit="factor"))
        return verdicts.judge(questions)

    return judge


_RULE = f"{UNDISTURBED} By the rule for comparisons."
_WHERE = "Section 3.1 and Appendix C.2"
CLAIMS = (
    Claim(
        "PowerQR finds k singular values much faster than k successive runs of the power method, "
        "even without the deflation that these need.",
        _WHERE,
        f"For each k of at least {FROM} that was run, seed by seed: the logarithm of the time of k "
        f"runs without deflation over {AHEAD:g} times that of PowerQR. {_RULE}",
        _faster([POWER_QR], [REPEATED], AHEAD, FROM),
    ),
    Claim(
        "PowerQR is much faster than the whole pipeline of Virmaux and Scaman, with deflation.",
        _WHERE,
        f"For each k of at least {FROM} that was run, seed by seed: the logarithm of the time of k "
        f"runs with deflation over {AHEAD:g} times that of PowerQR. {_RULE}",
        _faster([POWER_QR], [DEFLATED], AHEAD, FROM),
    ),
    Claim(
        "To the accuracy of the better of the two, our `svds` is faster than both, also through "
        "the layer's own forward and backward.",
        "of this library, not the paper",
        "For each k that was run, seed by seed: the logarithms of the times of PowerQR, and of k "
        f"runs with deflation, over that of the slower of the two `svds`. {_RULE}",
        _faster([OURS, OURS_PLAIN], [POWER_QR, DEFLATED], 1.0, 1),
    ),
)
