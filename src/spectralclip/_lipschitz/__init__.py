"""The network as a whole: a bound on its Lipschitz constant, and its local norms."""

from spectralclip._common import publish
from spectralclip._lipschitz.allocation import HeldBiases as HeldBiases
from spectralclip._lipschitz.allocation import NetworkRules as NetworkRules
from spectralclip._lipschitz.allocation import UnboundedNetworkError as UnboundedNetworkError
from spectralclip._lipschitz.bounds import NotFiniteError as NotFiniteError
from spectralclip._lipschitz.bounds import lipschitz_bounds as lipschitz_bounds
from spectralclip._lipschitz.bounds import network_bound as network_bound
from spectralclip._lipschitz.certified import certified_accuracy as certified_accuracy
from spectralclip._lipschitz.certified import certified_radius as certified_radius
from spectralclip._lipschitz.certified import margin_cross_entropy as margin_cross_entropy
from spectralclip._lipschitz.init_at_bound import init_at_bound_ as init_at_bound_
from spectralclip._lipschitz.jacobian import jacobian_operator as jacobian_operator
from spectralclip._lipschitz.recurrent import state_biases as state_biases
from spectralclip._lipschitz.result import NetworkBound as NetworkBound
from spectralclip._lipschitz.result import Step as Step
from spectralclip._lipschitz.result import Unbounded as Unbounded

publish(NetworkBound)
