"""Clipping the weights of a checkpoint through the model they belong to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torch import nn

from spectralclip._clipping import ClipResult, clip_found_layers_, layer_targets
from spectralclip._common import require_writable
from spectralclip._models import Compose, ExampleInputs, FoundLayer, find_layers, unwrapped
from spectralclip._spectrum import spectral_norm
from spectralclip.cli import _weights_file
from spectralclip.cli._problems import Problem, file_problems, listed
from spectralclip.cli._weights_file import Checkpoint, Fit


def require_output(source: Path, target: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a file that may not or cannot be written."""
    safe = ".safetensors"
    if (source.suffix == safe) != (target.suffix == safe):
        raise Problem(
            f"output {target}: expected the format of the input, {source.suffix}, got "
            f"{target.suffix or 'no ending'}."
        )
    if os.path.lexists(target) and not overwrite:
        same = target.exists() and source.exists() and target.samefile(source)
        what = "is the input itself" if same else "exists already"
        raise Problem(f"output {target} {what}: choose another name, or add --overwrite.")
    with file_problems("write"):
        require_writable(target)


def clip_checkpoint_(
    model: nn.Module,
    example_inputs: ExampleInputs,
    checkpoint: Checkpoint,
    fit: Fit,
    max_norm: float,
    *,
    layers: Sequence[str] = (),
    compose: Compose = "conv_bn",
    **options: Any,
) -> dict[str, ClipResult]:
    """Clip the layers whose weights are in the checkpoint, in the model and in the checkpoint."""
    found = find_layers(model, example_inputs, compose)
    chosen = {name for name in found if not layers or any(_fits(name, p) for p in layers)}
    if not chosen:
        raise Problem(
            f"no layer is named as --layers says ({', '.join(layers)}); there are "
            f"{listed(list(found))}."
            if found
            else "the model has no affine layers: there is nothing to clip."
        )
    stored = _stored_parameters(model, fit)

    def bound(name: str, layer: FoundLayer) -> float | None:
        there = any(id(parameter) in stored for parameter in layer.parameters())
        return max_norm if name in chosen and there else None

    results = clip_found_layers_(found, layer_targets(found, bound), progress=True, **options)
    _weights_file.store_(checkpoint, model, fit)
    if _is_rounded(checkpoint, model, fit):
        _weights_file.load_(model, checkpoint, allow_partial=True)
        results = {name: _measured(found[name], result) for name, result in results.items()}
    return results


def _fits(name: str, pattern: str) -> bool:
    """Whether a pattern fits the name of a layer, or of a part of a composition."""
    return any(fnmatchcase(one, pattern) for one in (name, *name.split("+")))


def _stored_parameters(model: nn.Module, fit: Fit) -> set[int]:
    names = set(fit.names.values())
    named = unwrapped(model).named_parameters(remove_duplicate=False)
    return {id(parameter) for name, parameter in named if name in names}


def _is_rounded(checkpoint: Checkpoint, model: nn.Module, fit: Fit) -> bool:
    """Whether the file keeps numbers in another type than the model has."""
    own, tensors = unwrapped(model).state_dict(), checkpoint.tensors
    return any(tensors[key].dtype != own[name].dtype for key, name in fit.names.items())


def _measured(layer: FoundLayer, result: ClipResult) -> ClipResult:
    norms = [float(spectral_norm(list(layer.modules), shape)) for shape in layer.in_shapes]
    return replace(result, norm_after=max(norms))
