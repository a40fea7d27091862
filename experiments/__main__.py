"""The study's command line: `python -m experiments list | run | report`."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments import data as datasets
from experiments import registry
from experiments.display import display
from experiments.engine import duration, schedule
from experiments.engine.device import require_device
from experiments.engine.local import LocalEngine
from experiments.engine.ray import RayEngine
from experiments.engine.work import Engine, Task
from experiments.experiment import SCALES, Cell, Experiment, Scale
from experiments.guard import CODES, FAILED, guarded
from experiments.plan import claim_row, counted_rows, left_of, rows
from experiments.store import Store, results_folder
from spectralclip._audit import Column, Sheet, plain_table
from spectralclip._common import FINE, Problem, needed, note


class Scales(str, Enum):
    """Of a study: a test that all works, two hours, fifteen, or the paper's own."""

    smoke, laptop, desk, paper = SCALES


_WHY_NONE = (
    "Where learning rates are searched for first, run table_rates at that scale, and then "
    "python -m experiments.table_rates.choose."
)


class Engines(str, Enum):
    """By which runs are done."""

    local, ray = "local", "ray"


Results = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The folder of results: by default ./results, and ./runs/smoke for the scale smoke.",
    ),
]

app = typer.Typer(
    name="experiments",
    help="The paper's figures and tables: run them at any scale, and report.",
    epilog=CODES,
    no_args_is_help=True,
    rich_markup_mode=None,  # help is to read the same in a terminal, a pipe and a log
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.command("list")
def list_experiments(context: typer.Context, results: Results = None) -> None:
    """All experiments, with how many of their runs are finished at each scale."""
    rows = []
    for one in registry.find(context.obj).values():
        stores = [Store(results_folder(results, scale)) for scale in SCALES]
        counts = [
            _count(one.cells(scale), store) for scale, store in zip(SCALES, stores, strict=True)
        ]
        rows.append((one.name, one.title, *counts))
    columns = [Column("experiment", "left"), Column("title", "left"), *map(Column, SCALES)]
    print(plain_table(Sheet("Runs finished, of all", columns, rows, "")).rstrip())


@app.command()
def plan(
    context: typer.Context,
    scale: Annotated[Scales, typer.Option(help="Of which what is left is told.")] = Scales.desk,
    results: Results = None,
    teraflops: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="SPEED",
            help="Estimate the hours of a GPU that sustains so many operations, from their count.",
        ),
    ] = None,
    claims: Annotated[
        bool,
        typer.Option(
            "--claims",
            help="Tell instead what each verdict hangs on, and how many seeds would decide it.",
        ),
    ] = False,
) -> None:
    """What is left to run at a scale, and the hours that it takes, as far as known."""
    wanted: Scale = scale.value
    store = Store(results_folder(results, wanted))
    if claims:
        _tell_claims(store, wanted, context.obj)
        return
    known = registry.find(context.obj).values()
    if teraflops is None:
        what = f"What is left at {wanted}"
        shown = rows([left_of(one, wanted, store) for one in known])
        titles = ["finished", "left", "core hours", "of unknown length"]
    else:
        what = f"All trainings at {wanted}, estimated"
        shown, titles = counted_rows(known, wanted, teraflops), ["runs", "PFLOP", "GPU hours"]
    columns = [Column("experiment", "left"), *map(Column, titles)]
    print(plain_table(Sheet(what, columns, shown, "")).rstrip())


@app.command()
def run(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Experiments, or all of them: all.")
    ],
    scale: Annotated[Scales, typer.Option(help="How much is done.")] = Scales.smoke,
    engine: Annotated[Engines, typer.Option(help="By what.")] = Engines.local,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; by default what there is room for.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            envvar="SPECTRALCLIP_DATA",
            help="With the data sets, into which missing ones are downloaded: by default ./data.",
        ),
    ] = None,
    results: Results = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only runs with such an id, as '*gouk*'; repeatable."),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="How often a run that fails is begun again.")
    ] = 2,
    time: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Stop after so long, as 150m or 2h: the same command goes on from there.",
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of each run.")] = 1,
    device: Annotated[str, typer.Option(help="Of each run, as cpu or cuda.")] = "cpu",
) -> None:
    """Do the runs of experiments that are not finished yet."""
    wanted: Scale = scale.value
    # A cluster may have GPUs where this machine has none.
    require_device(device, here=engine is Engines.local)
    seconds = _seconds(time)
    store = Store(results_folder(results, wanted))
    folder = _data_folder(data)
    cells = _chosen(registry.cells(names, wanted, context.obj), only or [])
    store.require_writable()
    _tell_needs(names, wanted, context.obj)
    if not cells:
        note(f"There are no runs at {wanted}. {_WHY_NONE}")
    # Once, and not in each process.
    missing = [cell for cell in cells if not store.finished(cell)]
    datasets.fetch((cell.config for cell in missing), folder)

    def task(cell: Cell) -> Task:
        # Other processes may have another working folder.
        scratch, log = store.scratch(cell).absolute(), store.log(cell).absolute()
        return Task(context.obj, cell, folder.absolute(), scratch, log, threads, device)

    by = _engine(engine, workers, threads, device)
    with display(len(cells)) as shown:
        summary = schedule.run(
            cells, store, by, shown, task, retries=retries, seconds=seconds, note=note
        )
    _tell(summary, store)
    if summary.failed:
        raise typer.Exit(FAILED)


