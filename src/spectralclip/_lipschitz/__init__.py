"""The network as a whole: a bound on its Lipschitz constant, and its local norms."""

from spectralclip._lipschitz.bounds import lipschitz_bounds, network_bound
from spectralclip._lipschitz.jacobian import jacobian_operator
from spectralclip._lipschitz.result import NetworkBound, Step, Unbounded, certified_radius

__all__ = [
    "NetworkBound",
    "Step",
    "Unbounded",
    "certified_radius",
    "jacobian_operator",
    "lipschitz_bounds",
    "network_bound",
]
