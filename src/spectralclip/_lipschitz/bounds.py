"""`lipschitz_bounds`: an interval that holds the Lipschitz constant of a whole network."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from spectralclip._bounds import check_request
from spectralclip._common import checked_seed
from spectralclip._linalg import testable
from spectralclip._lipschitz.chain_norms import IntervalOf, Norms, standard_intervals
from spectralclip._lipschitz.examples import Call, examples_of, first_run, outputs
from spectralclip._lipschitz.flow import ROOT, Flow
from spectralclip._lipschitz.following import NotFollowedError, taken_as_one, ways
from spectralclip._lipschitz.jacobian import local_norms
from spectralclip._lipschitz.propagation import Propagation, rules_of
from spectralclip._lipschitz.result import NetworkBound, Step, Unbounded
from spectralclip._models import (
    ExampleInputs,
    Inputs,
    Survey,
    call_arguments,
    tensors_in,
    unwrapped,
    with_kwargs,
)
from spectralclip._operators import describe, plain_numerics

_ROUNDING = 1e-3  # by which a lower end may exceed an upper one that is as tight as can be
_CHANGES = "its forward pass changes its own weights, so that it is another function each time"
_NO_INPUT = "no input has floating-point numbers, and none goes through an embedding"
_FIXED = "integer inputs are held fixed: the bound is with respect to what this embedding makes"
_MISSED = (
    "something that the model does was not followed, or it says of its derivatives what they are "
    "not"
)


@plain_numerics()
def lipschitz_bounds(
    model: nn.Module,
    example_inputs: ExampleInputs,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    interval_of: IntervalOf | None = None,
    tol: float = 0.01,
    failure: float = 1e-6,
    deterministic: bool = False,
    local: bool = True,
    seed: int = 0,
) -> NetworkBound:
    """Bounds on the Lipschitz constant of a network, in the l2 norm, from input to output.

    The upper bound comes from rules along one forward pass: each operation that the input goes
    through is bounded, and those that are affine and follow each other as one operator. It holds
    for all inputs of these shapes for which the model takes the same way as for an example. The
    lower bound is the largest norm of the Jacobian next to the example inputs; should it be above
    the upper one, something was not followed, and the upper one is infinite.

    Several inputs count as one vector, and so do several outputs. Integer inputs are held fixed,
    and what an embedding makes of them counts as input in their stead. A place without a bound
    makes the upper end infinite, and is listed.

    Args:
        model: Any module. It runs as in evaluation, and is left as it was.
        example_inputs: What the model is called with, with the batch dimension: a tensor, a tuple
            of positional arguments, or a dictionary of keyword arguments. The bound is for one
            example at a time, unless the examples of a batch influence each other.
        example_kwargs: Keyword arguments, beside positional ones.
        interval_of: Where the norms of the model's modules come from, for a sequence of modules
            and the shape of one input; by default `norm_bounds`.
        tol: Relative width at which the intervals of the layers stop.
        failure: Accepted probability that the upper end of one layer is too small.
        deterministic: Accept only upper ends that rest on no probability.
        local: Whether to look for a lower bound.
        seed: Of all that is random.

    Raises:
        ValueError: A parameter holds NaN or infinite values, or was made in inference mode, or an
            argument makes no sense.

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
    check_request(tol, failure)
    seed = checked_seed(seed)
    example_inputs = with_kwargs(example_inputs, example_kwargs)
    otherwise = standard_intervals(tol, failure, deterministic, seed)
    width = tol if local else None
    return network_bound(model, example_inputs, interval_of or otherwise, otherwise, width, seed)


@plain_numerics()
def network_bound(
    model: nn.Module,
    example_inputs: ExampleInputs,
    interval_of: IntervalOf,
    otherwise: IntervalOf,
    tol: float | None,
    seed: int,
    survey: Survey | None = None,
) -> NetworkBound:
    """What `lipschitz_bounds` returns, from a survey of the model if there is one."""
    whole = call_arguments(model, example_inputs)
    model = unwrapped(model)
    require_weights(model)
    together, changed = first_run(model, whole)
    if changed:
        return _nowhere(model, f"{_CHANGES}: {', '.join(changed)}")
    examples, parts = examples_of(model, whole, together)
    survey = survey or Survey.of(model, Inputs(tuple(examples[0][0]), examples[0][1]))
    as_one = taken_as_one(survey)
    bound = _from_above(model, examples, parts, as_one, _remembered(interval_of), otherwise)
    norms, why = ([], "") if tol is None else local_norms(model, examples, tol, seed)
    remarks = (Step("", "Jacobian", 1.0, bound.upper, why),) if why else ()
    bound = replace(bound, lower=max(norms, default=0.0), local_norms=tuple(norms))
    return _not_refuted(replace(bound, steps=bound.steps + remarks), model, whole)


