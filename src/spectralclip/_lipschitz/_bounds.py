"""`lipschitz_bounds`: an interval that holds the Lipschitz constant of a whole network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from spectralclip._affine import describe, evaluation_mode, plain_numerics
from spectralclip._bounds import _check_request as check_request
from spectralclip._forward_pass import left_as_it_was, unwrapped
from spectralclip._graph import tensors_in
from spectralclip._layers import ExampleInputs, _arguments
from spectralclip._lipschitz._chain_norms import IntervalOf, Norms, standard_intervals
from spectralclip._lipschitz._flow import Flow
from spectralclip._lipschitz._following import NotFollowedError, follow
from spectralclip._lipschitz._jacobian import local_norms
from spectralclip._lipschitz._propagation import Propagation
from spectralclip._lipschitz._result import NetworkBound, Step, Unbounded

_Call: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]  # what a model is called with

MOST_EXAMPLES = 8  # at which the Jacobian is looked at


@plain_numerics()
def lipschitz_bounds(
    model: nn.Module,
    example_inputs: ExampleInputs,
    *,
    interval_of: IntervalOf | None = None,
    rtol: float = 0.01,
    failure: float = 1e-6,
    deterministic: bool = False,
    local: bool = True,
    seed: int = 0,
) -> NetworkBound:
    """Bounds on the Lipschitz constant of a network, in the l2 norm, from input to output.

    The upper bound comes from rules along one forward pass: each operation that the input goes
    through is bounded, and those that are affine and follow each other as one operator. It holds
    for all inputs of these shapes for which the model takes the same way as for the example. The
    lower bound is the largest norm of the Jacobian at the example inputs.

    Several inputs count as one vector, and so do several outputs. Integer inputs are held fixed,
    and what an embedding makes of them counts as input in their stead. A place without a bound
    makes the upper end infinite, and is listed.

    Args:
        model: Any module. It runs as in evaluation, and is left as it was.
        example_inputs: What the model is called with, with the batch dimension. The bound is for
            one example at a time, unless the examples of a batch influence each other.
        interval_of: Where the norms of the model's modules come from, for a sequence of modules
            and the shape of one input; by default `norm_bounds`.
        rtol: Relative width at which the intervals of the layers stop.
        failure: Accepted probability that the upper end of one layer is too small.
        deterministic: Accept only upper ends that rest on no probability.
        local: Whether to look for a lower bound.
        seed: Of all that is random.

    Raises:
        ValueError: A parameter holds NaN or infinite values, or an argument makes no sense.

    Example:
        >>> import torch
        >>> from spectralclip import lipschitz_bounds
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10)
        ... )
        >>> bound = lipschitz_bounds(model, torch.randn(4, 20))
        >>> 0 < bound.lower <= bound.upper < float("inf"), len(bound.local_norms)
        (True, 4)
        >>> [step.operation for step in bound.steps]
        ['Linear', 'relu', 'Linear']
    """
    check_request(rtol, failure)
    args, kwargs = _arguments(model, example_inputs)
    model = unwrapped(model)
    _require_finite(model)
    examples = _examples(model, args, kwargs)
    otherwise = standard_intervals(rtol, failure, deterministic, seed)
    bound = _from_above(model, examples[0], interval_of or otherwise, otherwise)
    norms, why = local_norms(model, examples if local else [], rtol, seed)
    remarks = (Step("", "Jacobian", 1.0, bound.upper, why),) if why else ()
    return replace(
        bound,
        lower=max(norms, default=0.0),
        steps=bound.steps + remarks,
        local_norms=tuple(norms),
    )


def _from_above(
    model: nn.Module, example: _Call, interval_of: IntervalOf, otherwise: IntervalOf
) -> NetworkBound:
    """All but the lower end."""
    try:
        flow = follow(model, *example)
    except NotFollowedError as error:
        _outputs(model, *example)  # if it was not that, the same error will come again
        place = Unbounded("", type(model).__name__, f"it does not run while followed: {error}")
        return NetworkBound(0.0, math.inf, 0.0, math.inf, (place,))
    norms = Norms(flow, interval_of, otherwise)
    found = Propagation(flow, norms)
    places = [*found.unbounded, *_more_unbounded(flow)]
    remarks = [Step(where, "remark", 1.0, found.upper, why) for where, why in _remarks(flow)]
    return NetworkBound(
        lower=0.0,
        upper=math.inf if places else found.upper,
        failure=norms.failure,
        product=math.inf if places else found.product,
        unbounded=tuple(dict.fromkeys(places)),
        steps=(*found.steps, *remarks),
    )


def _require_finite(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        wide = parameter.detach()
        wide = wide.float() if wide.element_size() < 2 else wide
        if wide.is_floating_point() and not bool(torch.isfinite(wide).all()):
            raise ValueError(
                f"{name!r} of {describe(model)} holds NaN or infinite values: the network has no "
                "Lipschitz constant. Restore finite weights."
            )


def _examples(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[_Call]:
    """The examples of a batch one by one, or the whole batch where they influence each other."""
    whole = (args, kwargs)
    sizes = {tensor.shape[:1] for tensor in tensors_in(whole)}
    if len(sizes) != 1 or not (size := sizes.pop()) or size[0] < 2:
        return [whole]
    count = min(size[0], MOST_EXAMPLES)
    single = [_row(args, kwargs, place) for place in range(count)]
    try:
        alone = _outputs(model, *single[0])
    except Exception:  # whatever the model does not like about it
        return [whole]
    together = _outputs(model, *whole)
    same = len(alone) == len(together) and all(
        one.shape == (1, *many.shape[1:]) and many.shape[:1] == size and _close(one[0], many[0])
        for one, many in zip(alone, together, strict=True)
    )
    return single if same else [whole]


def _row(args: Sequence[Any], kwargs: Mapping[str, Any], place: int) -> _Call:
    """One example of a batch, as a batch of one."""
    given = (list(args), dict(kwargs))
    row: tuple[list[Any], dict[str, Any]] = tree_map_only(
        Tensor, lambda x: x[place : place + 1], given
    )
    return row


def _outputs(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    args, kwargs = tree_map_only(Tensor, lambda x: x.detach().clone(), (list(args), dict(kwargs)))
    with torch.no_grad(), evaluation_mode([model]), left_as_it_was(model):
        return list(tensors_in(model(*args, **kwargs)))


def _close(first: Tensor, second: Tensor) -> bool:
    """Whether two outputs are the same, as far as the order of sums allows."""
    size = float(second.abs().max()) if second.numel() else 0.0
    return bool(torch.allclose(first.double(), second.double(), rtol=0, atol=1e-3 * size + 1e-30))


def _more_unbounded(flow: Flow) -> list[Unbounded]:
    """What keeps the network from having a bound, besides the rules."""
    found = [Unbounded(*escape) for escape in flow.escapes]
    if flow.nodes[0].shape == (0,):
        why = "no input has floating-point numbers, and none goes through an embedding"
        found.append(Unbounded("", "inputs", why))
    return found


def _remarks(flow: Flow) -> list[tuple[str, str]]:
    why = "integer inputs are held fixed: the bound is with respect to what this embedding makes"
    return [*flow.remarks, *((where, why) for where in flow.embedded)]
