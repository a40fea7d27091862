"""The network as a whole: a bound on its Lipschitz constant, and its local norms."""

from spectralclip._lipschitz._bounds import lipschitz_bounds
from spectralclip._lipschitz._jacobian import jacobian_operator
from spectralclip._lipschitz._radius import certified_radius
from spectralclip._lipschitz._result import NetworkBound, Step, Unbounded

__all__ = [
    "NetworkBound",
    "Step",
    "Unbounded",
    "certified_radius",
    "jacobian_operator",
    "lipschitz_bounds",
]
