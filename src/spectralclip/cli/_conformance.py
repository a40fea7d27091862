"""The command `conformance`: a function of the user's against the suite."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from spectralclip._common import Problem, file_problems, require_writable, shown, write_text
from spectralclip.cli import _output
from spectralclip.cli._model_source import find_object
from spectralclip.cli._options import Require
from spectralclip.cli._problems import listed, one_line
from spectralclip.integrations.conformance import ConformanceLayer, Outcome, load, report_sheet, run


def hold_against_suite(
    text: str,
    only: Sequence[str],
    json: Path | None,
    tol: float,
    require: Require | None,
    suite: Path | None,
    seed: int,
) -> bool:
    """Run, print and write; whether what is required holds."""
    try:
        layers = load(suite)
    except ValueError as error:
        raise Problem(one_line(error)) from error
    chosen = _chosen(layers, only)
    if json is not None:
        with file_problems("write"):
            require_writable(json)
    estimate = find_object(text, "FUNCTION")
    if not callable(estimate):
        raise Problem(f"FUNCTION {text!r}: expected a function, got {type(estimate).__name__}.")
    # What a function prints on its way is not a part of our output.
    with (
        shown(sys.stderr.isatty(), "conformance", len(chosen)) as steps,
        contextlib.redirect_stdout(sys.stderr),
    ):

        def tell(outcome: Outcome) -> None:
            steps.done(outcome.name)

        report = run(estimate, chosen, tol=tol, seed=seed, tell=tell)
    if json is not None:
        with file_problems("write"):
            write_text(json, report.to_json())
    _output.show_sheet(report_sheet(report))
    if json is not None:
        _output.note(f"wrote {json}")
    failed = report.failures(require.value) if require is not None else []
    if require is not None and failed:
        what = "right" if require is Require.RIGHT else f"a {require.value} bound"
        _output.note(f"not {what} on {len(failed)} of {len(chosen)} layers: {listed(failed)}.")
    return not failed


def _chosen(layers: Sequence[ConformanceLayer], only: Sequence[str]) -> list[ConformanceLayer]:
    """The layers whose kind or name fits one of the patterns; all where there is none."""
    for pattern in only:
        if not any(_fits(layer, pattern) for layer in layers):
            kinds = ", ".join(dict.fromkeys(layer.kind for layer in layers))
            raise Problem(
                f"--only {pattern!r} fits no layer: give one of the kinds {kinds}, or a name as "
                "'conv2d-*'."
            )
    return [layer for layer in layers if not only or any(_fits(layer, pattern) for pattern in only)]


def _fits(layer: ConformanceLayer, pattern: str) -> bool:
    return fnmatchcase(layer.kind, pattern) or fnmatchcase(layer.name, pattern)
