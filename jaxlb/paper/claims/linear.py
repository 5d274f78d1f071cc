"""Section 4: difference mode, characteristic equation, L = 1, L = 2, L to infinity."""

import jax
import jax.numpy as jnp
import numpy as np

from ... import fluid, stability
from ...model import Deterministic, Erlang, Logit, System, imbalance
from .. import cases
from .claim import Claim, pair

SAMPLES = 100_000
# Each has a program of its own to compile.
STAGES = *range(1, 11), 15, 20, 30, 40, 50


def difference_of_shares_is_a_hyperbolic_tangent() -> Claim:
    """Identity (5) over sensitivities up to 1e8."""
    rng = np.random.default_rng(5)
    sensitivity = 10 ** rng.uniform(-4, 8, SAMPLES)
    queue = rng.uniform(0, 30, (SAMPLES, 2))

    @jax.jit
    @jax.vmap
    def difference(sensitivity, queue):
        share = Logit(sensitivity)(queue, jnp.zeros((2, 0)))
        return share[0] - share[1]

    truth = -np.tanh(sensitivity * (queue[:, 0] - queue[:, 1]) / 2)
    worst = np.abs(difference(sensitivity, queue) - truth).max()
    return Claim(
        "4.1 (5)",
        "The routing probabilities differ by exactly −tanh(θx/2).",
        f"largest difference over 10⁵ random (θ, q), θ up to 10⁸: {worst:.1e}",
        "0, with numpy's tanh, to rounding",
        worst < 1e-14,
        {"largest_difference": worst},
    )


def difference_system_is_closed() -> Claim:
    """Solving for x and w alone gives the difference of the full solution."""
    system, times = cases.queues(2), cases.grid()
    whole = fluid.solve(system, times, rtol=1e-10, atol=1e-10).jobs
    alone = fluid.solve_imbalance(system, times, -1.0, rtol=1e-10, atol=1e-10).y
    worst = jnp.abs(jnp.roll(whole[:, 0] - whole[:, 1], 1, axis=1) - alone).max()
    last = float(alone[-1, 0])
    return Claim(
        "4.1 (6)–(8)",
        "The imbalance obeys a closed system of its own.",
        f"largest difference on [0, 20] between (6)–(8) and the full system (2)–(4), Figure 3's "
        f"parameters: {worst:.1e}; x(20) = {last:.6f}",
        "0, at a tolerance of 10⁻¹⁰; x(20) = 2.543766 (Dormand–Prince 8(5,3) at 10⁻¹³)",
        worst < 1e-6 and abs(last - 2.5437656327) < 1e-6,
        {"largest_difference": worst, "x_at_20": last},
    )


def sum_mode_ignores_the_sensitivity() -> Claim:
    """Total jobs in service for several sensitivities, against the infinite-server closed form."""
    times = cases.grid()
    sensitivities = jnp.array([0.0, 0.6, 1.0, 100.0])

    @jax.vmap
    def total(sensitivity):
        system = System(15.0, 1.0, Erlang(1.0, 1), Logit(sensitivity))
        return fluid.solve(system, times, rtol=1e-10, atol=1e-10).queue.sum(1)

    t = np.asarray(times)
    truth = np.exp(-t) + 30 * (1 - (1 + t) * np.exp(-t))
    worst = np.abs(np.asarray(total(sensitivities)) - truth).max()
    return Claim(
        "4.1",
        "The sum q₁ + q₂ does not depend on θ.",
        f"largest distance on [0, 20] over θ = 0, 0.6, 1, 100: {worst:.1e}",
        "exp(−t) + 30 (1 − (1 + t) exp(−t)), for λ = 15, μ = D = L = 1",
        worst < 1e-7,
        {"largest_difference": worst},
    )


def linearisation_error_is_cubic() -> Claim:
    """Order of the difference between (6)-(8) and (9)-(11) in the size of the imbalance."""
    system = cases.queues(2)
    sizes = np.geomspace(1e-3, 1e-1, 9)
    direction = jnp.array([1.0, -0.5, 0.25])
    error = [
        jnp.abs(
            imbalance.drift(system, size * direction)
            - imbalance.linearised_drift(system, size * direction)
        ).max()
        for size in sizes
    ]
    slope = np.polyfit(np.log(sizes), np.log(np.array(error)), 1)[0]
    return Claim(
        "4.1 (9)–(11)",
        "The linear system is the difference system up to O(x³).",
        f"log–log slope of the error over x from 0.001 to 0.1: {slope:.4f}",
        "3",
        abs(slope - 3) < 0.01,
        {"slope": slope},
    )


