"""Advice on one dispatcher: which sensitivity is safe, which is best by which criterion, and what
counting jobs in transit would buy."""

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from .. import _checks
from ..model.delays import AbstractPhaseDelay, Erlang
from ..model.routing import Logit
from ..model.system import System, require_one
from ..stability import critical_sensitivity, margins
from ..stochastic import imbalance_variance
from . import criterion as of
from .criterion import settling_time
from .gain_windows import stable_for_every_sensitivity
from .lqr import lqr
from .tune import tune
from .weights import uniform

# How far the settling time is kept from a jump, relative to the tolerance.
DISTANCE = 0.05
# Phases that stand for a delay of more, or of none, where jobs in transit are counted by phases.
STAND_IN = 50
# Effort of the best weights, as a fraction of a switch's.
EFFORT = 0.1
NAMES = {
    "present": "present setting",
    "random": "random routing",
    "fastest": "fastest decay",
    "soonest": "settles soonest",
    "steadiest": "least variance",
    "counting": "counting jobs in transit",
    "weighted": "best weights on them",
}
BY = {"fastest": "decay rate", "soonest": "settling time", "steadiest": "variance"}
# Where balance is stable for every sensitivity: the largest looked at, in gains per mean time.
LARGEST = 1e3
# What a design must take off the fluctuations to be called a remedy.
WORTH = 0.95


class Setting(NamedTuple):
    """One rule and what it does.

    - `name`: what it is best by, or what it is. `system`: with this rule. `sensitivity`: per job.
    - `decay_time`, `settling_time`: s; infinite where it does neither.
    - `deviation`: standard deviation of the imbalance at rest, jobs; `relative`: over that of
      random routing; `trusted`: whether statistical linearisation is valid there.
    - `gain_margin`: factor by which sensitivity or load may grow. `delay_margin`: s of more delay.
    """

    name: str
    system: System
    sensitivity: float
    decay_time: float
    settling_time: float
    deviation: float
    relative: float
    trusted: bool
    gain_margin: float
    delay_margin: float


class CriterionCurve(NamedTuple):
    """A criterion over the sensitivity of the paper's rule: where it was looked at, increasing."""

    sensitivity: np.ndarray
    value: np.ndarray


class Advice(NamedTuple):
    """What `advise` finds.

    - `system`: as given. `critical`: the sensitivity, per job, below which balance is stable.
    - `present`: the setting of the system itself; `None` if its sensitivity is zero.
    - `random`: no feedback. `fastest`, `soonest`, `steadiest`: the sensitivities of the fastest
      decay, the shortest settling time (kept away from its jumps) and the least variance.
    - `counting`: weight one on each job in transit; `weighted`: the best weights at a tenth of a
      switch's effort. `stand_in`: whether these two are of an Erlang delay of 50 stages instead.
    - `curves`: decay rate, settling time and variance over the sensitivity.
    """

    system: System
    critical: float
    present: Setting | None
    random: Setting
    fastest: Setting
    soonest: Setting
    steadiest: Setting
    counting: Setting
    weighted: Setting
    stand_in: bool
    curves: dict[str, CriterionCurve]

    @property
    def counting_fixes_it(self) -> bool:
        """Whether with it balance is stable and fluctuates less than at the best sensitivity."""
        stable = self.counting.decay_time < np.inf
        return bool(stable and self.counting.relative < WORTH * self.steadiest.relative)

    @property
    def settings(self) -> list[Setting]:
        """All of them."""
        own = [] if self.present is None else [self.present]
        return [*own, self.random, self.fastest, self.soonest, self.steadiest, self.counting,
                self.weighted]  # fmt: skip


