"""Trajectories of the fluid limit and of the difference mode.

By collocation or through Diffrax; of a deterministic delay by the method of steps.
"""

import warnings
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model import dynamics, imbalance
from ..model.delays import Deterministic
from ..model.system import System, require_one
from . import collocation, delay_limit
from .window import Start

MAX_STEPS = 65536
METHODS = "auto", "collocation", "diffrax", "steps"


class Trajectory(eqx.Module):
    """Solution of the fluid limit.

    - `times`: s, shape (times,).
    - `queue`: q, jobs in service per unit of scale, shape (times, servers).
    - `in_transit`: z, those in each delay phase, shape (times, servers, phases). Under `jit` it
      costs nothing unless it is used. A deterministic delay has one phase for all in transit.
    - `result`: Diffrax's result code; where it is not successful, the times that were not reached
      hold infinities.
    - `error_estimate`: by collocation, the part of the flows that all windows leave out, relative
      to the largest flow; otherwise, where tolerances are kept, `None`.
    - `method`: "collocation", "diffrax" or "steps", static.
    """

    times: Float[Array, " times"]
    queue: Float[Array, "times servers"]
    in_transit: Float[Array, "times servers phases"]
    result: dfx.RESULTS
    error_estimate: Float[Array, ""] | None = None
    method: str = eqx.field(static=True, default="diffrax")

    @property
    def jobs(self) -> Float[Array, "... times servers compartments"]:
        """All jobs, phases then service."""
        return jnp.concatenate([self.in_transit, self.queue[..., None]], axis=-1)

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether the solver reached the last time."""
        return self.result == dfx.RESULTS.successful


class ImbalanceTrajectory(eqx.Module):
    """Solution of the difference system.

    - `times`: s, shape (times,).
    - `queue`: x, difference of jobs in service per unit of scale, shape (times,).
    - `in_transit`: w, difference of jobs in each delay phase, shape (times, phases).
    - `result`, `error_estimate`, `method`: as in `Trajectory`.
    """

    times: Float[Array, " times"]
    queue: Float[Array, " times"]
    in_transit: Float[Array, "times phases"]
    result: dfx.RESULTS
    error_estimate: Float[Array, ""] | None = None
    method: str = eqx.field(static=True, default="diffrax")

    @property
    def y(self) -> Float[Array, "... times modes"]:
        """(x, w_1, ..., w_L)."""
        return jnp.concatenate([self.queue[..., None], self.in_transit], axis=-1)

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether the solver reached the last time."""
        return self.result == dfx.RESULTS.successful


