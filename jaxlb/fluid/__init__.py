"""The limit of a large system: trajectories and equilibria of the fluid ODE."""

from ..model.equilibrium import equilibrium
from . import limit_cycle
from .batch import solve_many
from .trajectory import ImbalanceTrajectory, Trajectory, solve, solve_imbalance

__all__ = [
    "ImbalanceTrajectory",
    "Trajectory",
    "equilibrium",
    "limit_cycle",
    "solve",
    "solve_imbalance",
    "solve_many",
]
