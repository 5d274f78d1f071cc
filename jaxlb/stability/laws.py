"""Rightmost root for a delay known by its transform alone, with a proof that none was missed.

Roots of h(r) = r + mu + K f(r) with Re r >= a satisfy |r + mu| <= |K| f(a), because a transform is
largest on the real axis. So those right of the line Re r = a lie left of an arc about -mu, on which
h turns as r + mu does to within a quarter turn, and their number is what is left of that turn after
the turn of h along a finite piece of the line: the argument principle. The piece is sampled where h
turns; a count is sound only if no step turns by more than about one radian, by its ends and by the
slopes there.

The search halves an interval of lines until the count changes, runs Newton's method from the last
line without roots, and counts once more just right of what it found, with that root divided out.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

SAMPLES, REFINEMENTS, CIRCLE = 640, 3, 128
HALVINGS, STARTS, NEWTON_STEPS = 26, 16, 30


class Law(NamedTuple):
    """h(r) = r + `service_rate` + `gain` `transform`(r); all in 1/s."""

    transform: Callable[[Complex[Array, ""]], Complex[Array, ""]]
    service_rate: Float[Array, ""]
    gain: Float[Array, ""]

    def residual(self, r: Complex[Array, ""]) -> Complex[Array, ""]:
        """h at complex r."""
        return r + self.service_rate + self.gain * self.transform(r)


class _Line(NamedTuple):
    """Number of roots right of a line, whether it can be trusted, and samples on the line."""

    roots: Float[Array, ""]
    sound: Bool[Array, ""]
    points: Complex[Array, " samples"]
    distance: Float[Array, " samples"]


def search(law: Law) -> tuple[Complex[Array, ""], Bool[Array, ""]]:
    """Rightmost root, and whether the count confirms it; not to be differentiated."""
    dtype = law.service_rate.dtype
    eps = jnp.finfo(dtype).eps
    at_zero = _moments(law.transform, jnp.zeros((), dtype))
    mean = -at_zero[1].real
    # A double root is at -mu - 1 / (mean of the delay weighed by exp(-r delay)), less than one of
    # the plain mean away; roots of a larger gain are right of it.
    low = -law.service_rate - 2 / mean
    high = _last_line(law)

    blank = jnp.zeros(SAMPLES, dtype)
    start = _Line(blank[0], blank[0] > 0, jax.lax.complex(blank, blank), blank)

    def halve(i, state):
        low, high, last = state
        # The first of all keeps samples of the last line even if it is in doubt.
        middle = jnp.where(i == 0, high, (low + high) / 2)
        line = _count(law, middle, None)
        clear = (line.sound & (line.roots == 0)) | (i == 0)
        last = jax.tree.map(lambda new, old: jnp.where(clear, new, old), line, last)
        return jnp.where(clear, low, middle), jnp.where(clear, middle, high), last

    _, _, last = jax.lax.fori_loop(0, HALVINGS + 1, halve, (low, high, start))
    root, found = _polish(law, last, mean)
    # Roots closer than this to the right of the one found may escape.
    margin = eps**0.4 * jnp.minimum(1 / mean, jnp.abs(root) + law.service_rate)
    line = _count(law, root.real + margin, root)
    complete = found & line.sound & (line.roots == 0) & _analytic(law, root.real)
    return root, complete


def _moments(transform, a):
    """f, f' and f'' on the real axis, as complex numbers."""
    r = jax.lax.complex(a, jnp.zeros_like(a))
    one = jnp.ones_like(r)

    def slope(r):
        return jax.jvp(transform, (r,), (one,))

    (f, df), (_, ddf) = jax.jvp(slope, (r,), (one,))
    return f, df, ddf


