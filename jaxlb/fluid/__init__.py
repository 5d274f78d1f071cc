"""The limit of a large system: trajectories, equilibria and cycles; action or information late."""

from ..model.equilibrium import equilibrium
from . import information_delay, limit_cycle
from .batch import solve_many
from .trajectory import ImbalanceTrajectory, Trajectory, solve, solve_imbalance

__all__ = [
    "ImbalanceTrajectory",
    "Trajectory",
    "equilibrium",
    "information_delay",
    "limit_cycle",
    "solve",
    "solve_imbalance",
    "solve_many",
]
