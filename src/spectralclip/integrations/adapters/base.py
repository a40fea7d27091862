"""The weights that an adapter is added to, found in a model's file by the names of its layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from spectralclip._linalg import on_host
from spectralclip.integrations.adapters.update import Update

_WEIGHT = ".weight"
# What files of adapters put in front of a layer's name, for the part of a pipeline that it is in.
_PARTS = ("unet", "transformer", "text_encoder", "text_encoder_2", "diffusion_model", "model")
_PARTS_JOINED = ("lora_unet", "lora_transformer", "lora_te", "lora_te1", "lora_te2")


def matched_keys(layers: Iterable[str], keys: Iterable[str]) -> dict[str, str]:
    """The key of the base's weight for each layer that has one.

    Files put different prefixes in front of the same names, and some write `_` for `.`. All
    layers of an adapter have the same ones: the pair of prefixes that fits most layers is
    taken, of several the shortest.
    """
    layers = list(layers)
    dotted = any("." in layer for layer in layers)
    stems: dict[str, str] = {}
    for key in keys:
        stem = key.removesuffix(_WEIGHT)
        stems.setdefault(stem if dotted else stem.replace(".", "_"), key)
    mark = "." if dotted else "_"
    tails: dict[str, list[str]] = {}
    for stem in stems:
        tails.setdefault(stem.rsplit(mark, 1)[-1], []).append(stem)
    votes: Counter[tuple[str, str]] = Counter()
    for layer in layers:
        votes.update(
            {
                pair
                for stem in tails.get(layer.rsplit(mark, 1)[-1], ())
                for pair in _prefixes(layer, stem, mark)
            }
        )
    if not votes:
        return {}
    before, instead = min(votes, key=lambda pair: (-votes[pair], len(pair[0]) + len(pair[1])))
    found = {
        layer: stems.get(instead + layer.removeprefix(before))
        for layer in layers
        if layer.startswith(before)
    }
    return {layer: key for layer, key in found.items() if key is not None}


def _prefixes(layer: str, stem: str, mark: str) -> Iterator[tuple[str, str]]:
    """What the layer's name and the base's have in front of what they share, if all else agrees."""
    if layer.endswith(mark + stem):
        yield layer.removesuffix(stem), ""
    for part in ("", *(f"{one}{mark}" for one in (*_PARTS, *_PARTS_JOINED))):
        name = layer.removeprefix(part)
        if layer.startswith(part) and (mark + stem).endswith(mark + name):
            yield part, stem.removesuffix(name)


def base_matrix(update: Update, base: Mapping[str, Tensor], key: str) -> Tensor:
    """The base's weight in the shape of the update, in float64.

    Raises:
        ValueError: It has another shape, or no finite real numbers.
    """
    weight = base[key]
    wanted = (*update.shape, *update.kernel_size)
    shape = tuple(weight.shape)
    turned = (wanted[1], wanted[0], *wanted[2:])
    flips = shape == turned and (shape != wanted or update.transposed)
    if not flips and shape != wanted:
        raise ValueError(
            f"base, key {key!r}: expected a weight of shape {wanted}, as the update of "
            f"{update.name} has, got {shape}: is it the model that the adapter was made for?"
        )
    if not weight.is_floating_point():
        raise ValueError(
            f"base, key {key!r}: expected real numbers, got {weight.dtype}: dequantize it first."
        )
    matrix = on_host(weight.transpose(0, 1) if flips else weight)
    if not bool(matrix.isfinite().all()):
        raise ValueError(
            f"base, key {key!r}: NaN or infinite values: its norm is not defined. Restore finite "
            "weights."
        )
    return matrix
