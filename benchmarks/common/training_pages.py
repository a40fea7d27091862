"""Parts of pages about trained networks: intervals over seeds, what is missing, what it ran on."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.common.pages import Row, table
from experiments.judging.statistics import interval


def percent(values: Iterable[float]) -> str:
    """The mean of shares, in percent, with its 95 % interval where there are two or more."""
    found = interval([100 * value for value in values])
    if found.count < 2:
        return f"{found.mean:.1f}"
    return f"{found.mean:.1f} ± {found.high - found.mean:.1f}"


def missing(what: str, names: list[str]) -> list[str]:
    """A line of a list that names what is missing; none where nothing is."""
    return [f"- **Missing**: {what} for {', '.join(names)}."] if names else []


def failed_runs(parts: Row) -> str:
    """The section on runs that failed."""
    failed = [row for part in parts.values() for row in part.get("failed", [])]
    if not failed:
        return ""
    return "## Failed\n\n" + table(["run", "error"], [[r["run"], r["error"]] for r in failed])


def machines(parts: Row) -> str:
    """The section on what each part ran on."""
    if not parts:
        return ""
    text = "## Machine\n\n"
    for name, part in parts.items():
        versions = ", ".join(
            f"{package} {version}" for package, version in part["versions"].items()
        )
        machine = part["machine"]
        text += f"- {name}: {machine['cpu']}, {machine['cores']} cores, {machine['threads']} "
        text += f"thread a process; {versions}"
        ratio = part["wall_over_cpu"]
        text += ".\n" if ratio is None else f"; wall time over CPU time {ratio:.2f}.\n"
    return text
