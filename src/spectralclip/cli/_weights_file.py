"""Checkpoints: reading them without running code, and writing them back in the same form."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spectralclip._common import TensorFile, packed, replacing
from spectralclip._models import unwrapped
from spectralclip.cli._input_files import LARGEST_WEIGHTS, open_regular, require_unpacked_size
from spectralclip.cli._pickled import wanted_globals
from spectralclip.cli._problems import Problem, listed, one_line

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", *PICKLED)

# Under which names training scripts keep the weights beside other things, the likeliest first.
WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")
# What data parallelism, Lightning and `torch.compile` put in front of the model's own names.
PREFIXES = ("module.", "model.", "_orig_mod.")


class Checkpoint(NamedTuple):
    """A checkpoint in memory."""

    path: Path  # where it was read from
    content: Any  # all that the file holds
    wrapper: tuple[str, ...] = ()  # the keys that lead from there to the weights
    metadata: dict[str, str] | None = None  # what a safetensors file says of itself

    @property
    def weights(self) -> Mapping[str, Any]:
        """The weights by name; whatever else is kept among them too."""
        weights: Mapping[str, Any] = self.content
        for key in self.wrapper:
            weights = weights[key]
        return weights

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {key: value for key, value in self.weights.items() if _is_weight(key, value)}


class Fit(NamedTuple):
    """How the names of a checkpoint and those of a model go together."""

    prefix: str  # what the names of the checkpoint have in front of those of the model
    names: dict[str, str]  # the model's name of each tensor of the checkpoint that fits
    mismatched: list[str]  # tensors of another shape than the model's
    unexpected: list[str]  # tensors that the model has no place for
    missing: list[str]  # names of the model for which there is nothing
    unfit: list[str]  # tensors of another kind of number than the model's, or without plain values

    @property
    def complaints(self) -> list[str]:
        found = {
            "of another shape": self.mismatched,
            "of another kind of number": self.unfit,
            "missing in the file": self.missing,
            "unknown to the model": self.unexpected,
        }
        return [f"{len(names)} {what}: {listed(names)}" for what, names in found.items() if names]


def read(path: Path, limit: float = LARGEST_WEIGHTS) -> Checkpoint:
    """Read a checkpoint as data, never as code."""
    if path.suffix not in SUFFIXES:
        raise Problem(
            f"weights {path}: expected a file ending in {', '.join(SUFFIXES)}, got "
            f"{path.suffix or 'no ending'}."
        )
    with open_regular(path, "weights", limit) as file:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        require_unpacked_size(file, path, "weights", limit)
        return _read_pickled(path, file)


def _read_safetensors(path: Path) -> Checkpoint:
    file = open_tensors(path)
    try:
        return Checkpoint(path, dict(file), metadata=file.metadata)
    except Exception as error:  # of types that torch or the package does not know, for example
        raise _damaged(path, "safetensors file", error) from error


def open_tensors(path: Path) -> TensorFile:
    """A safetensors file whose tensors are read one by one, when they are asked for."""
    try:
        return TensorFile(path)
    except ImportError as error:
        raise Problem(str(error)) from error
    except Exception as error:
        raise _damaged(path, "safetensors file", error) from error


def _read_pickled(path: Path, file: BinaryIO) -> Checkpoint:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the protocol of pickles that are refused below
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # Damage shows itself in as many kinds of errors as there are bytes to damage.
        wanted = wanted_globals(file)
        if isinstance(error, pickle.UnpicklingError) and wanted:
            raise Problem(
                f"weights {path}: refused, since to read it would import and run {listed(wanted)}; "
                "only tensors and plain containers are read. If you trust where it comes from, "
                "load it yourself and save the state_dict alone, best as .safetensors."
            ) from error
        raise _damaged(path, "file of torch.save", error) from error
    wrapper = _wrapper(content)
    if wrapper is None:
        inside = f" of {listed(list(map(str, content)))}" if isinstance(content, Mapping) else ""
        raise Problem(
            f"weights {path}: expected a state_dict, alone or under one of "
            f"{', '.join(WRAPPERS)}, got {type(content).__name__}{inside}."
        )
    return Checkpoint(path, content, wrapper)


def _damaged(path: Path, kind: str, error: BaseException) -> Problem:
    said = one_line(error)
    # Torch's own advice is to read the file as code.
    said = "" if "Weights only load failed" in said else f" ({said})"
    return Problem(
        f"weights {path}: expected a {kind}, but it is truncated, damaged or something else{said}. "
        "Copy or download it again."
    )


def _wrapper(content: Any, depth: int = 3) -> tuple[str, ...] | None:
    """The keys that lead to the weights, or None if there are none."""
    if not isinstance(content, Mapping) or not depth:
        return None
    for key in WRAPPERS:
        inside = _wrapper(content.get(key), depth - 1)
        if inside is not None:
            return (key, *inside)
    # Only now: beside wrapped weights there may be tensors too, such as a step counter.
    return () if any(_is_weight(key, value) for key, value in content.items()) else None


def _is_weight(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, Tensor)


# --- Into a model and back -------------------------------------------------------------------


def load_(model: nn.Module, checkpoint: Checkpoint, *, allow_partial: bool = False) -> Fit:
    """Load a checkpoint into a model; nothing is loaded if it does not fit."""
    bare = unwrapped(model)
    tensors = checkpoint.tensors
    fit = _fit(tensors, bare.state_dict())
    remedy = "Is this the model the file was saved from?"
    if fit.unfit:
        remedy = "Weights have to be plain floating-point tensors: convert or dequantize them."
    elif not fit.names:
        raise Problem(
            f"weights {checkpoint.path}: no tensor fits the model. The file has "
            f"{listed(list(tensors), 3)}; the model has {listed(list(bare.state_dict()), 3)}. "
            f"{remedy}"
        )
    if not fit.names or (fit.complaints and not allow_partial):
        partial = " --allow-partial loads what fits." if fit.names else ""
        raise Problem(f"weights {checkpoint.path}: {'; '.join(fit.complaints)}. {remedy}{partial}")
    try:
        bare.load_state_dict({own: tensors[key] for key, own in fit.names.items()}, strict=False)
    except RuntimeError as error:
        raise Problem(f"weights {checkpoint.path}: {one_line(error)}") from error
    return fit


def _fit(tensors: Mapping[str, Tensor], own: Mapping[str, Any]) -> Fit:
    prefix = max(_prefixes(tensors), key=lambda p: sum(p + name in tensors for name in own))
    names, mismatched, unfit = {}, [], []
    for name, value in own.items():
        key = prefix + name
        if key not in tensors or not isinstance(value, Tensor):
            continue
        why = why_unfit(tensors[key], value)
        if why:
            unfit.append(f"{key} ({why})")
        elif tensors[key].shape == value.shape:
            names[key] = name
        else:
            shapes = f"{tuple(tensors[key].shape)}, not {tuple(value.shape)}"
            mismatched.append(f"{key} {shapes}")
    known = {prefix + name for name in own}
    unexpected = [key for key in tensors if key not in known]
    missing = _missing(own, names, prefix, tensors)
    return Fit(prefix, names, mismatched, unexpected, missing, unfit)


def _missing(
    own: Mapping[str, Any], names: Mapping[str, str], prefix: str, tensors: Mapping[str, Tensor]
) -> list[str]:
    # A weight of two names is often saved once, and old batch norms have counted nothing.
    there = {own[name].data_ptr() for name in names.values()}
    return [
        name
        for name, value in own.items()
        if isinstance(value, Tensor)
        and prefix + name not in tensors
        and not name.endswith("num_batches_tracked")
        and not _shares(value, there)
    ]


def _shares(value: Tensor, there: set[int]) -> bool:
    """Whether a tensor of the model, of whatever kind, is in memory that is loaded."""
    plain = not (is_lazy(value) or value.layout != torch.strided)
    return plain and value.numel() > 0 and value.data_ptr() in there


def _prefixes(tensors: Mapping[str, Tensor], start: str = "", depth: int = 3) -> Iterator[str]:
    """What may stand in front of the model's names, the shortest first."""
    yield start
    for prefix in PREFIXES if depth else ():
        if any(key.startswith(start + prefix) for key in tensors):
            yield from _prefixes(tensors, start + prefix, depth - 1)


