"""Question 2: what it costs not to see where in its delay each job is."""

from typing import NamedTuple

import jax
import jax.random as jr

from jaxlb import design
from jaxlb.paper.claims import Claim

from .case import Config, long_delay, of_gain, paper

CASES = {"A2": (paper, 2), "A10": (paper, 10), "A50": (paper, 50), "B10": (long_delay, 10)}
# Those tried on exact paths; ages are the costly ones.
TRIED = "A2", "A10"
SHARE = 0.25


class Row(NamedTuple):
    """Variances over that of random routing, and what exact paths of three of the rules gave."""

    table: design.Observations
    exact: dict[str, design.Confirmation]


def found(config: Config) -> dict[str, Row]:
    """The table of each case, for the best weights at the effort of `config`."""
    rows = {}
    for number, (name, (make, stages)) in enumerate(CASES.items()):
        system = make(stages, of_gain(1.0))
        system = system.with_routing(design.lqr(system, config.effort, config.scale))
        table = design.observations(system, config.scale)
        exact = {}
        if name in TRIED:
            rules = {
                "Kalman filter": design.kalman(system),
                "by age": design.by_age(system),
                "own shares": design.kalman(system, log=False),
            }
            keys = jr.split(jr.fold_in(jr.key(config.seed + 1), number), len(rules))
            for key, (rule, routing) in zip(keys, rules.items(), strict=True):
                exact[rule] = design.confirm(
                    system.with_routing(routing),
                    key,
                    config.scale,
                    replicas=config.paths // 2,
                    duration=config.duration * SHARE,
                )
        rows[name] = Row(table, exact)
        jax.clear_caches()
    return rows


def statements(rows: dict[str, Row]) -> list[Claim]:
    """One for each case, and one for each rule on exact paths."""
    claims = []
    for name, row in rows.items():
        by_name = {one.name: one.relative for one in row.table.rows}
        values = list(by_name.values())
        seen, aged, filtered, blind = values[:4]
        claims.append(
            Claim(
                "2 observation",
                f"{name}: with its own log of dispatches a dispatcher loses less than 4 % of the "
                "best weights' variance; without the log most of what they buy.",
                "; ".join(f"{rule} {value:.4f}" for rule, value in by_name.items()),
                "log within 4 % of phases seen, and better than without",
                max(aged, filtered) < 1.04 * seen and blind > max(aged, filtered),
                by_name,
            )
        )
        for rule, tried in row.exact.items():
            unit = tried.predicted / by_name_of(rule, row.table)
            claims.append(
                Claim(
                    "exact paths",
                    f"{name}, {rule}: the predicted variance is that of exact paths.",
                    f"{tried.variance / unit:.4f} ± {tried.standard_error / unit:.4f}, "
                    f"z = {tried.z:.2f}",
                    f"{tried.predicted / unit:.4f}",
                    tried.confirmed,
                    {"z": tried.z},
                )
            )
    return claims


def by_name_of(rule: str, table: design.Observations) -> float:
    """The relative variance in the table of a rule on exact paths."""
    place = {"by age": 1, "Kalman filter": 2, "own shares": 3}[rule]
    return table.rows[place].relative
