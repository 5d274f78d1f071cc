"""A peer for the deterministic delay: jitcdde, compiled steps of third order.

In s = t / D the delay is 1, so that one compiled module serves all systems. It is spared the first
delay, where x is known. The kink at its end is given to it as by its own `adjust_diff`: as a very
short last interval of the past, on which the slope changes. Steps that end on multiples of the
delay (`step_on_discontinuities`) cost a little more and are no truer.
"""

import contextlib
import importlib
import tempfile
import warnings

import numpy as np

from .delay_case import DelayCase
from .fluid_case import Integrator

# Extras, and without types.
jitcdde = importlib.import_module("jitcdde")
symengine = importlib.import_module("symengine")

# Of the interval on which the slope changes; of a cubic piece of e^(-mu t), times mu: 1e-10 off.
KINK, PIECE = 1e-9, 0.014


def trajectories(case: DelayCase) -> Integrator:
    """x at all times."""
    half, inflow, rate = parameters = symengine.symbols("half inflow rate")
    seen, x = jitcdde.y(0, jitcdde.t - 1), jitcdde.y(0)
    change = [-inflow * symengine.tanh(half * seen) - rate * x]
    solver = jitcdde.jitcdde(change, control_pars=parameters, max_delay=1.0, verbose=False)
    # Setuptools would build the package that it finds in the folder where it runs.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        # To simplify needs SymPy, and the equation is short.
        solver.compile_C(simplify=False)
    return lambda: np.array([_one(solver, numbers, case) for numbers in case.numbers])


def _one(solver, numbers: np.ndarray, case: DelayCase) -> np.ndarray:
    theta, lag, arrival_rate, service_rate, start = numbers
    half, inflow, rate = theta / 2, 2 * arrival_rate * lag, service_rate * lag
    past = np.append(np.linspace(0, 1 - KINK, int(rate / PIECE) + 2), 1.0)
    x = start * np.exp(-rate * past)
    slope = -rate * x
    slope[-1] -= inflow * np.tanh(half * start)
    solver.purge_past()
    solver.add_past_points(zip(past, x[:, None], slope[:, None], strict=True))
    tolerances = {"atol": case.tolerance, "rtol": case.tolerance}
    solver.set_integration_parameters(**tolerances, first_step=1e-3, min_step=1e-13)
    solver.set_parameters(half, inflow, rate)
    solver.initial_discontinuities_handled = True
    times = case.times / lag
    later = times > 1
    found = start * np.exp(-rate * times)
    with warnings.catch_warnings():
        # Records within a step are interpolated, of which it warns.
        warnings.simplefilter("ignore")
        found[later] = [solver.integrate(time)[0] for time in times[later]]
    return found
