"""The system at finite scale: random paths, expectations, Gaussian noise."""

from .ensemble import Ensemble, Statistics
from .few_stages import constant_delay_variance, one_stage_variance, two_stage_variance
from .gradients import ExpectationGradient, expectation_gradient
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
    "ExpectationGradient",
    "ImbalanceVariance",
    "StationaryCovariance",
    "Statistics",
    "TransientNoise",
    "constant_delay_variance",
    "expectation_gradient",
    "imbalance_variance",
    "noise_autocorrelation",
    "noise_spectrum",
    "one_stage_variance",
    "simulate",
    "stationary_covariance",
    "transient_covariance",
    "two_stage_variance",
]
