"""The table of all operations that the bound accepts: their arguments, and their rules.

The names are those of torch's own operations, into which every function decomposes; a few are
functions that are taken as one. What is not in the table, or is called with an argument that its
entry does not name, has no bound. The tests draw calls for every entry, and compare its rule with
dense Jacobians.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor, nn

from spectralclip._linalg import testable
from spectralclip._lipschitz import factors, rules
from spectralclip._lipschitz.chain_norms import NoBoundError, Norms
from spectralclip._lipschitz.flow import Flow, Node, Ref, leaves, signature
from spectralclip._lipschitz.recurrent import RECURRENT_LAYERS, rule_of_layer
from spectralclip._lipschitz.rules import (
    Rule,
    RuleOf,
    added,
    by_factor,
    chosen,
    compared,
    copied,
    joined,
    measured,
    mixed,
    only,
    pointwise,
    product_of,
    quotient_by,
    rearranged,
    scaled,
    single,
    weighted,
)
from spectralclip._models import parts_of
from spectralclip._operators import is_plain

_REARRANGING = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)
EVERY = None


class Operation(NamedTuple):
    """An operation that the bound accepts."""

    rule: RuleOf  # makes the rule for a call
    data: tuple[str, ...]  # arguments that may depend on the input
    # Other arguments that the rule accounts for, or that do not matter to it. All that is named in
    # neither has to have its default.
    settings: tuple[str, ...]
    # Of several results, those that the rule is for; None for all of them
    outputs: tuple[int, ...] | None
    drawn: bool  # whether factors drawn at random may be among its constants


def _each(
    names: str,
    rule: RuleOf,
    settings: str = "",
    data: str = "self",
    outputs: tuple[int, ...] | None = (0,),
    drawn: bool = False,
) -> dict[str, Operation]:
    entry = Operation(rule, tuple(data.split()), tuple(settings.split()), outputs, drawn)
    return dict.fromkeys(names.split(), entry)


_SCALES = "output_size scales scales_d scales_h scales_w scale_factors"
_WINDOW = "kernel_size stride padding dilation ceil_mode"
_MEAN = "kernel_size stride padding ceil_mode count_include_pad divisor_override"
_CONVOLUTION = "stride padding dilation transposed output_padding groups"
_TUNING = "benchmark deterministic cudnn_enabled allow_tf32"
_STATISTICS = "weight bias running_mean running_var training momentum eps"
# Sorting, or taking some of the sorted numbers, moves them closer together, not apart. `logsumexp`
# has the weights of a softmax for its gradient, whose length is at most one.
_ORDERED = by_factor(lambda node, source: 1.0)
_BY_STATISTICS = by_factor(factors.statistics_factor)

TABLE: dict[str, Operation] = {
    # Each output is another input or a constant.
    **_each("view _unsafe_view", rearranged, "size dtype"),
    **_each("alias detach lift_fresh neg t", rearranged),
    **_each("transpose", rearranged, "dim0 dim1"),
    **_each("permute flip", rearranged, "dims"),
    **_each("squeeze unsqueeze", rearranged, "dim"),
    **_each("clone", rearranged, "memory_format"),
    **_each("_to_copy", rearranged, "dtype layout device pin_memory non_blocking memory_format"),
    **_each("roll", rearranged, "shifts dims"),
    **_each("rot90", rearranged, "k dims"),
    **_each("pixel_shuffle", rearranged, "upscale_factor"),
    **_each("pixel_unshuffle", rearranged, "downscale_factor"),
    **_each("channel_shuffle", rearranged, "groups"),
    **_each("select", rearranged, "dim index"),
    **_each("slice", rearranged, "dim start end step"),
    **_each("split unsafe_split", rearranged, "split_size dim", outputs=EVERY),
    **_each(
        "split_with_sizes unsafe_split_with_sizes", rearranged, "split_sizes dim", outputs=EVERY
    ),
    **_each("unbind", rearranged, "dim", outputs=EVERY),
    **_each("diagonal diag_embed", rearranged, "offset dim1 dim2"),
    **_each("tril triu", rearranged, "diagonal"),
    **_each("constant_pad_nd", rearranged, "pad value"),
    # Each output is an input or a constant, but an input may be used several times.
    **_each("expand", copied, "size implicit"),
    **_each("repeat", copied, "repeats"),
    **_each("index", copied, "indices"),
    **_each("index_select", copied, "dim index"),
    **_each("gather", copied, "dim index sparse_grad"),
    **_each("take", copied, "index"),
    **_each("embedding", copied, "indices padding_idx scale_grad_by_freq sparse", data="weight"),
    **_each("unfold", copied, "dimension size step"),
    **_each("im2col", copied, "kernel_size dilation padding stride"),
    **_each("reflection_pad1d reflection_pad2d reflection_pad3d", copied, "padding"),
    **_each("replication_pad1d replication_pad2d replication_pad3d", copied, "padding"),
    **_each("pad", copied, "pad mode value", data="input"),
    **_each("masked_fill", copied, "mask", data="self value"),
    **_each("masked_select", copied, "mask"),
    **_each("copy", copied, "self non_blocking", data="src"),
    **_each("fill", copied, "self", data="value"),
    **_each(
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d",
        copied,
        _SCALES,
        data="self input",
    ),
    # Linear in all inputs together.
    **_each("mean sum", measured, "dim keepdim dtype"),
    **_each("cumsum", measured, "dim dtype"),
    **_each("trace", measured),
    **_each("lerp", measured, "weight", data="self end"),
    **_each("col2im", measured, "output_size kernel_size dilation padding stride"),
    **_each("index_add", measured, "dim index alpha", data="self source"),
    **_each("slice_scatter", measured, "dim start end step", data="self src"),
    **_each("select_scatter", measured, "dim index", data="self src"),
    **_each("diagonal_scatter", measured, "offset dim1 dim2", data="self src"),
    **_each("scatter_add", measured, "dim index", data="self src"),
    **_each("masked_scatter", measured, "mask", data="self source"),
    **_each("index_put", factors.index_put, "indices accumulate", data="self values"),
    **_each("index_copy", factors.index_copy, "dim index", data="self source"),
    **_each("scatter", factors.scatter, "dim index value", data="self src"),
    **_each("avg_pool2d avg_pool3d", measured, _MEAN),
    **_each("_adaptive_avg_pool2d _adaptive_avg_pool3d", measured, "output_size"),
    **_each(
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
        "_upsample_bilinear2d_aa _upsample_bicubic2d_aa",
        measured,
        f"{_SCALES} align_corners",
        data="self input",
    ),
    # Linear in each of some arguments, of which only one may depend on the input.
    **_each("mul div", scaled, data="self other"),
    **_each("mm bmm", product_of("self", "mat2"), data="self mat2"),
    **_each("mv", product_of("self", "vec"), data="self vec"),
    **_each("dot", product_of("self", "tensor"), data="self tensor"),
    **_each("vdot", product_of("self", "other"), data="self other"),
    **_each("linear", product_of("input", "weight"), data="input weight bias"),
    **_each("addmm", product_of("mat1", "mat2"), "beta alpha", data="self mat1 mat2"),
    **_each("addmv", product_of("mat", "vec"), "beta alpha", data="self mat vec"),
    **_each("addr", product_of("vec1", "vec2"), "beta alpha", data="self vec1 vec2"),
    **_each(
        "baddbmm addbmm", product_of("batch1", "batch2"), "beta alpha", data="self batch1 batch2"
    ),
    **_each("addcmul", product_of("tensor1", "tensor2"), "value", data="self tensor1 tensor2"),
    **_each("addcdiv", quotient_by("tensor2"), "value", data="self tensor1 tensor2"),
    **_each(
        "convolution _convolution",
        product_of("input", "weight"),
        f"{_CONVOLUTION} {_TUNING}",
        data="input weight bias",
    ),
    **_each(
        "_trilinear",
        product_of("i1", "i2", "i3"),
        "expand1 expand2 expand3 sumdim unroll_dim",
        data="i1 i2 i3",
    ),
    **_each(
        "grid_sampler_2d grid_sampler_3d",
        measured,
        "grid interpolation_mode padding_mode align_corners",
        data="input",
    ),
    # Sums, and parts side by side.
    **_each("add sub", added("other"), "alpha", data="self other", drawn=True),
    **_each("rsub", added("self"), "alpha", data="self other", drawn=True),
    **_each("cat stack", joined, "dim", data="tensors", drawn=True),
    **_each("where", chosen, "condition", data="self other"),
    **_each("maximum minimum fmax fmin hypot logaddexp logaddexp2", compared, data="self other"),
    **_each("clamp", compared, data="self min max"),
    **_each("clamp_min", compared, data="self min"),
    **_each("clamp_max", compared, data="self max"),
    # Functions of each number by itself.
    **_each("relu tanh abs sin cos atan asinh log_sigmoid_forward", pointwise(1.0)),
    **_each("softsign tanhshrink", pointwise(1.0), data="input"),
    **_each("hardtanh", pointwise(1.0), "min_val max_val"),
    **_each("softshrink", pointwise(1.0), "lambd"),
    **_each("nan_to_num", pointwise(1.0), "nan posinf neginf"),
    **_each("leaky_relu", pointwise(factors.leaky_relu), "negative_slope"),
    **_each("elu", pointwise(factors.elu), "alpha scale input_scale"),
    **_each("celu", pointwise(factors.celu), "alpha"),
    **_each("gelu", pointwise(factors.gelu), "approximate"),
    **_each("silu", pointwise(factors.SILU)),
    **_each("mish", pointwise(factors.MISH)),
    **_each("softplus", pointwise(factors.softplus), "beta threshold"),
    **_each("sigmoid", pointwise(0.25)),
    **_each("hardswish", pointwise(1.5)),
    **_each("hardsigmoid", pointwise(1 / 6)),
    **_each("erf erfc", pointwise(2 / math.sqrt(math.pi))),
    **_each("_prelu_kernel", pointwise(factors.prelu), "weight"),
    **_each(
        "rrelu_with_noise",
        pointwise(factors.rrelu),
        "noise lower upper training generator",
        drawn=True,
    ),
    **_each("threshold", pointwise(factors.threshold), "threshold value"),
    **_each("pow", pointwise(factors.power), "exponent"),
    **_each("native_dropout", pointwise(factors.dropout), "p train", data="input", drawn=True),
    # Along axes.
    **_each("max min median nanmedian amax amin logsumexp", _ORDERED, "dim keepdim"),
    **_each("aminmax", _ORDERED, "dim keepdim", outputs=(0, 1)),
    **_each("sort", _ORDERED, "dim descending stable"),
    **_each("topk", _ORDERED, "k dim largest sorted"),
    **_each("kthvalue", _ORDERED, "k dim keepdim"),
    **_each("cummax cummin logcumsumexp", by_factor(factors.running_factor), "dim"),
    **_each("_softmax", by_factor(factors.softmax_factor), "dim half_to_float"),
    **_each("_safe_softmax", by_factor(factors.softmax_factor), "dim dtype"),
    **_each("_log_softmax", by_factor(factors.log_softmax_factor), "dim half_to_float"),
    **_each("linalg_vector_norm", by_factor(factors.norm_factor), "ord dim keepdim dtype"),
    **_each("std", by_factor(factors.deviation_factor), "dim correction keepdim"),
    **_each("normalize", by_factor(factors.normalize_factor), "p dim eps", data="input"),
    **_each(
        "max_pool2d_with_indices max_pool3d_with_indices",
        by_factor(factors.max_pool_factor),
        _WINDOW,
    ),
    **_each(
        "adaptive_max_pool2d adaptive_max_pool3d",
        by_factor(factors.adaptive_max_pool_factor),
        "output_size",
    ),
    # Normalizations.
    **_each(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
        "_batch_norm_no_update",
        factors.batch_norm,
        _STATISTICS,
        data="input",
    ),
    # It takes the statistics of its input, whatever running ones it is given to update.
    **_each("_batch_norm_with_update", _BY_STATISTICS, _STATISTICS, data="input"),
    **_each(
        "cudnn_batch_norm miopen_batch_norm",
        factors.batch_norm,
        f"{_STATISTICS} exponential_average_factor epsilon",
        data="input",
    ),
    **_each(
        "native_layer_norm _fused_rms_norm rms_norm",
        _BY_STATISTICS,
        "normalized_shape weight bias eps",
        data="input",
    ),
    **_each("native_group_norm", _BY_STATISTICS, "weight bias N C HxW group eps", data="input"),
}
"""All that the bound accepts."""

# Nodes that stand for no operation of torch: pieces of the input, the output, memory that was
# written into, activations that are written out by hand, and what `sorting` sees.
_OWN: dict[str, RuleOf] = {
    "input": rearranged,
    "output": joined,
    "written": mixed,
    "self_gated": pointwise(lambda node: float(node.kwargs["slope"])),
    "permuted": rearranged,
    "maximum + minimum": weighted,
}


def rule_of(node: Node, flow: Flow, norms: Norms) -> Rule:
    if not node.inputs:
        return Rule(affine=True, joint=True, plain=True)
    reason = refusal(node, flow)
    if reason:
        return Rule(reason=reason)
    try:
        if isinstance(node.module, RECURRENT_LAYERS):
            parts = parts_of(node.module)
            return rule_of_layer(node, flow, parts, lambda part: norms.of_rows(part).upper)
        if node.module is not None:
            return _of_module(node, norms)
        rule = _OWN.get(node.operation) or TABLE[node.operation].rule
        return rule(node, flow, norms)
    except NoBoundError as error:
        return Rule(reason=f"its norm could not be bounded: {error}")


def refusal(node: Node, flow: Flow) -> str:
    """Why a node that depends on the input has no rule, if so."""
    own = node.module is not None or node.operation in _OWN
    entry = None if own else TABLE.get(node.operation)
    reason = node.reason or _hopeless(node, entry, flow)
    if reason or own:
        return reason
    if entry is None:
        return rules.REASONS.get(node.operation, rules.UNKNOWN)
    return _outside(node, entry)


def _of_module(node: Node, norms: Norms) -> Rule:
    if not single(node):
        return Rule(reason=rules.SEVERAL)
    if is_plain(node.module, *_REARRANGING):
        return only(node, 1.0, affine=True, plain=True)
    return only(node, norms.of_operation(node, node.inputs[0]).upper, affine=True)


def _hopeless(node: Node, entry: Operation | None, flow: Flow) -> str:
    """Why a node has no bound whatever its operation, if so."""
    types = [flow.nodes[index].dtype for index in node.inputs]
    if any(dtype.is_complex for dtype in (*types, node.dtype)):
        return rules.COMPLEX
    if not all(dtype.is_floating_point for dtype in types):
        return rules.SWITCHES
    if node.operation == "view" and node.dtype not in types:
        return rules.BITS
    if any(_is_nan(leaf) for leaf in leaves((node.args, node.kwargs))):
        return rules.NOT_A_NUMBER
    return rules.SAMPLED if node.random and (entry is None or not entry.drawn) else ""


def _is_nan(constant: Any) -> bool:
    if isinstance(constant, Tensor) and constant.is_floating_point():
        return bool(testable(constant).isnan().any())
    return isinstance(constant, float) and math.isnan(constant)


def _outside(node: Node, entry: Operation) -> str:
    """Why a call is not one that the entry of its operation speaks of, if so."""
    if node.item is not None and entry.outputs is not None and node.item not in entry.outputs:
        return f"no rule is known for its result number {node.item + 1}"
    for name, default in signature(node.function):
        value = node.argument(name)
        if any(isinstance(leaf, Ref) for leaf in leaves(value)):
            if name not in entry.data:
                return f"no rule is known for it where its argument {name} depends on the input"
        elif name not in entry.data + entry.settings and not _same(value, default):
            return rules.REASONS.get(
                f"{node.operation} {name}", f"no rule is known for it with {name}={value!r:.20}"
            )
    return ""


def _same(value: Any, default: Any) -> bool:
    return value is default or (not isinstance(value, Tensor) and bool(value == default))
