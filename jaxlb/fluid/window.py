"""One window of a trajectory: its polynomials, by fixed-point sweeps, and their derivatives.

Time is counted in mean delays, or as `jumps` does, so that the delay has the matrices of `chain`. A
mode is one server, or the difference of two: jobs in each of its stages, then jobs in service. On a
window the inflow of each mode and its jobs in service are polynomials, given at the nodes, and

    inflow = rate(values),    values = respond(inflow),

where `respond` solves the linear chain and service, and the rate may count jobs in transit too. The
sweeps converge the faster the shorter the window is, and with a long chain at once: there the
inflow of a window does not come out in it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..model.system import System
from . import jumps
from .chain import DEGREE, Chain, chain, coefficients, integral, nodes

# Sweeps of one window, and those of its linearisation, which starts from nothing.
SWEEPS, LINEAR_SWEEPS = 14, 28
# Windows are shorter than this many mean services: the integrating factor must not take digits.
LONGEST_IN_SERVICES = 4.0
# A window whose tail is so much below its bound is followed by one twice as long, and one that is
# above it by the other factor is given up before its sweeps have converged.
EASY, HOPELESS = 1e-3, 1e2


class Bounds(NamedTuple):
    """What an accurate window keeps to, relative to the largest flow so far.

    - `tail`: the last two Chebyshev coefficients of inflow and outflow, times the length.
    - `change`: of the inflow in the last sweep.
    """

    tail: float
    change: float


# By the bits of a number.
BOUNDS = {64: Bounds(1e-7, 1e-9), 32: Bounds(1e-5, 1e-6)}


class Problem(NamedTuple):
    """The nonlinear part: the arrival rate of each mode, 1/s, from its load, and the service rates
    of the modes, 1/s; both of a system."""

    arrivals: Callable[[System, Float[Array, "modes nodes"]], Float[Array, "modes nodes"]]
    services: Callable[[System], Float[Array, " modes"]]


class Model(NamedTuple):
    """A system, and the jumps of its delay; none where the matrices are those of `chain`."""

    system: System
    jumps: jumps.Jumps | None

    @property
    def unit(self) -> Float[Array, ""]:
        """Of time, s."""
        return self.system.delay.mean if self.jumps is None else self.jumps.unit


class Start(NamedTuple):
    """Jobs where a window begins, in service and in each stage."""

    queue: Float[Array, " modes"]
    stages: Float[Array, "modes stages"]


class Window(NamedTuple):
    """A window's beginning and its polynomials at the nodes."""

    start: Start
    values: Float[Array, "modes nodes"]
    inflow: Float[Array, "modes nodes"]


class Quality(NamedTuple):
    """How a window came out: the largest flow so far, tail or change relative to it, whether the
    window is accurate, and whether it could have been twice as long."""

    size: Float[Array, ""]
    error: Float[Array, ""]
    accurate: Bool[Array, ""]
    easy: Bool[Array, ""]


def at_level(model: Model, level: Int[Array, ""]) -> Chain:
    """Matrices of the delay for windows of one level."""
    if model.jumps is not None:
        return jumps.at_level(model.jumps, level)
    dtype = model.system.arrival_rate.dtype

    def of_level(table):
        kind = jnp.result_type(dtype, jnp.complex64) if jnp.iscomplexobj(table) else dtype
        return jax.lax.dynamic_index_in_dim(jnp.asarray(table, kind), level, 0, False)

    return jax.tree.map(of_level, chain(model.system.num_phases))


def solve(
    problem: Problem, model: Model, part: Chain, start: Start, size: Float[Array, ""]
) -> tuple[Window, Quality]:
    """The window that begins at `start`, where `size` is the largest flow before it."""
    bounds = BOUNDS[jnp.finfo(size.dtype).bits]
    last_two = jnp.asarray(coefficients()[:, -2:], size.dtype)
    once = _sweep(problem, model, part, start)

    def sweep(carry):
        n, inflow, *_ = carry
        outflow, values, new = once(inflow)
        largest = jnp.maximum(size, jnp.maximum(jnp.abs(new).max(), jnp.abs(outflow).max()))
        tail = jnp.maximum(jnp.abs(new @ last_two).max(), jnp.abs(outflow @ last_two).max())
        change = jnp.abs(new - inflow).max()
        return n + 1, new, values, largest, change, part.length * tail

    def unsettled(carry):
        n, _, _, largest, change, tail = carry
        hopeless = (n > 1) & (tail > HOPELESS * bounds.tail * largest)
        return (n < SWEEPS) & (change > bounds.change * largest) & ~hopeless

    queue = jnp.repeat(start.queue[:, None], DEGREE + 1, axis=1)
    weighed = _of_start(part, start)[1]
    first = _inflow(problem, model, _load(part, weighed, queue, 0 * queue))
    unknown = jnp.full_like(size, jnp.inf)
    carry = jnp.int32(0), first, first, size, unknown, unknown
    _, inflow, values, largest, change, tail = jax.lax.while_loop(unsettled, sweep, carry)
    decay = (part.length * _decay(problem, model)).max()
    # Written so that NaN is not accurate.
    accurate = (change <= bounds.change * largest) & (tail <= bounds.tail * largest)
    accurate = accurate & (decay <= LONGEST_IN_SERVICES)
    easy = (tail <= EASY * bounds.tail * largest) & (2 * decay <= LONGEST_IN_SERVICES)
    error = jnp.maximum(tail, change) / jnp.where(largest > 0, largest, 1)
    return Window(start, values, inflow), Quality(largest, error, accurate, easy)