def solve(
    system: System,
    times: Any,
    initial: Any = None,
    *,
    method: str = "auto",
    solver: dfx.AbstractSolver | None = None,
    rtol: Any = None,
    atol: Any = None,
    adjoint: dfx.AbstractAdjoint | None = None,
    controller: dfx.AbstractStepSizeController | None = None,
    first_step: Any = None,
    max_steps: int | None = None,
) -> Trajectory:
    """Fluid limit (2)-(4) of one system from time zero, at the given times.

    **Arguments:**

    - `times`: s, increasing, from 0 on, shape (times,).
    - `initial`: jobs per unit of scale at time zero: all, shape (servers, compartments), or those
      in service, shape (servers,), with none in transit. By default the paper's start: one job in
      service at each server but the first.
    - `method`: static. "collocation" takes any delay with phases, up to 64 unless it is `Erlang`,
      and the rules `Logit` and `WeightedLogit`; it has no settings but `max_steps`. "diffrax"
      takes any delay with phases and any rule. By default collocation for `Erlang` and
      `MixedErlang` delays of two stages or more under `Logit`, where it is the faster one under
      `jax.vmap`, unless one of Diffrax's settings, which follow, is given. A `Deterministic` delay
      takes "steps", the method of steps, and a rule that looks at queues alone; its settings are
      `max_steps` and, of the last Chebyshev coefficients of a window, `rtol` and `atol`.
      `Trajectory.method` tells.
    - `solver`: any Diffrax solver; `Tsit5()` by default. Beyond about 200 stages the chain is stiff
      and an explicit method needs some D L / 3 steps for each second.
    - `rtol`, `atol`: tolerances of the adaptive step, by default 1e-8 in float64 and 1e-6 in
      float32; arrays are welcome, new values do not recompile.
    - `adjoint`: any Diffrax adjoint; `RecursiveCheckpointAdjoint()` by default. For forward mode
      pass `diffrax.ForwardMode()`.
    - `controller`, `first_step`: any Diffrax step size controller, in place of the tolerances, and
      its first step, s; a solver without an error estimate, such as `Euler()`, needs
      `diffrax.ConstantStepSize()` and a step.
    - `max_steps`: static; a member that needs more steps, or windows, ends with a result code. By
      default 65536; by the method of steps, which keeps its windows, 1024 where numbers are traced.

    **Returns:** a `Trajectory`. No exception under `vmap`: look at `result` or `ok`; a member that
    failed, or whose traced times are out of order, holds infinities and has no meaningful gradient.

    **Raises:** `ValueError` on a bad argument, and on a delay without phases but `Deterministic`,
    where the rule must look at queues alone. Warns on `BacksolveAdjoint`, whose backward solve of
    the delay chain is unstable: its gradients are wrong by orders of magnitude at 50 stages.

    Collocation has first derivatives, forward and in reverse; second ones raise.

    **Accuracy:** largest error over [0, 20] relative to the largest value, on random systems.
    Collocation, up to 200 stages: 1e-8 in float64 (each delay phase to 3e-7 of its own largest
    value), 6e-5 in float32; derivatives 1e-8 of the largest; alike with other phases and weighted
    rules (`tests/fluid/test_jumps.py`). Tsit5 with the defaults, up to 50 stages: 3e-7 and 4e-5.
    Against Dormand-Prince 8(5,3) at 1e-13 and 1e-12 (`experiments/benchmarks/fluid.py`,
    `experiments/accuracy.py`). The method of steps: 1e-8 and 3e-6
    (`tests/fluid/test_delay_limit.py`).

    **Cost:** on one core, float64, compiled, queues of two servers at 200 times, of each of 64
    random systems (`experiments/benchmarks/fluid_costs.py`). Collocation: 0.36 ms with 1 or 2
    stages, 0.4 ms with 10, 0.5 ms with 50, 0.9 ms with 200, alike under `jax.vmap`, where a CPU
    does one after the other; with jobs in transit too 0.5, 0.7, 2 and 8 ms; a gradient in reverse
    1 to 3.5 ms. Other laws take 0.5 to 0.7 ms, five weighted stages 3.5 ms. Tsit5 one by one:
    0.04 ms with 1 stage, 0.4 ms with 10, 1.7 ms with 50; under `jax.vmap` many times that but for 1
    stage: see `solve_many`. The method of steps: 0.1 ms, a gradient 0.4 ms one by one and 2.2 ms
    under `jax.vmap`.

    **Source:** the sweeps are those of waveform relaxation, window by window: Lelarasmee, Ruehli
    and Sangiovanni-Vincentelli (1982), IEEE Trans. Computer-Aided Design 1(3).
    """
    require_one(system)
    times = _checks.times("times", times)
    start = dynamics.initial_jobs(system, initial)
    parts, steps = (solver, adjoint, controller), (rtol, atol, first_step)
    method = _choose(method, system, parts, steps)
    if method == "steps":
        found, result = delay_limit.solve_jobs(
            system, times, start[:, 1], None, (rtol, atol), max_steps
        )
        return Trajectory(times, found[..., 1], found[..., :1], result, method=method)
    if method == "collocation":
        found = _collocate(collocation.SERVERS, system, times, start, max_steps)
        return Trajectory(times, found.queue, found.stages, found.result, found.error, method)
    jobs, result = integrate(dynamics.drift, system, times, start, parts, steps, max_steps)
    return Trajectory(times, jobs[..., -1], jobs[..., :-1], result)


def solve_imbalance(
    system: System,
    times: Any,
    initial: Any,
    *,
    linear: bool = False,
    method: str = "auto",
    solver: dfx.AbstractSolver | None = None,
    rtol: Any = None,
    atol: Any = None,
    adjoint: dfx.AbstractAdjoint | None = None,
    controller: dfx.AbstractStepSizeController | None = None,
    first_step: Any = None,
    max_steps: int | None = None,
) -> ImbalanceTrajectory:
    """Difference system (6)-(8), or its linearisation (9)-(11), at the given times.

    **Arguments:** `initial`: y = (x, w_1, ..., w_L) at time zero, shape (modes,), or x alone with
    w = 0, a scalar. `linear`: static. The others as in `solve`. With a `Deterministic` delay y is
    (x,), and nothing is in transit at time zero.

    **Returns:** an `ImbalanceTrajectory`.

    **Raises:** as `solve`; and `ValueError` where the difference system is not closed (see
    `jaxlb.model.imbalance.drift`).

    **Accuracy:** as `solve`.

    **Cost:** as in `solve`, by collocation for x alone: 0.09 to 0.13 ms with 1 to 10 stages, 0.22
    ms with 50, 0.6 ms with 200 (`experiments/benchmarks/fluid.py`). By the method of steps 0.05 ms
    (`experiments/benchmarks/delay_equation.py`).
    """
    require_one(system)
    _checks.kind("linear", linear, bool)
    times = _checks.times("times", times)
    system.require_servers_alike()
    parts, steps = (solver, adjoint, controller), (rtol, atol, first_step)
    method = _choose(method, system, parts, steps)
    fixed = method == "steps"
    modes = 1 if fixed else system.phase_delay("the difference system").num_phases + 1
    scalar = _checks.ndim("initial", initial) == 0
    start = _checks.finite("initial", initial, "jobs", () if scalar else (modes,))
    start = jnp.zeros(modes, start.dtype).at[0].set(start) if scalar else start
    if fixed:
        settings = (rtol, atol), max_steps
        y, result = delay_limit.solve_difference(system, times, start, linear, *settings)
        return ImbalanceTrajectory(times, y[..., 0], y[..., 1:], result, method=method)
    if method == "collocation":
        if not linear:
            imbalance.require_closed(system)
        problem = collocation.LINEAR_DIFFERENCE if linear else collocation.DIFFERENCE
        jobs = jnp.roll(start, -1)[None]
        found = _collocate(problem, system, times, jobs, max_steps)
        queue, stages = found.queue[:, 0], found.stages[:, 0]
        return ImbalanceTrajectory(times, queue, stages, found.result, found.error, method)
    right_side = imbalance.linearised_drift if linear else imbalance.drift
    y, result = integrate(right_side, system, times, start, parts, steps, max_steps)
    return ImbalanceTrajectory(times, y[..., 0], y[..., 1:], result)


