"""The command line: `spectralclip audit | clip | compare | adapters | conformance | demo`.

Everything that a command does is in the library; here are its options, its exit codes, and the
one line that it says when something is wrong.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, final

import torch
import typer
from typer.core import TyperGroup

from spectralclip._audit import audit as audit_model
from spectralclip._audit import compare_estimates, estimates_sheet
from spectralclip._common import FINE, INTERRUPTED, Terminated, guarded
from spectralclip.cli import _adapters, _output, _steps, _weights_file
from spectralclip.cli import _options as options
from spectralclip.cli._clip_file import clip_checkpoint_, require_output
from spectralclip.cli._limits import FailOn, verdict
from spectralclip.cli._model_source import file_of
from spectralclip.cli._problems import Problem, file_problems, listed, raised
from spectralclip.methods import estimators


@final
class _Commands(TyperGroup):
    """The commands, which run a model's code too: if that says `sys.exit(0)`, no gate passes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (Exception, KeyboardInterrupt, Terminated):
            raise
        except BaseException as error:
            raise Problem(f"the model's code has ended the program: {raised(error)}.") from error


app = typer.Typer(
    name="spectralclip",
    cls=_Commands,
    help="Audit and clip the spectra of the layers of PyTorch models.",
    epilog=options.EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,  # help is to read the same in a terminal, a pipe and a log
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def _options(
    version: options.Version = False,
    debug: options.Debug = False,
) -> None:
    pass  # `main` has seen to --debug, so that it may stand anywhere


@app.command(epilog=options.AUDIT_EXAMPLES)
def audit(
    model: options.Model,
    inputs: options.Inputs = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Weights to load: {', '.join(_weights_file.SUFFIXES)}."),
    ] = None,
    html: options.Html = None,
    json: options.Json = None,
    fail_above: options.Limit = None,
    fail_on: options.FailOnWhat = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Singular values for each layer.")] = 10,
    tol: Annotated[float, typer.Option(help="Relative width of the intervals.")] = 0.01,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Only bounds that rest on no probability.")
    ] = False,
    lipschitz: Annotated[
        bool, typer.Option("--lipschitz/--no-lipschitz", help="Bound the whole network.")
    ] = True,
    estimates: options.Estimates = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes to work in.")] = 1,
    batch: options.Batch = 1,
    settings: options.Settings = None,
    allow_partial: options.Partial = False,
    trust: options.Trust = False,
    limit: options.LargestFile = None,
    device: options.Device = None,
    seed: options.Seed = 0,
) -> None:
    """Certified norms of every affine layer and chain of a model, and of the whole network."""
    if fail_on and fail_above is None:
        raise Problem("--fail-on says what --fail-above looks at: give that too.")
    if fail_above is not None and not 0 <= fail_above < math.inf:
        raise Problem(f"--fail-above: expected a finite number of at least 0, got {fail_above}.")
    if fail_on and FailOn.network in fail_on and not lipschitz:
        raise Problem("--fail-on network needs the network's bound: leave out --no-lipschitz.")
    if estimates and json == _steps.STANDARD_OUTPUT:
        raise Problem("--compare-estimates prints a table: give --json a file, not -.")
    _steps.require_outputs(html, json, (weights, file_of(model)))
    subject = _steps.Subject(
        model, settings, weights is not None, trust=trust, limit=limit, device=device, seed=seed
    )
    if weights is not None:
        subject.load_weights_(weights, allow_partial=allow_partial)
    example = subject.example(inputs, batch)
    found = audit_model(
        subject.model,
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
    _steps.write_result(found, html, json, subject.notes)
    if estimates:
        layers = compare_estimates(subject.model, example, estimators(), found, seed=seed)
        _output.show_sheet(estimates_sheet(layers))
    if fail_above is not None:
        complaints, remarks = verdict(found, fail_above, fail_on or [FailOn.chains])
        for line in (*remarks, *complaints):
            _output.note(line)
        if complaints:
            raise typer.Exit(options.ABOVE)


@app.command(epilog=options.CLIP_EXAMPLES)
def clip(
    model: options.Model,
    weights: Annotated[Path, typer.Option(metavar="FILE", help="The weights to clip.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write them.")
    ],
    inputs: options.Inputs = None,
    max_norm: Annotated[float, typer.Option(help="The largest norm a layer may have.")] = 1.0,
    layers: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Only such layers, as 'layer1.*'; may be repeated."),
    ] = None,
    compose: Annotated[
        options.Compose,
        typer.Option(
            help="Bound a layer together with the following batch norm (conv_bn), all layers that "
            "directly follow each other (chains), or each by itself (none)."
        ),
    ] = options.Compose.conv_bn,
    tol: Annotated[float, typer.Option(help="Relative accuracy of the norm reached.")] = 1e-3,
    exact: Annotated[bool, typer.Option("--exact", help="The nearest weights, slower.")] = False,
    certify: Annotated[
        options.Certify, typer.Option(help="Prove the norm reached, by such a bound.")
    ] = options.Certify.no,
    overwrite: options.Overwrite = False,
    settings: options.Settings = None,
    allow_partial: options.Partial = False,
    trust: options.Trust = False,
    limit: options.LargestFile = None,
    device: options.Device = None,
    seed: options.Seed = 0,
) -> None:
    """Clip the weights of a model, and write them in the form that they came in."""
    _steps.require_no_input(f"output {output}", output, [file_of(model)])
    require_output(weights, output, overwrite=overwrite)
    subject = _steps.Subject(
        model, settings, True, trust=trust, limit=limit, device=device, seed=seed
    )
    checkpoint, fit = subject.load_weights_(weights, allow_partial=allow_partial)
    results = clip_checkpoint_(
        subject.model,
        subject.example(inputs),
        checkpoint,
        fit,
        max_norm,
        layers=layers or (),
        compose=compose.value,
        tol=tol,
        exact=exact,
        certify=options.CERTIFY[certify],
        generator=torch.Generator().manual_seed(seed),
    )
    with file_problems("write"):
        _weights_file.write(checkpoint, output)
    _output.show_clipped(results, max_norm)
    above_bound = [name for name, one in results.items() if one.norm_after > max_norm * (1 + tol)]
    if above_bound:
        rounded = f"warning: above the bound, as rounded in the file: {listed(above_bound)}."
        subject.notes.append(rounded)
    for line in (*subject.notes, f"wrote {output}"):
        _output.note(line)


