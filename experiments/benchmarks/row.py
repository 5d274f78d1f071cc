"""One row of a benchmark, in a process of its own: what it finds, and its CPU seconds.

`measured` runs this file with the row's module and function, the repetitions and a folder, which
holds the case and takes what has been found.
"""

import importlib
import importlib.util
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import _record


@dataclass(frozen=True)
class Row:
    """A function of a module here, what it needs, and whether it gives gradients or is slow."""

    module: str
    function: str
    package: str = "jaxlb"
    gradient: bool = False
    slow: bool = False


def measured(name: str, row: Row, case: Any, repetitions: int) -> dict[str, Any] | None:
    """What the row's own process has found, or none if its package is not installed."""
    if importlib.util.find_spec(row.package) is None:
        print(f"{row.package} is not installed: {name} is left out.")
        return None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "case").write_bytes(pickle.dumps(case))
        repetitions = 1 if row.slow else repetitions
        command = [sys.executable, "-m", __name__, row.module, row.function, str(repetitions)]
        subprocess.run([*command, folder], cwd=_record.ROOT, check=True)
        with np.load(f"{folder}/row.npz") as found:
            return dict(found)


def times(made: dict[str, Any]) -> dict[str, float]:
    """Of one system, and of the first call."""
    return {
        "milliseconds": 1e3 * float(made["seconds"]),
        "first_call_seconds": float(made["first"]),
    }


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest of any system, relative to its largest value."""
    found = found[:: len(found) // len(wanted)]
    return float(np.max(np.abs(found - wanted).max(axis=1) / np.abs(wanted).max(axis=1)))


def by_stages(table: dict[int, dict[str, dict]]) -> dict[str, dict]:
    """The rows of every number of stages, by names that tell it."""
    return {
        f"{name}, L = {stages}": row for stages, rows in table.items() for name, row in rows.items()
    }


def main(module: str, function: str, repetitions: str, folder: str) -> None:
    """CPU seconds of this process for one system, the least of several; and for the first call."""
    jax.config.update("jax_enable_x64", True)
    case = pickle.loads((Path(folder) / "case").read_bytes())
    begin = time.process_time()
    run = getattr(importlib.import_module(f".{module}", __package__), function)(case)
    found = run()
    first, spent = time.process_time() - begin, []
    for _ in range(int(repetitions)):
        begin = time.process_time()
        run()
        spent.append(time.process_time() - begin)
    np.savez(f"{folder}/row.npz", found=found, seconds=min(spent) / case.lanes, first=first)


if __name__ == "__main__":
    _record.on_one_core()
    main(*sys.argv[1:])