def _choose(method: str, system: System, parts: tuple[Any, Any, Any], steps: tuple) -> str:
    """The method to be used; any of Diffrax's settings asks for Diffrax."""
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
    fixed = isinstance(system.delay, Deterministic)
    settings = any(setting is not None for setting in (*parts, *steps))
    if method == "auto":
        collocate = not settings and collocation.is_best(system)
        method = "steps" if fixed else "collocation" if collocate else "diffrax"
    if (method == "steps") != fixed:
        wanted = "'steps' for a" if fixed else "another than 'steps' but for a"
        raise ValueError(f"`method` must be {wanted} deterministic delay, got {method!r}.")
    if method == "steps":
        refuse_settings(*parts, steps[2])
    if method == "collocation":
        collocation.require(system)
        if settings:
            raise ValueError(
                "`method` must be 'diffrax' for a solver, tolerances, an adjoint, a controller or "
                "a first step of Diffrax, got 'collocation'."
            )
    return method


def _collocate(problem, system, times, start, max_steps):
    max_steps = _checks.integer("max_steps", MAX_STEPS if max_steps is None else max_steps, 1)
    # One dtype throughout, as below.
    dtype = jnp.result_type(start, times, *system.numbers)
    system = jax.tree.map(lambda leaf: leaf.astype(dtype), system)
    start = start.astype(dtype)
    modes = Start(start[:, -1], start[:, :-1])
    return collocation.solve(problem, system, times.astype(dtype), modes, max_steps)


def refuse_settings(solver, adjoint, controller, first_step) -> None:
    """Raise `ValueError` on settings of Diffrax, for a deterministic delay."""
    settings = {"solver": solver, "adjoint": adjoint, "controller": controller}
    _checks.absent({**settings, "first_step": first_step}, "for a deterministic delay")


def integrate(right_side, system, times, start, parts, steps, max_steps):
    """Solution of y' = right_side(system, y) at the times, and Diffrax's result code."""
    solver, adjoint, controller = parts
    rtol, atol, first_step = steps
    solver = dfx.Tsit5() if solver is None else solver
    adjoint = dfx.RecursiveCheckpointAdjoint() if adjoint is None else adjoint
    _checks.kind("solver", solver, dfx.AbstractSolver)
    _checks.kind("adjoint", adjoint, dfx.AbstractAdjoint)
    if isinstance(adjoint, dfx.BacksolveAdjoint):
        warnings.warn(
            "BacksolveAdjoint solves the delay chain backwards in time, where it is unstable: "
            "expect wrong gradients with many stages.",
            stacklevel=3,
        )
    max_steps = _checks.integer("max_steps", MAX_STEPS if max_steps is None else max_steps, 1)
    # One dtype throughout: a step in one precision of a state in another would not trace.
    dtype = jnp.result_type(start, times, *system.numbers)
    rtol, atol = _checks.tolerances(rtol, atol, dtype)
    controller = dfx.PIDController(rtol=rtol, atol=atol) if controller is None else controller
    _checks.kind("controller", controller, dfx.AbstractStepSizeController)
    if first_step is not None:
        first_step = _checks.positive("first_step", first_step, "s").astype(dtype)
    return _diffeqsolve(
        right_side,
        system,
        times.astype(dtype),
        start.astype(dtype),
        solver,
        controller,
        first_step,
        adjoint,
        max_steps,
    )


@eqx.filter_jit
def _diffeqsolve(
    right_side: Callable, system, times, start, solver, controller, first_step, adjoint, max_steps
):
    # Diffrax would raise on these, for the whole batch; traced times have not been looked at.
    steps = jnp.diff(times, prepend=0)
    orderly = jnp.all(jnp.isfinite(times) & (steps >= 0)) & jnp.all(steps[1:] > 0)
    times = jnp.where(orderly, times, jnp.arange(len(times)).astype(times.dtype))
    solution = dfx.diffeqsolve(
        dfx.ODETerm(lambda _, y, args: right_side(args, y)),
        solver,
        t0=jnp.zeros_like(times[0]),
        t1=times[-1],
        dt0=first_step,
        y0=start,
        args=system,
        saveat=dfx.SaveAt(ts=times),
        stepsize_controller=controller,
        adjoint=adjoint,
        max_steps=max_steps,
        throw=False,
    )
    result = dfx.RESULTS.where(orderly, solution.result, dfx.RESULTS.internal_error)
    return jnp.where(orderly, jnp.asarray(solution.ys), jnp.inf), result