def end(part: Chain, window: Window) -> Start:
    """Jobs where the window ends."""
    stages = _move(part, window.start.stages) + window.inflow @ part.filling
    return Start(window.values[:, -1], stages)


def push(
    problem: Problem,
    model: Model,
    level: Int[Array, ""],
    window: Window,
    d_model: Model,
    d_start: Start,
) -> tuple[Window, Start]:
    """Tangents of a window and of its end, from those of the model and of its beginning."""
    both = _both(problem, level)
    rest = window.start, model
    _, source = jax.jvp(lambda *rest: both(window.inflow, *rest), rest, (d_start, d_model))
    _, through = jax.linearize(lambda inflow: both(inflow, *rest), window.inflow)
    d_inflow = _fixed_point(lambda d_inflow: source[1] + through(d_inflow)[1], source[1])
    d_window = Window(d_start, source[0] + through(d_inflow)[0], d_inflow)
    _, d_end = jax.jvp(partial(_end, level), (model, window), (d_model, d_window))
    return d_window, d_end


def pull(
    problem: Problem,
    model: Model,
    level: Int[Array, ""],
    window: Window,
    ct_window: Window,
    ct_end: Start,
) -> tuple[Model, Start]:
    """The transpose of `push`: cotangents of the model and of the window's beginning."""
    both = _both(problem, level)
    rest = window.start, model
    _, of_end = jax.vjp(partial(_end, level), model, window)
    ct_moved, ct_last = of_end(ct_end)
    ct_window = jax.tree.map(jnp.add, ct_window, ct_last)
    _, through = jax.vjp(lambda inflow: both(inflow, *rest), window.inflow)
    _, of_rest = jax.vjp(lambda *rest: both(window.inflow, *rest), *rest)

    def sweep(ct_inflow):
        return ct_window.inflow + through((ct_window.values, ct_inflow))[0]

    ct_inflow = _fixed_point(sweep, sweep(jnp.zeros_like(ct_window.inflow)))
    ct_start, ct_model = of_rest((ct_window.values, ct_inflow))
    return (
        jax.tree.map(jnp.add, ct_model, ct_moved),
        jax.tree.map(jnp.add, ct_start, ct_window.start),
    )


def _end(level: Int[Array, ""], model: Model, window: Window) -> Start:
    return end(at_level(model, level), window)


def _both(problem: Problem, level: Int[Array, ""]) -> Callable[..., Any]:
    """One sweep, to jobs in service and the next inflow, of all that it depends on."""

    def both(inflow, start, model):
        return _sweep(problem, model, at_level(model, level), start)(inflow)[1:]

    return both


def _sweep(problem: Problem, model: Model, part: Chain, start: Start) -> Callable[..., Any]:
    """From the inflow to the outflow, jobs in service, and the inflow that follows from them."""
    emptying, weighed = _of_start(part, start)

    def sweep(inflow):
        outflow = emptying + inflow @ part.passing
        values = _service(problem, model, part, start.queue, outflow)
        return outflow, values, _inflow(problem, model, _load(part, weighed, values, inflow))

    return sweep


def _fixed_point(sweep: Callable[[Array], Array], first: Array) -> Array:
    bound = BOUNDS[jnp.finfo(first.dtype).bits].change

    def unsettled(carry):
        n, value, change = carry
        return (n < LINEAR_SWEEPS) & (change > bound * jnp.abs(value).max())

    def again(carry):
        n, value, _ = carry
        new = sweep(value)
        return n + 1, new, jnp.abs(new - value).max()

    unknown = jnp.asarray(jnp.inf, first.dtype)
    return jax.lax.while_loop(unsettled, again, (jnp.int32(0), first, unknown))[1]


def _of_start(part, start):
    """What jobs at the start give at the nodes: outflow, and load in transit if any counts."""
    weighed = None if part.weighed is None else start.stages @ part.weighed[0]
    return start.stages @ part.emptying, weighed


def _load(part, weighed, values, inflow):
    """What the rule compares, at the nodes."""
    return values if weighed is None else values + weighed + inflow @ part.weighed[1]


def _service(problem, model, part, queue, outflow):
    """Jobs in service at the nodes, by the integrating factor of each mode's service."""
    at = jnp.asarray(nodes(), outflow.dtype)
    grown = jnp.exp((part.length * _decay(problem, model))[:, None] * at)
    served = (grown * outflow) @ jnp.asarray(integral(), outflow.dtype)
    return (queue[:, None] + part.length * served) / grown


def _inflow(problem, model, load):
    return model.unit * problem.arrivals(model.system, load)


def _decay(problem, model):
    return model.unit * problem.services(model.system)


def _move(part, stages):
    if part.moving.ndim == 2:
        return stages @ part.moving
    count = stages.shape[-1]
    return jnp.fft.irfft(part.moving * jnp.fft.rfft(stages, 2 * count), 2 * count)[..., :count]
