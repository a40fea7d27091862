"""What the page says, before it is rendered: sections, and claims with their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, get_args

from experiments.engine.surroundings import DIRTY
from experiments.engine.work import error_line
from experiments.experiment import (
    SCALES,
    Chart,
    Claim,
    Experiment,
    Finding,
    Record,
    Scale,
    Section,
    Table,
    Verdict,
    VerdictKind,
)

NO_RUNS = Verdict("not run", "There are no runs yet.")
PAPER_TITLE = "The paper's tables and figures, run again"
_NUMBERS = (
    "Every number below comes from the JSON file of a run. A caption tells the scale, the images, "
    "the epochs and the seeds:"
)
_VERDICTS = "a verdict is one on runs of the scale named beside it."
PAPER_LEAD = f"{_NUMBERS} only *paper* is the paper's own training, and {_VERDICTS}"
OTHER_LEAD = f"{_NUMBERS} {_VERDICTS}"
SMOKE = "A smoke run shows that the code runs, and nothing else."
ALL_BUT_COMPLETE = 0.9  # of the runs of a scale
HEADER = ("verdict", "claim", "where", "why", "rule")


class Records(Protocol):
    """Where records come from."""

    def records(self, experiment: str, scale: Scale) -> list[Record]:
        """The finished runs of an experiment at a scale."""


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, and the scale of the runs that it rests on."""

    claim: Claim
    verdict: Verdict
    scale: Scale | None


@dataclass(frozen=True)
class Part:
    """An experiment's part of the page.

    Attributes:
        experiment: Itself.
        scale: That is reported; None if there are no runs at any.
        own: Its own runs at that scale.
        used: Those of other experiments that it reads.
        expected: How many runs its grid has.
        section: What it says.
        judged: Its claims.
        findings: What the page opens with.
    """

    experiment: Experiment
    scale: Scale | None
    own: Sequence[Record]
    used: Sequence[Record]
    expected: int
    section: Section
    judged: Sequence[Judged]
    findings: Sequence[Finding] = ()

    def counts(self) -> list[int]:
        """How many of its claims got each verdict."""
        kinds = [judged.verdict.kind for judged in self.judged]
        return [kinds.count(kind) for kind in get_args(VerdictKind)]


@dataclass(frozen=True)
class Page:
    """All parts, in the order of the experiments, below a title and what is to be known first."""

    parts: Sequence[Part]
    title: str = PAPER_TITLE
    lead: str = PAPER_LEAD

    def charts(self) -> Iterator[Chart]:
        """All charts.

        Raises:
            ValueError: Two have one name, and would overwrite each other's file.
        """
        seen: set[str] = set()
        for part in self.parts:
            for block in (*(one.chart for one in part.findings), *part.section.blocks):
                if not isinstance(block, Chart):
                    continue
                if block.name in seen:
                    raise ValueError(
                        f"expected charts of different names, got two named {block.name!r}: "
                        f"rename the one in {part.experiment.name}."
                    )
                seen.add(block.name)
                yield block

    def judged(self) -> list[Judged]:
        """All claims."""
        return [judged for part in self.parts for judged in part.judged]

    def counts(self) -> str:
        """How many claims got which verdict."""
        kinds: list[str] = [judged.verdict.kind for judged in self.judged()]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in get_args(VerdictKind))
        return f"{len(kinds)} claims: {counts}."

    def verdicts(self) -> Table:
        """How many claims of each experiment got which verdict, and at which scale."""
        judged = [part for part in self.parts if part.judged]
        rows = [
            [part.experiment.title, part.scale or "–", *(str(n or "–") for n in part.counts())]
            for part in judged
        ]
        total = [str(sum(own)) for own in zip(*(part.counts() for part in judged), strict=True)]
        rows += [["all", "", *total]] if len(judged) > 1 else []
        return Table(["claims on", "scale", *get_args(VerdictKind)], rows)

    def findings(self) -> list[Finding]:
        """What the page opens with."""
        return [finding for part in self.parts for finding in part.findings]

    def runs(self) -> Table:
        """How much of each experiment has been run, how long it took, on what, by which code."""
        rows = [_run_row(part) for part in self.parts]
        shown = (record for part in self.parts for record in (*part.own, *part.used))
        records = [*{(record.experiment, record.id): record for record in shown}.values()]
        machines = sorted({_machine(record) for record in records})
        caption = (
            "Hours are those of all runs added up; processes are those that share one run. "
            f"{_commits(records)} Run on {'; '.join(machines)}."
        )
        header = ("experiment", "scale", "runs", "of", "hours", "processes")
        return Table(header, rows, caption if machines else "")


def gather(
    store: Records,
    experiments: Mapping[str, Experiment],
    scale: Scale | None,
    title: str | None = None,
) -> Page:
    """Read the records, and let each experiment say what it has to.

    Args:
        store: Where the records are.
        experiments: By name.
        scale: To report; if left out, the one of which most is there.
        title: Of another study than the paper's.

    Raises:
        ValueError: Records are not as an experiment expects them.
    """
    parts = [_part(store, experiments, one, scale) for one in experiments.values()]
    return Page(parts) if title is None else Page(parts, title, OTHER_LEAD)


