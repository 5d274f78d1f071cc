"""Load balancing in parallel infinite-server queues with action delay.

A dispatcher sends each job to a server by a rule that looks at the servers now; the job arrives
only after a delay; so routing can overshoot and oscillate. `System` holds the parameters, `fluid`
solves the limit of a large system, `stability` tells whether balance is stable, `stochastic` draws
paths, `design` says which rule is best.

Symbols, following the paper: lambda `arrival_rate` (per server), mu `service_rate`, D `delay.mean`,
L `delay.stages`, theta `routing.sensitivity`, eta `scale`, q `queue`, z `in_transit`, x and w their
differences between two servers.
"""

from importlib.metadata import version

from . import design, fluid, model, stability, stochastic
from .model import (
    AbstractDelay,
    AbstractMemory,
    AbstractRouting,
    AgeLogit,
    Deterministic,
    Erlang,
    FilteredLogit,
    LateLogit,
    Logit,
    MixedErlang,
    NoDelay,
    PhaseType,
    QuantileDelay,
    System,
    TransformDelay,
    WeightedLogit,
    from_mean_cv,
    moving_average,
    velocity_information,
)

__version__ = version("jaxlb")

__all__ = [
    "AbstractDelay",
    "AbstractMemory",
    "AbstractRouting",
    "AgeLogit",
    "Deterministic",
    "Erlang",
    "FilteredLogit",
    "LateLogit",
    "Logit",
    "MixedErlang",
    "NoDelay",
    "PhaseType",
    "QuantileDelay",
    "System",
    "TransformDelay",
    "WeightedLogit",
    "__version__",
    "design",
    "fluid",
    "from_mean_cv",
    "model",
    "moving_average",
    "stability",
    "stochastic",
    "velocity_information",
]