def advise(
    system: System, scale: Any = 1.0, *, tolerance: Any = 0.05, progress: bool = False
) -> Advice:
    """The safe sensitivities of a dispatcher, the best ones, and what counting would buy.

    **Arguments:** `system`: two servers, alike, with `Logit`; its own sensitivity is the present
    setting, zero for none. A delay with phases, or `Deterministic`. `scale`: eta; 1 if rates are
    those of the real system. `tolerance`: of the settling time. `progress`: whether to show a bar.

    **Returns:** an `Advice`.

    **Raises:** `ValueError` on a bad argument.

    **Cost:** on one core 3 s, 6 s with 50 phases, after 50 s of compilation, less on two
    (`experiments/benchmarks/design_costs.py`).
    """
    require_one(system)
    if not isinstance(system.routing, Logit):
        raise ValueError(f"`routing` must be Logit, got {type(system.routing).__name__}.")
    scale = _checks.positive("scale", scale)
    critical = float(critical_sensitivity(system))
    delays = float(system.delay.mean + 1 / system.common_service_rate)
    upper = critical if np.isfinite(critical) else LARGEST / (float(system.arrival_rate) * delays)
    theta, phases = float(system.routing.sensitivity), _with_phases(system)
    weighted = phases.with_routing(lqr(phases, EFFORT, scale))
    counting = _at(phases, theta or float(weighted.routing.sensitivity))  # pyright: ignore
    figures = functools.partial(_setting, scale=scale, tolerance=tolerance)

    def best(criterion: Any, limits: Any = None) -> Any:
        free = {"routing.sensitivity": (0.0, upper)}
        return tune(_at(system, upper / 10), criterion, free, limits, method="scan")

    within = {functools.partial(of.settling_cliff, tolerance=tolerance): (DISTANCE, None)}
    tasks: dict[str, Any] = {
        "settling time": lambda: best(
            functools.partial(settling_time, tolerance=tolerance), within
        ),
        "counting": lambda: figures(counting.with_routing(uniform(counting, 1.0))),
        "decay rate": lambda: best(of.decay_rate),
        "weighted": lambda: figures(weighted),
        "variance": lambda: best(functools.partial(of.linear_noise_variance, scale=scale)),
        "present": lambda: figures(system),
    }
    found = _done(tasks, progress)
    tuned = {name: found.pop(name) for name in ("decay rate", "settling time", "variance")}
    for name, criterion in BY.items():
        value = float(tuned[criterion].parameters["routing.sensitivity"])
        found[name] = figures(_at(system, value))
    found["random"] = figures(_at(system, 0.0))
    settings: dict[str, Any] = {
        name: setting._replace(name=NAMES[name]) for name, setting in found.items()
    }
    if not theta:
        settings["present"] = None
    curves = {name: _curve(one.path) for name, one in tuned.items()}
    return Advice(
        system=system, critical=critical, stand_in=phases is not system, curves=curves, **settings
    )


def _done(tasks: dict[str, Any], progress: bool) -> dict[str, Any]:
    """What each task gives. Two at a time: nearly all of it is compilation, each on one core."""
    # It takes a while to import, and is not needed for what is quick.
    from tqdm import tqdm

    with ThreadPoolExecutor(2) as pool, tqdm(total=len(tasks), disable=not progress) as bar:
        running = {name: pool.submit(task) for name, task in tasks.items()}
        for one in running.values():
            one.add_done_callback(lambda _: bar.update())
        return {name: one.result() for name, one in running.items()}


def _at(system: System, sensitivity: float) -> System:
    return system.with_routing(Logit(sensitivity))


def _with_phases(system: System) -> System:
    """The system itself, or one of a delay with fewer phases of the same mean."""
    delay = system.delay
    if isinstance(delay, AbstractPhaseDelay) and delay.num_phases <= STAND_IN:
        return system
    rule = system.routing
    return System(system.arrival_rate, system.service_rate, Erlang(delay.mean, STAND_IN), rule)


def _curve(path: Any) -> CriterionCurve:
    theta = path.parameters["routing.sensitivity"]
    order = np.argsort(theta, kind="stable")
    return CriterionCurve(theta[order], path.value[order])


def _setting(system: System, scale: Any, tolerance: Any) -> Setting:
    decay = float(of.decay_rate(system))
    variance, margin = imbalance_variance(system, scale), margins(system)
    settled = settling_time(system, tolerance=tolerance)
    conditional = bool(stable_for_every_sensitivity(system).conditional)
    rest = 2 * float(scale * system.offered_load)
    return Setting(
        name="",
        system=system,
        sensitivity=float(system.routing.sensitivity),  # pyright: ignore
        decay_time=1 / decay if decay > 0 else np.inf,
        settling_time=float(settled.value),
        deviation=float(np.sqrt(variance.variance)),
        relative=float(np.sqrt(variance.variance / rest)),
        trusted=bool(variance.valid) and not conditional,
        gain_margin=float(margin.gain),
        delay_margin=float(margin.delay),
    )