@app.command()
def report(
    context: typer.Context,
    results: Results = None,
    scale: Annotated[
        Scales | None,
        typer.Option(
            help="Of this scale; by default, of each experiment, that of which most is there."
        ),
    ] = None,
) -> None:
    """Make the pages of the report from the results."""
    wanted: Scale | None = None if scale is None else scale.value
    folder = results_folder(results, wanted)
    store, experiments = Store(folder), registry.find(context.obj)
    if not _has_results(store, experiments.values(), wanted):
        of = f" of the scale {wanted}" if wanted else ""
        raise Problem(f"no results{of} in {folder}: run experiments first, or give --results.")
    pages = importlib.import_module("experiments.report")
    title = None if context.obj == registry.PACKAGE else registry.title(context.obj)
    for path in pages.write(store, folder, scale=wanted, experiments=experiments, title=title):
        print(f"wrote {path}")


def main(args: Sequence[str] | None = None, package: str = registry.PACKAGE) -> int:
    """Run a command line, and tell its exit code.

    Args:
        args: Arguments without the program's name; by default those of this process.
        package: With the experiments; a study of one's own is one more package with such files.
    """
    given = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in given
    given = [one for one in given if one != "--debug"]
    os.environ.update(needed())  # before the first product; the workers inherit it
    return guarded(lambda: _run(given or ["--help"], package), debug=debug)


def _run(args: list[str], package: str) -> int:
    command: Any = typer.main.get_command(app)
    name = f"python -m {package}"
    return int(command.main(args, prog_name=name, standalone_mode=False, obj=package) or FINE)


def _seconds(given: str | None) -> float:
    if given is None:
        return math.inf
    try:
        return duration.seconds(given)
    except ValueError as error:
        raise Problem(f"--for: {error}") from error


def _data_folder(given: Path | None) -> Path:
    folder = datasets.data_folder(given)
    if folder.exists() and not folder.is_dir():
        raise Problem(f"--data: expected a folder for data sets, got {folder}: it is a file.")
    return folder


def _tell_claims(store: Store, scale: Scale, package: str) -> None:
    page = importlib.import_module("experiments.report").gather(
        store, registry.find(package), scale
    )
    titles = ("verdict", "hangs on", "effect", "spread", "seeds", "would decide")
    columns = [Column("claim", "left"), *(Column(title, "left") for title in titles)]
    shown = [claim_row(judged.claim, judged.verdict) for judged in page.judged()]
    print(plain_table(Sheet(f"Claims at {scale}", columns, shown, "")).rstrip())


def _tell_needs(names: Sequence[str], scale: Scale, package: str) -> None:
    for name, others in registry.also_needed(names, scale, package).items():
        note(f"{name} also needs the runs of {', '.join(others)}.")


def _count(cells: Sequence[Cell], store: Store) -> str:
    return f"{sum(map(store.finished, cells))}/{len(cells)}"


def _has_results(store: Store, experiments: Iterable[Experiment], scale: Scale | None) -> bool:
    scales = SCALES if scale is None else (scale,)
    return any(
        store.finished(cell) for one in experiments for size in scales for cell in one.cells(size)
    )


def _chosen(cells: list[Cell], patterns: Sequence[str]) -> list[Cell]:
    if not patterns:
        return cells
    idle = [one for one in patterns if not any(_fits(cell, one) for cell in cells)]
    if cells and idle:
        raise Problem(
            f"--only: expected patterns for ids such as {cells[0].id}, got {', '.join(idle)}: "
            f"{'it fits' if len(idle) == 1 else 'they fit'} none of {len(cells)}."
        )
    return [cell for cell in cells if any(_fits(cell, one) for one in patterns)]


def _fits(cell: Cell, pattern: str) -> bool:
    return fnmatchcase(cell.id, f"{pattern}*")


def _engine(kind: Engines, workers: int | None, threads: int, device: str) -> Engine:
    if kind is Engines.ray:
        return RayEngine(workers, threads, device)
    return LocalEngine(workers, threads, device)


def _tell(summary: schedule.Summary, store: Store) -> None:
    for key, failure in summary.failed.items():
        times = "1 attempt" if failure.attempts == 1 else f"{failure.attempts} attempts"
        note(f"failed: {key}: {failure.line} ({times}; see {failure.log})")
    stored, found, failed = len(summary.stored), len(summary.found), len(summary.failed)
    left = f", {len(summary.left)} left for want of time" if summary.left else ""
    print(f"{store.folder}: {stored} runs stored, {found} were there, {failed} failed{left}.")


if __name__ == "__main__":
    sys.exit(main())
