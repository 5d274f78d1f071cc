"""The system at finite scale: random paths of the Markov jump process, and Gaussian noise."""

from .ensemble import Ensemble, Statistics
from .few_stages import one_stage_variance, two_stage_variance
from .linear_noise import StationaryCovariance, stationary_covariance
from .noise_in_time import (
    TransientNoise,
    noise_autocorrelation,
    noise_spectrum,
    transient_covariance,
)
from .simulation import simulate
from .statistical_linearisation import ImbalanceVariance, imbalance_variance

__all__ = [
    "Ensemble",
    "ImbalanceVariance",
    "StationaryCovariance",
    "Statistics",
    "TransientNoise",
    "imbalance_variance",
    "noise_autocorrelation",
    "noise_spectrum",
    "one_stage_variance",
    "simulate",
    "stationary_covariance",
    "transient_covariance",
    "two_stage_variance",
]
