"""Small modules for networks under a bound."""

from spectralclip.nn.activations import GroupSort as GroupSort
from spectralclip.nn.activations import MaxMin as MaxMin
from spectralclip.nn.norms import CenterNorm as CenterNorm
from spectralclip.nn.norms import ScalarBatchNorm as ScalarBatchNorm
from spectralclip.nn.replacing import replace_batch_norms_ as replace_batch_norms_
from spectralclip.nn.replacing import to_batch_norms_ as to_batch_norms_
from spectralclip.nn.residual import ConvexMix as ConvexMix