def characteristic_equation_gives_the_eigenvalues() -> Claim:
    """(17) and (16) at numpy's eigenvalues of A_L as printed, for some L up to 50."""
    worst_root, worst_vector = 0.0, 0.0
    for stages in STAGES:
        matrix = _printed_matrix(stages)
        roots, vectors = _roots_and_vectors(stages)
        worst_root = max(worst_root, np.abs(roots - np.linalg.eigvals(matrix)).max())
        off = vectors @ matrix.T - roots[:, None] * vectors
        worst_vector = max(worst_vector, (np.abs(off).max(1) / np.abs(vectors).max(1)).max())
    return Claim(
        "4.2 (12), (16), (17)",
        "For every L the roots of (17) are the eigenvalues of A_L, with the eigenvectors (16).",
        f"L = 1..10, 15, 20, 30, 40, 50: all roots of (17) and eigenvalues of A_L differ by at "
        f"most {worst_root:.1e}; |A v − r v| / |v| is at most {worst_vector:.1e}",
        "0; eigenvalues by LAPACK of the matrix as printed in (12), λθ = 15, μ = D = 1",
        worst_root < 1e-8 and worst_vector < 1e-8,
        {"largest_difference": worst_root, "largest_residual": worst_vector},
    )


def delayed_information_has_the_same_spectrum() -> Claim:
    """Rightmost eigenvalue of the linearised delayed-information chain, L = 1 to 50."""
    worst, abscissas = 0.0, _abscissas(15.0, 1.0, 1.0, np.arange(1.0, 51.0), 1.0)
    for stages, abscissa in enumerate(abscissas, start=1):
        # Server: x' = -mu x - lambda theta m_L; observation: m_1' = gamma (x - m_1), and so on.
        matrix = _printed_matrix(stages)
        matrix[1, 0], matrix[0, -1] = matrix[0, -1], matrix[1, 0]
        worst = max(worst, abs(np.real(np.linalg.eigvals(matrix)).max() - abscissa))
    return Claim(
        "4.2",
        "The characteristic equation is that of delayed information with a gamma delay.",
        f"L = 1..50: the rightmost real parts differ by at most {worst:.1e}",
        "0; LAPACK on the delayed-information chain x′ = −μx − λθ m_L, m′_ℓ = γ(m_ℓ₋₁ − m_ℓ)",
        worst < 1e-10,
        {"largest_difference": worst},
    )


def exponential_delay_never_destabilises() -> Claim:
    """Abscissa with L = 1 over random parameters."""
    arrival, service, mean, sensitivity = _random_parameters(19)
    abscissa = _abscissas(arrival, service, mean, 1.0, sensitivity)
    gamma = 1 / mean
    gap = ((service - gamma) ** 2 - 4 * gamma * arrival * sensitivity).astype(complex)
    truth = (-(service + gamma) / 2 + np.sqrt(gap) / 2).real
    scaled, error = abscissa / (service + gamma), np.abs(abscissa - truth) / (service + gamma)
    return Claim(
        "4.3 (19)",
        "An exponential delay never destabilises the symmetric equilibrium.",
        f"largest abscissa over 10⁵ random parameters: {scaled.max():.2e} (μ + γ); unstable: "
        f"{np.sum(abscissa >= 0)}",
        f"negative; differs from the roots of (19) by at most {error.max():.0e} (μ + γ)",
        np.all(abscissa < 0) and error.max() < 1e-7,
        {"unstable": np.sum(abscissa >= 0), "largest_relative_error": error.max()},
    )


def exponential_delay_oscillates_beyond_a_gain() -> Claim:
    """Condition (20) against the roots' imaginary part."""
    arrival, service, mean, sensitivity = _random_parameters(20)
    root = _roots(arrival, service, mean, 1.0, sensitivity)
    margin = 4 * arrival * sensitivity / mean / (service - 1 / mean) ** 2
    clear = np.abs(margin - 1) > 1e-6
    agree = ((np.imag(root) != 0) == (margin > 1))[clear]
    return Claim(
        "4.3 (20)",
        "With L = 1 the roots are a complex pair if and only if 4γλθ > (μ − γ)².",
        f"agree at {agree.sum():,} of {agree.size:,} random parameters",
        "all of them",
        agree.all(),
        {"disagreements": (~agree).sum()},
    )


def exponential_imbalance_formula() -> Claim:
    """The closed form of x(t) against integration of (9)-(11)."""
    system, times = cases.imbalance(1), cases.grid(10.0)
    solved = fluid.solve_imbalance(
        system, times, jnp.array([1.0, -0.5]), linear=True, rtol=1e-11, atol=1e-12
    ).queue
    t, omega = np.asarray(times), np.sqrt(4 * 0.25 * 10 - 0.75**2) / 2
    truth = np.exp(-0.625 * t) * (
        np.cos(omega * t) + (0.25 * -0.5 + (0.25 - 1) / 2) / omega * np.sin(omega * t)
    )
    worst = np.abs(solved - truth).max()
    crossings = t[1:][np.diff(np.sign(np.asarray(solved))) != 0]
    period = 2 * np.diff(crossings).mean()
    return Claim(
        "4.3",
        "With L = 1 the imbalance is a damped oscillation of rate (μ + γ)/2 and period 2π/ω.",
        f"largest distance between the integrated x(t) and the formula: {worst:.1e}; "
        f"period from its zeros: {period:.3f}",
        f"0; 2π/ω = {2 * np.pi / omega:.3f} (λ = 10, μ = 1, D = 4, θ = 1)",
        worst < 1e-8 and abs(period - 2 * np.pi / omega) < 0.01,
        {"largest_difference": worst, "period": period},
    )