def store_(checkpoint: Checkpoint, model: nn.Module, fit: Fit) -> None:
    """Put a model's weights into the checkpoint they came from, in place.

    In this way everything else stays as it was: keys and their order, types, what shares memory,
    and all that is kept beside the weights. Tensors that shared memory in the file, and differ in
    the model, can no longer share it.
    """
    tensors, own = checkpoint.tensors, unwrapped(model).state_dict()
    weights = cast(MutableMapping[str, Any], checkpoint.weights)
    wanted = {key: own[name].to(tensors[key], copy=True) for key, name in fit.names.items()}
    with torch.no_grad():
        for key, value in wanted.items():
            if _overlaps(tensors[key]):
                weights[key] = value
            else:
                tensors[key].copy_(value)
        for key, value in wanted.items():
            if not torch.equal(weights[key], value):
                weights[key] = value


def _overlaps(tensor: Tensor) -> bool:
    """Whether one number in memory is several entries, as in an expanded tensor."""
    return any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def write(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint in the format it was read from, whole or not at all."""
    with replacing(path) as file:
        if checkpoint.path.suffix == ".safetensors":
            file.write(packed(checkpoint.content, checkpoint.metadata))
            return
        try:
            torch.save(checkpoint.content, file)
        except RuntimeError as error:
            if isinstance(error.__context__, OSError):
                # Torch covers up the error of the file with one of its own.
                raise error.__context__ from None
            raise


def why_unfit(value: Tensor, own: Tensor) -> str:
    """Why a tensor of a file cannot take the place of one of a model; empty where it can.

    Shapes are not looked at. Real numbers may be rounded, from float64 to float32 for example.
    Whatever a model keeps as whole numbers or truth values, such as masks and counters, may come in
    any real type that holds the same values.
    """
    for tensor, whose in ((value, ""), (own, " in the model")):
        form = _form(tensor)
        if form:
            return f"{form}{whose}"
    if own.is_floating_point() or own.is_complex():
        kinds = (torch.is_floating_point, torch.is_complex)
        fits = all(is_kind(value) == is_kind(own) for is_kind in kinds)
    else:
        fits = not value.is_complex() and _same_values(value, own.dtype)
    return "" if fits else f"{_name(value)}, not {_name(own)}"


def _form(tensor: Tensor) -> str:
    """In which form a tensor has no plain array of numbers; empty where it has one."""
    if is_lazy(tensor):
        return "of no size yet"
    if tensor.is_meta:
        return "a meta tensor without values"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a sparse tensor ({str(tensor.layout).removeprefix('torch.')})"
    return f"quantized ({_name(tensor)})" if tensor.is_quantized else ""


def _same_values(value: Tensor, dtype: torch.dtype) -> bool:
    wide = value.double()
    return torch.equal(wide.to(dtype).double(), wide)


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
