"""Which of torch's operations do what, as far as their Lipschitz constants go.

The names are those of torch's own operations, into which every function falls apart.
"""

from __future__ import annotations

# Each output is another input or a constant: of norm one, or less where inputs are left out.
REARRANGE = {
    *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "squeeze"),
    *("unsqueeze", "alias", "detach", "clone", "_to_copy", "contiguous", "lift_fresh", "flip"),
    *("roll", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "select", "slice", "split"),
    *("split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "unbind", "narrow"),
    *("diagonal", "constant_pad_nd", "tril", "triu", "neg", "input"),
    *("rot90", "swapaxes", "diag_embed"),
}

# Each output is an input or a constant, but an input may be used several times.
COPY = {
    *("expand", "repeat", "index", "index_select", "gather", "take", "unfold", "im2col"),
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "masked_fill", "embedding"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d", "pad", "copy", "fill"),
    "masked_select",
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
}

# Linear in all inputs together, with nothing simple to say of the norm.
LINEAR = {
    *("mean", "sum", "cumsum", "trace", "lerp", "col2im", "index_add", "slice_scatter"),
    *("select_scatter", "diagonal_scatter", "index_put", "index_copy"),
    *("scatter", "scatter_add", "masked_scatter"),
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d"),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "mkldnn_adaptive_avg_pool2d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
}
# Arguments of these that have to be constant.
FIXED = {"index", "indices", "mask", "grid", "weight", "source_mask"}

# Linear in each of these arguments: affine as long as only one of them depends on the input.
PRODUCTS = {
    "mul": ("self", "other"),
    "mm": ("self", "mat2"),
    "bmm": ("self", "mat2"),
    "mv": ("self", "vec"),
    "dot": ("self", "tensor"),
    "vdot": ("self", "other"),
    "matmul": ("self", "other"),
    "linear": ("input", "weight"),
    "addmm": ("mat1", "mat2"),
    "addmv": ("mat", "vec"),
    "addr": ("vec1", "vec2"),
    "baddbmm": ("batch1", "batch2"),
    "addbmm": ("batch1", "batch2"),
    "addcmul": ("tensor1", "tensor2"),
    "convolution": ("input", "weight"),
    "_convolution": ("input", "weight"),
    "convolution_overrideable": ("input", "weight"),
    "mkldnn_convolution": ("self", "weight"),
    "cudnn_convolution": ("self", "weight"),
    "cudnn_convolution_transpose": ("self", "weight"),
    "_trilinear": ("i1", "i2", "i3"),
    "grid_sampler_2d": ("input", "grid"),
    "grid_sampler_3d": ("input", "grid"),
    "ger": ("self", "vec2"),
}
# The same, over a denominator, which has to be constant.
QUOTIENTS = {"div": ("self", "other"), "true_divide": ("self", "other")}
QUOTIENT_SUMS = {"addcdiv": ("tensor1", "tensor2")}

SUMS = {"add", "sub", "rsub", "subtract"}
JOINS = {"cat", "stack", "concat", "output", "written", "hstack", "vstack"}
# Of two numbers, each result moves by no more than the one that moves more.
PAIRWISE = {"maximum", "minimum", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "where"}
# Sorting, or taking some of the sorted numbers, moves them closer together, not further apart.
ORDERED = {
    *("max", "min", "amax", "amin", "aminmax", "sort", "msort", "topk", "kthvalue"),
    *("median", "nanmedian", "logsumexp"),
}
RUNNING = {"cummax", "cummin", "_cummax_helper", "_cummin_helper", "logcumsumexp"}

BATCH_NORMS = {
    *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm"),
    *("_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    *("_batch_norm_with_update", "_batch_norm_no_update"),
}
OTHER_NORMS = {
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
    "rms_norm",
    "layer_norm",
}

SAMPLED = "it multiplies by numbers drawn at random"
_JUMPS = "it jumps: two inputs however close may have outputs far apart"
_STEEP = "its slope grows without end"
_PRODUCT = "it multiplies values that depend on the input with each other"
_ATTENTION = "attention multiplies values that depend on the input with each other"
_RECURRENT = "a recurrent layer multiplies its state with gates that depend on the input"
REASONS = {
    **dict.fromkeys(("sign", "sgn", "round", "floor", "ceil", "trunc", "frac"), _JUMPS),
    **dict.fromkeys(("hardshrink", "heaviside", "remainder", "fmod", "floor_divide"), _JUMPS),
    **dict.fromkeys(("threshold",), _JUMPS),
    **dict.fromkeys(("exp", "exp2", "expm1", "pow", "square", "sinh", "cosh", "tan"), _STEEP),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"), _STEEP),
    **dict.fromkeys(("acos", "asin", "atanh", "acosh", "logit", "var", "var_mean"), _STEEP),
    **dict.fromkeys(("prod", "cumprod", "linalg_det", "_cdist_forward"), _PRODUCT),
    **dict.fromkeys(("native_dropout", "rrelu_with_noise"), SAMPLED),
    "softplus": "its threshold is so low that it jumps there",
    "celu": "with a negative alpha, its slope grows without end",
    "elu": "with a negative input_scale, its slope grows without end",
    "glu": f"{_PRODUCT}, and is Lipschitz on bounded inputs alone",
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention_for_cpu", "_native_multi_head_attention"),
            *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
            *("_scaled_dot_product_cudnn_attention", "_transformer_encoder_layer_fwd"),
            *(
                "_scaled_dot_product_attention_math",
                "_scaled_dot_product_fused_attention_overrideable",
            ),
        ),
        _ATTENTION,
    ),
    **dict.fromkeys(
        (
            *("mkldnn_rnn_layer", "_cudnn_rnn", "lstm", "gru", "rnn_tanh", "rnn_relu"),
            *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"),
        ),
        _RECURRENT,
    ),
}
"""Why some operations have no Lipschitz constant."""
