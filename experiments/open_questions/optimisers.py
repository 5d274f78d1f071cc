"""What it takes to find a best decay rate, and whether it is worth having."""

from functools import partial

import jax.numpy as jnp

import jaxlb as lb
from jaxlb import design
from jaxlb.paper.claims import Claim

from .case import paper

FREE = {"routing.sensitivity": (0.0, None), "routing.weights": (None, None)}
PRICE = 0.01


def penalty(system: lb.System):
    """The price of gains: 0.01 |k|^2 with k = kappa (1, alpha)."""
    rule = system.routing
    gain = system.arrival_rate * rule.sensitivity  # pyright: ignore
    return PRICE * gain**2 * (1 + jnp.sum(rule.weights**2))  # pyright: ignore


def start(stages: int) -> lb.System:
    """Half a job for each in transit, at gain one."""
    return paper(stages, lb.WeightedLogit(1 / 15, jnp.full(stages, 0.5)))


def statements() -> list[Claim]:
    """Joint optima by roots against other methods; and a robust one."""
    claims = []
    for stages, known in ((2, -2.72062), (5, -4.59703)):
        values = {}
        for method in ("roots", "smoothed", "kinks", "lbfgs", "adam"):
            found = design.tune(
                start(stages), design.decay_rate, FREE, penalty=penalty, method=method
            )
            values[method] = float(penalty(found.system)) - found.value
        others = ", ".join(f"{name} {value:.5f}" for name, value in values.items())
        claims.append(
            Claim(
                "optimisers",
                f"The joint problem of {stages} stages (abscissa + 0.01 |k|^2) is solved among "
                "roots, and by no gradient method in gains as well.",
                others,
                f"{known}",
                abs(values["roots"] - known) < 1e-5 and values["roots"] <= min(values.values()),
                values,
            )
        )
    nominal = design.tune(start(20), design.decay_rate, FREE, penalty=penalty)
    worst = partial(design.worst_decay_rate, error=0.1)
    robust = design.tune(start(20), worst, FREE, penalty=penalty)
    rates = {
        "nominal, as placed": nominal.value,
        "nominal, gains rounded": float(design.decay_rate(nominal.system)),
        "nominal, worst": float(worst(nominal.system)),
        "robust": float(design.decay_rate(robust.system)),
        "robust, worst": robust.value,
    }
    claims.append(
        Claim(
            "optimisers",
            "With 20 stages the optimum is lost by rounding its gains and by a delay 10 % off; a "
            "robust objective keeps nearly all of its own.",
            ", ".join(f"{name} {value:.3f} 1/s" for name, value in rates.items()),
            "robust: worst at least 0.9 of its own; nominal: below a half",
            rates["robust, worst"] > 0.9 * rates["robust"]
            and rates["nominal, worst"] < 0.5 * rates["nominal, as placed"],
            rates,
        )
    )
    return claims
