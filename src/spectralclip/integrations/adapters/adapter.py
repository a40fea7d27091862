"""Adapters as files and models hold them: updates by the names of their layers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from torch import Tensor

from spectralclip._clipping import ClipResult
from spectralclip._common import Shape, TensorFile, as_shape, packed, replacing
from spectralclip.integrations.adapters.naming import (
    DORA,
    GROUPED,
    PEFT_PREFIX,
    Configuration,
    Pair,
    find_pairs,
    told_alpha,
)
from spectralclip.integrations.adapters.update import Update, require_thin

CONFIGURATION = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"  # of a folder that peft has written

PathLike = str | os.PathLike[str]


@final
class Adapter(Mapping[str, Update]):
    """The updates of an adapter by layer, in the order of its file or model.

    Attributes:
        name: What tables call it.
        left_out: What is no update of two factors by name, and why.

    Example:
        >>> import torch
        >>> from spectralclip.integrations import adapters
        >>> tensors = {"fc.lora_down.weight": torch.eye(2, 5), "fc.lora_up.weight": torch.eye(4, 2)}
        >>> tensors["fc.alpha"] = torch.tensor(6.0)
        >>> adapter = adapters.from_tensors(tensors)
        >>> list(adapter), adapter["fc"].norm
        (['fc'], 3.0)
        >>> adapter.clip_(1.0)["fc"].norm_after <= 1.0
        True
    """

    def __init__(
        self,
        name: str,
        updates: Mapping[str, Update],
        left_out: Mapping[str, str] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Of updates; with the tensors and the header of a file, to be saved again."""
        self.name, self._updates, self.left_out = name, dict(updates), dict(left_out or {})
        self._tensors, self._metadata = tensors, metadata

    def __getitem__(self, layer: str) -> Update:
        """The update of a layer."""
        return self._updates[layer]

    def __iter__(self) -> Iterator[str]:
        """The names of the layers."""
        return iter(self._updates)

    def __len__(self) -> int:
        """How many layers there are."""
        return len(self._updates)

    def __repr__(self) -> str:
        """Its name, and how many layers there are."""
        return f"Adapter({self.name!r}, {len(self)} layers)"

    def clip_(self, max_norm: float, size: Sequence[int] | None = None) -> dict[str, ClipResult]:
        """Clip every update, in place.

        Args:
            max_norm: The bound.
            size: Sides of the images that convolutions get; without it their reshaped kernels
                are clipped, as by `Update.clip_`.

        Raises:
            ValueError: The bound is not positive, or no convolution has as many axes as the size.
        """
        sides = checked_size(size, [self])
        return {
            layer: update.clip_(max_norm, image_shape(update, sides))
            for layer, update in self.items()
        }

    def save(self, path: PathLike) -> None:
        """Write the tensors of the file that it was read from, with what has been clipped since.

        Keys, types and header are those of the file. A file of that name is replaced, by a whole
        one or not at all.

        Raises:
            ValueError: It comes from a model: save that.
        """
        if self._tensors is None:
            raise ValueError(
                f"{self!r} was found in a model, which has its own way to be saved, such as "
                "save_pretrained of peft."
            )
        with replacing(path) as file:
            file.write(packed(self._tensors, self._metadata))


def checked_size(size: Sequence[int] | None, adapters: Iterable[Adapter]) -> Shape | None:
    """Positive sides, as many as some convolution of the adapters has axes."""
    if size is None:
        return None
    try:
        sides = as_shape(size)
    except TypeError as error:
        raise TypeError(f"size: expected sides such as (32, 32), got {size!r}.") from error
    if not sides or min(sides) < 1:
        raise ValueError(f"size: expected positive sides such as (32, 32), got {size!r}.")
    kernels = [one.kernel_size for each in adapters for one in each.values() if one.is_convolution]
    if not any(len(kernel) == len(sides) for kernel in kernels):
        there = "there are none" if not kernels else f"they have {len(kernels[0])}"
        raise ValueError(
            f"size {size!r}: expected convolutions of {len(sides)} axes; {there}. It has the sides "
            "of images, without channels."
        )
    return sides


def image_shape(update: Update, size: Sequence[int] | None) -> tuple[int, ...] | None:
    """The shape of an input with images of a size, for convolutions of as many axes."""
    if size is None or not update.is_convolution or len(size) != len(update.kernel_size):
        return None
    return update.shape[1], *size


