"""A trajectory as a march of windows, each as long as its accuracy allows, and its derivatives.

Windows are made in blocks of a fixed number, so that nothing recompiles. Derivatives are those of
the windows that were made: the windows' lengths are not differentiated. In reverse, a block other
than the last is made again from where it began.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jaxtyping import Array, Bool, Float, Int

from . import window
from .chain import DEGREE, FIRST_LEVEL, LENGTHS
from .window import Model, Problem, Start, Window

BLOCK = 128


class State(NamedTuple):
    """Where a window begins: time, jobs, the level to try; and of those before it the largest flow,
    the sum of their errors, how many were tried, and whether even the shortest would not do."""

    time: Float[Array, ""]
    start: Start
    level: Int[Array, ""]
    size: Float[Array, ""]
    error: Float[Array, ""]
    steps: Int[Array, ""]
    stuck: Bool[Array, ""]


class Record(NamedTuple):
    """Windows of a block, or one for each time that is asked for: where each begins, in units
    of time, its level, itself."""

    time: Float[Array, " windows"]
    level: Int[Array, " windows"]
    window: Window


class Block(NamedTuple):
    """Windows of a block, of which the first `made` are there, and the state after them."""

    record: Record
    made: Int[Array, ""]
    state: State


class Given(NamedTuple):
    """What a march begins with: the model and its jobs."""

    model: Model
    start: Start


def march(
    problem: Problem, given: Given, times: Float[Array, " times"], max_steps: int
) -> tuple[Record, State]:
    """The window of each time, in units of time, and the last state; differentiable in `given`.

    Both forward and in reverse, once. A time that is not before the last state was not reached:
    its window is void.
    """

    @jax.custom_jvp
    def solve(given, times):
        # Without derivatives nothing needs to be kept.
        record, state, _ = _lane_by_lane(_run, problem, max_steps, 1)(given, times)
        return record, state

    @solve.defjvp
    def _(primals, tangents):
        given, times = _once(primals[0]), primals[1]
        record, state, kept = _lane_by_lane(_run, problem, max_steps, -(-max_steps // BLOCK))(
            given, times
        )
        push = _lane_by_lane(_push, problem, max_steps)
        pull = _lane_by_lane(_pull, problem, max_steps)
        d_window = _linear(
            lambda d_given: push(given, times, kept, d_given),
            lambda ct_window: pull(given, times, kept, ct_window),
            tangents[0],
            record.window,
        )
        still = jax.tree.map(_no_tangent, (record, state))
        return (record, state), (still[0]._replace(window=d_window), still[1])

    return solve(given, jax.lax.stop_gradient(times))


@jax.custom_jvp
def _once(given: Given) -> Given:
    """The same: what is made from it has no derivatives, and would seem to have those of zero."""
    return given


@_once.defjvp
def _(primals, tangents):
    raise NotImplementedError(  # not unfinished: JAX's own error for a derivative that is not
        "Collocation has first derivatives only: take second ones with method='diffrax'."
    )


class Kept(NamedTuple):
    """For derivatives: the state before each block, how many there are, and the last."""

    states: State
    blocks: Int[Array, ""]
    last: Block


def _run(problem, max_steps, capacity, given, times):
    end = times[-1]

    def more(carry):
        return _running(carry[1].state, end, max_steps)

    def next_block(carry):
        record, block, kept, blocks = carry
        before = block.state
        block = _block(problem, given.model, before, end, max_steps)
        which, here = _places(block, before.time, times)
        found = jax.tree.map(lambda part: part[which], block.record)
        record = jax.tree.map(lambda new, old: _where(here, new, old), found, record)
        place = jnp.minimum(blocks, capacity - 1)
        kept = jax.tree.map(lambda many, one: many.at[place].set(one), kept, before)
        return record, block, kept, blocks + 1

    state = _first_state(given)
    empty = _empty(given.start, len(times))
    block = Block(_empty(given.start, BLOCK), jnp.int32(0), state)
    kept = jax.tree.map(lambda part: jnp.zeros((capacity, *part.shape), part.dtype), state)
    carry = empty, block, kept, jnp.int32(0)
    record, block, kept, blocks = jax.lax.while_loop(more, next_block, carry)
    return record, block.state, Kept(kept, blocks, block)


def _block(problem, model, state, end, max_steps):
    """Up to `BLOCK` windows from a state on."""

    def more(carry):
        _, count, state, _ = carry
        return (count < BLOCK) & _running(state, end, max_steps)

    def attempt(carry):
        record, count, state, part = carry
        made, quality = window.solve(problem, model, part, state.start, state.size)
        # Where it is not accurate the next one takes its place.
        one = Record(state.time, state.level, made)
        record = jax.tree.map(lambda many, one: many.at[count].set(one), record, one)
        last = len(LENGTHS) - 1
        level = jnp.where(quality.accurate, state.level - quality.easy, state.level + 1)
        after = State(
            state.time + part.length,
            window.end(part, made),
            state.level,
            quality.size,
            state.error + quality.error,
            state.steps,
            state.stuck,
        )
        state = jax.tree.map(
            lambda new, old: jnp.where(quality.accurate, new, old), after, state
        )._replace(level=jnp.clip(level, 0, last), steps=state.steps + 1, stuck=level > last)
        # Most windows have the level of the one before, and matrices cost more than sweeps.
        same = state.level == one.level
        part = jax.lax.cond(same, lambda: part, lambda: window.at_level(model, state.level))
        return record, count + quality.accurate, state, part

    record, part = _empty(state.start, BLOCK), window.at_level(model, state.level)
    carry = record, jnp.int32(0), state, part
    return Block(*jax.lax.while_loop(more, attempt, carry)[:3])


def _push(problem, max_steps, given, times, kept, d_given):
    end = times[-1]

    def next_block(b, carry):
        d_found, d_start = carry
        block = _made_again(problem, given.model, kept, b, end, max_steps)

        def next_window(i, carry):
            d_windows, d_start = carry
            level, made = _take(block.record, i)
            d_window, d_end = window.push(problem, given.model, level, made, d_given.model, d_start)
            put = jax.tree.map(lambda many, one: many.at[i].set(one), d_windows, d_window)
            return put, d_end

        nothing = jax.tree.map(jnp.zeros_like, block.record.window)
        d_windows, d_start = jax.lax.fori_loop(0, block.made, next_window, (nothing, d_start))
        which, here = _places(block, _begin(kept, b), times)
        d_found = jax.tree.map(lambda new, old: _where(here, new[which], old), d_windows, d_found)
        return d_found, d_start

    nothing = _empty(given.start, len(times)).window
    return jax.lax.fori_loop(0, kept.blocks, next_block, (nothing, d_given.start))[0]


def _pull(problem, max_steps, given, times, kept, ct_found):
    end = times[-1]

    def block_before(back, carry):
        b = kept.blocks - 1 - back
        block = _made_again(problem, given.model, kept, b, end, max_steps)
        which, here = _places(block, _begin(kept, b), times)
        ct_windows = jax.tree.map(
            lambda ct: (
                jnp.zeros((BLOCK, *ct.shape[1:]), ct.dtype)
                .at[which]
                .add(_where(here, ct, jnp.zeros_like(ct)))
            ),
            ct_found,
        )

        def window_before(back, carry):
            ct_model, ct_end = carry
            i = block.made - 1 - back
            level, made = _take(block.record, i)
            ct_window = jax.tree.map(lambda many: many[i], ct_windows)
            ct, ct_start = window.pull(problem, given.model, level, made, ct_window, ct_end)
            return jax.tree.map(jnp.add, ct_model, ct), ct_start

        return jax.lax.fori_loop(0, block.made, window_before, carry)

    nothing = jax.tree.map(jnp.zeros_like, given)
    return Given(*jax.lax.fori_loop(0, kept.blocks, block_before, tuple(nothing)))


def _made_again(problem, model, kept, b, end, max_steps):
    def again():
        state = jax.tree.map(lambda part: part[b], kept.states)
        return _block(problem, model, state, end, max_steps)

    return jax.lax.cond(b == kept.blocks - 1, lambda: kept.last, again)


def _begin(kept, b):
    return kept.states.time[b]


def _take(record, i):
    return record.level[i], jax.tree.map(lambda many: many[i], record.window)


def _places(block, begin, times):
    """For each time the window that it is in, and whether it is in this block."""
    there = jnp.arange(BLOCK) < block.made
    starts = jnp.where(there, block.record.time, jnp.inf)
    which = jnp.searchsorted(starts, times, side="right") - 1
    return jnp.clip(which, 0, BLOCK - 1), (times >= begin) & (times < block.state.time)


def _running(state, end, max_steps):
    return (state.time <= end) & (state.steps < max_steps) & ~state.stuck


def _first_state(given):
    zero = jnp.zeros_like(given.model.system.arrival_rate)
    none = jnp.int32(0)
    return State(zero, given.start, jnp.int32(FIRST_LEVEL), zero, zero, none, jnp.zeros((), bool))


def _empty(start, windows):
    modes, stages = start.stages.shape

    def zeros(*shape):
        return jnp.zeros((windows, *shape), start.queue.dtype)

    at_nodes = zeros(modes, DEGREE + 1)
    made = Window(Start(zeros(modes), zeros(modes, stages)), at_nodes, at_nodes)
    return Record(zeros(), jnp.zeros(windows, jnp.int32), made)


def _where(here, new, old):
    return jnp.where(here.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _no_tangent(value):
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return jnp.zeros_like(value)
    return jnp.zeros(value.shape, jax.dtypes.float0)


def _lane_by_lane(function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
    """A batch on a CPU is worked through one after the other: none waits for the slowest."""

    def one(*arguments):
        return function(*static, *arguments)

    return sequential_vmap(one) if jax.default_backend() == "cpu" else one


def _linear(push, pull, d_given, like):
    """push(d_given), whose transpose is `pull`.

    It is the lower part of the solution of [1 0; -push 1] (given, found) = (d_given, 0): linear
    solves are the only maps with a transpose of one's own that JAX can batch.
    """
    # All of the right side must be linear in the tangents, zeros too.
    link = 0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(d_given))
    right = (
        jax.tree.map(lambda leaf: leaf + link, d_given),
        jax.tree.map(lambda leaf: jnp.zeros_like(leaf) + link, like),
    )

    def solve(_, right):
        return right[0], jax.tree.map(jnp.add, right[1], push(right[0]))

    def transposed(_, right):
        return jax.tree.map(jnp.add, right[0], pull(right[1])), right[1]

    return jax.lax.custom_linear_solve(lambda x: x, right, solve, transposed)[1]