def _part(
    store: Records, experiments: Mapping[str, Experiment], one: Experiment, scale: Scale | None
) -> Part:
    chosen = _chosen(store, experiments, one, scale)
    if chosen is None:
        judged = [Judged(claim, NO_RUNS, None) for claim in one.claims]
        return Part(one, None, (), (), 0, Section(("No runs yet.",)), judged)
    own, *others = (_current(store, each, chosen) for each in _sources(experiments, one, chosen))
    used = [record for found in others for record in found]
    section, judged, findings = _told(one, [*own, *used], chosen)
    return Part(one, chosen, own, used, len(one.cells(chosen)), section, judged, findings)


def _told(
    one: Experiment, records: Sequence[Record], scale: Scale
) -> tuple[Section, list[Judged], Sequence[Finding]]:
    """What an experiment says of the records, its claims, and what the page opens with."""
    try:
        section = one.section(records)
        judged = [Judged(claim, _verdict(claim, records, scale), scale) for claim in one.claims]
        return section, judged, () if scale == "smoke" else one.findings(records)
    except (AttributeError, LookupError, TypeError) as error:
        names = " and ".join(dict.fromkeys(record.experiment for record in records))
        raise ValueError(
            f"{one.name} expects other values in the stored runs of {names} at the scale {scale} "
            f"({error_line(error)}): remove those that were changed, and run them again."
        ) from error


def _sources(
    experiments: Mapping[str, Experiment], one: Experiment, scale: Scale
) -> list[Experiment]:
    """An experiment, and those whose runs it reads."""
    return [one, *(experiments[name] for name in one.used(scale) if name in experiments)]


def _chosen(
    store: Records, experiments: Mapping[str, Experiment], one: Experiment, scale: Scale | None
) -> Scale | None:
    """The largest scale that is all but complete, or else the one of which most is there.

    A few runs of a larger scale do not hide a smaller one; a smoke run counts if there is no other.
    """
    shares: dict[Scale, float] = {}
    for candidate in (scale,) if scale else reversed(SCALES):
        sources = _sources(experiments, one, candidate)
        wanted = sum(len(source.cells(candidate)) for source in sources)
        there = sum(len(_current(store, source, candidate)) for source in sources)
        if there:
            shares[candidate] = there / wanted
    return max(
        shares,
        key=lambda one: (one != "smoke", min(shares[one], ALL_BUT_COMPLETE)),
        default=None,
    )


def _current(store: Records, experiment: Experiment, scale: Scale) -> list[Record]:
    """The records of the grid as it is now: those of an older one would be mixed up with them."""
    ids = [cell.id for cell in experiment.cells(scale)]
    found = {record.id: record for record in store.records(experiment.name, scale)}
    return [found[name] for name in ids if name in found]


def _verdict(claim: Claim, records: Sequence[Record], scale: Scale) -> Verdict:
    verdict = claim.judge(records)
    return Verdict("not at this scale", SMOKE) if scale == "smoke" else verdict


def _run_row(part: Part) -> list[str]:
    seconds = sum(map(_seconds, part.own))
    processes = sorted({int(record.run.get("processes") or 1) for record in part.own})
    counts = [f"{len(part.own):,}", f"{part.expected:,}", f"{seconds / 3600:.2f}"]
    together = " or ".join(map(str, processes)) or "–"
    return [part.experiment.title, part.scale or "–", *counts, together]


def _seconds(record: Record) -> float:
    """Of a run that was taken up again, those before that too, where it has counted them."""
    timing = record.run.get("timing") or {}
    return float(timing.get("total") or record.run.get("seconds") or 0)


def _commits(records: Sequence[Record]) -> str:
    """Which code the records are of."""
    counts = Counter(str(record.run.get("commit") or "unknown") for record in records)
    runs = [f"{name} ({count:,} {_runs(count)})" for name, count in sorted(counts.items())]
    text = f"Commits of the sources: {', '.join(runs)}."
    dirty = sum(count for name, count in counts.items() if name.endswith(DIRTY))
    if dirty:
        text += (
            f" **{dirty:,} {_runs(dirty)} of changed sources**: behind a commit, {DIRTY} says that "
            "they were not quite the committed ones."
        )
    return text


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _machine(record: Record) -> str:
    machine = record.run.get("machine") or {}
    versions = record.run.get("versions") or {}
    cores = f" ({machine['cores']} cores)" if machine.get("cores") else ""
    name = machine.get("gpu") or machine.get("cpu") or "an unknown machine"
    packages = ", ".join(f"{package} {version}" for package, version in versions.items())
    return f"{name}{cores} with {packages}" if packages else f"{name}{cores}"
