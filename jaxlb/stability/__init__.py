"""Local stability of balance: roots of the linearised difference mode."""

from .boundary import two_stage_critical_gain
from .erlang import ErlangRoot, erlang_root
from .exponential import exponential_imbalance, exponential_roots
from .spectrum import characteristic_residual, eigenvalues, rightmost_root, spectral_abscissa

__all__ = [
    "ErlangRoot",
    "characteristic_residual",
    "eigenvalues",
    "erlang_root",
    "exponential_imbalance",
    "exponential_roots",
    "rightmost_root",
    "spectral_abscissa",
    "two_stage_critical_gain",
]
