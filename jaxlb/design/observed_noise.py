"""Linear noise of rules with a memory: what a dispatcher that does not see all can do.

A filter adds its estimate m to the state: (w, x, m) is again driven by the events of the system,
and its covariance solves one Lyapunov equation. Ages and late views have no finite state; their
noise is computed over frequencies (`jaxlb.design.observed_spectrum`).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model import dynamics, imbalance
from ..model.equilibrium import equilibrium
from ..model.memory import AgeLogit, FilteredLogit, LateLogit
from ..model.routing import AbstractLogit
from ..model.system import System, require_one
from ..stability.domain import flagged, is_valid
from ..stochastic.linear_noise import imbalance_covariance
from ..stochastic.lyapunov import lyapunov
from .age import require_phases
from .observed_spectrum import of_ages, of_late_view

# Roundings by which the gains of a filter may miss -1 in sum.
ROUNDINGS = 64


class ObservedNoise(NamedTuple):
    """Stationary noise, infinite where balance is not stable.

    - `variance`: of the imbalance of any two servers, jobs^2.
    - `effort`: standard deviation of the difference of their inflows, jobs/s, as of
      `jaxlb.design.control_effort`.
    """

    variance: Float[Array, ""]
    effort: Float[Array, ""]

    @property
    def stable(self) -> Bool[Array, "..."]:
        """Whether balance is stable."""
        return jnp.isfinite(self.variance)


def observed_noise(system: System, scale: Any = 1.0) -> ObservedNoise:
    """Stationary noise by linear noise, for logit rules with a memory too.

    **Arguments:** `system`: two servers or more, alike, and a logit rule, `FilteredLogit`,
    `AgeLogit` or `LateLogit`; a delay with phases, or any with a transform for `LateLogit`, which
    may have no lag. A filter may take the delay for another than it is. `scale`: eta, > 0.

    **Returns:** an `ObservedNoise`; differentiable but in the weight of `AgeLogit`, in the gains of
    a filter with a log as long as they sum to -1. NaN where frequencies do not resolve the loop.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy:** of filters, as `jaxlb.stochastic.lyapunov`. Of smooth weights by age 1e-6, the
    effort 1e-4; with a jump in the weight 3e-4; in float32 1e-4. Of a late view 1e-8, 1e-7 with a
    constant delay (`tests/design/test_observed_noise.py`). Of ages and late views that holds up to
    0.9 of the gain at the Hopf point; 4e-4 at 0.98, 0.01 at 0.99, NaN at 0.999.

    **Cost:** of filters, one Lyapunov equation of size 2 phases + 1: on one core 1 ms, 3 ms with 50
    phases. Of a late view 1 ms; of ages 0.13 s, 0.25 s with 50 phases
    (`experiments/benchmarks/design_costs.py`).
    """
    require_one(system)
    system.require_two_alike()
    scale = _checks.positive("scale", scale)
    routing = system.routing
    if isinstance(routing, AbstractLogit):
        system.phase_delay("the noise of this rule")
        variances = _seen
    elif isinstance(routing, FilteredLogit):
        system.phase_delay("the noise of a filter")
        variances = _filtered
    elif isinstance(routing, AgeLogit):
        require_phases(system)
        variances = of_ages
    elif isinstance(routing, LateLogit):
        variances = of_late_view
    else:
        raise ValueError(
            "`routing` must be a logit rule, with or without a memory, got "
            f"{type(routing).__name__}."
        )
    valid = is_valid(system) & _checks.is_positive(scale)
    with jax.default_matmul_precision("highest"):
        found = flagged(valid, variances, system)
    return _noise(system, scale, *found)


@eqx.filter_jit
def _noise(system: System, scale: Array, of_queue: Array, of_load: Array) -> ObservedNoise:
    """From variances per unit of scale, of the imbalance and of what is compared."""
    routing: Any = system.routing
    gain = system.arrival_rate * routing.sensitivity
    # The root has no slope at zero, nor where it is infinite.
    some = (of_load > 0) & (of_load < jnp.inf)
    spread = jnp.sqrt(scale * jnp.where(some, of_load, 1.0))
    effort = jnp.where(some, gain * spread, of_load)
    return ObservedNoise(scale * of_queue, effort)


@eqx.filter_jit
def _seen(system: System) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Variances per unit of scale, of x and of the difference of loads, where all is seen."""
    covariance, stable = imbalance_covariance(system)
    unit = eqx.tree_at(lambda s: s.routing.sensitivity, system, 1 / system.arrival_rate)
    load = imbalance.feedback(unit)
    found = covariance[0, 0], load @ covariance @ load
    return jax.tree.map(lambda variance: jnp.where(stable, variance, jnp.inf), found)


@eqx.filter_jit
def _filtered(system: System) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The same for a filter.

    The state is phases, service and estimates, as differences of two servers.
    """
    rule: Any = system.routing
    delay: Any = system.delay
    phases, size = delay.num_phases, delay.num_phases + 1 + len(rule.gains)
    dtype = jnp.result_type(*system.numbers)
    jumps = _jumps(system).astype(dtype)
    balance = equilibrium(system)[:1]
    service = system.common_service_rate[None]
    rates = dynamics.event_rates(delay, service, system.arrival_rate[None], balance)[0]
    load = jnp.zeros(size, dtype).at[phases].set(1.0).at[phases + 1 :].set(rule.weights)
    gain = system.arrival_rate * rule.sensitivity
    believed: Any = rule.delay

    def drift(state):
        jobs, estimate = state[: phases + 1], state[phases + 1 :]
        inflow = -gain * (load @ state)
        events = dynamics.event_rates(delay, service, inflow[None], jobs[None])[0]
        guess = estimate @ believed.generator - (estimate @ believed.exit_rates()) * rule.gains
        guess = guess if rule.log else guess + inflow * believed.initial
        return events @ jumps + jnp.append(0 * jobs, guess)

    matrix = jax.jacfwd(drift)(jnp.zeros(size, dtype))
    if rule.log and len(rule.gains):
        matrix = matrix - _known_total(rule, phases, matrix)
    covariance, stable = lyapunov(matrix, 2 * (jumps.T * rates) @ jumps)
    found = covariance[phases, phases], load @ covariance @ load
    return jax.tree.map(lambda variance: jnp.where(stable, variance, jnp.inf), found)


def _jumps(system: System) -> Float[Array, "events states"]:
    """Change of the state of a server by each of its events."""
    rule: Any = system.routing
    delay: Any = system.delay
    source, target = dynamics.routes(delay)
    sent, arrived = ((source == 0) & rule.log)[:, None], (target == delay.num_phases)[:, None]
    told = sent * rule.delay.initial + arrived * rule.gains
    return jnp.concatenate([dynamics.stoichiometry(delay), told], axis=1)


def _known_total(rule: Any, phases: int, matrix: Array) -> Array:
    """What makes a filter forget by how much its total differs from the number in transit.

    If gains sum to -1 that never changes: it is zero if it was at first, and no noise comes to it.
    """
    last = len(matrix) - phases - 1
    apart = jnp.concatenate([-jnp.ones(phases), jnp.zeros(1), jnp.ones(last)])
    spread = jnp.zeros(len(matrix)).at[phases + 1 :].set(1 / last)
    missed = jnp.abs(jnp.sum(rule.gains) + 1)
    known = missed <= ROUNDINGS * jnp.finfo(matrix.dtype).eps
    pace = jnp.where(known, jax.lax.stop_gradient(-jnp.trace(matrix) / len(matrix)), 0.0)
    return (pace * jnp.outer(spread, apart)).astype(matrix.dtype)
