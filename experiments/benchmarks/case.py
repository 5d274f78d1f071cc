"""The system that every simulator is timed on: two servers, from the paper's start."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# Jobs in service, shape (replicas, times, 2), from a seed and a number of replicas.
Simulator = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Case:
    """Numbers of the system, and times at which its jobs in service are recorded."""

    arrival_rate: float = 15.0
    service_rate: float = 1.0
    action_delay: float = 1.0
    stages: int = 2
    sensitivity: float = 1.0
    scale: int = 100
    horizon: float = 20.0
    records: int = 21

    @property
    def times(self) -> np.ndarray:
        """Of the records, evenly spaced from zero."""
        return np.linspace(0.0, self.horizon, self.records)

    @property
    def inflow(self) -> float:
        """Jobs a second, to both servers."""
        return 2 * self.scale * self.arrival_rate

    @property
    def slope(self) -> float:
        """Sensitivity to one job."""
        return self.sensitivity / self.scale

    @property
    def compartments(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of stages, then of jobs in service, of each server, for peers that need names."""
        first, second = (
            (*(f"{server}{stage}" for stage in range(self.stages)), f"{server}Q")
            for server in ("A", "B")
        )
        return first, second

    @property
    def moves(self) -> list[tuple[str, str | None, float]]:
        """From where, where to, or out, and at what rate each job in it goes."""
        stage_rate = self.stages / self.action_delay
        found: list[tuple[str, str | None, float]] = []
        for names in self.compartments:
            found += [(a, b, stage_rate) for a, b in pairwise(names)]
            found.append((names[-1], None, self.service_rate))
        return found
