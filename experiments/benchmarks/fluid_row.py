"""One row of the benchmark of the fluid limit, in a process of its own.

Called by `experiments.benchmarks.fluid` with the row's module and function, the stages, the
records and the repetitions; writes what it has found to the file named last.
"""

import importlib
import sys
import time

import jax
import numpy as np

from .. import _record
from .fluid_case import FluidCase


def main(module: str, function: str, stages: str, records: str, repetitions: str, path: str):
    """CPU seconds of this process for one system, the least of several; and for the first call."""
    jax.config.update("jax_enable_x64", True)
    case = FluidCase(int(stages), records=int(records))
    begin = time.process_time()
    integrate = getattr(importlib.import_module(f".{module}", __package__), function)(case)
    found = integrate()
    first, spent = time.process_time() - begin, []
    for _ in range(int(repetitions)):
        begin = time.process_time()
        integrate()
        spent.append(time.process_time() - begin)
    np.savez(path, found=found, seconds=min(spent) / case.lanes, first=first)


if __name__ == "__main__":
    _record.on_one_core()
    main(*sys.argv[1:])
