"""The parameters of the paper's figures."""

import jax.numpy as jnp

from ..model import Erlang, Logit, System

# Section 5: single sample paths over t in [0, 20].
HORIZON = 20.0
# The paper does not state a horizon for its difference systems. At this one both the linear and the
# nonlinear trajectory of Figure 7 have come back beyond their start.
IMBALANCE_HORIZON = 40.0
GRID = 2001


def queues(stages: int) -> System:
    """Figures 2, 3 and 4: lambda 15, mu 1, D 1, theta 1."""
    return System(15.0, 1.0, Erlang(1.0, stages), Logit(1.0))


def imbalance(stages: int, sensitivity: float = 1.0) -> System:
    """Figures 5, 6 and 7: lambda 10, mu 1, D 4; theta 1 unless varied."""
    return System(10.0, 1.0, Erlang(4.0, stages), Logit(sensitivity))


def grid(horizon: float = HORIZON):
    """Times that resolve every curve of the paper."""
    return jnp.linspace(0.0, horizon, GRID)
