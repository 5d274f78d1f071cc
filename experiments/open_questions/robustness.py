"""What is left of a design when the delay is not what it was made for."""

import equinox as eqx
import numpy as np

import jaxlb as lb
from jaxlb import design
from jaxlb.paper.claims import Claim

from .case import Config, of_gain, paper

STAGES = 10
FACTORS = 0.5, 2.0


def designs(config: Config) -> dict[str, lb.System]:
    """Of the paper's system with ten stages."""
    system = paper(STAGES, of_gain(0.3))
    strong = paper(STAGES, of_gain(5.0))
    return {
        "theta of fastest decay": system.with_routing(
            lb.Logit(lb.stability.best_sensitivity(system).value)
        ),
        "all jobs counted": strong.with_routing(design.uniform(strong, 1.0)),
        "best weights": system.with_routing(design.lqr(system, config.effort, config.scale)),
        "best weights, decay above 3": system.with_routing(
            design.lqr(system, config.effort, config.scale, 3.0)
        ),
    }


def statements(config: Config) -> list[Claim]:
    """Decay rates at half the delay, at the delay, at twice, and the worst of that range."""
    claims = []
    for name, system in designs(config).items():
        rates = [_rate(system, factor) for factor in (FACTORS[0], 1.0, FACTORS[1])]
        worst = -float(lb.stability.worst_abscissa(system, *FACTORS).abscissa)
        claims.append(
            Claim(
                "robustness",
                f"{name}: more than half of the decay beyond that of random routing is lost for "
                "some delay between a half and twice its own.",
                f"{rates[1]:.3g} 1/s, worst {worst:.3g}",
                f"at {FACTORS[0]:g} D {rates[0]:.3g}, at {FACTORS[1]:g} D {rates[2]:.3g}",
                worst - 1 < (rates[1] - 1) / 2,
                {"nominal": rates[1], "worst": worst},
            )
        )
    return claims


def _rate(system: lb.System, factor: float) -> float:
    mean = np.asarray(factor) * system.delay.mean
    return float(design.decay_rate(eqx.tree_at(lambda s: s.delay.mean, system, mean)))
