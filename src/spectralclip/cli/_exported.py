"""Exported programs as models whose layers are modules again.

`torch.export` keeps operations and weights, and no modules. `torch.export.unflatten` puts back the
hierarchy, so that the operations of each former module are a module of their own under its name.
Where these are one layer that torch has a type for, a module of that type takes its place, since
more is known of it: a convolution has symbols, and a batch norm can be told from other layers.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx, nn

from spectralclip.cli._problems import Problem, one_line

Arguments = dict[str, Any]

_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_CONVS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
_TRANSPOSED = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}


def load_program(path: Path) -> tuple[nn.Module, tuple[Any, ...] | None]:
    """A saved program as a model, and the example inputs it was exported with.

    The loader of exported programs can be made to run code: only for files that are trusted.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about its own ways
            program = torch.export.load(path)
            model = torch.export.unflatten(program)
    except Exception as error:
        raise Problem(
            f"{path}: expected an exported program of torch.export.save, but it cannot be loaded "
            f"({one_line(error)})."
        ) from error
    model.check_input_constraints = False  # it would insist on the size of the example's batch
    for holder in list(model.modules()):
        for name, part in list(holder.named_children()):
            layer = _layer(part)
            if layer is not None:
                setattr(holder, name, layer)
    args, kwargs = program.example_inputs or ((), {})
    return model, tuple(args) if args and not kwargs else None


def _layer(module: nn.Module) -> nn.Module | None:
    """The layer that a module's operations are; None where they are something else."""
    graph = getattr(module, "graph", None)
    nodes = list(graph.nodes) if isinstance(graph, fx.Graph) else []
    calls = [n for n in nodes if n.op == "call_function" and n.target is not operator.getitem]
    make = _LAYERS.get(_name(calls[-1])) if calls else None
    if make is None or len(calls) > 2 or any(n.op == "call_module" for n in nodes):
        return None
    arguments = _arguments(module, calls[-1])
    source = arguments["input"] if "input" in arguments else arguments["indices"]
    if not isinstance(arguments.get("weight"), nn.Parameter):
        return None
    layer = make({**arguments, "example": source.meta.get("val")})
    if layer is None or (len(calls) == 2 and not _take_in_padding(layer, calls[0], source)):
        return None
    for name in dict(layer.named_parameters()):
        layer._parameters[name] = arguments[name]
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        if name in layer._buffers:
            layer._buffers[name] = arguments.get(name, module._buffers.get(name))
    return layer.eval()


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).removeprefix("aten::") if schema is not None else ""


def _arguments(module: nn.Module, node: fx.Node) -> Arguments:
    """The arguments of an operation by name, defaults included, and weights as they are."""
    schema = cast(Any, node.target)._schema
    given = dict(zip((one.name for one in schema.arguments), node.args, strict=False))
    defaults = {one.name: one.default_value for one in schema.arguments}

    def value(one: Any) -> Any:
        fetched = isinstance(one, fx.Node) and one.op == "get_attr"
        return operator.attrgetter(str(one.target))(module) if fetched else one

    return {name: value(one) for name, one in {**defaults, **given, **node.kwargs}.items()}


def _take_in_padding(layer: nn.Module, node: fx.Node, source: fx.Node) -> bool:
    """Let a convolution pad by itself what an operation before it pads, if it can."""
    if _name(node) != "pad" or source is not node or not isinstance(layer, tuple(_CONVS.values())):
        return False
    pad = _arguments(layer, node)
    conv, widths = cast(nn.Conv2d, layer), list(pad["pad"])
    symmetric = len(widths) == 2 * len(conv.kernel_size) and widths[::2] == widths[1::2]
    known = pad["mode"] in ("reflect", "replicate", "circular")
    if any(conv.padding) or not (symmetric and known):
        return False
    conv.padding, conv.padding_mode = tuple(reversed(widths[::2])), pad["mode"]
    conv._reversed_padding_repeated_twice = widths
    return True


# --- One maker for each operation, on no device ----------------------------------------------


def _linear(arguments: Arguments) -> nn.Module:
    rows, columns = arguments["weight"].shape
    return nn.Linear(columns, rows, arguments["bias"] is not None, device="meta")


def _conv(arguments: Arguments) -> nn.Module:
    """A convolution or transposed one, from any of the ways in which torch calls them."""
    weight, groups = arguments["weight"], arguments["groups"]
    transposed = arguments.get("transposed", "output_padding" in arguments)
    first, second = weight.shape[0], weight.shape[1] * groups
    names = ("stride", "padding", "dilation", *(["output_padding"] if transposed else []))
    options = {name: _spread(arguments[name], weight.ndim - 2) for name in names}
    options |= {"groups": groups, "bias": arguments["bias"] is not None, "device": "meta"}
    kind: type[nn.Module] = (_TRANSPOSED if transposed else _CONVS)[weight.ndim]
    sizes = (first, second) if transposed else (second, first)
    return kind(*sizes, tuple(weight.shape[2:]), **options)


def _spread(value: Any, dims: int) -> Any:
    if isinstance(value, str):
        return value
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * dims if len(values) == 1 else values


def _batch_norm(arguments: Arguments) -> nn.Module | None:
    ndim = getattr(arguments["example"], "ndim", None)
    if ndim not in _BATCH_NORMS or arguments["running_mean"] is None:
        return None
    return _BATCH_NORMS[ndim](len(arguments["weight"]), eps=arguments["eps"], device="meta")


def _layer_norm(arguments: Arguments) -> nn.Module:
    bias = arguments["bias"] is not None
    shape = tuple(arguments["normalized_shape"])
    return nn.LayerNorm(shape, eps=arguments["eps"], bias=bias, device="meta")


def _embedding(arguments: Arguments) -> nn.Module:
    rows, columns = arguments["weight"].shape
    return nn.Embedding(rows, columns, device="meta")


_LAYERS: dict[str, Callable[[Arguments], nn.Module | None]] = {
    "linear": _linear,
    "embedding": _embedding,
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "convolution": _conv,
    **dict.fromkeys((f"conv{n}d" for n in (1, 2, 3)), _conv),
    **dict.fromkeys((f"conv_transpose{n}d" for n in (1, 2, 3)), _conv),
}
