"""What the commands of benchmarks with many long runs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from benchmarks.common.pages import page_file, picture_file, write
from benchmarks.common.runs import load, results_file
from experiments.engine.duration import seconds

Results = dict[str, Any]


def add_run_options(parser: argparse.ArgumentParser, names: str) -> None:
    """Options of every such command; `names` is what `--only` chooses from."""
    parser.add_argument("--render", action="store_true", help="write the page from the JSON only")
    parser.add_argument(
        "--for",
        dest="seconds",
        type=seconds_of,
        metavar="TIME",
        help="begin no run that would not be over by then: 150m, 2h or 90s",
    )
    parser.add_argument("--only", metavar="NAMES", help=f"these {names}, with commas between")
    parser.add_argument("--processes", type=int, default=2, help="for trainings")
    parser.add_argument("--data", type=Path, help="the folder with CIFAR-10")
    parser.add_argument("--anew", action="store_true", help="forget the runs that are stored")
    parser.add_argument("--out", type=Path, help="where the JSON goes")


def seconds_of(text: str) -> float:
    """A time such as 150m, in seconds."""
    try:
        return seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def only(given: str | None, known: Collection[str]) -> list[str]:
    """The names that are asked for; all of them if none is."""
    chosen = list(known) if given is None else given.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise SystemExit(f"--only expected some of {', '.join(known)}, got {unknown}.")
    return chosen


def stored(arguments: argparse.Namespace) -> Results:
    """What earlier runs have left, unless all parts are measured anew."""
    if (arguments.part is not None or arguments.render) and arguments.out.exists():
        found = load(arguments.out)
        if found["quick"] == arguments.quick:
            return found
    return {"quick": arguments.quick, "parts": {}}


def needed(parts: Results, name: str) -> Results:
    """The results of a part that comes first."""
    if name not in parts:
        raise SystemExit(f"The results of --part {name} are needed first, and there are none yet.")
    found: Results = parts[name]
    return found


def finished_runs(out: Path, part: str, *, anew: bool) -> Path:
    """Where finished runs are kept: beside the results, so that another checkout goes on there."""
    kept = out.with_name(f"{out.stem}-{part}.jsonl")
    if anew:
        kept.unlink(missing_ok=True)
    return kept


def write_page(
    benchmark: str,
    results: Results,
    out: Path,
    render: Callable[[Results, str], str],
    draw: Callable[[Results, Path], None],
) -> None:
    """The page and the picture: those of the documentation, or beside the JSON of a trial."""
    trial = out != results_file(benchmark)
    picture = out.with_suffix(".png") if trial else picture_file(benchmark)
    page = out.with_suffix(".md") if trial else page_file(benchmark)
    write(render(results, picture.name if trial else f"../images/{picture.name}"), page)
    draw(results, picture)
