"""Attention heads: what they can do to queries, keys and values, as products of two matrices."""

from spectralclip._attention.heads import Head as Head
from spectralclip._attention.heads import attention_heads as attention_heads
from spectralclip._attention.heads import heads_of as heads_of
from spectralclip._attention.layers import head_layers as head_layers