@app.command(epilog=options.COMPARE_EXAMPLES)
def compare(
    before: Annotated[Path, typer.Argument(metavar="A.json", help="An audit of before.")],
    after: Annotated[Path, typer.Argument(metavar="B.json", help="An audit of after.")],
    html: options.Html = None,
    json: options.Json = None,
    limit: options.LargestFile = None,
) -> None:
    """Two audits side by side."""
    _steps.require_outputs(html, json, (before, after))
    first, second = (_steps.read_audit(path, limit) for path in (before, after))
    _steps.write_result(first.compare(second), html, json)


@app.command(epilog=options.ADAPTERS_EXAMPLES)
def adapters(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="ADAPTER...", help="Files of adapters, or folders of peft."),
    ],
    base: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Weights that they are added to; may be repeated."),
    ] = None,
    json: options.Json = None,
    max_norm: Annotated[
        float | None,
        typer.Option(metavar="NORM", help="Clip the updates to this norm; needs --out."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", "--output", "-o", metavar="FILE", help="Where to write them."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="SIDES",
            help="Of the images that convolutions get, as 32,32: norms are those of the "
            "convolutions then, and of their reshaped kernels without it.",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="For files that do not tell theirs: the scale is alpha / rank."),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Leading directions to compare.")] = 8,
    overwrite: options.Overwrite = False,
    limit: options.LargestFile = None,
) -> None:
    """Norms of LoRA-like adapters, beside their base and each other; clip them if asked."""
    _adapters.run(
        files,
        base or [],
        json=json,
        max_norm=max_norm,
        output=output,
        size=size,
        alpha=alpha,
        k=k,
        overwrite=overwrite,
        limit=limit,
    )


@app.command(epilog=options.CONFORMANCE_EXAMPLES)
def conformance(
    estimate: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION",
            help="module.path:function or file.py:function, called with a torch module and the "
            "shape of one input. It returns a number, or the two ends of an interval.",
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only layers of this kind or name; may be repeated."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what it said of each layer.")
    ] = None,
    tol: Annotated[float, typer.Option(help="Relative tolerance of a right answer.")] = 1e-3,
    require: Annotated[
        options.Require | None,
        typer.Option(
            help="End with exit code 1 unless every answer is right, an upper or a lower bound."
        ),
    ] = None,
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Another suite than the one of this package."),
    ] = None,
    seed: options.Seed = 0,
) -> None:
    """Hold a function that estimates spectral norms against 200 layers with certified norms."""
    from spectralclip.cli._conformance import hold_against_suite

    if not hold_against_suite(estimate, only or (), json, tol, require, suite, seed):
        raise typer.Exit(options.ABOVE)


@app.command(epilog=options.DEMO_EXAMPLES)
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
    command: Any = typer.main.get_command(app)

    def run() -> int:
        code = command.main(given or ["--help"], prog_name="spectralclip", standalone_mode=False)
        return int(code or FINE)

    with _output.forgiving_encoding(), _output.plain_warnings():
        return guarded(
            run,
            debug=debug,
            notes={INTERRUPTED: "stopped; nothing was written."},
            interrupts=(KeyboardInterrupt, typer.Abort),
            broken_pipe=_output.BrokenPipe,
        )
