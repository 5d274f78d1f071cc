"""The limit of a large system: trajectories and equilibria of the fluid ODE."""

from ..model.equilibrium import equilibrium
from . import information_delay, limit_cycle
from .trajectory import ImbalanceTrajectory, Trajectory, solve, solve_imbalance

__all__ = [
    "ImbalanceTrajectory",
    "Trajectory",
    "equilibrium",
    "information_delay",
    "limit_cycle",
    "solve",
    "solve_imbalance",
]
