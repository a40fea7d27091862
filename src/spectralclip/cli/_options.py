"""The options, arguments and examples of the command line."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer

from spectralclip import __version__
from spectralclip._common import FINE
from spectralclip.cli._example_inputs import SYNTAX
from spectralclip.cli._input_files import FLAG, GIB, LARGEST_TEXT, LARGEST_WEIGHTS, in_bytes
from spectralclip.cli._limits import FailOn
from spectralclip.cli._model_source import FORMS
from spectralclip.cli._output import say

ABOVE = 1  # beside the exit codes that all commands have

EXIT_CODES = """
Exit codes: 0 fine; 1 not all that --fail-above looks at is certified to be within, or not all that
--require asks for holds, and reports have been written; 2 bad input or usage, with one line that
begins with "error:", and nothing written; 130 stopped by Ctrl-C; 141 nobody reads the output any
more; 143 terminated. No file is ever written by half.
"""

AUDIT_EXAMPLES = f"""\b
Examples:
  spectralclip audit nets.py:resnet18 --input 3,32,32 --weights best.pt --html report.html
  spectralclip audit package.nets:Net --set width=64 --input 3,32,32 --fail-above 1.02
  spectralclip audit timm:resnet50 --set pretrained=true --input 3,224,224 --workers 2
  spectralclip audit transformers:./checkpoint --input 16:int64 --no-lipschitz
  spectralclip audit network.pt2 --trust --json -
  spectralclip audit nets.py:resnet18 --input 3,32,32 --compare-estimates

{EXIT_CODES}"""
CLIP_EXAMPLES = f"""\b
Examples:
  spectralclip clip nets.py:resnet18 --weights best.pt -o clipped.pt --input 3,32,32
  spectralclip clip timm:resnet50 --weights in.safetensors -o out.safetensors \\
      --input 3,224,224 --max-norm 2 --layers 'layer4.*' --certify probabilistic

{EXIT_CODES}"""
COMPARE_EXAMPLES = f"""\b
Example:
  spectralclip compare before.json after.json --html change.html

{EXIT_CODES}"""
ADAPTERS_EXAMPLES = f"""\b
Examples:
  spectralclip adapters style.safetensors subject.safetensors --base model.safetensors
  spectralclip adapters lora-folder --max-norm 2 --out clipped.safetensors
  spectralclip adapters style.safetensors --size 32,32 --json -

{EXIT_CODES}"""
CONFORMANCE_EXAMPLES = f"""\b
Examples:
  spectralclip conformance mypackage.norms:my_estimate
  spectralclip conformance norms.py:my_estimate --only trained --only 'conv2d-*' --json out.json
  spectralclip conformance spectralclip:norm_bounds --require right

{EXIT_CODES}"""
DEMO_EXAMPLES = f"""\b
Example:
  spectralclip demo --output reports

{EXIT_CODES}"""


class Compose(str, Enum):
    """Which layers `clip` bounds together."""

    conv_bn = "conv_bn"
    chains = "chains"
    none = "none"


class Require(str, Enum):
    """What `conformance` asks of every answer."""

    RIGHT = "right"
    UPPER = "upper"
    LOWER = "lower"


class Certify(str, Enum):
    """What `clip` proves of the norms it leaves."""

    no = "no"
    probabilistic = "probabilistic"
    deterministic = "deterministic"


CERTIFY: dict[Certify, bool | Literal["deterministic"]] = {
    Certify.no: False,
    Certify.probabilistic: True,
    Certify.deterministic: "deterministic",
}


def complete_model(incomplete: str) -> list[str]:
    """Completions of MODEL: the libraries, and files that may hold one."""
    files = [f"{path}:" for path in sorted(Path().glob("*.py"))]
    names = ["timm:", "transformers:", *files, *map(str, sorted(Path().glob("*.pt2")))]
    return [name for name in names if name.startswith(incomplete)]


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"spectralclip {__version__}")
        raise typer.Exit(FINE)


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="With an error, show the traceback.")]
Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help=f"{FORMS}.", autocompletion=complete_model),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar=SYNTAX,
        help="Shape of one input without the batch: 3,32,32; token ids: 16:int64 or, with a limit, "
        "16:int64:50257; by keyword: input_ids=16:int64. Once for each argument of the model. An "
        "exported program knows its own.",
    ),
]
Batch = Annotated[int, typer.Option(min=1, help="How many random inputs.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="An argument of the factory; may be repeated."
    ),
]
Partial = Annotated[
    bool, typer.Option("--allow-partial", help="Load the weights that fit, and no others.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Load an exported program, which can run code.")
]
LargestFile = Annotated[
    float | None,
    typer.Option(
        FLAG,
        metavar="GIB",
        callback=in_bytes,
        help=f"The largest file to read: by default {LARGEST_WEIGHTS / GIB:g} GiB for weights and "
        f"exported programs, {LARGEST_TEXT / GIB:g} GiB for text.",
    ),
]
Seed = Annotated[
    int, typer.Option(min=-(2**63), max=2**63 - 1, help="Of random inputs, weights and starts.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output file if there is one.")
]
Device = Annotated[str | None, typer.Option(help="Where to compute, such as cuda.")]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - prints it.")
]
Estimates = Annotated[
    bool,
    typer.Option(
        "--compare-estimates",
        help="Also print what each method takes for the norm of each layer.",
    ),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report.")]
Limit = Annotated[
    float | None,
    typer.Option(metavar="NORM", help="Exit with 1 unless all norms are certified to be within."),
]
FailOnWhat = Annotated[
    list[FailOn] | None,
    typer.Option(
        help="What --fail-above looks at: layers, each by itself; chains, with the layers that are "
        "in none (the default); network, the bound on the whole. May be repeated."
    ),
]
