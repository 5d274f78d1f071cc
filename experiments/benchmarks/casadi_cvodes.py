"""A peer for the fluid limit: CVODES of SUNDIALS at 1e-10, through CasADi."""

import importlib

import numpy as np

from .fluid_case import PARAMETERS, FluidCase, Integrator

# An extra, and without types.
casadi = importlib.import_module("casadi")


def trajectories(case: FluidCase) -> Integrator:
    """x at all times."""
    integrator, rest = _integrator(case, case.times[1:]), np.zeros(case.stages)

    def one(numbers: np.ndarray) -> np.ndarray:
        found = integrator(x0=np.append(numbers[4], rest), p=numbers[:4])["xf"]
        return np.append(numbers[4], found.full()[0])

    return lambda: np.array([one(numbers) for numbers in case.numbers])


def gradient(case: FluidCase) -> Integrator:
    """Slopes of the mean of x^2, by forward sensitivities."""
    integrator = _integrator(case, case.times[1:])
    numbers = casadi.MX.sym("numbers", PARAMETERS)
    begin = casadi.vertcat(numbers[4], casadi.MX.zeros(case.stages))
    x = casadi.horzcat(numbers[4], integrator(x0=begin, p=numbers[:4])["xf"][0, :])
    mean = casadi.sumsqr(x) / case.records
    slopes = casadi.jtimes(mean, numbers, casadi.MX.eye(PARAMETERS))
    function = casadi.Function("slopes", [numbers], [slopes])
    return lambda: np.array([np.ravel(function(numbers).full()) for numbers in case.numbers])


def _integrator(case: FluidCase, times: np.ndarray):
    y, p = casadi.SX.sym("y", case.stages + 1), casadi.SX.sym("p", 4)
    theta, mean, arrival_rate, service_rate = (p[i] for i in range(4))
    flow = case.stages / mean * y[1:]
    flow = casadi.vertcat(-2 * arrival_rate * casadi.tanh(theta * y[0] / 2), flow)
    change = casadi.vertcat(flow[-1] - service_rate * y[0], flow[:-1] - flow[1:])
    settings = {"abstol": 1e-10, "reltol": 1e-10, "max_num_steps": 1000000}
    system = {"x": y, "p": p, "ode": change}
    return casadi.integrator("fluid", "cvodes", system, 0.0, times, settings)
