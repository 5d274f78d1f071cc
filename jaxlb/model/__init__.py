"""What the system is: its delay, its dispatcher, its parameters and its dynamics."""

from . import dynamics, imbalance
from .delays import (
    AbstractDelay,
    AbstractPhaseDelay,
    Deterministic,
    Erlang,
    MixedErlang,
    NoDelay,
    PhaseType,
    TransformDelay,
)
from .equilibrium import equilibrium
from .fit import from_mean_cv
from .information import moving_average, velocity_information
from .memory import AbstractMemory, AgeLogit, FilteredLogit, LateLogit
from .quantile import QuantileDelay
from .routing import AbstractLogit, AbstractRouting, Logit, WeightedLogit
from .system import System

__all__ = [
    "AbstractDelay",
    "AbstractLogit",
    "AbstractMemory",
    "AbstractPhaseDelay",
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
    "dynamics",
    "equilibrium",
    "from_mean_cv",
    "imbalance",
    "moving_average",
    "velocity_information",
]
