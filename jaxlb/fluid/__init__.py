"""The limit of a large system: trajectories, equilibria, cycles, what they are sensitive to."""

from ..model.equilibrium import equilibrium
from . import information_delay, limit_cycle
from .batch import solve_many
from .observables import (
    AbstractObservation,
    Integral,
    Observation,
    Peak,
    Settling,
    cycle_amplitude,
    cycle_period,
    integrated_imbalance,
    peak_imbalance,
    settling_time,
)
from .sensitivity import Parameter, Sensitivity, sensitivity
from .trajectory import ImbalanceTrajectory, Trajectory, solve, solve_imbalance

__all__ = [
    "AbstractObservation",
    "ImbalanceTrajectory",
    "Integral",
    "Observation",
    "Parameter",
    "Peak",
    "Sensitivity",
    "Settling",
    "Trajectory",
    "cycle_amplitude",
    "cycle_period",
    "equilibrium",
    "information_delay",
    "integrated_imbalance",
    "limit_cycle",
    "peak_imbalance",
    "sensitivity",
    "settling_time",
    "solve",
    "solve_imbalance",
    "solve_many",
]
