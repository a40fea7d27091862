"""The command line: `spectralclip audit | clip | compare | demo`.

Everything that a command does is in the library; here are its options, its exit codes, and the
one line that it says when something is wrong.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from spectralclip import __version__
from spectralclip._audit import audit as audit_model
from spectralclip._audit import compare_estimates
from spectralclip._common import FINE
from spectralclip.cli import _output, _weights_file
from spectralclip.cli._clip_file import clip_checkpoint_, require_output
from spectralclip.cli._guard import Commands, guarded
from spectralclip.cli._input_files import in_bytes
from spectralclip.cli._limits import FailOn, verdict
from spectralclip.cli._model_source import file_of
from spectralclip.cli._options import (
    ABOVE,
    AUDIT_EXAMPLES,
    CERTIFY,
    CLIP_EXAMPLES,
    COMPARE_EXAMPLES,
    COMPOSE,
    DEMO_EXAMPLES,
    EXIT_CODES,
    Batch,
    Certify,
    Compose,
    Device,
    Estimates,
    FailOnWhat,
    Html,
    Inputs,
    Json,
    LargestFile,
    Limit,
    Model,
    Partial,
    Seed,
    Settings,
    Trust,
)
from spectralclip.cli._problems import Problem, cannot, listed
from spectralclip.cli._steps import (
    STANDARD_OUTPUT,
    get_example,
    get_source,
    load_weights_,
    read_audit,
    require_no_input,
    require_outputs,
    write_result,
)
from spectralclip.methods import estimators

app = typer.Typer(
    name="spectralclip",
    cls=Commands,
    help="Audit and clip the spectra of the layers of PyTorch models.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,  # help is to read the same in a terminal, a pipe and a log
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        _output.say(f"spectralclip {__version__}")
        raise typer.Exit(FINE)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="With an error, show the traceback.")
    ] = False,
) -> None:
    pass  # `main` has seen to --debug, so that it may stand anywhere


@app.command(epilog=AUDIT_EXAMPLES)
def audit(
    model: Model,
    inputs: Inputs = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Weights to load: {', '.join(_weights_file.SUFFIXES)}."),
    ] = None,
    html: Html = None,
    json: Json = None,
    fail_above: Limit = None,
    fail_on: FailOnWhat = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Singular values for each layer.")] = 10,
    tol: Annotated[float, typer.Option(help="Relative width of the intervals.")] = 0.01,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Only bounds that rest on no probability.")
    ] = False,
    lipschitz: Annotated[
        bool, typer.Option("--lipschitz/--no-lipschitz", help="Bound the whole network.")
    ] = True,
    estimates: Estimates = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes to work in.")] = 1,
    batch: Batch = 1,
    settings: Settings = None,
    allow_partial: Partial = False,
    trust: Trust = False,
    max_file_size: LargestFile = None,
    device: Device = None,
    seed: Seed = 0,
) -> None:
    """Certified norms of every affine layer and chain of a model, and of the whole network."""
    if fail_on and fail_above is None:
        raise Problem("--fail-on says what --fail-above looks at: give that too.")
    if fail_above is not None and not 0 <= fail_above < math.inf:
        raise Problem(f"--fail-above: expected a finite number of at least 0, got {fail_above}.")
    if fail_on and FailOn.network in fail_on and not lipschitz:
        raise Problem("--fail-on network needs the network's bound: leave out --no-lipschitz.")
    if estimates and json == STANDARD_OUTPUT:
        raise Problem("--compare-estimates prints a table: give --json a file, not -.")
    limit = in_bytes(max_file_size)
    require_outputs(html, json, inputs=(weights, file_of(model)))
    notes: list[str] = []
    source = get_source(
        model,
        settings,
        trust=trust,
        has_weights=weights is not None,
        device=device,
        seed=seed,
        limit=limit,
        notes=notes,
    )
    if weights is not None:
        load_weights_(source, weights, allow_partial=allow_partial, limit=limit, notes=notes)
    example = get_example(source, inputs, batch=batch, seed=seed, text=model)
    found = audit_model(
        source.model,
        example,
        k=k,
        tol=tol,
        deterministic=deterministic,
        lipschitz=lipschitz,
        workers=workers,
        seed=seed,
        progress=sys.stderr.isatty(),
    )
    found = replace(found, model=model)
    write_result(found, html, json, notes)
    if estimates:
        layers = compare_estimates(source.model, example, estimators(), found=found, seed=seed)
        _output.show_estimates(layers)
    if fail_above is not None:
        complaints, remarks = verdict(found, fail_above, fail_on or [FailOn.chains])
        for line in (*remarks, *complaints):
            _output.note(line)
        if complaints:
            raise typer.Exit(ABOVE)


@app.command(epilog=CLIP_EXAMPLES)
def clip(
    model: Model,
    weights: Annotated[Path, typer.Option(metavar="FILE", help="The weights to clip.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write them.")
    ],
    inputs: Inputs = None,
    max_norm: Annotated[float, typer.Option(help="The largest norm a layer may have.")] = 1.0,
    layers: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only such layers, as 'layer1.*'; may be repeated."),
    ] = None,
    compose: Annotated[
        Compose,
        typer.Option(
            help="Bound a layer together with the following batch norm (norms), all layers that "
            "directly follow each other (chains), or each by itself (none)."
        ),
    ] = Compose.norms,
    tol: Annotated[float, typer.Option(help="Relative accuracy of the norm reached.")] = 1e-3,
    exact: Annotated[bool, typer.Option("--exact", help="The nearest weights, slower.")] = False,
    certify: Annotated[
        Certify, typer.Option(help="Prove the norm reached, by such a bound.")
    ] = Certify.no,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the output file if there is one.")
    ] = False,
    settings: Settings = None,
    allow_partial: Partial = False,
    trust: Trust = False,
    max_file_size: LargestFile = None,
    device: Device = None,
    seed: Seed = 0,
) -> None:
    """Clip the weights of a model, and write them in the form that they came in."""
    limit = in_bytes(max_file_size)
    require_no_input(f"output {output}", output, [file_of(model)])
    require_output(weights, output, overwrite=overwrite)
    notes: list[str] = []
    source = get_source(
        model,
        settings,
        trust=trust,
        has_weights=True,
        device=device,
        seed=seed,
        limit=limit,
        notes=notes,
    )
    checkpoint, fit = load_weights_(
        source, weights, allow_partial=allow_partial, limit=limit, notes=notes
    )
    results = clip_checkpoint_(
        source.model,
        get_example(source, inputs, batch=1, seed=seed, text=model),
        checkpoint,
        fit,
        max_norm,
        layers=layers or (),
        compose=COMPOSE[compose],
        tol=tol,
        exact=exact,
        certify=CERTIFY[certify],
        generator=torch.Generator().manual_seed(seed),
    )
    try:
        _weights_file.write(checkpoint, output)
    except OSError as error:
        raise cannot("write", error) from error
    _output.show_clipped(results, max_norm)
    above_bound = [name for name, one in results.items() if one.norm_after > max_norm * (1 + tol)]
    if above_bound:
        notes.append(f"warning: above the bound, as rounded in the file: {listed(above_bound)}.")
    for line in (*notes, f"wrote {output}"):
        _output.note(line)


@app.command(epilog=COMPARE_EXAMPLES)
def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="An audit of before.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="An audit of after.")],
    html: Html = None,
    json: Json = None,
    max_file_size: LargestFile = None,
) -> None:
    """Two audits side by side."""
    limit = in_bytes(max_file_size)
    require_outputs(html, json, inputs=(before, after))
    write_result(read_audit(before, limit).compare(read_audit(after, limit)), html, json)


@app.command(epilog=DEMO_EXAMPLES)
def demo(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Where the reports go; spectralclip-demo by default.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Train for a moment only.")] = False,
) -> None:
    """Train small networks on real digits with and without clipping, attack and audit them."""
    from spectralclip.demo.tour import FOLDER, run

    run(output or FOLDER, seed, quick)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command line, and tell its exit code.

    Args:
        args: Arguments without the program's name; by default those of this process.

    Returns:
        0 fine, 1 not certified within `--fail-above`, 2 bad input, 130 stopped by Ctrl-C, 141
        nobody reads on, 143 terminated.

    Example:
        >>> from spectralclip import cli
        >>> cli.main(["audit", "--fail-on", "network"])
        2
    """
    given = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in given
    given = [one for one in given if one != "--debug"]
    return guarded(lambda: _run(given or ["--help"]), debug=debug)


def _run(args: list[str]) -> int:
    command: Any = typer.main.get_command(app)
    return int(command.main(args, prog_name="spectralclip", standalone_mode=False) or FINE)
