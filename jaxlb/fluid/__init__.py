"""The limit of a large system: trajectories and equilibria of the fluid ODE."""

from ..model.equilibrium import equilibrium
from .trajectory import MAX_STEPS, ImbalanceTrajectory, Trajectory, solve, solve_imbalance

__all__ = [
    "MAX_STEPS",
    "ImbalanceTrajectory",
    "Trajectory",
    "equilibrium",
    "solve",
    "solve_imbalance",
]
