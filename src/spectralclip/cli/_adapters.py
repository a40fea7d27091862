"""The command `adapters`: files of LoRA-like adapters, measured and clipped."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from spectralclip._common import write_texts
from spectralclip.cli import _output, _steps, _weights_file
from spectralclip.cli._clip_file import require_output
from spectralclip.cli._input_files import LARGEST_TEXT, LARGEST_WEIGHTS, read_text, require_regular
from spectralclip.cli._problems import Problem, file_problems
from spectralclip.cli._weights_file import Checkpoint
from spectralclip.integrations import adapters
from spectralclip.integrations.adapters import Adapter, AdapterReport
from spectralclip.integrations.adapters.adapter import (
    CONFIGURATION,
    WEIGHTS,
    display_name,
    needs_configuration,
)


def run(
    files: Sequence[Path],
    bases: Sequence[Path],
    *,
    json: str | None,
    max_norm: float | None,
    output: Path | None,
    size: str | None,
    alpha: float | None,
    k: int,
    overwrite: bool,
    limit: float | None,
) -> None:
    """Read, measure, clip if asked to, write, and print."""
    places = [file / WEIGHTS if file.is_dir() else file for file in files]
    _require_writable(places, bases, json, max_norm, output, overwrite)
    checkpoints = [_weights_file.read(place, limit or LARGEST_WEIGHTS) for place in places]
    read = [_adapter(one, alpha, limit) for one in checkpoints]
    sides = _sides(size)
    found = adapters.report(read, _base(bases, limit), k=k, size=sides)
    if max_norm is not None and output is not None:
        found = replace(found, clipped=read[0].clip_(max_norm, sides))
        with file_problems("write"):
            _weights_file.write(checkpoints[0], output)
    _print(found, json, max_norm)
    for line in _notes(found, places[0], output, json):
        _output.note(line)


def _require_writable(
    places: Sequence[Path],
    bases: Sequence[Path],
    json: str | None,
    max_norm: float | None,
    output: Path | None,
    overwrite: bool,
) -> None:
    """Find out before the work whether it can be done, and its result be written."""
    if (max_norm is None) != (output is None):
        raise Problem(
            "--max-norm and --out go together: the bound, and the file for the clipped adapter."
        )
    if output is not None and len(places) > 1:
        raise Problem(
            f"--out {output}: expected one adapter to clip, got {len(places)}: clip each by itself."
        )
    _steps.require_outputs(None, json, [*places, *bases])
    if output is None:
        return
    if json is not None and os.path.realpath(output) == os.path.realpath(json):
        raise Problem(f"--out and --json are the same file, {output}: choose two.")
    _steps.require_no_input(f"--out {output}", output, bases)
    require_output(places[0], output, overwrite=overwrite)


def _adapter(checkpoint: Checkpoint, alpha: float | None, limit: float | None) -> Adapter:
    """The adapter of a file, with the configuration beside it."""
    place = checkpoint.path.with_name(CONFIGURATION)
    config = None
    if needs_configuration(checkpoint.tensors) and os.path.lexists(place):
        config = read_text(place, "configuration", limit or LARGEST_TEXT)
    return adapters.from_tensors(
        checkpoint.tensors,
        config=config,
        metadata=checkpoint.metadata,
        alpha=alpha,
        name=display_name(checkpoint.path),
        origin=str(checkpoint.path),
    )


def _base(paths: Sequence[Path], limit: float | None) -> Mapping[str, Tensor] | None:
    """The weights of all files together; those of safetensors are read when they are needed."""
    parts: list[Any] = []
    for path in paths:
        if path.suffix == ".safetensors":
            require_regular(path, "base", limit or LARGEST_WEIGHTS)
            parts.append(_weights_file.open_tensors(path))
        else:
            parts.append(_weights_file.read(path, limit or LARGEST_WEIGHTS).tensors)
    return ChainMap(*parts) if parts else None


def _sides(text: str | None) -> tuple[int, ...] | None:
    """What `--size` says."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise Problem(f"--size {text!r}: expected positive sides such as 32,32.")
    return tuple(map(int, parts))


def _print(found: AdapterReport, json: str | None, max_norm: float | None) -> None:
    if json is not None and json != _steps.STANDARD_OUTPUT:
        with file_problems("write"):
            write_texts({json: found.to_json()})
    if json == _steps.STANDARD_OUTPUT:
        _output.say(found.to_json())
        return
    for sheet in found.sheets():
        _output.show_sheet(sheet)
    if max_norm is not None:
        _output.show_clipped(found.clipped, max_norm)


def _notes(found: AdapterReport, source: Path, output: Path | None, json: str | None) -> list[str]:
    notes = []
    if output is not None:
        if any(one.is_reshaped and one.norm_at is None for one in found.updates):
            notes.append(
                "note: of convolutions the norms of reshaped kernels were held; --size 32,32 "
                "holds those of the convolutions, on such images."
            )
        config = source.with_name(CONFIGURATION)
        if config.exists() and not output.with_name(CONFIGURATION).exists():
            notes.append(f"note: {config} belongs beside it, too.")
        notes.append(f"wrote {output}")
    if json not in (None, _steps.STANDARD_OUTPUT):
        notes.append(f"wrote {json}")
    return notes
