"""How fast and how true are trajectories and gradients of the fluid limit, against other solvers?

64 systems drawn log-uniformly (theta .1 to 5, D .2 to 5, lambda 1 to 20, mu .5 to 2), the
difference of two servers over [0, 20]: x at 201 times; and the gradient of the mean of x^2 at 21
times in theta, D, lambda, mu and x(0). Each row runs in a process of its own on one core; times are
its CPU seconds for one system, compilation apart, the least of several. Errors are relative to the
largest value, against DOP853 at 1e-13.

Run:     python -m experiments.benchmarks.fluid
Needs:   CasADi and pydiffsol (extra `bench`); a peer that is missing is left out.
Writes:  experiments/benchmarks/results/fluid.json
Cost:    twelve minutes on one core.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import _record
from .fluid_case import FluidCase, true_slopes, truth
from .row import Row, by_stages, error, measured, times

RESULT = Path(__file__).parent / "results" / "fluid.json"
OURS, GRADIENT, SCALAR = "collocation", "collocation, gradient", "collocation, scalar"
DIFFRAX, CVODES, PYDIFFSOL, LSODA = "Diffrax Tsit5", "CVODES", "pydiffsol Tsit45", "LSODA"


@dataclass(frozen=True)
class Config:
    """What is timed, and how many systems are compared with the truth."""

    stages: tuple[int, ...] = (1, 2, 10, 50, 200)
    gradient_stages: tuple[int, ...] = (2, 10, 50)
    gradient_records: int = 21
    repetitions: int = 3
    checked: int = 16
    checked_gradients: int = 4


ROWS = {
    OURS: Row("fluid_ours", "collocation"),
    DIFFRAX: Row("fluid_ours", "diffrax", slow=True),
    CVODES: Row("casadi_cvodes", "trajectories", "casadi", slow=True),
    PYDIFFSOL: Row("pydiffsol_tsit45", "trajectories", "pydiffsol"),
    LSODA: Row("fluid_case", "lsoda", "scipy", slow=True),
    GRADIENT: Row("fluid_ours", "collocation_gradient", gradient=True),
    SCALAR: Row("fluid_ours", "collocation_scalar", gradient=True),
    f"{CVODES}, gradient": Row("casadi_cvodes", "gradient", "casadi", gradient=True, slow=True),
    f"{PYDIFFSOL}, gradient": Row("pydiffsol_tsit45", "gradient", "pydiffsol", gradient=True),
}

# How many times faster than each peer ours must be, by the number of stages.
TIMES_FASTER = {
    (OURS, DIFFRAX): {50: 25.0},
    (OURS, CVODES): {10: 3.0, 50: 5.0, 200: 8.0},
    (OURS, PYDIFFSOL): {50: 1.0, 200: 1.5},
    (GRADIENT, f"{CVODES}, gradient"): {2: 20.0, 10: 20.0, 50: 20.0},
    (GRADIENT, f"{PYDIFFSOL}, gradient"): {2: 3.0, 10: 7.0, 50: 9.0},
}
LARGEST_GRADIENT_RATIO, LARGEST_ERROR = 4.5, 5e-7


def truths(stages: int, config: Config) -> dict[bool, np.ndarray]:
    """Trajectories, and gradients where they are wanted, of some systems."""
    case = FluidCase(stages)
    numbers = case.numbers[:: case.lanes // config.checked]
    found = {False: np.array([truth(one, stages, case.times) for one in numbers])}
    if stages in config.gradient_stages:
        at = FluidCase(stages, records=config.gradient_records).times
        numbers = case.numbers[:: case.lanes // config.checked_gradients]
        found[True] = np.array([true_slopes(one, stages, at) for one in numbers])
    return found


def rows_of(stages: int, config: Config) -> dict[str, dict[str, float]]:
    """Every row that there is for this number of stages."""
    wanted, rows = truths(stages, config), {}
    for name, row in ROWS.items():
        if row.gradient not in wanted:
            continue
        records = config.gradient_records if row.gradient else FluidCase(stages).records
        made = measured(name, row, FluidCase(stages, records=records), config.repetitions)
        if made is None:
            continue
        rows[name] = times(made)
        if name != SCALAR:
            rows[name]["error"] = error(made["found"], wanted[row.gradient])
        print(stages, name, rows[name], flush=True)
    return rows


def bounds(table: dict[int, dict[str, dict[str, float]]]) -> dict[str, dict]:
    """What was demanded, what was found, and whether it is met; of the peers that there are."""
    found = {}
    for (mine, peer), factors in TIMES_FASTER.items():
        for stages, factor in factors.items():
            rows = table[stages]
            if peer in rows:
                ratio = rows[peer]["milliseconds"] / rows[mine]["milliseconds"]
                words = f"{mine}, L = {stages}: {factor:g} times {peer}"
                found[words] = {"found": ratio, "met": ratio >= factor}
    for stages, rows in table.items():
        for name in (OURS, GRADIENT):
            if name in rows:
                value = rows[name]["error"]
                words = f"{name}, L = {stages}: error below {LARGEST_ERROR:g}"
                found[words] = {"found": value, "met": value <= LARGEST_ERROR}
        if GRADIENT in rows:
            ratio = rows[GRADIENT]["milliseconds"] / rows[SCALAR]["milliseconds"]
            words = f"gradient, L = {stages}: at most {LARGEST_GRADIENT_RATIO} times the scalar"
            found[words] = {"found": ratio, "met": ratio <= LARGEST_GRADIENT_RATIO}
    return found


def run(config: Config) -> dict:
    """Milliseconds and errors of each row, and the bounds."""
    table = {stages: rows_of(stages, config) for stages in config.stages}
    return {**by_stages(table), "bounds": bounds(table)}


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
