"""The two rightmost roots as one pair, which stays smooth where they meet.

With r = X +- sqrt(Y) the middle X and the squared half distance Y are analytic functions of the
parameters through a double root, Y = 0, where the abscissa X + sqrt(max(Y, 0)) has a slope without
bound. In the notation of `jaxlb.stability.erlang` the two roots eta of

    log(1 + s eta) / s + log(1 - eta) = delta

have the half sum A and the squared half difference B, both power series in delta that converge for
|delta| < 2 pi. With G = A^2 + B the equation's derivative in delta splits into

    G' = 2 (-1 + (1 - s) A + s G) / (1 + s),    A B' / 2 + A' B = B (1 - s + 2 s A) / (1 + s).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from .._elimination import solve
from .._logarithms import log1p
from ..model import imbalance
from ..model.system import System, require_one
from .dense import eigenvalues
from .domain import flagged, of_system
from .erlang import is_erlang, parameters_of, solved_root
from .trinomial import inverse

# Within this delta the series are summed; their terms fall by 2 pi / NEAR, to 1e-16 after TERMS.
NEAR = 0.1
TERMS = 9


class RootPair(NamedTuple):
    """The two rightmost roots r = X +- sqrt(Y): `middle` X, 1/s, and `squared` Y, 1/s^2.

    Complex where `squared` is negative, double where it is zero. The spectral abscissa is
    X + sqrt(max(Y, 0)). `single`: the rightmost root is real and there is no other real one to
    pair it with; `middle` is then that root and `squared` zero.
    """

    middle: Float[Array, ""]
    squared: Float[Array, ""]
    single: Bool[Array, ""]


def erlang_pair(
    arrival_rate: Any, service_rate: Any, mean: Any, stages: Any, sensitivity: Any
) -> RootPair:
    """The two rightmost roots of r + mu + lambda theta (1 + r D / L)^-L, as a `RootPair`.

    A complex pair, or two real roots: the rightmost one, and the one that it meets at the double
    root. Without feedback the second is the stages' own, -gamma, and does not move with the
    gain; where gamma <= mu both are -gamma; with a deterministic delay the second has gone
    to minus infinity, and that of the smallest positive gain stands for it.

    **Arguments:** as `erlang_root`. A new number of stages does not recompile.

    **Returns:** a `RootPair`, differentiable in every argument, also twice and at the double root.
    With one stage and gamma <= mu the derivative in `stages`, which does not exist, is zero.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy:** relative to |X| + sqrt(|Y|) and its square, in float64 2e-15 at any distance from
    the double root, from one stage to infinitely many; in float32 1e-5.

    **Cost:** fixed, whatever the number of stages.
    """
    arrival_rate = _checks.positive("arrival_rate", arrival_rate, "1/s")
    service_rate = _checks.positive("service_rate", service_rate, "1/s")
    mean = _checks.positive("mean", mean, "s")
    sensitivity = _checks.not_negative("sensitivity", sensitivity, "per job")
    stages = _checks.stages("stages", stages)
    dtype = jnp.result_type(arrival_rate, service_rate, mean, sensitivity)
    rates = jnp.stack([arrival_rate, service_rate, mean]).astype(dtype)
    sensitivity, stages = sensitivity.astype(dtype), stages.astype(dtype)
    valid = jnp.all(_checks.is_positive(rates)) & _checks.is_not_negative(sensitivity)
    return flagged(valid & _checks.is_stages(stages), _pair, *rates, stages, sensitivity)


def _pair(arrival_rate, service_rate, mean, stages, sensitivity) -> RootPair:
    gain = arrival_rate * sensitivity
    m, kappa = service_rate * mean, gain * mean
    s, finite = inverse(stages)
    delta, c = _log_distance(m, kappa, stages)
    real, imag, *_ = solved_root(gain, service_rate, mean, stages)
    # Separate roots: a complex pair, or the rightmost real one and its partner, found in eta.
    below = delta < -NEAR
    tau = _partner(s, jnp.where(below, delta, -1.0))
    # Without feedback the partner is at the pole of the transform, V = 0.
    stuck = (kappa <= 0) & (s > 0)
    eta = jnp.where(stuck, -finite, _scaled_expm1(s, jnp.where(stuck, -1.0, tau)))
    partner = (c * eta - 1 - m) / (1 + s) / mean
    half = (real - partner) / 2
    middle = jnp.where(below, (real + partner) / 2, real)
    squared = jnp.where(below, half * half, -imag * imag)
    # The pair about the double root.
    near = jnp.abs(delta) <= NEAR
    even, square = _series(s, jnp.where(near, delta, 0.0))
    ratio = c / (1 + s) / mean
    middle = jnp.where(near, (c * even - 1 - m) / (1 + s) / mean, middle)
    squared = jnp.where(near, ratio * ratio * square, squared)
    # One stage that is no faster than service: a quadratic.
    quadratic = (stages == 1) & (m >= 1)
    middle = jnp.where(quadratic, -(service_rate + 1 / mean) / 2, middle)
    gap = (service_rate - 1 / mean) / 2
    squared = jnp.where(quadratic, gap * gap - gain / mean, squared)
    return RootPair(middle, squared, jnp.zeros((), bool))


def _log_distance(m, kappa, stages):
    """delta = log(kappa / kappa*), beyond the series where there is no kappa*; c = 1 - m / L."""
    s, finite = inverse(stages)
    many = s == 0
    c = jnp.where(many, 1.0, (finite - m) / finite)
    some = c > 0
    q = jnp.where(some & ~many, (1 + m) / (finite + 1), 0.5)
    star = jnp.where(many, -(1 + m), (finite + 1) * log1p(-q))
    log_kappa = jnp.log(jnp.where(kappa > 0, kappa, jnp.finfo(m.dtype).tiny))
    return jnp.where(some, log_kappa - star, 2 * NEAR), c


def _series(s, delta):
    """A and B for abs(delta) <= NEAR, from the module's two equations order by order."""
    k = 1 / (1 + s)
    a, b, g = [0.0 * k], [0.0 * k], [0.0 * k]
    for n in range(1, TERMS + 1):
        g.append(2 * k * ((1 - s) * a[n - 1] + s * g[n - 1] - (n == 1)) / n)
        b.append(g[n] - sum(a[i] * a[n - i] for i in range(1, n)))
        known = k * ((1 - s) * b[n] + 2 * s * sum(a[i] * b[n - i] for i in range(1, n)))
        known = known - sum((n + 1 + i) / 2 * a[i] * b[n + 1 - i] for i in range(1, n))
        # b_1 = -2 k.
        a.append(-known / ((2 * n + 1) * k))
    even, square = a[TERMS], b[TERMS]
    for n in reversed(range(TERMS)):
        even, square = even * delta + a[n], square * delta + b[n]
    return even, square


