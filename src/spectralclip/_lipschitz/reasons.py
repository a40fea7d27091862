"""Why some operations have no Lipschitz constant, or none that is known."""

from __future__ import annotations

SWITCHES = "it depends on a comparison or an index made from the input, and jumps with it"
UNKNOWN = "no rule is known for this operation"
SEVERAL = "no rule is known for it where several of its arguments depend on the input"
DENOMINATOR = "it divides by a value that depends on the input"
PRODUCT = "it multiplies values that depend on the input with each other"
SAMPLED = "it multiplies by numbers drawn at random"
BITS = "it takes the bits of numbers for other numbers"
NOT_A_NUMBER = "a constant that it reads is NaN"
COMPLEX = "complex numbers are not followed"
TWICE = "it writes several values to one place, and which of them stays is not defined"
ATTENTION = "attention multiplies values that depend on the input with each other"
RECURRENT = "a recurrent layer multiplies its state with gates that depend on the input"
_JUMPS = "it jumps: two inputs however close may have outputs far apart"
_STEEP = "its slope grows without end"

REASONS = {
    **dict.fromkeys(("sign", "sgn", "round", "floor", "ceil", "trunc", "frac"), _JUMPS),
    **dict.fromkeys(("hardshrink", "heaviside", "remainder", "fmod", "floor_divide"), _JUMPS),
    **dict.fromkeys(("threshold",), _JUMPS),
    **dict.fromkeys(("exp", "exp2", "expm1", "pow", "square", "sinh", "cosh", "tan"), _STEEP),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"), _STEEP),
    **dict.fromkeys(("acos", "asin", "atanh", "acosh", "logit", "var", "var_mean"), _STEEP),
    **dict.fromkeys(("prod", "cumprod", "linalg_det", "_cdist_forward"), PRODUCT),
    **dict.fromkeys(("native_dropout", "rrelu_with_noise"), SAMPLED),
    "div rounding_mode": "rounding jumps",
    "softplus": "its threshold is so low that it jumps there",
    "celu": "with a negative alpha, its slope grows without end",
    "elu": "with a negative input_scale, its slope grows without end",
    "glu": f"{PRODUCT}, and is Lipschitz on bounded inputs alone",
    **dict.fromkeys(
        (
            *("_scaled_dot_product_flash_attention_for_cpu", "_native_multi_head_attention"),
            *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
            *("_scaled_dot_product_cudnn_attention", "_transformer_encoder_layer_fwd"),
            "_scaled_dot_product_attention_math",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        ATTENTION,
    ),
    **dict.fromkeys(
        (
            *("mkldnn_rnn_layer", "_cudnn_rnn", "lstm", "gru", "rnn_tanh", "rnn_relu"),
            *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"),
        ),
        RECURRENT,
    ),
}
"""By the name of torch's operation; for all others it is that no rule is known."""
