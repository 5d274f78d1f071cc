"""Designs: rules for jobs in transit, the criteria they are compared by, tuning, trade-offs."""

from .advice import Advice, CriterionCurve, Setting, advise
from .age import by_age
from .certificate import Tuned, TunePath
from .confirmation import Confirmation, confirm
from .criteria import Criteria, Criterion, criteria
from .criterion import (
    SettlingTime,
    control_effort,
    decay_rate,
    integrated_squared_error,
    linear_noise_variance,
    pseudospectral_decay_rate,
    settling_cliff,
    settling_time,
    stationary_variance,
    worst_decay_rate,
)
from .gain_windows import UnstableSensitivities, stable_for_every_sensitivity
from .kalman import kalman
from .lqr import lqr, relay_effort
from .observations import Observation, Observations, observations
from .observed_noise import ObservedNoise, observed_noise
from .placement import place
from .settling_bound import SettlingBound, settling_bound
from .tradeoff import Front, pareto
from .tune import tune
from .weights import predictor, uniform

__all__ = [
    "Advice",
    "Confirmation",
    "Criteria",
    "Criterion",
    "CriterionCurve",
    "Front",
    "Observation",
    "Observations",
    "ObservedNoise",
    "Setting",
    "SettlingBound",
    "SettlingTime",
    "TunePath",
    "Tuned",
    "UnstableSensitivities",
    "advise",
    "by_age",
    "confirm",
    "control_effort",
    "criteria",
    "decay_rate",
    "integrated_squared_error",
    "kalman",
    "linear_noise_variance",
    "lqr",
    "observations",
    "observed_noise",
    "pareto",
    "place",
    "predictor",
    "pseudospectral_decay_rate",
    "relay_effort",
    "settling_bound",
    "settling_cliff",
    "settling_time",
    "stable_for_every_sensitivity",
    "stationary_variance",
    "tune",
    "uniform",
    "worst_decay_rate",
]
