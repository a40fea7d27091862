"""Attention heads inside a model: the products of two matrices that each of them is."""

from spectralclip._attention.heads import FoundHeads as FoundHeads
from spectralclip._attention.heads import HeadProducts as HeadProducts
from spectralclip._attention.heads import found_heads as found_heads
from spectralclip._attention.layers import head_layers as head_layers
