"""Rightmost root of (z + m) (1 + s z)^(1/s) = -kappa, s = 1/L: fixed cost for every L.

On the upper half plane the rightmost root is the one with arg (z + m) + L arg V = pi, V = 1 + s z.
Where c = 1 - s m > 0 it is z = (c eta - 1 - m) / (1 + s), eta a function of s and delta alone,

    log(1 + s eta) / s + log(1 - eta) = delta,    delta = log(kappa / kappa*),

real below the double root delta = 0 and complex above it. Where c < 0 the same holds for the
complex conjugate of eta with kappa* of abs(c) and delta + i (L - 1) pi. Both this and (17) itself
have the form

    log(1 + s u) / s + log(a - u) = C,

with u = eta, a = 1, C = delta or with u = z, a = -m, C = log kappa; the second serves far above the
double root, where the first loses digits to a large m, and where c <= 0.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._logarithms import ARTANH, angle, beyond_first, half_log, log, log1p

# Above this delta the root is found from (17) itself.
FAR = 2.5
# Up to so many stages a double root is felt also where c < 0.
FOLDED = 1.5


# Real and imaginary part.
Pair = tuple[Float[Array, "..."], Float[Array, "..."]]


class Solved(NamedTuple):
    """z, p = z + m, V = 1 + s z and p + V, and whether z is a double root or one of all stages.

    p + V is zero at a double root. V is zero at a root of all stages: the gain is zero, or so small
    that rounding cannot tell it from zero. p, V and p + V are formed without the cancellation that
    z would bring near one, but for V in the far regime: eps / abs(V) of it is lost there.
    """

    root: Pair
    passed: Pair
    turned: Pair
    slope: Pair
    double: Bool[Array, "..."]
    stuck: Bool[Array, "..."]


def solve(m: Float[Array, "..."], kappa: Float[Array, "..."], stages: Float[Array, "..."]):
    """The rightmost root as `Solved`, element by element; m > 0, kappa >= 0, stages >= 1."""
    s, L = inverse(stages)
    many, one = s == 0, stages == 1
    # With one stage mu and gamma change places freely.
    c = jnp.where(one, jnp.abs(1 - m), jnp.where(many, 1.0, (L - m) / L))
    # log kappa*, where q = 1 - c / (1 + s) must not be formed by cancellation.
    q = jnp.where(one, 1 - c / 2, (1 + m) / (L + 1))
    star = jnp.where(many, -(1 + m), (L + 1) * log1p(-jnp.where((c > 0) & ~many, q, 0.5)))
    off = kappa <= 0
    log_kappa = _once(log(feedback(kappa)))
    delta = jnp.where(c > 0, log_kappa - star, FAR + 1)
    # What rounding cannot tell from the double root is taken as one.
    unsure = 1.5 * jnp.finfo(m.dtype).eps * (1 + jnp.abs(log_kappa))
    delta = _once(jnp.where(jnp.abs(delta) <= unsure, 0.0, delta))
    far, below = delta > FAR, delta < -1
    # c < 0 with little more than one stage: a double root is near, which L = 1 would have.
    beyond = (c < 0) & (L < FOLDED)
    log_ratio = _once(log(jnp.where(beyond, m - L, 1.0) / (L + 1)))
    gap = log_kappa - (L + 1) * log_ratio
    folded = beyond & (gap > -1) & (gap < FAR)
    far = far & ~folded
    delta = jnp.where(folded, gap, delta)
    turn = jnp.where(folded, (L - 1) * jnp.pi, 0.0)
    near = _near_guess(s, jnp.clip(delta, -1, FAR), turn)
    # Below it p is about m - L; log(L + 1) is 0.8 or so.
    few = beyond & (gap <= -1)
    start_x = jnp.where(few, log_kappa - log_ratio - 0.8, log_kappa / (1 + s))
    start_y = jnp.where(few, jnp.pi, jnp.pi / (1 + s))
    log_turned, *guess = _far_guess(s, m, jnp.where(far, log_kappa, 1.0), start_x, start_y)
    # Also where there is no V left to take a logarithm of.
    lost = ~(log_turned >= jnp.log(jnp.finfo(m.dtype).eps))
    stuck = far & ~many & (off | lost)
    x, y = _polish(
        s,
        *_choose(far, (guess[0], guess[1]), near),
        jnp.where(far, -m, 1.0),
        jnp.where(far, log_kappa, jnp.clip(delta, -1, FAR)),
        turn,
        ~far,
    )
    # eta and its complement, real below.
    left = _below(s, jnp.where(below, delta, -1.0))
    x, y = together((jnp.where(below, 1 - left, x), jnp.where(below, 0.0, y)))
    left = jnp.where(below, left, 1 - x)
    share = c / (1 + s)
    rise = jnp.abs(c) * y
    slow = jnp.where(one, jnp.minimum(m, 1.0), m)
    root_x = jnp.where(below, -slow - share * left, (c * x - 1 - m) / (1 + s))
    root_x = jnp.where(far, x, root_x)
    # Without feedback the modes are those of service and of the stages.
    still = off | stuck
    root_x = jnp.where(still, -jnp.where(many, m, jnp.minimum(m, L)), root_x)
    root_y = jnp.where(still, 0.0, jnp.where(far, y, rise / (1 + s)))
    # Of a pair of one stage it is exact, also where the imaginary part is much larger.
    root_x = jnp.where(one & (root_y > 0), -(1 + m) / 2, root_x)
    first = -share * left, rise / (1 + s)
    second = share * (1 + s * x), s * rise / (1 + s)
    swapped = one & (m > 1)
    passed = _choose(far, (root_x + m, root_y), _choose(swapped, second, first))
    turned = _choose(far, (1 + s * root_x, s * root_y), _choose(swapped, first, second))
    turned = jnp.where(stuck, 0.0, turned[0]), turned[1]
    total = root_x + m + 1 + s * root_x, (1 + s) * root_y
    slope = _choose(far, total, (c * x, rise))
    # One stage has but the one root.
    stuck = stuck & ~one
    double = ~stuck & (slope[0] == 0) & (slope[1] == 0)
    return Solved((root_x, root_y), passed, turned, slope, double, stuck)


def feedback(kappa: Float[Array, "..."]) -> Float[Array, "..."]:
    """kappa; for zero a number so small that the root's distance from -m is linear in it."""
    info = jnp.finfo(kappa.dtype)
    return jnp.where(kappa <= 0, info.tiny / info.eps, kappa)


