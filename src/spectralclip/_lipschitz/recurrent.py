"""Rules for recurrent layers: by which factors the norms of their results follow their inputs'.

Write a_g and b_g for the norms of a gate's input and recurrent matrix, and d for the norm of a
change. All states begin at a constant, and tanh and ReLU have slopes up to 1, sigmoid up to 1/4.

RNN: `h' = s(W_ih x + W_hh h)` gives `dh' <= a dx + b dh`.

GRU: `h' = (1 - z) n + z h`, `n = tanh(W_in x + r (W_hn h + b_hn))`. Each entry of h is between
those of n and of the state before, so that all are at most `m = max(1, |h_0|)`, those of `h - n` at
most `m + 1`, and those of `W_hn h + b_hn` at most `k = m sqrt(width) b_n + |b_hn|`. Thus
`dn <= (a_n + k/4 a_r) dx + u dh` with `u = b_n + k/4 b_r`, and

    dh' <= (a_n + k/4 a_r + (m+1)/4 a_z) dx + (sqrt(1 + u^2) + (m+1)/4 b_z) dh,

since an entry of `(1 - z) dn + z dh` is at most the root of the sum of their squares.

LSTM: `c' = f c + i g`, `h' = o tanh(c')`. Gates are at most 1, so that after t steps no entry of c
is above `C_t = |c_0| + t`. Thus, with p and q for inputs and states of
`p_t = C_{t-1}/4 a_f + a_g + a_i/4`,

    dc' <= p dx + q dh + dc,    dh' <= dc' + tanh(C_t)/4 (a_o dx + b_o dh),

times the norm of the projection, if there is one.

Over a sequence, these make a matrix from the norms of the changes of the inputs, one for each time,
to those of the outputs. Its own norm is at most the geometric mean of its largest row and column
sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from spectralclip._common import Shape
from spectralclip._lipschitz.flow import Flow, Node, Ref
from spectralclip._lipschitz.rules import Rule, uses
from spectralclip._operators import Rows

RECURRENT_LAYERS = (nn.RNNBase, nn.RNNCellBase)

NormOf = Callable[[Rows], float]
"""A number that the norm of a matrix inside a layer does not exceed."""

BiasOf = Callable[[Any, str], float]
"""A number that no entry of a bias of a GRU exceeds: one of `state_biases`, by its name."""

PACKED = "it reads packed sequences: give it padded ones"
STATE = "its first state depends on the input"
SIZE = "the size of its state is not known: it is made by something else than this kind of layer"
_Numbers = NDArray[np.float64]
_Sizes = Callable[[], Mapping[str, float]]


class Growth(NamedTuple):
    """By which factors changes of a state, (h,) or (h, c), follow from those before one step."""

    from_input: _Numbers  # of each part of the state
    from_state: _Numbers  # rows are parts of the new state


def state_biases(parts: Mapping[str, Rows]) -> dict[str, str]:
    """Of a GRU, the biases that count: by name, the label of the matrix that each goes with.

    That is `b_hn`, the last third of the parameter, which goes with `W_hn`.
    """
    matrices = [part for part in parts if part.startswith("weight_hh") and part.endswith("[new]")]
    return {part.removesuffix("[new]").replace("weight", "bias"): part for part in matrices}


def largest_bias(module: Any, name: str) -> float:
    """The largest entry of such a bias, as it is now."""
    bias = getattr(module, name, None)  # which a parametrization may compute
    if bias is None:
        return 0.0
    return float(bias.detach()[2 * module.hidden_size :].abs().max())


def rule_of_layer(
    node: Node,
    flow: Flow,
    parts: Mapping[str, Rows],
    norm_of: NormOf,
    bias_of: BiasOf = largest_bias,
) -> Rule:
    """The rule for what a call of a recurrent layer or cell has made."""
    sizes_of = partial(_sizes_of, node.module, parts, norm_of, bias_of)
    given = dict(zip(("input", "hx"), node.args, strict=False)) | node.kwargs
    x, state = given["input"], given.get("hx")
    if isinstance(node.module, nn.RNNCellBase):
        return _of_cell(node, flow, (x, state), sizes_of)
    if isinstance(x, tuple):
        return Rule(reason=PACKED)
    if uses(state):
        return Rule(reason=STATE)
    steps = _steps(node.module, _shape(x, flow))
    factor = _of_stack(node.module, node.item or 0, sizes_of(), steps, _sizes(state, flow))
    return Rule(((uses(x)[0], factor),), note=f"over {steps} steps")


def _sizes_of(
    module: Any, parts: Mapping[str, Rows], norm_of: NormOf, bias_of: BiasOf
) -> dict[str, float]:
    """The norms of the matrices, and the largest entries of the biases that count, by name."""
    norms = {label: norm_of(part) for label, part in parts.items()}
    return norms | {name: bias_of(module, name) for name in state_biases(parts)}


def _of_cell(node: Node, flow: Flow, given: tuple[Any, Any], sizes_of: _Sizes) -> Rule:
    """One step, each of whose inputs may depend on the network's."""
    x, state = given
    sizes = _sizes(state, flow)
    if not isinstance(node.module, nn.RNNCell) and not all(map(math.isfinite, sizes)):
        return Rule(reason=SIZE)
    growth = _growth(node.module, "", sizes_of(), sizes)
    states = list(state) if isinstance(state, (tuple, list)) else [state]
    own = node.item or 0
    factors = [(ref, float(growth.from_input[own])) for ref in uses(x)]
    for place, part in enumerate(states):
        factors += [(ref, float(growth.from_state[own, place])) for ref in uses(part)]
    return Rule(tuple(factors))


