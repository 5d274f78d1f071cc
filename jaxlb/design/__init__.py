"""Designs: rules for jobs in transit, the criteria they are compared by, tuning, trade-offs."""

from .advice import Advice, Curve, Setting, advise
from .certificate import Tuned, TunePath
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
from .lqr import lqr, relay_effort
from .placement import place
from .tradeoff import Front, pareto
from .tune import tune
from .weights import predictor, uniform

__all__ = [
    "Advice",
    "Criteria",
    "Criterion",
    "Curve",
    "Front",
    "Setting",
    "SettlingTime",
    "TunePath",
    "Tuned",
    "UnstableSensitivities",
    "advise",
    "control_effort",
    "criteria",
    "decay_rate",
    "integrated_squared_error",
    "linear_noise_variance",
    "lqr",
    "pareto",
    "place",
    "predictor",
    "pseudospectral_decay_rate",
    "relay_effort",
    "settling_cliff",
    "settling_time",
    "stable_for_every_sensitivity",
    "stationary_variance",
    "tune",
    "uniform",
    "worst_decay_rate",
]