def routh_hurwitz_bound_decides_two_stages() -> Claim:
    """Sign of the abscissa with L = 2 against (22)."""
    arrival, service, mean, sensitivity = _random_parameters(22)
    abscissa = _abscissas(arrival, service, mean, 2.0, sensitivity)
    gamma = 2 / mean
    bound = 2 * service**2 / gamma + 4 * service + 2 * gamma
    clear = np.abs(arrival * sensitivity / bound - 1) > 1e-9
    agree = ((abscissa > 0) == (arrival * sensitivity > bound))[clear]
    at_bound = _abscissas(arrival, service, mean, 2.0, bound / arrival)
    error = np.abs(at_bound) / (service + gamma)
    return Claim(
        "4.4 (22), (23)",
        "With L = 2 balance is stable below λθ = 2μ²/γ + 4μ + 2γ and unstable above.",
        f"the sign of the abscissa agrees at {agree.sum():,} of {agree.size:,} random parameters, "
        f"{np.mean(abscissa > 0):.0%} of them unstable; at the bound |abscissa| is at most "
        f"{error.max():.0e} (μ + γ)",
        "all of them; 0",
        agree.all() and error.max() < 1e-10,
        {"disagreements": (~agree).sum(), "largest_abscissa_at_bound": error.max()},
    )


def many_phases_approach_the_deterministic_delay() -> Claim:
    """Rightmost root for growing L against that of r + mu + lambda theta exp(-r D)."""
    stages = np.array([4, 8, 16, 32, 64, 128])
    roots = [
        complex(stability.rightmost_root(System(1.0, 1.0, Erlang(1.0, int(n)), Logit(3.0))))
        for n in stages
    ]
    limit = complex(stability.rightmost_root(System(1.0, 1.0, Deterministic(1.0), Logit(3.0))))
    # Lambert's W in 30-digit arithmetic.
    truth = complex(0.21400352638554887, 2.09581888472443423)
    distance = np.abs(np.array(roots) - truth)
    slope = np.polyfit(np.log(stages[-3:]), np.log(distance[-3:]), 1)[0]
    return Claim(
        "4.5",
        "As L grows with D fixed, the Erlang delay becomes the deterministic one.",
        f"distance of the rightmost roots {distance[0]:.3f} (L = 4), {distance[-1]:.4f} (L = 128), "
        f"slope {slope:.3f}; limit {pair(limit, 12)}",
        f"slope −1 in log–log; {pair(truth, 12)}, W₀ of −λθD exp(μD) (λθ = 3, μ = D = 1)",
        abs(slope + 1) < 0.05 and abs(limit - truth) < 1e-12,
        {"slope": slope, "abscissa": limit.real, "frequency": limit.imag},
        "The approach is slow, of order 1/L: 128 phases still leave 1 % of the root.",
    )


CLAIMS = (
    difference_of_shares_is_a_hyperbolic_tangent,
    difference_system_is_closed,
    sum_mode_ignores_the_sensitivity,
    linearisation_error_is_cubic,
    characteristic_equation_gives_the_eigenvalues,
    delayed_information_has_the_same_spectrum,
    exponential_delay_never_destabilises,
    exponential_delay_oscillates_beyond_a_gain,
    exponential_imbalance_formula,
    routh_hurwitz_bound_decides_two_stages,
    many_phases_approach_the_deterministic_delay,
)


def _printed_matrix(stages: int) -> np.ndarray:
    """A_L as printed in (12), for lambda theta = 15 and mu = D = 1."""
    gamma = float(stages)
    matrix = np.diag(np.full(stages + 1, -gamma)) + np.diag(np.full(stages, gamma), -1)
    matrix[0, 0], matrix[0, -1], matrix[1, 0] = -1.0, gamma, -15.0
    return matrix


def _roots_and_vectors(stages: int) -> tuple[np.ndarray, np.ndarray]:
    """Roots of (17), by Newton's method from the eigenvalues, and their vectors (16)."""
    system = cases.queues(stages)

    @jax.jit
    @jax.vmap
    def solve(root):
        def newton(_, root):
            value, slope = jax.jvp(
                lambda r: stability.characteristic_residual(system, r), (root,), (1 + 0j,)
            )
            return root - value / slope

        root = jax.lax.fori_loop(0, 3, newton, root)
        return root, imbalance.eigenvector(system, root)

    roots, vectors = solve(np.linalg.eigvals(_printed_matrix(stages)).astype(complex))
    return np.asarray(roots), np.asarray(vectors)


def _random_parameters(seed: int):
    rng = np.random.default_rng(seed)
    arrival, service, mean = (10 ** rng.uniform(-2, 2, SAMPLES) for _ in range(3))
    return arrival, service, mean, 10 ** rng.uniform(-3, 3, SAMPLES)


def _roots(arrival, service, mean, stages, sensitivity) -> np.ndarray:
    """Rightmost roots, element by element."""
    return np.asarray(stability.erlang_root(arrival, service, mean, stages, sensitivity).root)


def _abscissas(*parameters) -> np.ndarray:
    return np.real(_roots(*parameters))
