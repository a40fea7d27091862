"""Exported programs with their layers as modules again.

`torch.export` keeps operations and weights, and no modules: where a network had a `Conv2d`, its
program calls `aten.conv2d` with `stem.0.weight`. Layers are looked for among modules, so each such
operation is put back into one, under the name that its weight tells.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable, Iterable
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

    Raises:
        Problem: It cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about its own ways
            program = torch.export.load(path)
            model = program.module()
    except Exception as error:
        raise Problem(
            f"{path}: expected an exported program of torch.export.save, but it cannot be loaded "
            f"({one_line(error)})."
        ) from error
    args, kwargs = program.example_inputs or ((), {})
    return with_modules(model), tuple(args) if args and not kwargs else None


def with_modules(program: fx.GraphModule) -> fx.GraphModule:
    """The same program, in which dense layers, convolutions and norms are modules.

    It is changed in place. Weights keep their names; one that does not belong to a module of
    its own gets one beside it, which holds the same parameter.
    """
    made: dict[str, tuple[nn.Module, str]] = {}
    for node in list(program.graph.nodes):
        if node.op == "call_module" and node.target == "_guards_fn":
            program.graph.erase_node(node)  # it would insist on the size of the example's batch
        elif node.op == "call_function" and _name(node) in _LAYERS:
            _replace(program, node, made)
    for parameters in program._forward_pre_hooks, program._forward_hooks:
        parameters.clear()  # the same, in older versions
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).removeprefix("aten::") if schema is not None else ""


def _replace(
    program: fx.GraphModule, node: fx.Node, made: dict[str, tuple[nn.Module, str]]
) -> None:
    """Put a module in the place of one operation, if its weights are parameters."""
    arguments = _arguments(program, node)
    if not isinstance(arguments.get("weight"), nn.Parameter):
        return
    example = _source(node).meta.get("val")
    module = _LAYERS[_name(node)]({**arguments, "example": example})
    if module is None:
        return
    source = _taken_in_padding(_source(node), module)
    weight = cast(fx.Node, _argument_nodes(node)["weight"])
    name = _place(program, module, str(weight.target), made)
    with program.graph.inserting_before(node):
        call = program.graph.call_module(name, (source,))
    call.meta = dict(node.meta)
    for user in list(node.users) if _gives_several(node) else ():
        if user.target is operator.getitem and user.args[1] == 0:
            user.replace_all_uses_with(call)
            program.graph.erase_node(user)
    node.replace_all_uses_with(call)
    program.graph.erase_node(node)


def _gives_several(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (tuple, list))


def _argument_nodes(node: fx.Node) -> Arguments:
    """The arguments of an operation by name, defaults included."""
    schema = cast(Any, node.target)._schema
    given = dict(zip((one.name for one in schema.arguments), node.args, strict=False))
    defaults = {one.name: one.default_value for one in schema.arguments}
    return {**defaults, **given, **node.kwargs}


def _arguments(program: fx.GraphModule, node: fx.Node) -> Arguments:
    """The same, with weights in the place of the nodes that fetch them."""

    def value(one: Any) -> Any:
        fetched = isinstance(one, fx.Node) and one.op == "get_attr"
        return operator.attrgetter(str(one.target))(program) if fetched else one

    return {name: value(one) for name, one in _argument_nodes(node).items()}


def _source(node: fx.Node) -> fx.Node:
    """The input of a layer; embeddings name it otherwise, and second."""
    nodes = _argument_nodes(node)
    return cast(fx.Node, nodes["input"] if "input" in nodes else nodes["indices"])


def _taken_in_padding(source: fx.Node, module: nn.Module) -> Any:
    """What the layer reads: what an operation before it pads, where the layer can pad itself."""
    if _name(source) != "pad" or len(source.users) != 1:
        return source
    pad = _argument_nodes(source)
    dims = len(getattr(module, "kernel_size", ()))
    widths = list(pad["pad"])
    plain = isinstance(module, tuple(_CONVS.values())) and not any(cast(Any, module).padding)
    symmetric = len(widths) == 2 * dims and widths[::2] == widths[1::2]
    if not plain or not symmetric or pad["mode"] not in ("reflect", "replicate", "circular"):
        return source
    conv = cast(nn.Conv2d, module)
    conv.padding = tuple(reversed(widths[::2]))
    conv.padding_mode = pad["mode"]
    conv._reversed_padding_repeated_twice = widths
    return source.args[0]


def _place(
    program: fx.GraphModule, module: nn.Module, weight: str, made: dict[str, tuple[nn.Module, str]]
) -> str:
    """Put the module where its weight is, or beside it, and tell its name."""
    if weight in made and repr(made[weight][0]) == repr(module):
        return made[weight][1]  # the same layer, used again
    holder, _, own = weight.rpartition(".")
    at_home = own == "weight" and holder and weight not in made
    name = holder if at_home else _free_name(program, f"{weight}_{type(module).__name__.lower()}")
    if at_home:
        _keep_the_rest(program.get_submodule(holder), module)
    parent, _, last = name.rpartition(".")
    setattr(program.get_submodule(parent), last, module)
    made[weight] = made.get(weight, (module, name))
    return name


def _free_name(program: fx.GraphModule, name: str) -> str:
    taken = {name for name, _ in program.named_modules()}
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return next(one for one in (name, *itertools.islice(numbered, len(taken))) if one not in taken)


def _keep_the_rest(old: nn.Module, new: nn.Module) -> None:
    """Give the new module what else the old one held."""
    for name, child in old.named_children():
        setattr(new, name, child)
    for name, parameter in old.named_parameters(recurse=False):
        if name not in dict(new.named_parameters(recurse=False)):
            new.register_parameter(name, parameter)
    for name, buffer in old.named_buffers(recurse=False):
        new._buffers[name] = buffer


# --- One maker for each operation ------------------------------------------------------------


def _with(module: nn.Module, arguments: Arguments, names: Iterable[str]) -> nn.Module:
    """The module, made on no device, with its real parameters and buffers."""
    for name in names:
        table = module._buffers if name in module._buffers else module._parameters
        cast(dict[str, Any], table)[name] = arguments[name]
    return module.eval()


def _linear(arguments: Arguments) -> nn.Module | None:
    rows, columns = arguments["weight"].shape
    return _with(nn.Linear(columns, rows, device="meta"), arguments, ("weight", "bias"))


def _conv(arguments: Arguments) -> nn.Module | None:
    """A convolution or transposed one, from any of the ways in which torch calls them."""
    weight, groups = arguments["weight"], arguments["groups"]
    transposed = arguments.get("transposed", "output_padding" in arguments)
    first, second = weight.shape[0], weight.shape[1] * groups
    options = {
        name: _spread(arguments[name], weight.ndim - 2)
        for name in ("stride", "padding", "dilation")
    }
    if transposed:
        options["output_padding"] = _spread(arguments["output_padding"], weight.ndim - 2)
    sizes = (first, second) if transposed else (second, first)
    kind = cast(Callable[..., nn.Module], (_TRANSPOSED if transposed else _CONVS)[weight.ndim])
    module = kind(*sizes, tuple(weight.shape[2:]), groups=groups, device="meta", **options)
    return _with(module, arguments, ("weight", "bias"))


def _spread(value: Any, dims: int) -> Any:
    if isinstance(value, str):
        return value
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * dims if len(values) == 1 else values


def _batch_norm(arguments: Arguments) -> nn.Module | None:
    ndim = getattr(arguments["example"], "ndim", None)
    if ndim not in _BATCH_NORMS or arguments["running_mean"] is None:
        return None
    kind = cast(Callable[..., nn.Module], _BATCH_NORMS[ndim])
    module = kind(len(arguments["weight"]), eps=arguments["eps"], device="meta")
    module._buffers["num_batches_tracked"] = None  # the one of the program is kept, if any
    return _with(module, arguments, ("weight", "bias", "running_mean", "running_var"))


def _layer_norm(arguments: Arguments) -> nn.Module | None:
    shape = tuple(arguments["normalized_shape"])
    module = nn.LayerNorm(shape, eps=arguments["eps"], device="meta")
    return _with(module, arguments, ("weight", "bias"))


def _embedding(arguments: Arguments) -> nn.Module | None:
    rows, columns = arguments["weight"].shape
    module = nn.Embedding(rows, columns, device="meta")
    return _with(module, arguments, ("weight",))


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
