"""The system at finite scale: random paths of the Markov jump process."""

from .ensemble import Ensemble, simulate

__all__ = ["Ensemble", "simulate"]
