"""Linear noise: the Gaussian process about the fluid limit, at rest.

In a system of scale eta counts are eta times the fluid limit plus sqrt(eta) times a deviation y
with dy = A y dt + noise, where A is the Jacobian of the drift and the noise has the covariance
S' diag(rates) S per second, S being the change by each event. All that is per unit of scale.

With servers alike and a logit rule, A splits into modes. The total of the servers does not depend
on the rule: its counts are independent and Poisson, exactly. The differences of any two servers
all obey equations (9)-(11) of the paper (`jaxlb.model.imbalance`).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model import dynamics, imbalance
from ..model.equilibrium import equilibrium
from ..model.routing import AbstractLogit
from ..model.system import System, require_one
from ..stability.domain import flagged, is_valid
from .lyapunov import lyapunov

# Largest drift at a point of rest, relative to the arrivals of a server.
REST = 1e-3


class StationaryCovariance(eqx.Module):
    """Covariance of all counts about a point of rest, by linear noise.

    - `covariance`: jobs^2 per unit of scale, phases then service; NaN where not `valid`.
    - `valid`: false where the point is not one of rest, or not stable (the linearisation has a root
      that is not left of the imaginary axis), or a traced number is out of its domain.
    """

    covariance: Float[Array, "servers compartments servers compartments"]
    valid: Bool[Array, ""]

    @property
    def queue(self) -> Float[Array, "... servers servers"]:
        """Covariance of the jobs in service."""
        return self.covariance[..., :, -1, :, -1]


def stationary_covariance(system: System, jobs: Any = None) -> StationaryCovariance:
    """Covariance of all counts at rest, by the linear-noise approximation.

    Multiply by the scale for the covariance of counts. It is exact, and Poisson, at sensitivity
    zero; else its relative error is of the order of one over the scale, and grows without bound
    towards the Hopf point: `imbalance_variance` holds there too.

    **Arguments:** `jobs`: the point of rest, per unit of scale, shape (servers, compartments), such
    as the end of a long `jaxlb.fluid.solve`; servers may differ. By default the symmetric
    `jaxlb.model.equilibrium`.

    **Returns:** a `StationaryCovariance`, differentiable where `valid`, else with derivatives of
    zero.

    **Raises:** `ValueError` on a bad argument, a delay without phases, or, without `jobs`, servers
    of unequal rates.

    **Accuracy:** that of `jaxlb.stochastic.lyapunov`.

    **Cost:** one Lyapunov equation, of size phases + 1 without `jobs` and with a logit rule, else
    of size servers (phases + 1). By the first on one core 0.03 ms with 2 stages, 0.06 with 10, 0.5
    with 50, up to twice that with a gradient (`experiments/stationary_variance.py`).
    """
    require_one(system)
    delay = system.phase_delay("the linear noise")
    shape = system.num_servers, delay.num_phases + 1
    if jobs is not None:
        point = _checks.not_negative("jobs", jobs, "jobs", shape)
        valid = system.valid & jnp.all(_checks.is_not_negative(point))
        return flagged(valid, _at_point, system, point)
    system.require_servers_alike()
    if isinstance(system.routing, AbstractLogit) and system.num_servers > 1:
        return flagged(is_valid(system), _by_modes, system)
    return flagged(is_valid(system), lambda system: _at_point(system, equilibrium(system)), system)


def event_noise(
    system: System, jobs: Float[Array, "servers compartments"]
) -> Float[Array, "servers compartments compartments"]:
    """S' diag(rates) S of each server, jobs^2 per second and unit of scale."""
    change = dynamics.stoichiometry(system.phase_delay("the noise of events")).astype(jobs.dtype)
    rates = dynamics.propensities(system, jobs)
    return jnp.einsum("ec,se,ed->scd", change, rates, change, precision="highest")


def imbalance_noise(system: System) -> Float[Array, "modes modes"]:
    """Noise of y = (x, w_1, ..., w_L) at balance, jobs^2 per second and unit of scale."""
    noise = event_noise(system, equilibrium(system))
    return jnp.roll(noise[0] + noise[1], 1, (0, 1))


def imbalance_covariance(system: System) -> tuple[Float[Array, "modes modes"], Bool[Array, ""]]:
    """Stationary covariance of y per unit of scale, and whether balance is stable; zero if not."""
    return lyapunov(imbalance.matrix(system), imbalance_noise(system))


@eqx.filter_jit
def _by_modes(system: System) -> StationaryCovariance:
    difference, stable = imbalance_covariance(system)
    # As jobs are: phases, then service.
    half = jnp.roll(difference, -1, (0, 1)) / 2
    servers, total = system.num_servers, equilibrium(system).sum(axis=0)
    # Servers i and j have covariance `between`, and `between + half` where they are the same.
    between = (jnp.diag(total) / servers - half) / servers
    same = jnp.eye(servers, dtype=half.dtype)[:, None, :, None]
    covariance = between[None, :, None, :] + same * half[None, :, None, :]
    return StationaryCovariance(jnp.where(stable, covariance, jnp.nan), stable)


@eqx.filter_jit
def _at_point(system: System, jobs: Float[Array, "servers compartments"]) -> StationaryCovariance:
    jobs = jobs.astype(jnp.result_type(jobs, *system.numbers))
    noise = event_noise(system, jobs)
    servers, compartments = jobs.shape
    size = servers * compartments
    matrix = jax.jacfwd(lambda jobs: dynamics.drift(system, jobs))(jobs).reshape(size, size)
    same = jnp.eye(servers, dtype=noise.dtype)[:, None, :, None]
    blocks = same * noise[:, :, None, :]
    covariance, stable = lyapunov(matrix, blocks.reshape(size, size))
    rest = jnp.max(jnp.abs(dynamics.drift(system, jobs))) <= REST * system.arrival_rate
    valid = stable & rest
    covariance = covariance.reshape(servers, compartments, servers, compartments)
    return StationaryCovariance(jnp.where(valid, covariance, jnp.nan), valid)