# --- One step --------------------------------------------------------------------------------


def _growth(module: Any, suffix: str, norms: Mapping[str, float], sizes: Sequence[float]) -> Growth:
    """The factors of one step, from a state with entries up to these sizes: of h, and of c."""

    def both(gate: str) -> _Numbers:
        """The norms of a gate's matrices on the input, and on the state."""
        sides = (f"weight_{side}{suffix}{gate}" for side in ("ih", "hh"))
        return np.array([norms[label] for label in sides])

    if isinstance(module, (nn.RNN, nn.RNNCell)):
        a, b = both("")
        return Growth(np.array([a]), np.array([[b]]))
    if isinstance(module, (nn.GRU, nn.GRUCell)):
        reset, update, new = (both(f"[{gate}]") for gate in ("reset", "update", "new"))
        m = max(1.0, sizes[0])
        reach = m * math.sqrt(module.hidden_size) * new[1] + norms[f"bias_hh{suffix}"]
        inner = new + reach / 4 * reset
        outer = (m + 1) / 4 * update
        whole = inner[0] + outer[0], math.hypot(1, inner[1]) + outer[1]
        return Growth(np.array([whole[0]]), np.array([[whole[1]]]))
    i, f, g, o = (both(f"[{gate}]") for gate in ("input", "forget", "cell", "output"))
    to_cell = sizes[1] / 4 * f + g + i / 4
    to_state = to_cell + math.tanh(sizes[1] + 1) / 4 * o
    projection = norms.get(f"weight_hr{suffix}", 1.0)
    from_input = np.array([projection * to_state[0], to_cell[0]])
    from_state = np.array([[projection * to_state[1], projection], [to_cell[1], 1.0]])
    return Growth(from_input, from_state)


# --- Sequences and stacks --------------------------------------------------------------------


def _of_stack(
    module: Any, item: int, norms: Mapping[str, float], steps: int, sizes: Sequence[float]
) -> float:
    """The factor of the outputs, or of the last states of all layers, side by side."""
    through, last = 1.0, 0.0
    ways = ("", "_reverse") if module.bidirectional else ("",)
    for layer in range(module.num_layers):
        found = [_of_sequence(module, f"_l{layer}{way}", norms, steps, sizes) for way in ways]
        last = math.hypot(last, *(through * one[item] for one in found))
        through *= math.hypot(*(one[0] for one in found))
    return last if item else through


def _of_sequence(
    module: Any, suffix: str, norms: Mapping[str, float], steps: int, sizes: Sequence[float]
) -> list[float]:
    """Of one layer, the factors of its outputs, of the last h, and of the last c."""
    h, c = sizes
    response = np.zeros((2 if isinstance(module, nn.LSTM) else 1, steps))  # to each input so far
    outputs = np.zeros((steps, steps))
    for time in range(steps):
        growth = _growth(module, suffix, norms, (h, c + time))
        response = growth.from_state @ response
        response[:, time] = growth.from_input
        outputs[time] = response[0]
    whole = math.sqrt(outputs.sum(0).max() * outputs.sum(1).max()) if steps else 0.0
    return [whole, *(float(np.linalg.norm(row)) for row in response)]


def _steps(module: Any, shape: Shape) -> int:
    return shape[int(module.batch_first and len(shape) == 3)]


def _shape(x: Ref | Tensor, flow: Flow) -> Shape:
    return flow.nodes[x.node].shape if isinstance(x, Ref) else tuple(x.shape)


# --- How large a state can be ----------------------------------------------------------------


def _sizes(state: Any, flow: Flow) -> list[float]:
    """The largest entries of a state: of h, and of c; those of a state that is not given are 0."""
    parts = list(state) if isinstance(state, (tuple, list)) else [state, None]
    return [_size(part, flow) for part in parts]


def _size(part: Any, flow: Flow) -> float:
    """The largest entry of a constant, or of a state that a cell has made; infinite for others."""
    if part is None:
        return 0.0
    if isinstance(part, Tensor):
        return float(part.detach().abs().max()) if part.numel() else 0.0
    node = flow.nodes[part.node]
    if not isinstance(node.module, (nn.GRUCell, nn.LSTMCell)):
        return math.inf
    given = dict(zip(("input", "hx"), node.args, strict=False)) | node.kwargs
    before = _sizes(given.get("hx"), flow)
    if isinstance(node.module, nn.GRUCell):
        return max(1.0, before[0])
    return before[1] + 1 if node.item else 1.0
