"""Delayed information: jobs act at once, on queues that are seen late.

    q_i'(t) = N lambda p_i(m(t)) - mu_i q_i(t),    m_i(t) = E q_i(t - delay),

where m is the queue that the dispatcher sees, and the expectation is over the law of
`system.delay`: here how old information is, not how long a job takes. With a delay of phases m is
q filtered by them: y_i[k] is the mean of past q_i over the time to absorption from phase k,

    y_i'[k] = sum over l of generator[k, l] y_i[l] + exit rate[k] q_i,    m_i = initial . y_i,

for an Erlang delay gamma (y_i[k + 1] - y_i[k]), where q_i follows the last y_i, and m_i = y_i[0].

Linearised about balance it has the characteristic equation of the action delay of the same law, so
that `jaxlb.stability` answers for both.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model import dynamics
from ..model.delays import Deterministic, Erlang, MixedErlang
from ..model.system import System, require_one
from . import delay_limit
from .trajectory import integrate, refuse_settings


class InformationTrajectory(eqx.Module):
    """Solution of the delayed-information model.

    - `times`: s, shape (times,).
    - `queue`: jobs in service, q, per unit of scale, shape (times, servers).
    - `observed`: the queue that the dispatcher sees, m, likewise.
    - `filter`: y, shape (times, servers, phases); no phases for a deterministic delay.
    - `result`: as in `jaxlb.fluid.Trajectory`.
    """

    times: Float[Array, " times"]
    queue: Float[Array, "times servers"]
    observed: Float[Array, "times servers"]
    filter: Float[Array, "times servers phases"]
    result: dfx.RESULTS

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether the solver reached the last time."""
        return self.result == dfx.RESULTS.successful


def solve(
    system: System,
    times: Any,
    initial: Any = None,
    observed: Any = None,
    *,
    solver: dfx.AbstractSolver | None = None,
    rtol: Any = None,
    atol: Any = None,
    adjoint: dfx.AbstractAdjoint | None = None,
    controller: dfx.AbstractStepSizeController | None = None,
    first_step: Any = None,
    max_steps: int | None = None,
) -> InformationTrajectory:
    """Fluid limit of a dispatcher whose action is immediate and whose information is late.

    **Arguments:**

    - `system`: its delay is that of information, with phases or `Deterministic`; its rule looks at
      queues alone.
    - `initial`: jobs in service at time zero, shape (servers,). By default the paper's start.
    - `observed`: what the queues were before, shape (servers,), constant; or for a delay with
      phases y at time zero, shape (servers, phases). By default as at time zero.
    - The others as in `jaxlb.fluid.solve`.

    **Returns:** an `InformationTrajectory`; failures are told as by `jaxlb.fluid.solve`.

    **Raises:** `ValueError` on a bad argument.

    With a deterministic delay this is the action delay, D earlier: a system that starts empty, here
    with nothing observed, has here at t the queues that it has under action delay at t + D. For
    Erlang delays see `equivalent`.

    **Accuracy:** as `jaxlb.fluid.solve`.

    **Source:** Pender, Rand and Wesson (2017), Int. J. Bifurcation and Chaos 27(4), for the
    deterministic delay.
    """
    require_one(system)
    times = _checks.times("times", times)
    delay_limit.require_queues_alone(system)
    if initial is not None:
        initial = _checks.finite("initial", initial, "jobs", (system.num_servers,))
    queue = dynamics.initial_jobs(system, None)[:, -1] if initial is None else initial
    if isinstance(system.delay, Deterministic):
        refuse_settings(solver, adjoint, controller, first_step)
        return _solve_deterministic(system, times, queue, observed, (rtol, atol), max_steps)
    start = _start(system, queue, observed)
    states, result = integrate(
        drift,
        system,
        times,
        start,
        (solver, adjoint, controller),
        (rtol, atol, first_step),
        max_steps,
    )
    seen = jax.vmap(lambda state: seen_queue(system, state))(states)
    return InformationTrajectory(times, states[..., -1], seen, states[..., :-1], result)