def _nowhere(model: nn.Module, reason: str) -> NetworkBound:
    place = Unbounded("", type(model).__name__, reason)
    return NetworkBound(0.0, math.inf, 0.0, math.inf, (place,))


def _not_refuted(bound: NetworkBound, model: nn.Module, whole: Call) -> NetworkBound:
    """The bound, unless the lower end shows that something is missing in the upper one."""
    tensors = [*model.parameters(), *tensors_in(whole)]
    types = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    # A forward and a backward pass round a few times each, one after the other. Of functions that
    # are constant, whose bound is zero, rounding leaves a local norm that is not quite.
    rounding = max([_ROUNDING, *(16 * torch.finfo(dtype).eps for dtype in types)])
    if bound.lower <= bound.upper * (1 + rounding) + 1e-9:
        return bound
    seen = f"a local norm of {bound.lower:.6g}, above the bound of {bound.upper:.6g}, was seen"
    place = Unbounded("", type(model).__name__, f"{seen}: {_MISSED}")
    places = (*bound.unbounded, place)
    return replace(bound, upper=math.inf, product=math.inf, unbounded=places)


def _from_above(
    model: nn.Module,
    examples: Sequence[Call],
    parts: Sequence[Call],
    as_one: Mapping[nn.Module, str],
    interval_of: IntervalOf,
    otherwise: IntervalOf,
) -> NetworkBound:
    """All but the lower end: the largest bound among those of the examples."""
    try:
        flows = ways(model, examples, parts, as_one)
    except NotFollowedError as error:
        for example in examples:  # if it was not that, the same error will come again
            outputs(model, example)
        return _nowhere(model, f"it does not run while followed: {error}")
    bounds = [_of_flow(flow, interval_of, otherwise) for flow in flows]
    largest = max(bounds, key=lambda bound: bound.upper)
    if len(bounds) == 1:
        return largest
    why = f"the largest of {len(bounds)} bounds, one for each way that an example takes"
    return replace(
        largest,
        failure=min(1.0, math.fsum(bound.failure for bound in bounds)),
        steps=(*largest.steps, Step("", "remark", 1.0, largest.upper, why)),
    )


def _of_flow(flow: Flow, interval_of: IntervalOf, otherwise: IntervalOf) -> NetworkBound:
    norms = Norms(flow, interval_of, otherwise)
    found = Propagation(flow, norms, rules_of(flow, norms))
    places = [*found.unbounded, *without_bound(flow)]
    if math.isnan(found.upper) or math.isnan(found.product):
        places.append(Unbounded("", "bound", "a norm is not a number"))
    told = [*flow.remarks, *((where, _FIXED) for where in flow.embedded)]
    remarks = [Step(where, "remark", 1.0, found.upper, why) for where, why in told]
    return NetworkBound(
        lower=0.0,
        upper=math.inf if places else found.upper,
        failure=norms.failure,
        product=math.inf if places else found.product,
        unbounded=tuple(dict.fromkeys(places)),
        steps=(*found.steps, *remarks),
    )


def without_bound(flow: Flow) -> list[Unbounded]:
    """The places at which numbers are lost sight of, whatever the rules say."""
    places = [Unbounded(*escape) for escape in flow.escapes]
    nothing = [Unbounded("", "inputs", _NO_INPUT)] if flow.nodes[ROOT].shape == (0,) else []
    return [*places, *nothing]


def _remembered(interval_of: IntervalOf) -> IntervalOf:
    """The same, asked but once for the same modules."""
    known = functools.cache(interval_of)
    return lambda modules, in_shape: known(tuple(modules), in_shape)


class NotFiniteError(ValueError):
    """Parameters of a network are NaN or infinite."""


def require_weights(model: nn.Module) -> None:
    """Raise unless the parameters are finite, and can be worked with."""
    for name, parameter in model.named_parameters():
        if parameter.is_inference():
            raise ValueError(
                f"{name!r} of {describe(model)} was made in torch.inference_mode(), and autograd "
                "cannot work with it. Build or load the model outside of it."
            )
        if parameter.is_floating_point() and not bool(torch.isfinite(testable(parameter)).all()):
            raise NotFiniteError(
                f"{name!r} of {describe(model)} holds NaN or infinite values: the network has no "
                "Lipschitz constant. Restore finite weights."
            )
