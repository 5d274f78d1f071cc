"""The system at finite scale: random paths of the Markov jump process."""

from .ensemble import Ensemble, Statistics
from .simulation import simulate

__all__ = ["Ensemble", "Statistics", "simulate"]
