"""The delay equation by another solver, without interpolation; nothing here imports jaxlb."""

from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp


def by_stacked_lags(
    inflow: Callable,
    rates: np.ndarray,
    lag: float,
    start: np.ndarray,
    before: np.ndarray,
    times: np.ndarray,
) -> np.ndarray:
    """Jobs in transit and in service of q' = u(t - D) - mu q with u = inflow(q), `before` till 0.

    In the k-th delay the unknowns are those of all k delays so far, each as a function of the time
    since its own beginning: an ordinary system, started again at each multiple of the delay.
    Shape (times, servers, 2), accurate to 1e-12.
    """
    times, servers = np.asarray(times), len(start)
    begun = [np.stack([np.zeros(servers), start])]
    found = np.empty((len(times), 2, servers))

    def right_side(_, flat):
        jobs = flat.reshape(-1, 2, servers)
        new = np.array([inflow(queue) for queue in jobs[:, 1]])
        due = np.concatenate([before[None], new[:-1]])
        return np.stack([new - due, due - rates * jobs[:, 1]], axis=1).ravel()

    for k in range(int(times[-1] // lag) + 1):
        inside = (times // lag).astype(int) == k
        since = np.append(np.clip(times[inside] - k * lag, 0, lag), lag)
        at, where = np.unique(since, return_inverse=True)
        solution = solve_ivp(
            right_side, (0, lag), np.ravel(begun), "DOP853", at, rtol=1e-13, atol=1e-13
        )
        jobs = solution.y.T[where].reshape(-1, k + 1, 2, servers)
        found[inside] = jobs[:-1, -1]
        begun.append(jobs[-1, -1])
    return np.moveaxis(found, 1, 2)
