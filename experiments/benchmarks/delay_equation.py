"""How fast and how true are trajectories with a deterministic delay, against another solver?

The 64 random systems of `fluid` with the limit of infinitely many stages: x at 201 times in
[0, 20]. Each row runs in a process of its own on one core; times are its CPU seconds for one
system, compilation apart, the least of several. Errors are relative to the largest value, against
DOP853 at 1e-13 by the method of steps. jitcdde runs at 1e-8, and at a tolerance with which it is
about as true as ours.

Run:     python -m experiments.benchmarks.delay_equation
Needs:   jitcdde (extra `bench`) and a C compiler; without it that peer is left out.
Writes:  experiments/benchmarks/results/delay_equation.json
Cost:    half a minute on one core.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import _record
from .delay_case import DelayCase, truth
from .row import Row, error, measured, times

RESULT = Path(__file__).parent / "results" / "delay_equation.json"
OURS, PEER, FINE = "method of steps", "jitcdde at 1e-8", "jitcdde at 1e-11"


@dataclass(frozen=True)
class Config:
    """How often a row is timed, and how many systems are compared with the truth."""

    repetitions: int = 5
    checked: int = 16


ROWS = {
    OURS: (Row("fluid_ours", "method_of_steps"), 1e-8),
    PEER: (Row("jitcdde_trajectories", "trajectories", "jitcdde"), 1e-8),
    FINE: (Row("jitcdde_trajectories", "trajectories", "jitcdde", slow=True), 1e-11),
}
TIMES_FASTER = 30.0


def bounds(rows: dict[str, dict[str, float]]) -> dict[str, dict]:
    """What was demanded, what was found, and whether it is met."""
    if PEER not in rows:
        return {}
    ours, theirs = rows[OURS], rows[PEER]
    ratio = theirs["milliseconds"] / ours["milliseconds"]
    least = theirs["error"]
    return {
        f"{OURS}: {TIMES_FASTER:g} times {PEER}": {"found": ratio, "met": ratio >= TIMES_FASTER},
        f"{OURS}: error below that of {PEER}": {
            "found": ours["error"],
            "met": ours["error"] <= least,
        },
    }


def run(config: Config) -> dict:
    """Milliseconds and errors of each row, and the bounds."""
    case, rows = DelayCase(), {}
    numbers = case.numbers[:: case.lanes // config.checked]
    wanted = np.array([truth(one, case.times) for one in numbers])
    for name, (row, tolerance) in ROWS.items():
        made = measured(name, row, DelayCase(tolerance=tolerance), config.repetitions)
        if made is not None:
            rows[name] = times(made) | {"error": error(made["found"], wanted)}
            print(name, rows[name], flush=True)
    return {**rows, "bounds": bounds(rows)}


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
