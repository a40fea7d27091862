"""One forward pass of a model under watch, which leaves the model as it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from spectralclip._affine import Shape, unchanged_rng


@final
@dataclass
class Use:
    """What a forward pass shows of a module.

    Attributes:
        shapes: The shape of one input at each call; None where it is not called with one tensor.
        output: What it made last, if a batch norm may read that.
        version: How often that had been written into then.
        from_neighbour: For a batch norm, how often it read what the layer before it had made.
    """

    shapes: list[Shape | None] = field(default_factory=list)
    output: object = None
    version: int | None = None
    from_neighbour: int = 0

    @property
    def distinct(self) -> tuple[Shape, ...]:
        """The shapes of its inputs, each once."""
        return tuple(dict.fromkeys(shape for shape in self.shapes if shape is not None))

    def always_read_by(self, norm: Use | None) -> bool:
        """Whether each output went to that batch norm, and nothing else did."""
        return norm is not None and norm.from_neighbour == len(norm.shapes) == len(self.shapes)


def watch(
    model: nn.Module,
    inputs: tuple[Tensor, ...],
    candidates: Iterable[nn.Module],
    norms: dict[nn.Module, nn.Module],
) -> dict[nn.Module, Use]:
    """Run the model, and note how each candidate is used."""
    uses: dict[nn.Module, Use] = {}
    readers = {norm: layer for layer, norm in norms.items()}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        use = uses.setdefault(module, Use())
        given = [*args, *kwargs.values()]
        x = given[0] if len(given) == 1 else None
        use.shapes.append(_in_shape(module, x) if isinstance(x, Tensor) else None)
        source = uses.get(readers[module]) if module in readers else None
        # The same tensor may have been written into meanwhile, as by an activation in place.
        if source and source.output is x and source.version == getattr(x, "_version", None):
            use.from_neighbour += 1
        if module in norms and isinstance(output, Tensor):
            use.output, use.version = output, output._version

    with ExitStack() as hooks:
        for module in candidates:
            if not isinstance(module, torch.jit.ScriptModule):  # which take no hooks
                handle = module.register_forward_hook(note, with_kwargs=True)
                hooks.callback(handle.remove)
        model(*inputs)
    return uses


def _in_shape(module: nn.Module, x: Tensor) -> Shape:
    """The shape of one input, as the rest of the library wants it."""
    if isinstance(module, nn.Embedding):
        return (*x.shape[1:], module.num_embeddings)
    kernel = module.kernel_size if isinstance(module, nn.modules.conv._ConvNd) else ()
    alone = x.ndim == (len(kernel) + 1 if kernel else 1)  # without a batch dimension
    return tuple(x.shape if alone else x.shape[1:])


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Let forward passes write into copies, and put back what they replace or draw."""
    modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    tables = [
        (table, dict(table))
        for module in modules
        for table in (vars(module), module._parameters, module._buffers, module._modules)
    ]
    devices = {t.device for t in (*model.parameters(), *model.buffers())}
    try:
        _lend_copies(modules)
        with ExitStack() as stack:
            for device in devices or {torch.device("cpu")}:
                stack.enter_context(unchanged_rng(device))
            yield
    finally:
        for table, kept in tables:
            for key in [key for key in table if key not in kept]:
                del table[key]
            for key, value in kept.items():
                if table.get(key) is not value:
                    table[key] = value


def _lend_copies(modules: Iterable[nn.Module]) -> None:
    """Exchange buffers, and weights that embeddings renormalize in place, for copies."""
    copies: dict[int, Tensor] = {}
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                copy = copies.setdefault(id(buffer), buffer.detach().clone())
                module._buffers[name] = copy
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            weight = module._parameters.get("weight")
            if weight is not None:
                module._parameters["weight"] = nn.Parameter(weight.detach().clone(), False)
