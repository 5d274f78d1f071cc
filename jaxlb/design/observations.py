"""What partial observation costs: one design, and what is left of it as less is measured."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from .. import _checks
from ..model.delays import AbstractDelay, TransformDelay
from ..model.memory import LateLogit
from ..model.routing import Logit
from ..model.system import System, require_one
from .age import by_age
from .criterion import decay_rate
from .kalman import kalman, require_weights
from .lqr import relay_effort
from .observed_noise import ObservedNoise, observed_noise
from .weights import uniform

# Of the search for a sensitivity: halvings, and the least looked at, over the design's.
STEPS, LEAST = 48, 1e-6

Rule = Callable[[Float[Array, ""]], Any]


class Observation(NamedTuple):
    """One row: what is measured, and what that allows by linear noise.

    - `name`: of the rule. `measured`: what it needs beside the queues.
    - `relative`: stationary variance of the imbalance over that without feedback.
    - `variance`: itself, jobs^2. `decay_rate`: of a small imbalance, 1/s.
    - `effort`: as of `jaxlb.design.control_effort`, over its bound `relay_effort`.
    - `sensitivity`: of the rule, per job.
    """

    name: str
    measured: str
    relative: float
    variance: float
    decay_rate: float
    effort: float
    sensitivity: float


class Observations(NamedTuple):
    """Rows, from most to least that is measured."""

    rows: list[Observation]

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'rule':<{width}}  variance  decay  effort  needs, beside queues"]
        lines += [
            f"{row.name:<{width}}  {row.relative:8.4f}  {row.decay_rate:5.3f}  {row.effort:6.4f}  "
            f"{row.measured}"
            for row in self.rows
        ]
        return "\n".join(lines)


def observations(system: System, scale: Any = 1.0, late: Any = 0.1) -> Observations:
    """What a design made for phases that are seen keeps of its variance, as less is measured.

    The first four rules count jobs in transit with the design's weights and sensitivity, by what
    is known of their phases; on average they act alike, so that their roots are those of the
    design. The others cannot; each has the sensitivity, at an effort no larger than the design's,
    up to which the variance falls.

    **Arguments:** `system`: two servers or more, alike, a delay with phases, and a `WeightedLogit`,
    such as by `jaxlb.design.lqr`. `scale`: eta, > 0. `late`: lag of a late view, over the mean
    delay.

    **Returns:** `Observations`, of Python numbers: `print` shows a table.

    **Raises:** `ValueError` on a bad argument, and where balance is not stable.

    **Accuracy:** linear noise: see `jaxlb.design.observed_noise`; sensitivities to 1e-9.

    **Cost:** on one core 0.2 s, 0.5 s with 50 phases, after 15 s of compilation for each number of
    phases (`experiments/benchmarks/design_costs.py`).
    """
    require_one(system)
    system.require_two_alike()
    design = require_weights(system)
    scale, late = _checks.positive("scale", scale), _checks.not_negative("late", late)
    most = observed_noise(system, scale).effort
    if not bool(most < jnp.inf):
        raise ValueError("`system` must be stable at balance.")
    delay = system.delay
    counted, alone = uniform(system, 1.0).weights, Logit(design.sensitivity)
    every = "where each job was sent"
    known = [
        ("phases", "the phase of each job in transit", design),
        ("log, by age", f"{every} and when, and which arrived", by_age(system)),
        ("log, Kalman filter", f"{every}, and arrivals", kalman(system)),
        ("own shares, Kalman filter", "the shares that it has drawn with", kalman(system, False)),
    ]
    rows = [
        _row(name, measured, system.with_routing(rule), scale, decay_rate(system))
        for name, measured, rule in known
    ]

    def best(rule: Any) -> System:
        return _best(system.with_routing(rule), scale, most)

    total = best(eqx.tree_at(lambda rule: rule.weights, design, counted))
    rows.append(_row("total", "the number in transit to each server", total, scale))
    fewest = best(alone)
    rows.append(_row("queues alone", "nothing", fewest, scale))
    lag = late * delay.mean
    seen = best(LateLogit(design.sensitivity, lag))
    routing: Any = seen.routing
    in_all = System(
        seen.arrival_rate,
        seen.service_rate,
        TransformDelay(_Later(delay, lag)),
        routing.rule,
        seen.num_servers,
    )
    name = f"queues, {100 * float(late):.3g} % of the delay late"
    rows.append(_row(name, "nothing", seen, scale, decay_rate(in_all)))
    return Observations(rows)


class _Later(eqx.Module):
    """Transform of a delay and a lag on top of it: to act late and to see late is one to roots."""

    delay: AbstractDelay
    lag: Float[Array, ""]

    def __call__(self, r: Inexact[Array, ""]) -> Any:
        return self.delay.transform(r) * jnp.exp(-r * self.lag)


def _row(
    name: str, measured: str, system: System, scale: Array, decay: Array | None = None
) -> Observation:
    found: ObservedNoise = observed_noise(system, scale)
    routing: Any = system.routing
    return Observation(
        name,
        measured,
        float(found.variance / (2 * scale * system.arrival_rate / system.common_service_rate)),
        float(found.variance),
        float(decay_rate(system) if decay is None else decay),
        float(found.effort / relay_effort(system, scale)),
        float(routing.sensitivity),
    )


@eqx.filter_jit
def _best(system: System, scale: Array, most: Array) -> System:
    """The same with the largest sensitivity up to which the variance falls and effort allows."""

    def of(sensitivity):
        return eqx.tree_at(lambda system: system.routing.sensitivity, system, sensitivity)

    def still_better(sensitivity):
        found, slope = jax.jvp(
            lambda sensitivity: observed_noise(of(sensitivity), scale),
            (sensitivity,),
            (jnp.ones_like(sensitivity),),
        )
        return (slope.variance < 0) & (found.effort <= most)

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        good = still_better(jnp.exp(middle))
        return jnp.where(good, middle, low), jnp.where(good, high, middle)

    routing: Any = system.routing
    ends = jnp.log(LEAST * routing.sensitivity), jnp.log(routing.sensitivity / LEAST)
    low, _ = jax.lax.fori_loop(0, STEPS, halve, ends)
    return of(jnp.exp(low))