def inverse(stages: Float[Array, "..."]) -> Pair:
    """1 / L, zero at infinity, and a finite stand-in for L."""
    many = jnp.isinf(stages)
    finite = jnp.where(many, 1.0, stages)
    return jnp.where(many, 0.0, 1 / finite), finite


def scaled_log1p(s, x, y):
    """log(1 + s (x + i y)) / s as a pair, x + i y where s is zero, for y >= 0."""
    t = jnp.where(s == 0, 1.0, s)
    u, v = s * x, s * y
    real = half_log(u * (2 + u) + v * v, (1 + u) ** 2 + v * v) / t
    imag = angle(1 + u, v) / t
    return jnp.where(s == 0, x, real), jnp.where(s == 0, y, imag)


def _choose(condition: Array, first: Pair, second: Pair) -> Pair:
    return jnp.where(condition, first[0], second[0]), jnp.where(condition, first[1], second[1])


def _divide(first: Pair, second: Pair) -> Pair:
    (a, b), (c, d) = first, second
    size = 1 / (c * c + d * d)
    return (a * c + b * d) * size, (b * c - a * d) * size


def _once(value: Array) -> Array:
    """A value that XLA is not to find again for each of its uses."""
    return jax.lax.optimization_barrier(value)


def together(pair: Pair) -> Pair:
    """Both parts, computed at once: XLA for CPUs has no loop of two results, but complex ones."""
    both = _once(jax.lax.complex(*pair))
    return both.real, both.imag


def multiply(first: Pair, second: Pair) -> Pair:
    """The product of two complex numbers."""
    (a, b), (c, d) = first, second
    return a * c - b * d, a * d + b * c


def _near_guess(s, delta, turn):
    """eta for -1 <= delta <= FAR from its series about the double root, with delta + i turn."""
    e = -2 * delta / (1 + s), -2 * turn / (1 + s)
    q, e = e, _root_above(e)
    a = (s - 1) / 3
    b = ((s - 11) * s + 1) / 36
    c = -(s - 1) * ((s + 25) * s + 1) / 270
    d = ((((s - 22) * s + 267) * s - 22) * s + 1) / 4320
    f = (s - 1) * ((((s + 14) * s + 267) * s + 14) * s + 1) / 17010
    even = multiply(q, (c + f * q[0], f * q[1]))
    even = multiply(q, (a + even[0], even[1]))
    odd = multiply(q, (b + d * q[0], d * q[1]))
    odd = multiply(e, (1 + odd[0], odd[1]))
    return even[0] + odd[0], even[1] + odd[1]


def _root_above(q):
    """The square root in the upper half plane, at its right end where it is real."""
    x, y = q
    # The longer part first, from which the other comes without cancellation.
    long = jnp.sqrt((jnp.sqrt(x * x + y * y) + jnp.abs(x)) / 2)
    short = jnp.abs(y) / (2 * jnp.where(long == 0, 1.0, long))
    # y <= 0 here: the root above has a real part that is not positive.
    return jnp.where(x > 0, jnp.where(y < 0, -long, long), -short), jnp.where(x > 0, short, long)


