"""Singular values and vectors of an operator."""

from spectralclip._common import publish
from spectralclip._spectrum.exact import Exact as Exact
from spectralclip._spectrum.kernel_norm import kernel_norm as kernel_norm
from spectralclip._spectrum.rough import fresh_ritz as fresh_ritz
from spectralclip._spectrum.rough import warmed_ritz as warmed_ritz
from spectralclip._spectrum.solvers import Lanczos as Lanczos
from spectralclip._spectrum.solvers import PowerQR as PowerQR
from spectralclip._spectrum.solvers import Solver as Solver
from spectralclip._spectrum.start_vectors import START as START
from spectralclip._spectrum.start_vectors import filtered_row as filtered_row
from spectralclip._spectrum.start_vectors import random_rows as random_rows
from spectralclip._spectrum.start_vectors import torus_map as torus_map
from spectralclip._spectrum.stopping import ROUNDING as ROUNDING
from spectralclip._spectrum.svds import ConvergenceWarning as ConvergenceWarning
from spectralclip._spectrum.svds import leading_spectrum as leading_spectrum
from spectralclip._spectrum.svds import singular_values as singular_values
from spectralclip._spectrum.svds import spectral_norm as spectral_norm
from spectralclip._spectrum.svds import svds as svds
from spectralclip._spectrum.svds import warned as warned
from spectralclip._spectrum.symbol_peak import Torus as Torus
from spectralclip._spectrum.symbol_peak import enough_points as enough_points
from spectralclip._spectrum.symbol_peak import large_value as large_value
from spectralclip._spectrum.symbol_peak import most_work as most_work
from spectralclip._spectrum.symbol_peak import symbol_degrees as symbol_degrees
from spectralclip._spectrum.symbol_peak import symbol_peak as symbol_peak
from spectralclip._spectrum.triplets import Spectrum as Spectrum
from spectralclip._spectrum.triplets import Triplets as Triplets
from spectralclip._spectrum.triplets import left_vectors as left_vectors
from spectralclip._spectrum.warm_tracker import RitzTracker as RitzTracker

publish(ConvergenceWarning, Exact, Lanczos, PowerQR, Solver, Spectrum)
