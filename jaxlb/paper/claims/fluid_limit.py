"""Section 3: density dependence, fluid limit, equilibrium."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from ... import fluid, stochastic
from ...model import dynamics
from .. import cases
from .claim import Claim

SCALES = (10, 100, 1000)
REPLICAS = (128, 32, 8)


def dimension_grows_with_the_phases_only() -> Claim:
    """2 (L + 1) equations."""
    sizes = {stages: fluid.equilibrium(cases.queues(stages)).size for stages in (1, 2, 10, 50)}
    return Claim(
        "1, 3.1",
        "The phase representation needs 2(L + 1) equations, whatever the arrival rate.",
        ", ".join(f"L = {stages}: {size}" for stages, size in sizes.items()),
        "2(L + 1): 4, 6, 22, 102",
        list(sizes.values()) == [4, 6, 22, 102],
    )


def drift_is_lipschitz() -> Claim:
    """Largest observed |F(a) - F(b)| / |a - b| in the 1-norm, against its bound."""
    system = cases.queues(2)
    a = jax.random.uniform(jax.random.key(31), (20_000, 2, 3), maxval=30.0)
    b = (
        a
        + jax.random.normal(jax.random.key(32), a.shape)
        * jnp.geomspace(1e-3, 30, 20_000)[:, None, None]
    )
    drift = jax.jit(jax.vmap(lambda jobs: dynamics.drift(system, jobs)))
    ratio = jnp.abs(drift(a) - drift(b)).sum((1, 2)) / jnp.abs(a - b).sum((1, 2))
    bound = max(2 * 2.0, 1.0 + 15.0)
    return Claim(
        "3.1",
        "The drift F is globally Lipschitz.",
        f"largest ratio |F(a) − F(b)|₁ / |a − b|₁ over 20 000 random pairs: {ratio.max():.3f}",
        f"max(2γ, μ + λθ) = {bound:g}, the largest column sum of the Jacobian",
        ratio.max() <= bound,
        {"largest_ratio": ratio.max(), "bound": bound},
    )


def scaled_process_converges_at_rate_one_half() -> Claim:
    """Distance to the fluid limit at three scales, L = 1."""
    distance, slope, error = _convergence(1, cases.HORIZON)
    return Claim(
        "3.1, Fig. 2",
        "The scaled process converges to the fluid limit, uniformly on [0, 20]; its fluctuations "
        "shrink as η grows.",
        f"root-mean-square sup distance {_list(distance)}; slope {slope:.3f} ± {error:.3f}",
        "slope −1/2 in log–log (Kurtz's central limit theorem)",
        abs(slope + 0.5) < 0.1 and distance[0] > distance[1] > distance[2],
        {"slope": slope, "standard_error": error},
        "Between these scales the slope is a little flatter than its limit: at η = 10 the routing "
        "saturates and holds the largest deviations down.",
    )


def convergence_also_past_the_hopf_point() -> Claim:
    """The same with L = 2, where the fluid limit is a limit cycle."""
    early, early_slope, error = _convergence(2, 5.0)
    late, late_slope, _ = _convergence(2, cases.HORIZON)
    return Claim(
        "3.1, Fig. 3",
        "The convergence does not need a stable equilibrium: it is uniform on compact intervals "
        "for L = 2 too.",
        f"root-mean-square sup distance on [0, 5] {_list(early)}, slope {early_slope:.3f} ± "
        f"{error:.3f}; on [0, 20] {_list(late)}, slope {late_slope:.3f}",
        "decreasing in η; slope −1/2 once η is large for the interval",
        all(d[0] > d[1] > d[2] for d in (early, late)) and abs(early_slope + 0.5) < 0.1,
        {"slope_to_5": early_slope, "slope_to_20": late_slope, "standard_error": error},
        "Past the Hopf point early fluctuations grow like exp(0.304 t) and the phase of the cycle "
        "drifts, so that at these scales the rate 1/2 is seen on a short interval only: a longer "
        "one needs a larger η.",
    )


def one_path_follows_the_fluid_limit() -> Claim:
    """Deviation of q_1 from the fluid limit in Figure 3, early and late."""
    times = jnp.linspace(0.0, cases.HORIZON, 201)
    mean = np.asarray(fluid.solve(cases.queues(2), times).queue)[:, 0]
    path = _paths(2, 100, REPLICAS[1])[:, :, 0, -1] / 100
    deviation = np.sqrt(((path - mean) ** 2).mean(axis=0))
    early, late = (np.sqrt((deviation[part] ** 2).mean()) for part in np.s_[:51, 100:])
    swing = mean[100:].std()
    return Claim(
        "5, Fig. 3",
        "With L = 2 and η = 100 the fluid limit agrees closely with the simulation.",
        f"root-mean-square deviation of q₁ over {REPLICAS[1]} paths: {early:.2f} on [0, 5], "
        f"{late:.2f} on [10, 20]",
        f"well below the oscillation's own root-mean-square, {swing:.2f} on [10, 20]",
        late < swing / 2,
        {"early": early, "late": late, "oscillation": swing},
        "A path agrees closely up to t = 5. Later it keeps the fluid limit's amplitude and period "
        "but not its phase, which drifts freely along the limit cycle.",
    )


def symmetric_equilibrium() -> Claim:
    """The closed form is at rest."""
    worst = max(
        float(jnp.abs(dynamics.drift(system, fluid.equilibrium(system))).max())
        for system in (cases.queues(1), cases.queues(2), cases.imbalance(1), cases.imbalance(50))
    )
    balance = fluid.equilibrium(cases.imbalance(2))
    right = np.allclose(balance, [[20, 20, 10], [20, 20, 10]], rtol=1e-15)
    return Claim(
        "3.2",
        "At the symmetric equilibrium every phase holds λD/L and every server λ/μ.",
        f"largest |F| there over four systems: {worst:.1e}; for λ = 10, μ = 1, D = 4, L = 2: "
        f"{balance[0, 0]:g} and {balance[0, 2]:g}",
        "0; λD/L = 20 and λ/μ = 10",
        right and worst < 1e-12,
        {"largest_drift": worst},
    )


CLAIMS = (
    dimension_grows_with_the_phases_only,
    drift_is_lipschitz,
    scaled_process_converges_at_rate_one_half,
    convergence_also_past_the_hopf_point,
    symmetric_equilibrium,
)


def _convergence(stages: int, horizon: float):
    """Root-mean-square sup distance at each scale, its log-log slope and that slope's error."""
    system, times = cases.queues(stages), jnp.linspace(0.0, cases.HORIZON, 201)
    until = np.asarray(times) <= horizon
    mean = fluid.solve(system, times).jobs
    distances, errors = [], []
    for scale, replicas in zip(SCALES, REPLICAS, strict=True):
        paths = _paths(stages, scale, replicas)
        squared = np.max(np.abs(paths / scale - mean)[:, until], axis=(1, 2, 3)) ** 2
        distances.append(np.sqrt(squared.mean()))
        errors.append(squared.std() / np.sqrt(replicas) / 2 / squared.mean())
    span = np.log(SCALES[-1] / SCALES[0])
    return distances, np.log(distances[-1] / distances[0]) / span, np.hypot(*errors[::2]) / span


@cache
def _paths(stages: int, scale: int, replicas: int) -> np.ndarray:
    times = jnp.linspace(0.0, cases.HORIZON, 201)
    key = jax.random.key(scale)
    paths = stochastic.simulate(cases.queues(stages), key, times, scale=scale, replicas=replicas)
    return np.asarray(paths.jobs)


def _list(distances) -> str:
    pairs = zip(distances, SCALES, strict=True)
    return ", ".join(f"{distance:.3g} (η = {scale})" for distance, scale in pairs)
