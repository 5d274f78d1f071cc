"""Local stability of balance: roots of the linearised difference mode.

A value out of its domain that only shows while it is traced, as in a batch, gives NaN, false flags
and derivatives of zero.
"""

from .boundary import (
    critical_delay,
    critical_gain_for_every_delay,
    critical_sensitivity,
    delay_crossings,
    hopf_frequency,
    two_stage_critical_gain,
)
from .dense import eigenvalues
from .descent import SearchPath, SearchResult, search
from .erlang import ErlangRoot, erlang_root
from .erlang_boundary import (
    DelayWindow,
    HopfPoint,
    erlang_boundary,
    erlang_delay_window,
    erlang_safe_gain,
)
from .every_root import all_roots
from .exponential import exponential_imbalance, exponential_roots
from .loop import open_loop
from .measures import damping_ratio, decay_time
from .optimum import Optimum, best_delay, best_sensitivity, erlang_best_delay, erlang_best_gain
from .pair import RootPair, erlang_pair, rightmost_pair
from .residual import characteristic_residual
from .robustness import Margins, SensitivityPeak, margins, sensitivity_peak
from .spectrum import (
    CertifiedRoot,
    certified_root,
    oscillation_frequency,
    rightmost_root,
    spectral_abscissa,
)
from .stretching import DelayCrossings
from .summary import Summary, summary
from .worst_case import WorstCase, pseudospectral_abscissa, worst_abscissa

__all__ = [
    "CertifiedRoot",
    "DelayCrossings",
    "DelayWindow",
    "ErlangRoot",
    "HopfPoint",
    "Margins",
    "Optimum",
    "RootPair",
    "SearchPath",
    "SearchResult",
    "SensitivityPeak",
    "Summary",
    "WorstCase",
    "all_roots",
    "best_delay",
    "best_sensitivity",
    "certified_root",
    "characteristic_residual",
    "critical_delay",
    "critical_gain_for_every_delay",
    "critical_sensitivity",
    "damping_ratio",
    "decay_time",
    "delay_crossings",
    "eigenvalues",
    "erlang_best_delay",
    "erlang_best_gain",
    "erlang_boundary",
    "erlang_delay_window",
    "erlang_pair",
    "erlang_root",
    "erlang_safe_gain",
    "exponential_imbalance",
    "exponential_roots",
    "hopf_frequency",
    "margins",
    "open_loop",
    "oscillation_frequency",
    "pseudospectral_abscissa",
    "rightmost_pair",
    "rightmost_root",
    "search",
    "sensitivity_peak",
    "spectral_abscissa",
    "summary",
    "two_stage_critical_gain",
    "worst_abscissa",
]
