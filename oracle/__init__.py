"""The truth about layers and networks, for the tests, the benchmarks and the study.

Nothing here imports the library: what it computes is judged by the layer's own `forward` and
`backward`, LAPACK, ARPACK and Fourier transforms, all in float64.

- `matrix`: the dense matrix of a layer, its singular values and its norm; for small layers.
- `krylov`: the norm and the leading singular values of a layer of any size, by ARPACK.
- `circulant`: closed forms of circular convolutions.
- `tracking`: norms of layers while they train, each reading from where the last one ended.
- `slopes`: how steep a network is found to be.
"""

from oracle.circulant import symbol_norms, symbol_values, symbols
from oracle.krylov import TrueNorm, leading_values, true_norm
from oracle.matrix import dense_matrix, dense_norm, in_double, kernel_norm, singular_values
from oracle.tracking import TrackedNorms

__all__ = [
    "TrackedNorms",
    "TrueNorm",
    "dense_matrix",
    "dense_norm",
    "in_double",
    "kernel_norm",
    "leading_values",
    "singular_values",
    "symbol_norms",
    "symbol_values",
    "symbols",
    "true_norm",
]