def _is_transform(f, df, ddf):
    """Whether f could be a transform there: real, positive, falling, its logarithm convex.

    Left of its abscissa of convergence a formula goes on, but as something else.
    """
    slack = 1e3 * jnp.finfo(f.real.dtype).eps
    real = jnp.abs(f.imag) <= slack * jnp.abs(f)
    convex = f.real * ddf.real >= df.real**2 * (1 - slack)
    finite = jnp.isfinite(f) & jnp.isfinite(df) & jnp.isfinite(ddf)
    return finite & real & (f.real > 0) & (df.real < 0) & convex


def _analytic(law: Law, a):
    """Whether no pole is seen between `a` < 0 and zero: the residues within a circle vanish.

    A pole outside makes Laurent coefficients that grow towards the middle of the list, one inside
    those that fall.
    """
    turn = jnp.exp(2j * jnp.pi * jnp.arange(CIRCLE) / CIRCLE).astype(jnp.result_type(a, 1j))
    radius = jnp.abs(a)
    f = jax.vmap(law.transform)(jnp.where(a < 0, radius, 1.0) * turn)
    inside = jnp.abs(jnp.mean(f * turn))
    middle = jnp.abs(jnp.mean(f * (-1.0) ** jnp.arange(CIRCLE)))
    noise = 1e2 * jnp.finfo(radius.dtype).eps * jnp.max(jnp.abs(f))
    return (a >= 0) | (inside <= 10 * middle + noise)


def _last_line(law: Law):
    """The line x + mu = |K| f(x): no root is right of it."""
    size, mu = jnp.abs(law.gain), law.service_rate

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        moments = _moments(law.transform, middle)
        # Far right it underflows, which is no fault.
        trusted = _is_transform(*moments) | (middle >= 0)
        clear = trusted & (middle + mu > size * moments[0].real)
        return jnp.where(clear, low, middle), jnp.where(clear, middle, high)

    return jax.lax.fori_loop(0, 60, halve, (-mu, jnp.maximum(size - mu, 0)))[1]


def _count(law: Law, a, known) -> _Line:
    """Roots right of Re r = a. `known` is a root just left of the line, to be divided out."""
    eps = jnp.finfo(a.dtype).eps
    f, df, ddf = _moments(law.transform, a)
    largest, tilted = f.real, -f.real / df.real
    shift, bound = a + law.service_rate, jnp.abs(law.gain) * f.real
    radius = jnp.maximum(bound, jnp.where(shift < 0, -1.25 * shift, 0.0))
    # Beyond where the arc begins by a few of the lengths on which a transform turns, where the root
    # is if all lie next to the last line.
    excess = jnp.maximum(radius - jnp.abs(shift), 0) * (radius + jnp.abs(shift))
    span = jnp.sqrt(excess + (5 * tilted) ** 2)

    def sample(y):
        r = jax.lax.complex(jnp.full_like(y, a), y)
        value, slope = jax.vmap(lambda r: jax.jvp(law.residual, (r,), (jnp.ones_like(r),)))(r)
        turn, rate = jnp.sign(value), slope / value
        if known is not None:
            twin = jnp.where(known.imag == 0, 1.0, r - known.conj())
            turn = turn / jnp.sign(r - known) / jnp.sign(twin)
            rate = rate - 1 / (r - known) - jnp.where(known.imag == 0, 0.0, 1 / twin)
        return r, value, slope, turn, jnp.abs(rate)

    def refine(_, state):
        y, _ = state
        samples = sample(y)
        rate = samples[4]
        # Half of the steps where h turns, the others shared by the intervals that there were.
        weight = jnp.diff(y) * jnp.minimum(jnp.maximum(rate[1:], rate[:-1]), 1 / (eps * span))
        share = weight / jnp.maximum(jnp.sum(weight), 1.0) + 1 / len(weight)
        share = jnp.concatenate([jnp.zeros(1, a.dtype), jnp.cumsum(share)])
        return jnp.interp(share[-1] * jnp.linspace(0, 1, SAMPLES, dtype=a.dtype), share, y), (
            y,
            samples,
        )

    first = _places(span, known)
    blank = jnp.zeros_like(first)
    empty = jax.lax.complex(blank, blank)
    # The last time round the samples are where they should be.
    state = first, (blank, (empty, empty, empty, empty, blank))
    y, (r, value, slope, turn, rate) = jax.lax.fori_loop(0, REFINEMENTS, refine, state)[1]
    steps = jnp.angle(turn[1:] * turn[:-1].conj())
    by_slope = jnp.diff(y) * jnp.maximum(rate[1:], rate[:-1])
    arc = jnp.angle(r[-1] + law.service_rate)
    arc = arc + jnp.angle(value[-1] / (r[-1] + law.service_rate))
    if known is not None:
        pair = jnp.where(known.imag == 0, 0.0, jnp.angle(r[-1] - known.conj()))
        arc = arc - jnp.angle(r[-1] - known) - pair
    count = (arc - jnp.sum(steps)) / jnp.pi
    # h - r - mu is K f: nowhere on the line larger than on the real axis.
    pulled = jnp.abs(value - r - law.service_rate)
    rounding = 1e2 * eps * (jnp.abs(r) + law.service_rate)
    sound = (
        _is_transform(f, df, ddf)
        & jnp.all(pulled <= bound * (1 + 1e3 * eps) + rounding)
        & jnp.all(jnp.abs(steps) < 1.5)
        & jnp.all(by_slope < 1.5)
        & (jnp.abs(count - jnp.round(count)) < 0.1)
        & jnp.isfinite(largest)
    )
    return _Line(jnp.round(count), sound, r, jnp.abs(value / slope))


