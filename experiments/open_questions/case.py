"""What the statements are about: the systems and the numbers of a run."""

from dataclasses import dataclass

import jaxlb as lb

STAGES = 1, 2, 5, 10, 50


@dataclass(frozen=True)
class Config:
    """The paper's rates (case A) and a long delay (case B); the scale of exact paths; how many.

    `paths`, `duration`: of each exact simulation, and s; the standard error of a variance falls
    with the root of their product.
    """

    scale: float = 100.0
    effort: float = 0.1
    tolerance: float = 0.05
    paths: int = 32
    duration: float = 400.0
    seed: int = 0


def paper(stages: int, rule: lb.AbstractRouting) -> lb.System:
    """Case A: arrival rate 15, service rate 1, mean delay 1."""
    return lb.System(15.0, 1.0, lb.Erlang(1.0, stages), rule)


def long_delay(stages: int, rule: lb.AbstractRouting) -> lb.System:
    """Case B: arrival rate 10, service rate 1, mean delay 4."""
    return lb.System(10.0, 1.0, lb.Erlang(4.0, stages), rule)


def of_gain(gain: float) -> lb.Logit:
    """The paper's rule in case A, at a gain lambda theta, 1/s."""
    return lb.Logit(gain / 15.0)
