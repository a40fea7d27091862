"""How files name the factors of an adapter, and where they say its scale.

| written by | factors of a layer | its scale |
|---|---|---|
| peft | `base_model.model.<layer>.lora_A.weight`, `lora_B` | `adapter_config.json` beside it |
| diffusers | `<part>.<layer>.lora_A.weight`, `lora_B` | the header, or none: 1 |
| diffusers, before | `<layer>.lora.down.weight`, `<layer>_lora.down.weight`, `up` | none: 1 |
| kohya and others | `lora_unet_<layer>.lora_down.weight`, `lora_up` | `lora_unet_<layer>.alpha` |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

PEFT_PREFIX = "base_model.model."
HEADER_ENTRY = "lora_adapter_metadata"  # where diffusers keeps peft's configuration

# What stands for A, and for B in its place. Of names that begin alike the longest comes first.
TOKENS = {
    "lora_embedding_A": "lora_embedding_B",
    "lora_linear_layer.down": "lora_linear_layer.up",
    "lora.down": "lora.up",
    "lora_down": "lora_up",
    "lora_A": "lora_B",
    "lora_a": "lora_b",
}
_WORDS = "|".join(map(re.escape, (*TOKENS, *TOKENS.values())))
# In the state of a model, the adapter's own name stands behind the token.
_FACTOR = re.compile(
    rf"(?P<layer>.+?)[._](?P<token>{_WORDS})(?:\.(?P<adapter>(?!weight$|bias$)[^.]+))?(?:\.weight)?"
)
# Why an update is left out.
DORA = "DoRA rescales the sum of base and update: merge it first"
GROUPED = "a grouped convolution, whose B sees only a part of A's outputs"
# What makes an update something else than the product of two factors, by the end of its key.
_OTHER_FORMS = {
    "lora_magnitude_vector": DORA,
    "lora_magnitude_vector.weight": DORA,
    "dora_scale": DORA,
    "lora_mid.weight": "it has a third factor (Tucker form)",
    "lora_E": "AdaLoRA has a third factor, of singular values",
    "lora_E.weight": "AdaLoRA has a third factor, of singular values",
}


class Pair(NamedTuple):
    """The keys of the two factors of a layer."""

    layer: str
    A: str
    B: str
    is_embedding: bool


def find_pairs(keys: Mapping[str, Any], file: str) -> tuple[dict[str, Pair], dict[str, str]]:
    """The pairs of a file by layer, and what is left out with the reason."""
    pairs: dict[str, Pair] = {}
    left_out: dict[str, str] = {}
    used: set[str] = set()
    adapters: set[str] = set()
    doubled = ""
    for key in keys:
        match = _FACTOR.fullmatch(key)
        if match is None:
            continue
        token, place = match["token"], match.span("token")
        adapters.add(match["adapter"] or "")
        other = TOKENS.get(token) or next(a for a, b in TOKENS.items() if b == token)
        partner = f"{key[: place[0]]}{other}{key[place[1] :]}"
        if partner not in keys:
            raise ValueError(
                f"{file}: {key!r} has no partner: expected {partner!r} in the same file. It may "
                "be truncated, or a part of a larger one."
            )
        used.add(key)
        if token in TOKENS:
            layer = match["layer"].removeprefix(PEFT_PREFIX)
            if layer in pairs:
                doubled = f"{pairs[layer].A!r} and {key!r} are of the same layer, {layer!r}"
            pairs[layer] = Pair(layer, key, partner, token.startswith("lora_embedding"))
    if len(adapters) > 1:
        raise ValueError(
            f"{file} holds several adapters ({', '.join(sorted(map(repr, adapters)))}): expected "
            "one. Save each in a file of its own."
        )
    if doubled:
        raise ValueError(
            f"{file}: keys {doubled}: expected one pair of factors. Save each in a file of its own."
        )
    for key in keys:
        layer, reason = _other(key)
        if key in used or key.endswith(".alpha"):
            continue
        left_out[layer] = reason
        if reason != _WHOLE:
            pairs.pop(layer, None)
    return pairs, left_out


_WHOLE = "a tensor of its own, no low-rank update"


def _other(key: str) -> tuple[str, str]:
    bare = key.removeprefix(PEFT_PREFIX)
    for end, reason in _OTHER_FORMS.items():
        if bare.endswith(f".{end}"):
            return bare.removesuffix(f".{end}"), reason
    return bare, _WHOLE


class Configuration:
    """What `adapter_config.json`, or a file's header, says of ranks and scales."""

    def __init__(self, entries: Mapping[str, Any], origin: str) -> None:
        """Of entries, whose `origin` errors name."""
        self._entries, self._origin = entries, origin
        kind = entries.get("peft_type", "LORA")
        if kind != "LORA":
            raise ValueError(
                f"{origin}: expected peft_type LORA, got {kind!r}, whose updates are no products "
                "of two factors. Merge it into its base with peft, and audit that."
            )

    @classmethod
    def of_header(cls, metadata: Mapping[str, str] | None, file: str) -> Configuration | None:
        """The configuration that diffusers keeps in the header of a file, if there is one."""
        text = (metadata or {}).get(HEADER_ENTRY)
        return None if text is None else cls.of_text(text, f"the header of {file}")

    @classmethod
    def of_text(cls, text: str, origin: str) -> Configuration:
        """The configuration of a file's text."""
        try:
            entries = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{origin} is no JSON ({error}): write or copy it again.") from error
        if not isinstance(entries, dict):
            raise ValueError(f"{origin}: expected a JSON object, got {type(entries).__name__}.")
        return cls(entries, origin)

    def scale(self, layer: str, rank: int) -> float | None:
        """`alpha / r`, or `alpha / sqrt(r)` for rank-stabilized adapters; None if not told."""
        entries, name = self._part(layer)
        alpha = _by_pattern(entries, "alpha_pattern", name, self._origin)
        alpha = entries.get("lora_alpha") if alpha is None else alpha
        told = _by_pattern(entries, "rank_pattern", name, self._origin)
        told = entries.get("r") if told is None else told
        if told is not None and told != rank:
            raise ValueError(
                f"{layer}: expected the rank {told!r} that {self._origin} tells, got {rank} in the "
                "file: do they belong together?"
            )
        if alpha is None:
            return None
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
            raise ValueError(
                f"{self._origin}: expected a number for lora_alpha of {layer}, got {alpha!r}."
            )
        return alpha / (math.sqrt(rank) if entries.get("use_rslora") else rank)

    def is_transposed(self, layer: str) -> bool:
        """Whether weights are kept as `(in, out)`, as in GPT-2."""
        return bool(self._part(layer)[0].get("fan_in_fan_out"))

    def uses_dora(self, layer: str) -> bool:
        """Whether updates are rescaled, whatever the file holds."""
        return bool(self._part(layer)[0].get("use_dora"))

    def _part(self, layer: str) -> tuple[Mapping[str, Any], str]:
        """The entries that speak of a layer, and its name there: a header has several parts."""
        if "lora_alpha" in self._entries or "r" in self._entries:
            return self._entries, layer
        part, _, name = layer.partition(".")
        start = f"{part}."
        inside = {k.removeprefix(start): v for k, v in self._entries.items() if k.startswith(start)}
        return inside, name


def _by_pattern(entries: Mapping[str, Any], key: str, layer: str, origin: str) -> Any:
    """What a table of patterns says of a layer: the first pattern that its name ends in."""
    patterns = entries.get(key) or {}
    try:
        fitting = (v for p, v in patterns.items() if re.match(rf"(.*\.)?({p})$", layer))
        return next(fitting, None)
    except (re.error, AttributeError) as error:
        raise ValueError(
            f"{origin}: {key} holds no patterns ({error}): {patterns!r:.80}"
        ) from error


def told_alpha(tensors: Mapping[str, Tensor], pair: Pair) -> float | None:
    """The alpha that stands beside the factors; None if there is none."""
    names = (pair.layer, f"{PEFT_PREFIX}{pair.layer}")
    key = next((f"{name}.alpha" for name in names if f"{name}.alpha" in tensors), None)
    if key is None:
        return None
    value = tensors[key]
    if value.numel() != 1 or not math.isfinite(float(value)):
        raise ValueError(
            f"expected one finite number as {key!r}, got {value.flatten()[:4].tolist()}: give the "
            "file its alpha, or leave the key out."
        )
    return float(value)
