"""Figures 2 to 7: what they show, as data.

Figures 5 to 7 are drawn for the nonlinear and for the linear difference system, because the paper
does not say which one it shows.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from .. import fluid, stochastic
from ..fluid.trajectory import MAX_STEPS
from ..model import System
from ..plot import BLACK, BLUE, GREEN, ORANGE, PURPLE, Curve, Panel
from . import cases


class PaperFigure(NamedTuple):
    """A figure of the paper: its panels, caption, and the names of its columns as a table."""

    name: str
    title: str
    caption: str
    columns: tuple[str, str]
    panels: Sequence[Panel]


def figure_2(key: jax.Array) -> PaperFigure:
    """Jobs at each server, L = 1, at two scales."""
    keys = jax.random.split(key)
    panels = [
        _queues_panel(f"({letter}) η = {scale}, L = 1", 1, scale, key)
        for letter, scale, key in zip("ab", (10, 100), keys, strict=True)
    ]
    caption = (
        "Scaled number of jobs in each server for two scales, with an exponential action delay "
        "(λ = 15, μ = 1, D = 1, θ = 1, L = 1), from q = (0, 1): one sample path and the fluid "
        "limit."
    )
    return PaperFigure("fig2", "Figure 2", caption, ("t", "jobs"), panels)


def figure_3(key: jax.Array) -> PaperFigure:
    """Jobs at each server, L = 2: the oscillation grows."""
    caption = (
        "Scaled number of jobs in each server with two delay phases "
        "(λ = 15, μ = 1, D = 1, θ = 1, L = 2, η = 100): one sample path and the fluid limit. "
        "The oscillation grows to a limit cycle."
    )
    panel = _queues_panel("η = 100, L = 2", 2, 100, key)
    return PaperFigure("fig3", "Figure 3", caption, ("t", "jobs"), [panel])


def figure_4(key: jax.Array) -> PaperFigure:
    """Jobs in the delay phases and in the server, L = 2."""
    system, times = cases.queues(2), cases.grid()
    path = stochastic.simulate(system, key, times, scale=100.0)
    mean = fluid.solve(system, times)
    panels = [
        Panel(
            title,
            "time $t$",
            "scaled number of jobs",
            [
                Curve(label, times, times, jobs[:, 0, part], color, thin=thin)
                for label, part, color in (
                    ("$z_{1,1}$", 0, GREEN),
                    ("$z_{1,2}$", 1, PURPLE),
                    ("$q_1$", 2, BLUE),
                )
            ],
        )
        for title, jobs, thin in (
            ("(a) stochastic simulation", path.jobs[0] / 100, True),
            ("(b) fluid limit", mean.jobs, False),
        )
    ]
    caption = (
        "Jobs in the two delay phases and in server 1 (parameters as in Figure 3): the oscillation "
        "passes through the phases before it reaches the server."
    )
    return PaperFigure("fig4", "Figure 4", caption, ("t", "jobs"), panels)


def figure_5(horizon: float) -> PaperFigure:
    """Phase plots of x and the last phase, L = 1 and 2."""
    panels = [
        Panel(
            f"({letter}) L = {stages}",
            "imbalance in service $x$",
            f"imbalance in the last phase $w_{stages}$",
            _both_systems(cases.imbalance(stages), 0.5, horizon, stages),
            points=[("start", 0.5, 0.0), ("equilibrium", 0.0, 0.0)],
        )
        for letter, stages in zip("ab", (1, 2), strict=True)
    ]
    caption = (
        "Phase plots of the imbalance in service and in the last delay phase, from (0.5, 0) with "
        f"all w = 0 (λ = 10, μ = 1, D = 4, θ = 1), up to t = {horizon:g}. The paper states "
        "neither the horizon nor whether the system is the linear one, so both systems are drawn."
    )
    return PaperFigure("fig5", "Figure 5", caption, ("x", "w_L"), panels)


def figure_6(horizon: float) -> PaperFigure:
    """Phase plots of x and w_1 for several sensitivities, L = 1."""
    small = [
        curve
        for sensitivity, color in ((0.1, GREEN), (0.2, BLUE), (0.4, ORANGE))
        for curve in _both_systems(
            cases.imbalance(1, sensitivity), 0.5, horizon, 1, color, f"nonlinear, θ = {sensitivity}"
        )
    ]
    large = _both_systems(cases.imbalance(1, 10.0), 0.5, horizon, 1, PURPLE, "nonlinear, θ = 10")
    start = [("start", 0.5, 0.0), ("equilibrium", 0.0, 0.0)]
    axes = "imbalance in service $x$", "imbalance in the phase $w_1$"
    panels = [
        Panel("(a) θ = 0.1, 0.2, 0.4", *axes, small, start),
        Panel("(b) θ = 10", *axes, large, start),
    ]
    caption = (
        "Phase plots of the imbalance in service and in the delay phase for several sensitivities, "
        f"from (0.5, 0) (λ = 10, μ = 1, D = 4, L = 1), up to t = {horizon:g}; the nonlinear and "
        "the linear system."
    )
    return PaperFigure("fig6", "Figure 6", caption, ("x", "w_1"), panels)


def figure_7(horizon: float) -> PaperFigure:
    """Imbalance against time, L = 1 and 2."""
    times = cases.grid(horizon)
    curves = [
        Curve(f"L = {stages}, {name}", times, times, x, color, dashed=linear)
        for stages, color in ((1, BLUE), (2, ORANGE))
        for name, linear, x in (
            ("nonlinear", False, _imbalance(cases.imbalance(stages), 1.0, times, False).queue),
            ("linear", True, _imbalance(cases.imbalance(stages), 1.0, times, True).queue),
        )
    ]
    caption = (
        "Imbalance with one and two delay phases, from x = 1 and w = 0 (λ = 10, μ = 1, D = 4, "
        f"θ = 1), up to t = {horizon:g}. The paper's text implies the linear system; the "
        "nonlinear one is drawn beside it."
    )
    panel = Panel("imbalance in service", "time $t$", "imbalance in service $x$", curves)
    return PaperFigure("fig7", "Figure 7", caption, ("t", "x"), [panel])


SAMPLED: dict[str, Callable[[jax.Array], PaperFigure]] = {
    "fig2": figure_2,
    "fig3": figure_3,
    "fig4": figure_4,
}
IMBALANCE: dict[str, Callable[[float], PaperFigure]] = {
    "fig5": figure_5,
    "fig6": figure_6,
    "fig7": figure_7,
}


def _queues_panel(title: str, stages: int, scale: int, key: jax.Array) -> Panel:
    system, times = cases.queues(stages), cases.grid()
    path = stochastic.simulate(system, key, times, scale=scale).queue[0] / scale
    mean = fluid.solve(system, times).queue
    curves = [
        Curve(f"$q_{server + 1}$, {name}", times, times, jobs[:, server], color, thin=thin)
        for name, jobs, thin in (("sample path", path, True), ("fluid limit", mean, False))
        for server, color in enumerate((BLUE, ORANGE))
    ]
    return Panel(title, "time $t$", "scaled number of jobs", curves)


def _both_systems(
    system: System,
    start: float,
    horizon: float,
    phase: int,
    color: str = BLUE,
    label: str = "nonlinear",
) -> list[Curve]:
    """The nonlinear and the linear trajectory in the plane of x and one phase's imbalance."""
    times = cases.grid(horizon)
    nonlinear, linear = (_imbalance(system, start, times, flag).y for flag in (False, True))
    return [
        Curve(label, times, nonlinear[:, 0], nonlinear[:, phase], color),
        Curve(
            label.replace("nonlinear", "linear"),
            times,
            linear[:, 0],
            linear[:, phase],
            BLACK,
            dashed=True,
        ),
    ]


def _imbalance(system: System, start: Any, times: jax.Array, linear: bool):
    solution = _solve(system, start, times, linear)
    if not solution.ok:
        raise ValueError(
            f"`horizon` must be short enough for {MAX_STEPS} steps of the solver, got "
            f"{times[-1]:g}."
        )
    return solution


@partial(jax.jit, static_argnums=3)
def _solve(system: System, start: Any, times: jax.Array, linear: bool):
    return fluid.solve_imbalance(system, times, start, linear=linear, rtol=1e-10, atol=1e-12)
