"""Trajectories of the fluid limit and of the difference mode.

Through Diffrax; of a deterministic delay by the method of steps (`jaxlb.fluid.delay_limit`).
"""

import warnings
from collections.abc import Callable
from typing import Any

import diffrax as dfx
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model import dynamics, imbalance
from ..model.delays import Deterministic
from ..model.system import System
from . import delay_limit

MAX_STEPS = 65536


class Trajectory(eqx.Module):
    """Solution of the fluid limit.

    - `times`: s, shape (times,).
    - `jobs`: per unit of scale, shape (times, servers, compartments), phases then service. A
      deterministic delay has one compartment for all in transit.
    - `result`: Diffrax's result code; where it is not successful, the times that were not reached
      hold infinities.
    """

    times: Float[Array, " times"]
    jobs: Float[Array, "times servers compartments"]
    result: dfx.RESULTS

    @property
    def queue(self) -> Float[Array, "... times servers"]:
        """Jobs in service, q."""
        return self.jobs[..., -1]

    @property
    def in_transit(self) -> Float[Array, "... times servers phases"]:
        """Jobs in each delay phase, z."""
        return self.jobs[..., :-1]

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether the solver reached the last time."""
        return self.result == dfx.RESULTS.successful


class ImbalanceTrajectory(eqx.Module):
    """Solution of the difference system.

    - `times`: s, shape (times,).
    - `y`: (x, w_1, ..., w_L), jobs per unit of scale, shape (times, modes).
    - `result`: as in `Trajectory`.
    """

    times: Float[Array, " times"]
    y: Float[Array, "times modes"]
    result: dfx.RESULTS

    @property
    def queue(self) -> Float[Array, "... times"]:
        """x: difference of jobs in service."""
        return self.y[..., 0]

    @property
    def in_transit(self) -> Float[Array, "... times phases"]:
        """w: difference of jobs in each delay phase."""
        return self.y[..., 1:]

    @property
    def ok(self) -> Bool[Array, "..."]:
        """Whether the solver reached the last time."""
        return self.result == dfx.RESULTS.successful


def solve(
    system: System,
    times: Any,
    initial: Any = None,
    *,
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
    - `solver`: any Diffrax solver; `Tsit5()` by default. Beyond about 200 stages the chain is stiff
      and an explicit method needs some D L / 3 steps for each second.
    - `rtol`, `atol`: tolerances of the adaptive step, by default 1e-8 in float64 and 1e-6 in
      float32; arrays are welcome, new values do not recompile.
    - `adjoint`: any Diffrax adjoint; `RecursiveCheckpointAdjoint()` by default. For forward mode
      pass `diffrax.ForwardMode()`.
    - `controller`, `first_step`: any Diffrax step size controller, in place of the tolerances, and
      its first step, s; a solver without an error estimate, such as `Euler()`, needs
      `diffrax.ConstantStepSize()` and a step.
    - `max_steps`: static; a member that needs more ends with a result code. By default 65536.

    For a `Deterministic` delay, `rtol` and `atol` are of the last Chebyshev coefficients of a
    window, and `max_steps` windows of memory: by default 1024, or where all is concrete as many as
    needed up to 65536. Other settings have no meaning there; both modes of derivatives work.

    **Returns:** a `Trajectory`. No exception under `vmap`: look at `result` or `ok`; a member that
    failed, or whose traced times are out of order, holds infinities and has no meaningful gradient.

    **Raises:** `ValueError` on a bad argument, and on a delay without phases but `Deterministic`,
    where the rule must look at queues alone. Warns on `BacksolveAdjoint`, whose backward solve of
    the delay chain is unstable: its gradients are wrong by orders of magnitude at 50 stages.

    **Accuracy:** with the defaults, largest error over [0, 20] relative to the largest value, on
    random systems with 1 to 50 stages: below 3e-7 in float64 and 4e-5 in float32, against
    Dormand-Prince 8(5,3) at 1e-12 (`experiments/accuracy.py`). With a deterministic delay below
    1e-8 and 3e-6 (`tests/fluid/test_delay_limit.py`).

    **Cost:** on one core, float64, compiled, for 200 times: 0.3 ms with 1 stage, 0.8 ms with 10,
    3 ms with 50, 0.1 ms with a deterministic delay. There a batch on a CPU is worked through one
    member after another; its gradients under `jax.vmap` are 2.2 ms, by `jax.lax.map` 0.4 ms each.
    """
    _checks.kind("system", system, System)
    times = _checks.times("times", times)
    start = dynamics.initial_jobs(system, initial)
    if isinstance(system.delay, Deterministic):
        refuse_settings(solver, adjoint, controller, first_step)
        settings = (rtol, atol), max_steps
        found, result = delay_limit.solve_jobs(system, times, start[:, 1], None, *settings)
        return Trajectory(times, found[..., :2], result)
    jobs, result = integrate(
        dynamics.drift,
        system,
        times,
        start,
        (solver, adjoint, controller),
        (rtol, atol, first_step),
        max_steps,
    )
    return Trajectory(times, jobs, result)


def solve_imbalance(
    system: System,
    times: Any,
    initial: Any,
    *,
    linear: bool = False,
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
    """
    _checks.kind("system", system, System)
    times = _checks.times("times", times)
    system.require_servers_alike()
    fixed = isinstance(system.delay, Deterministic)
    modes = 1 if fixed else system.phase_delay("the difference system").num_phases + 1
    scalar = _checks.ndim("initial", initial) == 0
    start = _checks.finite("initial", initial, "jobs", () if scalar else (modes,))
    start = jnp.zeros(modes, start.dtype).at[0].set(start) if scalar else start
    if fixed:
        refuse_settings(solver, adjoint, controller, first_step)
        settings = (rtol, atol), max_steps
        y, result = delay_limit.solve_difference(system, times, start, linear, *settings)
        return ImbalanceTrajectory(times, y, result)
    right_side = imbalance.linearised_drift if linear else imbalance.drift
    y, result = integrate(
        right_side,
        system,
        times,
        start,
        (solver, adjoint, controller),
        (rtol, atol, first_step),
        max_steps,
    )
    return ImbalanceTrajectory(times, y, result)


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