def _places(span, known):
    """Places on the line from 0 to `span`, in order: crowded at zero and at a known root."""
    dtype, count = span.dtype, SAMPLES if known is None else SAMPLES // 4
    steps = jnp.geomspace(1e-9, 1, count - 1, dtype=dtype) + jnp.linspace(0, 1, count - 1)
    ladder = jnp.concatenate([jnp.zeros(1, dtype), steps.astype(dtype) / 2])
    if known is None:
        return span * ladder
    root = jnp.minimum(known.imag, span)
    half = root / 2 * ladder
    rest = root + (span - root) * jnp.concatenate([ladder / 2, (1 + ladder) / 2])
    return jnp.concatenate([half, root - half[::-1], rest])


def _polish(law: Law, line: _Line, mean):
    """Newton's method from the samples that are closest to a root; the rightmost result."""
    eps = jnp.finfo(mean.dtype).eps
    distance = jnp.where(jnp.isfinite(line.distance), line.distance, jnp.inf)
    # Also low ones: where roots lie one above the other, the lowest is wanted.
    _, close = jax.lax.top_k(-distance, STARTS)
    _, low = jax.lax.top_k(-distance - line.points.imag / 8, STARTS)
    first = jnp.concatenate([close, low])

    def step(_, r):
        value, slope = jax.vmap(lambda r: jax.jvp(law.residual, (r,), (jnp.ones_like(r),)))(r)
        there = r - value / slope
        return jnp.where(jnp.isfinite(there), there, r)

    r = jax.lax.fori_loop(0, NEWTON_STEPS, step, line.points[first])
    value, slope = jax.vmap(lambda r: jax.jvp(law.residual, (r,), (jnp.ones_like(r),)))(r)
    pulled = jnp.abs(value - r - law.service_rate)
    size = jnp.abs(r) + law.service_rate + pulled * (1 + jnp.abs(r) * mean)
    found = jnp.abs(value) <= 1e2 * eps * size
    # What rounding cannot tell apart: of such roots the slowest, and of such a pair a real root.
    unsure = jnp.where(slope == 0, 0.0, 8 * eps * size / jnp.abs(slope))
    real = jnp.where(found, r.real, -jnp.inf)
    tied = real >= jnp.max(real - unsure)
    best = jnp.argmax(jnp.where(tied, -jnp.abs(r.imag), -jnp.inf))
    real, imag = r[best].real, jnp.abs(r[best].imag)
    return jax.lax.complex(real, jnp.where(imag <= unsure[best], 0.0, imag)), found[best]