def drift(system: System, state: Float[Array, "servers states"]) -> Float[Array, "servers states"]:
    """Right-hand side of the model for a delay with phases; `state`: y, then q.

    **Raises:** `ValueError` if the delay has no phases.
    """
    delay: Any = system.phase_delay("a filter of information")
    past, queue = state[:, :-1], state[:, -1]
    if isinstance(delay, Erlang | MixedErlang):
        change = delay.stage_rate * jnp.diff(state, axis=1)
    else:
        leave = delay.exit_rates()
        change = past @ delay.generator.T + queue[:, None] * leave
    share = dynamics.shares(system, seen_queue(system, state)[:, None])
    inflow = system.num_servers * system.arrival_rate * share
    return jnp.append(change, (inflow - system.service_rates * queue)[:, None], axis=1)


def seen_queue(system: System, state: Float[Array, "servers states"]) -> Float[Array, " servers"]:
    """m, from y and q."""
    delay: Any = system.phase_delay("a filter of information")
    return state[:, :-1] @ delay.initial if delay.num_phases else state[:, -1]


def equivalent(
    system: System, jobs: Float[Array, "servers compartments"]
) -> tuple[Float[Array, " servers"], Float[Array, "servers phases"]]:
    """The state under delayed information that moves as `jobs` do under action delay.

    Theorem. Let z_i[1..L] and q_i be jobs of an Erlang action delay, of rates gamma and mu_i, and

        m_i[0] = q_i,    m_i[k] = z_i[L - k + 1] + (1 - mu_i / gamma) m_i[k - 1],    k = 1, ..., L.

    Then m_i[0], ..., m_i[L - 1] are the filter and m_i[L] the queue of the same system under
    information delay, with any rule that looks at queues alone, any number of servers and unequal
    service rates: the dispatcher *sees* there the queue that there *is* here. So the two models
    have the same period and the same multipliers, but not the same amplitude of the queue.
    By induction m[k - 1]' = gamma (m[k] - m[k - 1]), since (1 - mu / gamma) gamma = gamma - mu;
    and m[L]' = N lambda p_i(m[0]) - mu_i m[L]. The map is linear, and invertible.

    **Arguments:** `jobs`: of the action delay, shape (servers, L + 1), phases then service.

    **Returns:** `initial` and `observed` for `solve`: q, shape (servers,), and y, shape
    (servers, L). Where mu_i > gamma they may be negative.

    **Raises:** `ValueError` unless the delay is `Erlang`.
    """
    _checks.kind("delay", system.delay, Erlang)
    delay: Any = system.delay
    jobs = _checks.finite("jobs", jobs, "jobs", (system.num_servers, delay.stages + 1))
    kept = 1 - system.service_rates / delay.stage_rate

    def ahead(last, in_phase):
        return in_phase + kept * last, last

    queue, past = jax.lax.scan(ahead, jobs[:, -1], jobs[:, -2::-1].T)
    return queue, past.T


def _start(system: System, queue: Array, observed: Any) -> Float[Array, "servers states"]:
    servers = system.num_servers
    phases = system.phase_delay("a filter of information").num_phases
    if observed is None or _checks.ndim("observed", observed) == 1:
        before = _observed(system, queue, observed)
        past = jnp.broadcast_to(before[:, None], (servers, phases))
    else:
        past = _checks.finite("observed", observed, "jobs", (servers, phases))
    return jnp.append(past, queue[:, None], axis=1)


def _observed(system: System, queue: Array, observed: Any) -> Float[Array, " servers"]:
    """What the queues were before time zero."""
    if observed is None:
        return queue
    return _checks.finite("observed", observed, "jobs", (system.num_servers,))


def _solve_deterministic(system, times, queue, observed, tolerances, max_steps):
    before = _observed(system, queue, observed)
    found, result = delay_limit.solve_jobs(system, times, queue, before, tolerances, max_steps)
    early = (times < system.delay.mean)[:, None]
    seen = jnp.where(early & jnp.isfinite(found[..., 2]), before, found[..., 2])
    none = jnp.zeros((*seen.shape, 0), seen.dtype)
    return InformationTrajectory(times, found[..., 1], seen, none, result)
