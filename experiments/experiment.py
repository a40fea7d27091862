"""What an experiment is: a grid of runs, a function that does one, and a section of the report.

Each figure and table of the paper is a folder with an `EXPERIMENT` in it. Runs are data: a
configuration that JSON can hold goes in, a result that JSON can hold comes out, and the report is
made from what was stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Scale = Literal["smoke", "laptop", "desk", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "laptop", "desk", "paper")
Config = Mapping[str, Any]  # all that the result depends on, the seed included
Result = dict[str, Any]
VerdictKind = Literal["reproduced", "contradicted", "not at this scale", "not run"]


@dataclass(frozen=True)
class Cell:
    """One run of an experiment.

    Attributes:
        experiment: Its name.
        scale: That the configuration is of.
        config: The configuration.
    """

    experiment: str
    scale: Scale
    config: Config

    @property
    def id(self) -> str:
        """A name for files: the words of the configuration's `label`, and a digest of it all."""
        text = json.dumps(self.config, sort_keys=True, allow_nan=False)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        words = str(self.config.get("label", self.experiment))
        plain = "".join(c if c.isalnum() else "-" for c in words.lower())
        return f"{'-'.join(filter(None, plain.split('-')))}-{digest}"

    @property
    def alone(self) -> bool:
        """Whether nothing else may run meanwhile, as the run measures times."""
        return bool(self.config.get("alone"))


@dataclass(frozen=True)
class Context:
    """Where a run happens.

    Attributes:
        data: The folder with data sets, if one was given.
        scratch: A folder of the run's own, for checkpoints; it is there when a killed run is
            begun again, and is removed when it has finished.
        threads: That torch may use.
        device: To run on.
        say: Called with a share from 0 to 1 and a few words, as the run goes on.
    """

    data: Path | None
    scratch: Path
    threads: int = 1
    device: str = "cpu"
    say: Callable[[float, str], None] = lambda share, words: None


@dataclass(frozen=True)
class Record:
    """A finished run, as it is stored.

    Attributes:
        experiment: Its name.
        id: Of its cell.
        scale: Of its configuration.
        config: The configuration.
        result: What came out; the same for the same configuration, however often it was resumed.
        run: Versions, machine, times and all else that may differ.
    """

    experiment: str
    id: str
    scale: Scale
    config: Config
    result: Result
    run: Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows of text below a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart.

    Attributes:
        name: Of its file.
        spec: The specification, with its data.
        caption: Below it: what was run, how often, at which scale.
        alt: What it shows, for those who cannot see it.
    """

    name: str
    spec: Mapping[str, Any]
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """What the report says of an experiment, in order; text is Markdown."""

    blocks: Sequence[str | Table | Chart]


@dataclass(frozen=True)
class Finding:
    """What a reader may quote of an experiment: a sentence with its numbers, and a small chart."""

    text: str
    chart: Chart


@dataclass(frozen=True)
class Evidence:
    """The one number of several that a verdict hangs on.

    Attributes:
        name: What is compared.
        effect: Its mean over seeds, as text.
        spread: The standard deviation that its interval rests on, as text; empty for one seed.
        seeds: How many there are.
        needed: How many would decide, if effect and spread stay; infinity where none that anybody
            would run, or where it cannot be told.
    """

    name: str
    effect: str
    spread: str
    seeds: int
    needed: float


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, and why."""

    kind: VerdictKind
    reason: str
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Claim:
    """Something the paper says, and the rule that judges it.

    Attributes:
        text: The claim, in our words.
        where: Its place in the paper.
        rule: How it is judged, in words, written before the runs.
        judge: The rule itself, on records of one scale.
    """

    text: str
    where: str
    rule: str
    judge: Callable[[Sequence[Record]], Verdict]


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper.

    Attributes:
        name: Of its folder or file, such as "table_resnet".
        title: For the report.
        where: Its place in the paper.
        grid: The configurations at a scale.
        run: Does one.
        section: Its part of the report, from its records of one scale.
        claims: What it can judge.
        findings: What the page opens with, from the same records; none where runs are missing.
        uses: Experiments whose records it reads too; its own grid may then be empty.
        uses_at: The same at some scales, where it uses others.
        check: Raises ValueError for a configuration that could only fail; asked before a start.
        cpu_only: Whether it runs on the CPU, whatever device was asked for.
    """

    name: str
    title: str
    where: str
    grid: Callable[[Scale], list[Config]]
    run: Callable[[Config, Context], Result]
    section: Callable[[Sequence[Record]], Section]
    claims: tuple[Claim, ...] = ()
    findings: Callable[[Sequence[Record]], Sequence[Finding]] = lambda records: ()
    uses: tuple[str, ...] = ()
    uses_at: Mapping[Scale, tuple[str, ...]] = field(default_factory=dict)
    check: Callable[[Config], object] = lambda config: None
    cpu_only: bool = False

    def used(self, scale: Scale) -> tuple[str, ...]:
        """Experiments whose records it reads at a scale."""
        return self.uses_at.get(scale, self.uses)

    def cells(self, scale: Scale) -> list[Cell]:
        """All runs at a scale."""
        return [Cell(self.name, scale, config) for config in self.grid(scale)]