def _scaled_expm1(s, x):
    """(exp(s x) - 1) / s, x where s is zero."""
    return jnp.where(s == 0, x, jnp.expm1(s * x) / jnp.where(s == 0, 1.0, s))


@jax.custom_jvp
def _partner(s, delta):
    """tau = log(1 + s eta) / s of the root eta < 0, for delta < -NEAR."""
    tau = delta
    for _ in range(2):
        tau = delta - jnp.log1p(-_scaled_expm1(s, tau))
    for _ in range(6):
        # Concave and increasing in tau, so that Newton's steps come from the left.
        u = -_scaled_expm1(s, tau)
        tau = tau - (tau + jnp.log1p(u) - delta) / (1 - jnp.exp(s * tau) / (1 + u))
    return tau


@_partner.defjvp
def _partner_jvp(primals, tangents):
    (s, delta), (d_s, d_delta) = primals, tangents
    tau = _partner(s, delta)
    zero = s == 0
    t = jnp.where(zero, 1.0, s)
    u, v = -_scaled_expm1(s, tau), jnp.exp(s * tau)
    bend = jnp.where(zero, -tau * tau / 2, -(tau * v + u) / t)
    return tau, (d_delta - bend / (1 + u) * d_s) / (1 - v / (1 + u))


def rightmost_pair(system: System) -> RootPair:
    """The two rightmost roots of the difference mode in variables smooth through a double root.

    With `Logit` and an `Erlang` or `Deterministic` delay this is `erlang_pair`, at a fixed cost.
    Else from the eigenvalues of A_L: the rightmost complex pair, or the rightmost root, if that is
    real, and the next real one, even if complex roots lie between; `single` if there is none.

    **Returns:** a `RootPair`, differentiable, also at a double root; from eigenvalues once only.

    **Raises:** as `rightmost_root`, and for other delays without phases.

    **Cost:** by `erlang_pair` fixed; by eigenvalues O(L^3), on the host.
    """
    require_one(system)
    # Before tracing hides the numbers.
    system.require_two_alike()
    if not is_erlang(system):
        system.phase_delay("a pair of roots")
    return _rightmost_pair(system)


@eqx.filter_jit
def _rightmost_pair(system: System) -> RootPair:
    if is_erlang(system):
        return erlang_pair(*parameters_of(system))
    return of_system(_dense_pair)(system)


@eqx.filter_custom_jvp
def _dense_pair(system: System) -> RootPair:
    roots = eigenvalues(system)
    first = jnp.argmax(roots.real)
    root = roots[first]
    real = (roots.imag == 0) & (jnp.arange(len(roots)) != first)
    second = jnp.max(jnp.where(real, roots.real, -jnp.inf))
    single = (root.imag == 0) & ~jnp.any(real)
    second = jnp.where(single, root.real, second)
    half = jnp.where(root.imag == 0, root.real - second, 0.0) / 2
    middle = jnp.where(root.imag == 0, (root.real + second) / 2, root.real)
    return RootPair(middle, half * half - root.imag * root.imag, single)


@_dense_pair.def_jvp
def _dense_pair_jvp(primals, tangents):
    """With P the projector on the pair's invariant subspace, which is smooth where the roots are
    not: the sum over the pair of any f(r) changes by the trace of f'(A) P dA."""
    (system,), (tangent,) = primals, tangents
    pair = _dense_pair(system)
    matrix, change = eqx.filter_jvp(imbalance.matrix, (system,), (tangent,))
    if change is None:
        raise ValueError(
            "`routing` must hold the parameters to differentiate by as an Equinox module does, "
            "not as a closure."
        )
    shifted = matrix - pair.middle * jnp.eye(len(matrix), dtype=matrix.dtype)
    factor = shifted @ shifted - pair.squared * jnp.eye(len(matrix), dtype=matrix.dtype)
    left, _, right = jnp.linalg.svd(jnp.where(pair.single, shifted, factor))
    # Null vectors of the quadratic factor, two, or one if the root is alone.
    kept = jnp.array([False, True]) | ~pair.single
    left = jnp.where(kept, left[:, -2:], 0.0)
    right = jnp.where(kept[:, None], right[-2:], 0.0).T
    overlap = jnp.where(kept[:, None] & kept, left.T @ right, jnp.eye(2, dtype=matrix.dtype))
    projector = right @ solve(overlap, left.T)
    middle = jnp.vdot(projector.T, change) / jnp.where(pair.single, 1, 2)
    squared = jnp.vdot((shifted @ projector).T, change)
    # The flag has no derivative.
    change = middle, jnp.where(pair.single, 0.0, squared), None
    return pair, RootPair(*change)  # pyright: ignore[reportArgumentType]