def load(
    path: PathLike,
    *,
    config: PathLike | Mapping[str, Any] | None = None,
    alpha: float | None = None,
    name: str | None = None,
) -> Adapter:
    """Read an adapter from a safetensors file, or from a folder that peft has written.

    The scale of an update is that of `alpha` beside its factors, of the configuration, or of the
    file's header; where none says it, the factors are taken as they are, as diffusers does.

    Args:
        path: The file, or the folder with `adapter_model.safetensors`.
        config: The adapter's configuration, or its path; by default, for files of peft,
            `adapter_config.json` beside the file.
        alpha: The alpha to take where neither the file nor a configuration tells one.
        name: What tables call it; by default the name of the file, or of its folder.

    Raises:
        ValueError: It is no adapter, or one whose factors do not fit each other.
        ImportError: The package safetensors is missing.
    """
    file = Path(path) / WEIGHTS if os.path.isdir(path) else Path(path)
    if not file.exists():
        raise FileNotFoundError(
            f"{file}: expected an adapter as a safetensors file; there is none."
        )
    try:
        content = TensorFile(file)
        tensors = dict(content)
    except ImportError:
        raise
    except Exception as error:
        raise ValueError(
            f"{file}: expected a safetensors file, but it is truncated, damaged or something else "
            f"({error}). Copy or download it again."
        ) from error
    beside = file.with_name(CONFIGURATION)
    if config is None and needs_configuration(tensors) and beside.exists():
        config = beside
    if config is not None and not isinstance(config, Mapping):
        config = Path(config).read_text(encoding="utf-8")
    name = display_name(file) if name is None else name
    return from_tensors(
        tensors, config=config, metadata=content.metadata, alpha=alpha, name=name, origin=str(file)
    )


def needs_configuration(keys: Iterable[str]) -> bool:
    """Whether a file is of peft, which keeps alpha elsewhere."""
    return any(key.startswith(PEFT_PREFIX) for key in keys)


def display_name(file: Path) -> str:
    """The name of a file, or of its folder if all files of its kind have the same name."""
    return file.resolve().parent.name if file.name == WEIGHTS else file.stem


def from_tensors(
    tensors: Mapping[str, Tensor],
    *,
    config: Mapping[str, Any] | str | None = None,
    metadata: Mapping[str, str] | None = None,
    alpha: float | None = None,
    name: str = "adapter",
    origin: str = "",
) -> Adapter:
    """An adapter from tensors by key, as its file has them; they are shared, not copied.

    Args:
        tensors: The factors, in the names of peft, diffusers or kohya.
        config: What `adapter_config.json` says, as a mapping or as its text.
        metadata: The header of the file.
        alpha: The alpha to take where nothing else tells one.
        name: What tables call it.
        origin: What errors call the file; by default the name.
    """
    file = origin or name
    pairs, left_out = find_pairs(tensors, file)
    told = _configuration(config, metadata, file)
    updates: dict[str, Update] = {}
    for layer, pair in pairs.items():
        reason = _other_form(tensors, pair, told)
        if reason:
            left_out[layer] = reason
            continue
        try:
            updates[layer] = _update(tensors, pair, told, alpha)
        except ValueError as error:
            raise ValueError(f"{file}: keys {pair.A!r} and {pair.B!r}: {error}") from error
    if not updates:
        why = "; ".join(f"{layer}: {reason}" for layer, reason in list(left_out.items())[:3])
        raise ValueError(
            f"{file}: expected pairs such as lora_A and lora_B, or lora_down and lora_up, got none"
            f"{f' ({why})' if why else ''}. Is it an adapter?"
        )
    return Adapter(name, updates, left_out, tensors, metadata)


def _configuration(
    config: Mapping[str, Any] | str | None, metadata: Mapping[str, str] | None, file: str
) -> Configuration | None:
    if config is None:
        return Configuration.of_header(metadata, file)
    origin = f"the configuration of {file}"
    if isinstance(config, str):
        return Configuration.of_text(config, origin)
    return Configuration(config, origin)


def _other_form(tensors: Mapping[str, Tensor], pair: Pair, told: Configuration | None) -> str:
    """Why a pair of factors is no plain update; empty if it is one."""
    if told is not None and told.uses_dora(pair.layer):
        return DORA
    A, B = tensors[pair.A], tensors[pair.B]
    if A.ndim == B.ndim > 2 and 0 < B.shape[1] < A.shape[0] and A.shape[0] % B.shape[1] == 0:
        return GROUPED
    return ""


def _update(
    tensors: Mapping[str, Tensor], pair: Pair, told: Configuration | None, alpha: float | None
) -> Update:
    A, B = tensors[pair.A], tensors[pair.B]
    require_thin(pair.layer, A, B)
    rank = A.shape[0] if A.ndim else 0
    beside = told_alpha(tensors, pair)
    scale = None if beside is None else beside / max(rank, 1)
    if scale is None and told is not None:
        scale = told.scale(pair.layer, rank)
    if scale is None and alpha is not None:
        scale = alpha / max(rank, 1)
    if scale is None and pair.A.startswith(PEFT_PREFIX):
        raise ValueError(
            f"expected an alpha, which peft keeps in {CONFIGURATION} beside the file, got none: "
            "put that file there, or give alpha."
        )
    transposed = pair.is_embedding or (told is not None and told.is_transposed(pair.layer))
    return Update(A, B, 1.0 if scale is None else scale, name=pair.layer, transposed=transposed)
