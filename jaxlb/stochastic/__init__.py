"""The system at finite scale: random paths of the Markov jump process, and expectations."""

from .ensemble import Ensemble, simulate
from .gradients import ExpectationGradient, expectation_gradient

__all__ = ["Ensemble", "ExpectationGradient", "expectation_gradient", "simulate"]
