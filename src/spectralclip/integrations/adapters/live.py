"""Adapters inside of a model, found by their structure: modules that hold two factors.

peft keeps a dictionary of adapters in each layer, `loralib` plain parameters, others modules: what
they have in common is a pair of names such as `lora_A` and `lora_B`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from spectralclip._models import unwrapped
from spectralclip.integrations.adapters.adapter import Adapter
from spectralclip.integrations.adapters.naming import DORA, GROUPED, PEFT_PREFIX
from spectralclip.integrations.adapters.update import Update, require_thin

_GEOMETRY = ("stride", "padding", "dilation")
_PAIRS = (
    ("lora_A", "lora_B"),
    ("lora_a", "lora_b"),
    ("lora_down", "lora_up"),
    ("lora_embedding_A", "lora_embedding_B"),
)


def from_model(
    model: nn.Module, adapter: str | None = None, *, alpha: float | None = None
) -> Adapter:
    """The updates in a model with LoRA-like layers, of peft or others, as they are now.

    The factors are the model's own parameters: what is clipped is clipped in the model. An update
    is `scale * B A`. Its scale is `scaling` or `scale` of the module that holds the factors, or
    `alpha` or `lora_alpha` over the rank; 1 where it has none of these.

    Args:
        model: Any model with modules that have `lora_A` and `lora_B`, or `lora_down` and `lora_up`.
        adapter: Which one, where the model holds several by name, as those of peft can.
        alpha: In place of what modules say: every scale is this over the rank.

    Raises:
        ValueError: There is none, or there are several and none is named; or a module's scale is
            no number.

    Example:
        >>> import torch
        >>> from spectralclip.integrations import adapters
        >>> class Adapted(torch.nn.Linear):
        ...     def __init__(self):
        ...         super().__init__(5, 4)
        ...         self.lora_A = torch.nn.Parameter(torch.eye(2, 5))
        ...         self.lora_B = torch.nn.Parameter(torch.eye(4, 2))
        ...         self.scaling = 3.0
        >>> found = adapters.from_model(torch.nn.Sequential(Adapted()))
        >>> found["0"].norm
        3.0
    """
    bare = unwrapped(model)
    found = list(_holders(bare))
    names = sorted({name for *_, name in found if name is not None})
    if adapter is None and len(names) > 1:
        raise ValueError(
            f"{type(bare).__name__} holds several adapters: expected one of {names} as adapter=."
        )
    chosen = adapter if adapter is not None else (names[0] if names else None)
    updates, left_out = {}, {}
    for path, module, A, B, name in found:
        if name is not None and name != chosen:
            continue
        layer = path.removeprefix(PEFT_PREFIX)
        reason = _other_form(module, B, A, name)
        if reason:
            left_out[layer] = reason
        else:
            updates[layer] = _update(layer, module, A, B, name, alpha)
    if not updates:
        there = f", got {names}" if names else ""
        why = "; ".join(f"{layer}: {reason}" for layer, reason in list(left_out.items())[:3])
        raise ValueError(
            f"{type(bare).__name__}: expected modules with lora_A and lora_B, or lora_down and "
            f"lora_up{f', of the adapter {adapter!r}' if adapter is not None else ''}{there}; "
            f"none was found{f' ({why})' if why else ''}."
        )
    return Adapter(chosen or type(bare).__name__, updates, left_out)


def _holders(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any, Any, str | None]]:
    """Modules with two factors: path, module, factors as they are held, name of the adapter."""
    for path, module in model.named_modules():
        for first, second in _PAIRS:
            A: Any = getattr(module, first, None)
            B: Any = getattr(module, second, None)
            if _is_table(A) and _is_table(B):
                for name in A:
                    if name in B:
                        yield path, module, A[name], B[name], name
            elif _factor(A) is not None and _factor(B) is not None:
                yield path, module, A, B, None


def _is_table(held: object) -> bool:
    return isinstance(held, (nn.ModuleDict, nn.ParameterDict, Mapping))


def _factor(held: object) -> Tensor | None:
    """The tensor of a factor that is held as a parameter, or as a layer with a weight."""
    tensor = getattr(held, "weight", None) if isinstance(held, nn.Module) else held
    return tensor if isinstance(tensor, Tensor) else None


def _other_form(module: Any, B: Any, A: Any, name: str | None) -> str:
    magnitudes = getattr(module, "lora_magnitude_vector", None)
    if magnitudes is not None and (name is None or not _is_table(magnitudes) or name in magnitudes):
        return DORA
    left, right = _factor(B), _factor(A)
    if left is None or right is None:
        return "its factors are no tensors"
    if left.ndim > 2 and left.shape[1] < right.shape[0]:
        return GROUPED
    if left.ndim == right.ndim == 2:
        return _other_matrices(module, left, right)
    conv = _convolution(module, A)
    if getattr(conv, "groups", 1) != 1:
        return "a grouped convolution, whose A sees only a part of the inputs"
    mode = getattr(conv, "padding_mode", "zeros")
    if mode != "zeros":
        return f"its convolution pads by {mode!r}: updates are measured with zeros"
    return ""


def _other_matrices(module: nn.Module, left: Tensor, right: Tensor) -> str:
    """Why two matrices are not the factors of an update, if they are not."""
    if left.shape[1] != right.shape[0]:
        # As where queries, keys and values have factors of their own in one tensor.
        return f"B takes {left.shape[1]} inputs, and A makes {right.shape[0]} outputs"
    entries = left.shape[0] * right.shape[1]
    convs = [part for part in (module, *module.children()) if isinstance(part, _ConvNd)]
    if any(conv.weight.numel() == entries and math.prod(conv.kernel_size) > 1 for conv in convs):
        # As of loralib: the product is the kernel, with its entries in another order.
        return "two matrices whose product is a kernel of several taps, and no matrix of it"
    return ""


def _convolution(module: nn.Module, A: Any) -> Any:
    """What has the stride and padding of an update: A itself, or the layer that holds it."""
    return module if not isinstance(A, nn.Module) and isinstance(module, _ConvNd) else A


def _update(
    layer: str, module: Any, A: Any, B: Any, name: str | None, alpha: float | None
) -> Update:
    conv = _convolution(module, A)
    is_layer = isinstance(conv, nn.Module)
    known = {key: getattr(conv, key) for key in _GEOMETRY if is_layer and hasattr(conv, key)}
    transposed = bool(getattr(module, "fan_in_fan_out", False))
    embeds = _factor(A) is A and name is not None and A is _embedding_factor(module, name)
    right, left = _factor(A), _factor(B)
    assert right is not None and left is not None
    require_thin(layer, right, left)
    rank = right.shape[0]
    scale = _scale(layer, module, name, rank) if alpha is None else alpha / rank
    return Update(right, left, scale, name=layer, transposed=transposed or embeds, **known)


def _embedding_factor(module: Any, name: str) -> Any:
    table = getattr(module, "lora_embedding_A", None)
    return table[name] if table is not None and name in table else None


def _scale(layer: str, module: Any, name: str | None, rank: int) -> float:
    """`scaling` or `scale` where the module has one, `alpha / rank` where it has that, else 1."""
    for key, over in (("scaling", 1), ("scale", 1), ("alpha", rank), ("lora_alpha", rank)):
        told = getattr(module, key, None)
        if isinstance(told, Mapping):
            told = told.get(name)
        if told is None:
            continue
        if isinstance(told, (int, float)) or (isinstance(told, Tensor) and told.numel() == 1):
            return float(told) / over
        raise ValueError(
            f"{layer}: expected a number as {key!r}, which scales the update, got "
            f"{type(told).__name__}: give alpha=, which is divided by the rank."
        )
    return 1.0


@torch.no_grad()
def base_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights beneath the adapters of a model, by the name of the layer.

    Raises:
        ValueError: An adapter is merged into its base, which is no longer there then.
    """
    weights = {}
    for path, module, *_ in _holders(unwrapped(model)):
        layer = path.removeprefix(PEFT_PREFIX)
        if getattr(module, "merged", False) is True:
            raise ValueError(
                f"{layer}: expected an adapter beside its base, got one that is merged into it: "
                "unmerge it first, with model.unmerge_adapter() of peft, or model.train() of "
                "loralib."
            )
        weight = _base_weight(module)
        if weight is not None:
            weights[f"{layer}.weight"] = weight
    return weights


def _base_weight(module: nn.Module) -> Tensor | None:
    """Of `base_layer`, of the module itself, or of the only layer beside the factors."""
    factors = {id(part) for pair in _PAIRS for part in (getattr(module, n, None) for n in pair)}
    others = [part for part in module.children() if id(part) not in factors]
    layers = [part for part in others if isinstance(getattr(part, "weight", None), Tensor)]
    only = layers[0] if len(layers) == 1 else None
    for part in (getattr(module, "base_layer", None), module, only):
        weight = getattr(part, "weight", None)
        if isinstance(weight, Tensor):
            return weight
    return None
