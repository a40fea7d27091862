"""Points and curves from finished runs, and the figures that they decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from benchmarks.common.pages import Row
from benchmarks.tradeoff.series import NORMED, PLAIN, SERIES

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Point:
    """A series at one bound: means over the seeds that there are, accuracies in percent."""

    series: str
    bound: float | None
    rows: tuple[Row, ...]

    @property
    def test(self) -> float:
        return 100 * fmean(row["accuracy"] for row in self.rows)

    @property
    def pgd(self) -> float:
        return 100 * fmean(row["pgd"] for row in self.rows)

    @property
    def constant(self) -> float:
        """The proved bound of the network; infinite where one run has none."""
        found = [row["bound"] for row in self.rows]
        return float("inf") if None in found else fmean(found)

    def __str__(self) -> str:
        at = "" if self.bound is None else f" at {self.bound:g}"
        seeds = "1 seed" if len(self.rows) == 1 else f"{len(self.rows)} seeds"
        return f"{self.series}{at}: test {self.test:.1f}, PGD {self.pgd:.1f}, {seeds}"


def points(rows: Sequence[Row], name: str) -> list[Point]:
    """The points of a series, by bound."""
    found = []
    for bound in SERIES[name].bounds:
        own = [r for r in rows if (r["task"]["series"], r["task"]["bound"]) == (name, bound)]
        if own:
            found.append(Point(name, bound, tuple(own)))
    return found


def most_pgd(curve: Sequence[Point], test: float) -> float | None:
    """The highest PGD accuracy on a curve where the test accuracy is at least this.

    Between neighbouring bounds the curve is a straight line. None if it is nowhere so high.
    """
    found = [point.pgd for point in curve if point.test >= test]
    for one, other in pairwise(curve):
        low, high = sorted((one, other), key=lambda point: point.test)
        if low.test < test <= high.test:
            share = (test - low.test) / (high.test - low.test)
            found.append(low.pgd + share * (high.pgd - low.pgd))
    return max(found, default=None)


def leads(point: Point, rows: Sequence[Row], other: str) -> list[float]:
    """By how much a point is above another series at equal test accuracy, seed by seed, as shares.

    Each seed has a curve of its own. Seeds at which the other one is nowhere so accurate are left
    out, and so are those that it has not been run with.
    """
    found = []
    for row in point.rows:
        same = [one for one in rows if one["task"]["seed"] == row["task"]["seed"]]
        reached = most_pgd(points(same, other), 100 * row["accuracy"])
        if reached is not None:
            found.append(row["pgd"] - reached / 100)
    return found


@dataclass(frozen=True)
class Figure:
    """What is asked of the curves, and what they say.

    Attributes:
        question: In words.
        answer: Yes or no with what it rests on, or that it was not run yet.
        is_final: Whether all cells that could change it are there.
    """

    question: str
    answer: str
    is_final: bool


def figures(rows: Sequence[Row]) -> list[Figure]:
    """All figures of interest."""
    return [
        _above_all_others(rows),
        *[_near_unclipped(rows, panel) for panel in (PLAIN, NORMED)],
        _best(
            rows,
            _names(lambda name: SERIES[name].is_ours),
            "A point of ours with at least 55 % test and 35 % PGD accuracy",
            lambda point: point.test >= 55,
            lambda point: point.pgd,
            35,
        ),
        _small_constant(rows),
    ]


def _names(wanted: Callable[[str], bool]) -> list[str]:
    return [name for name in SERIES if wanted(name)]


def _panel(panel: str, *, ours: bool) -> list[str]:
    return _names(lambda n: SERIES[n].panel == panel and SERIES[n].is_ours == ours)


def _is_whole(rows: Sequence[Row], names: Sequence[str]) -> bool:
    """Whether all cells of these series are there."""
    wanted = sum(len(SERIES[name].cells) for name in names)
    return sum(row["task"]["series"] in names for row in rows) >= wanted


def _above_all_others(rows: Sequence[Row]) -> Figure:
    others, ours = _panel(PLAIN, ours=False), _panel(PLAIN, ours=True)
    question = "Points of SpectralClip above all others at equal test accuracy, without a norm"
    curves = [points(rows, name) for name in others]
    own = [point for name in ours for point in points(rows, name)]
    if not own or not all(curves):
        return Figure(question, NOT_RUN, is_final=False)
    above = []
    for point in own:
        reached = [most_pgd(curve, point.test) for curve in curves]
        if point.pgd > max((pgd for pgd in reached if pgd is not None), default=-1.0):
            above.append(point)
    which = ", ".join(f"{point.bound:g}" for point in above)
    answer = f"{len(above)} of {len(own)}" + (f" (L = {which})" if above else "")
    return Figure(question, answer, _is_whole(rows, [*ours, *others]))


def _unclipped(rows: Sequence[Row], panel: str) -> Point | None:
    """Of the networks of a panel that are not held, the one with the highest test accuracy."""
    names = _names(lambda n: SERIES[n].panel == panel and not SERIES[n].is_held)
    found = [point for name in names for point in points(rows, name)]
    return max(found, key=lambda point: point.test) if len(found) == len(names) else None


def _near_unclipped(rows: Sequence[Row], panel: str) -> Figure:
    question = (
        f"A point of ours with at most 2 points less test accuracy than the unclipped network and "
        f"twice its PGD accuracy, {panel}"
    )
    bare = _unclipped(rows, panel)
    if bare is None:
        return Figure(question, NOT_RUN, is_final=False)
    figure = _best(
        rows,
        _panel(panel, ours=True),
        question,
        lambda point: point.test >= bare.test - 2,
        lambda point: point.pgd,
        2 * bare.pgd,
    )
    is_final = figure.is_final and _is_whole(rows, [bare.series])
    return Figure(question, _beside(figure.answer, bare), is_final)


def _small_constant(rows: Sequence[Row]) -> Figure:
    question = (
        "With a norm, a point of ours with at least 75 % test accuracy and a proved bound of at "
        "most a hundredth of the unclipped network's"
    )
    bare = _unclipped(rows, NORMED)
    if bare is None:
        return Figure(question, NOT_RUN, is_final=False)
    figure = _best(
        rows,
        _panel(NORMED, ours=True),
        question,
        lambda point: point.constant <= bare.constant / 100,
        lambda point: point.test,
        75,
    )
    answer = _beside(figure.answer, bare, f", bound {bare.constant:.3g}")
    return Figure(question, answer, figure.is_final and _is_whole(rows, [bare.series]))


def _beside(answer: str, bare: Point, more: str = "") -> str:
    return answer if answer == NOT_RUN else f"{answer}; beside {bare}{more}"


def _best(
    rows: Sequence[Row],
    names: Sequence[str],
    question: str,
    allowed: Callable[[Point], bool],
    value: Callable[[Point], float],
    target: float,
) -> Figure:
    """The allowed point with the highest value, and whether it reaches the target."""
    own = [point for name in names for point in points(rows, name)]
    if not own:
        return Figure(question, NOT_RUN, is_final=False)
    candidates = [point for point in own if allowed(point)]
    best = max(candidates, key=value, default=None)
    if best is None:
        answer = "no: no point meets the first condition"
    else:
        answer = f"{'yes' if value(best) >= target else 'no'}: {best}"
    return Figure(question, answer, _is_whole(rows, names))
