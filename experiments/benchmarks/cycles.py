"""How fast and how true are limit cycles and their gradients, against running into the cycle?

Figures 3 and 5, and those of the 64 random systems of `fluid` that are past the Hopf point, with
2, 10 and 50 stages. Ours finds amplitude and period by harmonic balance, and their slopes in theta,
D, lambda and mu; LSODA at 1e-8 runs the difference of two servers from x = -1 over 60 periods, as
the Hopf point has them, and the last two are read. Each row runs in a process of its own on one
core; times are its CPU seconds for one system, compilation apart, the least of several. Errors are
relative: of all systems against half-period shooting by DOP853 at 1e-13; of slopes, to the largest
of the amplitude's or the period's, against its differences of sixth order.

Run:     python -m experiments.benchmarks.cycles
Writes:  experiments/benchmarks/results/cycles.json
Cost:    three minutes on one core.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import _record
from .cycle_case import CycleCase, true_slopes, truth
from .row import Row, by_stages, error, measured, times

RESULT = Path(__file__).parent / "results" / "cycles.json"
OURS, GRADIENT, PEER = "harmonic balance", "harmonic balance, gradient", "LSODA, 60 periods"


@dataclass(frozen=True)
class Config:
    """What is timed, and how many gradients are compared with the truth."""

    stages: tuple[int, ...] = (2, 10, 50)
    repetitions: int = 5
    checked_gradients: int = 8


ROWS = {
    OURS: Row("cycle_ours", "cycles"),
    GRADIENT: Row("cycle_ours", "gradient", gradient=True),
    PEER: Row("cycle_case", "lsoda", "scipy", slow=True),
}

TIMES_FASTER, MOST_STEPS = 80.0, 6
LARGEST_ERROR = {OURS: 1e-10, GRADIENT: 1e-8}


def rows_of(stages: int, config: Config) -> dict[str, dict[str, float]]:
    """Every row for this number of stages."""
    case, rows = CycleCase(stages), {}
    wanted = np.array([truth(one, stages) for one in case.numbers])
    for name, row in ROWS.items():
        made = measured(name, row, case, config.repetitions)
        assert made is not None
        found = made["found"]
        rows[name] = times(made) | {"systems": case.lanes}
        if row.gradient:
            rows[name]["error"] = gradient_error(found, case, config)
        else:
            off = np.abs(found[:, :2] / wanted - 1).max(axis=1)
            rows[name] |= {"error": float(off.max()), "median_error": float(np.median(off))}
        if name == OURS:
            rows[name]["most_steps"] = int(found[:, 2].max())
            rows[name]["valid"] = int(found[:, 3].sum())
        print(stages, name, rows[name], flush=True)
    return rows


def gradient_error(found: np.ndarray, case: CycleCase, config: Config) -> float:
    """Of amplitudes and periods of some systems."""
    every = -(-case.lanes // config.checked_gradients)
    wanted = np.array([true_slopes(one, case.stages) for one in case.numbers[::every]])
    return error(found[::every].reshape(-1, 4), wanted.reshape(-1, 4))


def bounds(table: dict[int, dict[str, dict[str, float]]]) -> dict[str, dict]:
    """What was demanded, what was found, and whether it is met."""
    found = {}
    for stages, rows in table.items():
        steps, systems = rows[OURS]["most_steps"], rows[OURS]["systems"]
        words = f"{OURS}, L = {stages}: at most {MOST_STEPS} steps"
        found[words] = {"found": steps, "met": steps <= MOST_STEPS}
        words = f"{OURS}, L = {stages}: all {systems} valid"
        found[words] = {"found": rows[OURS]["valid"], "met": rows[OURS]["valid"] == systems}
        for name, largest in LARGEST_ERROR.items():
            value = rows[name]["error"]
            words = f"{name}, L = {stages}: error below {largest:g}"
            found[words] = {"found": value, "met": value <= largest}
            ratio = rows[PEER]["milliseconds"] / rows[name]["milliseconds"]
            words = f"{name}, L = {stages}: {TIMES_FASTER:g} times {PEER}"
            found[words] = {"found": ratio, "met": ratio >= TIMES_FASTER}
    return found


def run(config: Config) -> dict:
    """Milliseconds and errors of each row, and the bounds."""
    table = {stages: rows_of(stages, config) for stages in config.stages}
    return {**by_stages(table), "bounds": bounds(table)}


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
