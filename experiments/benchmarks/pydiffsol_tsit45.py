"""A peer for the fluid limit: the compiled Tsit45 of diffsol at 1e-8, through pydiffsol."""

import importlib

import numpy as np

from .fluid_case import FluidCase, Integrator

# An extra, and without types.
pydiffsol = importlib.import_module("pydiffsol")


def trajectories(case: FluidCase) -> Integrator:
    """x at all times."""
    ode, times = _ode(case), case.times
    return lambda: np.array([ode.solve_dense(numbers, times).ys[0] for numbers in case.numbers])


def gradient(case: FluidCase) -> Integrator:
    """Slopes of the mean of x^2, by forward sensitivities."""
    ode, times = _ode(case), case.times

    def one(numbers: np.ndarray) -> np.ndarray:
        found = ode.solve_fwd_sens(numbers, times)
        return np.array([np.mean(2 * found.ys[0] * slope[0]) for slope in found.sens])

    return lambda: np.array([one(numbers) for numbers in case.numbers])


def _ode(case: FluidCase):
    stages = range(1, case.stages + 1)
    flows = ["(-2 * l * tanh(a * x / 2))", *(f"g * w{k}" for k in stages)]
    changes = [f"{flows[-1]} - m * x", *(f"{flows[k - 1]} - {flows[k]}" for k in stages)]
    states = ["x = b", *(f"w{k} = 0" for k in stages)]
    code = f"""
        in_i {{ a = 1, d = 1, l = 1, m = 1, b = 1 }}
        g {{ {case.stages} / d }}
        u_i {{ {", ".join(states)} }}
        F_i {{ {", ".join(changes)} }}
        out_i {{ x }}
    """
    ode = pydiffsol.Ode(code, ode_solver=pydiffsol.tsit45)
    ode.rtol = ode.atol = ode.sens_rtol = ode.sens_atol = 1e-8
    return ode
