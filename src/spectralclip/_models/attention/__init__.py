"""Attention heads inside a model: the products of two matrices that each of them is."""

from spectralclip._models.attention.heads import FoundHeads as FoundHeads
from spectralclip._models.attention.heads import HeadProducts as HeadProducts
from spectralclip._models.attention.heads import found_heads as found_heads
from spectralclip._models.attention.layers import head_layers as head_layers
from spectralclip._models.attention.layers import products_of_heads as products_of_heads
