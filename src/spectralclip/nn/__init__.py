"""Small modules for networks whose Lipschitz constant is bounded."""

from spectralclip.nn.activations import GroupSort as GroupSort
from spectralclip.nn.activations import MaxMin as MaxMin
from spectralclip.nn.residual import ConvexMix as ConvexMix