def _far_guess(s, m, log_kappa, x, y):
    """log |V|, and z, for delta > FAR or c <= 0, by one Halley step in tau = L log V = x + i y."""
    ex, ey = _scaled_expm1(s, x, y)
    px, py = ex + m, ey
    vx, vy = 1 + s * ex, s * ey
    size = px * px + py * py
    fx, fy = x + half_log(size - 1, size) - log_kappa, y + angle(px, py) - jnp.pi
    # V / p; the slope is 1 + V / p and the second derivative s V / p - (V / p)^2.
    rx, ry = (vx * px + vy * py) / size, (vy * px - vx * py) / size
    bend = multiply((rx, ry), (s - rx, -ry))
    newton = _divide((fx, fy), (1 + rx, ry))
    ux, uy = multiply(newton, _divide(bend, (1 + rx, ry)))
    dx, dy = _divide(newton, (1 - ux / 2, -uy / 2))
    return s * (x - dx), *_scaled_expm1(s, x - dx, y - dy)


def _scaled_expm1(s, x, y):
    """(exp(s (x + i y)) - 1) / s as a pair, x + i y where s is zero; to 1e-5, for a guess."""
    t = jnp.where(s == 0, 1.0, s)
    growth = jnp.expm1(s * x)
    # s y lies between 0 and pi / 2.
    h = s * y / 2
    w = h * h
    sine = h * (1 - w / 6 * (1 - w / 20 * (1 - w / 42)))
    cosine = 1 - w / 2 * (1 - w / 12 * (1 - w / 30))
    real = (growth - (1 + growth) * 2 * sine * sine) / t
    imag = (1 + growth) * 2 * sine * cosine / t
    return jnp.where(s == 0, x, real), jnp.where(s == 0, y, imag)


def _polish(s, x, y, a, target, turn, near):
    """Two Halley steps for log(1 + s u) / s + log(a - u) = target + i turn from u = x + i y."""
    for _ in range(2):
        x, y = together((x, y))
        wx = a - x
        square = wx * wx + y * y
        excess = jnp.where(near, x * (x - 2) + y * y, square - 1)
        lx, ly = scaled_log1p(s, x, y)
        fx, fy = lx + half_log(excess, square) - target, ly - angle(wx, y) - turn
        # The slope of f is n / (v w), without cancellation at eta = 0. All three are divided by the
        # size of n, lest their products overflow in single precision.
        nx, ny = (a - 1) - (1 + s) * x, -(1 + s) * y
        extent = jnp.abs(nx) + jnp.abs(ny)
        still = extent == 0
        extent = jnp.where(still, 1.0, extent)
        t = 1 / extent
        vx, vy, wx, wy, nx, ny = (1 + s * x) * t, s * y * t, wx * t, -y * t, nx * t, ny * t
        bx = (s * (wx * wx - wy * wy) + vx * vx - vy * vy) / 2
        by = s * wx * wy + vx * vy
        over_x, over_y = multiply((fx, fy), (bx, by))
        over_x, over_y = over_x + nx * nx - ny * ny, over_y + 2 * nx * ny
        newton = multiply(multiply((vx, vy), (wx, wy)), multiply((nx, ny), (fx, fy)))
        dx, dy = _divide(newton, (jnp.where(still, 1.0, over_x), over_y))
        x, y = x - dx * extent, y - dy * extent
    return x, y


def _below(s, delta):
    """1 - eta for delta < -1: E (1 - k E)^(1/s) = E0, k = s / (1 + s).

    In y = log(E / E0) = -log(1 - k E) / s, by one Halley step from eight terms of its series in E0.
    """
    share = 1 / (1 + s)
    # log(1 + s) / s.
    most = jnp.where(s == 0, 1.0, log1p(s) / jnp.where(s == 0, 1.0, s))
    start = jnp.exp(delta - most)
    y = jnp.zeros_like(start)
    for n in range(8, 0, -1):
        # Lagrange inversion.
        factor = math.prod((n + j * s for j in range(1, n)), start=1 / math.factorial(n))
        y = start * share * (factor + y)
    e = start * jnp.exp(y)
    # 2 artanh(ratio) = -log(1 - k E).
    turned = 1 - s * share * e
    ratio = s * share * e / (1 + turned)
    gap = y - 2 * share * e / (1 + turned) * (1 + beyond_first(ARTANH, ratio))
    change = gap * (1 - e) * turned / ((1 - e) ** 2 + gap * e * share / 2)
    return e * (1 - change * (1 - change / 2))
