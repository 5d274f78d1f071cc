"""The spectrum of A_L as a matrix: for delays with phases, whatever the law and the rule.

All eigenvalues come at once, from LAPACK, so that none is missed unless LAPACK fails. That they are
all there is checked by an identity: det(r I - A_L) is the product of r less each of them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from .._elimination import log_determinant, solve
from .._logarithms import complex_log1p
from ..model import imbalance
from ..model.delays import Erlang, MixedErlang
from ..model.system import System, require_one
from .domain import of_system
from .residual import hold, newton, scaled_residual

# A dense matrix of this size fills 134 MB and takes minutes.
MAX_DENSE_MODES = 4096


def eigenvalues(system: System) -> Complex[Array, " modes"]:
    """All eigenvalues of A_L, dense, 1/s, in no order.

    **Raises:** `ValueError` for a delay without phases, and servers of unequal rates.

    **Accuracy:** LAPACK's, of a matrix in which the couplings of a chain of stages are made equal
    first: without that a small gain costs digits, up to all of them.

    **Cost:** O(L^3), and on the host even where JAX computes on a GPU.
    """
    require_one(system)
    system.phase_delay("a matrix")
    system.require_servers_alike()
    return _eigenvalues(system)


@of_system
def _eigenvalues(system: System) -> Complex[Array, " modes"]:
    return jnp.linalg.eigvals(_balanced_matrix(system))


def dense_root(system: System) -> tuple[Complex[Array, ""], Complex[Array, " modes"]]:
    """Rightmost eigenvalue of A_L and, held constant, all of them.

    It is differentiable where it is simple; elsewhere its slope is zero. Where it solves the
    characteristic equation, Newton's method on that gives the last digits.
    """
    matrix = _balanced_matrix(system)
    values = jnp.linalg.eigvals(jax.lax.stop_gradient(matrix))
    root = _rightmost(hold(system), values)
    moved = _follow(matrix, root)
    # The value of one and the derivatives of the other.
    return root + (moved - jax.lax.stop_gradient(moved)), values


def are_all(
    system: System, root: Complex[Array, ""], values: Complex[Array, " modes"]
) -> Bool[Array, ""]:
    """Whether `values` satisfy the identity above on a line just right of `root`."""
    dtype, largest = values.real.dtype, jnp.max(jnp.abs(values))
    eps = jnp.finfo(dtype).eps
    margin = eps**0.4 * (jnp.abs(root) + system.common_service_rate)
    ladder = largest * jnp.geomspace(1e-6, 1e3, 64, dtype=dtype)
    heights = jnp.concatenate([jnp.abs(values.imag), ladder])
    line = jax.lax.complex(jnp.full_like(heights, root.real + margin), heights)
    log_determinant = _log_determinant(system)

    def defect(r):
        return jnp.expm1(log_determinant(r) - jnp.sum(jnp.log(r - values)))

    return jnp.all(jnp.abs(jax.lax.map(defect, line, batch_size=64)) < 0.5)


def _log_determinant(system: System):
    """r to log det(r I - A_L); of a chain without a matrix, by the characteristic residual."""
    delay = system.delay
    if not isinstance(delay, Erlang | MixedErlang):
        matrix = _balanced_matrix(system)

        def by_matrix(r):
            return log_determinant(r * jnp.eye(len(matrix), dtype=matrix.dtype) - matrix)

        return by_matrix
    residual, rate = scaled_residual(system), delay.stage_rate

    def by_chain(r):
        value, exponent = residual(r)
        stages = delay.num_phases * (jnp.log(rate) + complex_log1p(r / rate))
        return jnp.log(value) + exponent + stages

    return by_chain


def _balanced_matrix(system: System) -> Float[Array, "modes modes"]:
    """A diagonal similarity of A_L: in a chain each stage is counted in a unit of its own.

    All couplings of the cycle from service through the stages of an Erlang delay and back become
    (lambda theta gamma^L)^(1 / (L + 1)).
    """
    if system.num_phases >= MAX_DENSE_MODES:
        raise ValueError(
            f"`delay` must have fewer than {MAX_DENSE_MODES} phases for dense eigenvalues, "
            f"got {system.num_phases}."
        )
    matrix, delay = imbalance.matrix(system), system.delay
    if not isinstance(delay, Erlang | MixedErlang):
        return matrix
    count, dtype = delay.num_phases, matrix.dtype
    # How strongly service feeds each stage, and the length of the cycle that this closes.
    fed = jnp.abs(delay.initial * imbalance.feedback(system)[0])
    cycle = jnp.arange(count + 1, 1, -1, dtype=dtype)
    unit = (jnp.log(delay.stage_rate) - jnp.log(jnp.where(fed > 0, fed, 1.0))) / cycle
    unit = jnp.min(jnp.where(fed > 0, unit, jnp.inf))
    unit = jnp.where(jnp.isfinite(unit), unit, 0.0)
    if isinstance(delay, MixedErlang):
        # Short cuts into late stages would grow instead.
        unit = jnp.maximum(unit, 0.0)
    # Places along the chain: the stages, then service, which is the first mode.
    place = jnp.roll(jnp.arange(1, count + 2, dtype=dtype), 1)
    change = jax.lax.stop_gradient(unit) * (place - place[:, None])
    return matrix * jnp.exp(jnp.where(matrix == 0, 0.0, change))


def _rightmost(system: System, values: Complex[Array, " modes"]) -> Complex[Array, ""]:
    """The rightmost of `values`, refined if Newton's method converges close by."""
    first = values[jnp.argmax(values.real)]
    first = jax.lax.complex(first.real, jnp.abs(first.imag))
    residual, eps = scaled_residual(system), jnp.finfo(first.real.dtype).eps

    def value(r):
        return residual(r)[0]

    near = newton(value, first, 3)
    again = newton(value, near, 1)
    unsure = 1e2 * eps * (jnp.abs(again) + system.common_service_rate)
    # A mode that no feedback reaches is no root: there it goes elsewhere, or does not settle.
    close = jnp.abs(again - first) <= eps**0.5 * jnp.max(jnp.abs(values))
    settled = close & (jnp.abs(again - near) <= unsure)
    root = jnp.where(settled, again, first)
    return jax.lax.complex(root.real, jnp.where(first.imag == 0, 0.0, jnp.abs(root.imag)))


def _follow(matrix: Float[Array, "modes modes"], root: Complex[Array, ""]) -> Complex[Array, ""]:
    """A simple eigenvalue as a function of the matrix: two steps of Newton's method.

    The unknowns are the eigenvalue and its vector v, with u^H v = 1 for the left vector u found
    first; two steps from both held constant leave derivatives up to the third right. To first order
    they are u^H dA v.
    """
    held, size = jax.lax.stop_gradient(matrix).astype(root.dtype), len(matrix)
    eye, eps = jnp.eye(size, dtype=root.dtype), jnp.finfo(matrix.dtype).eps
    # Not singular to the last bit, which would leave no digits to solve with.
    shift = root + 8 * eps * (
        jnp.max(jnp.sum(jnp.abs(held), axis=0)) + jnp.finfo(matrix.dtype).tiny
    )
    phase = jnp.arange(size, dtype=matrix.dtype)
    start = jax.lax.complex(jnp.cos(phase), jnp.sin(phase + 1))

    def power(_, pair):
        right, left = pair
        shifted = held - shift * eye
        return (
            _unit(solve(shifted, right)),
            _unit(solve(shifted.conj().T, left)),
        )

    right, left = jax.lax.fori_loop(0, 3, power, (start, start))
    overlap = jnp.vdot(left, right)
    simple = jnp.isfinite(overlap) & (jnp.abs(overlap) > 100 * eps**0.5)
    left = left / jnp.where(simple, overlap, 1.0).conj()

    def newton_step(state, _):
        v, r = state
        top = jnp.concatenate([matrix - r * eye, -v[:, None]], axis=1)
        bordered = jnp.concatenate([top, jnp.append(left.conj(), 0)[None]])
        defect = jnp.append(matrix @ v - r * v, jnp.vdot(left, v) - 1)
        # Masked before the derivative, not after: zero times infinity is NaN in the transpose.
        bordered = jnp.where(simple, bordered, jnp.eye(size + 1, dtype=root.dtype))
        step = solve(bordered, jnp.where(simple, defect, 0.0))
        return (v - step[:-1], r - step[-1]), None

    (_, r), _ = jax.lax.scan(newton_step, (right, root), length=2)
    r = jnp.where(simple, r, root)
    return jax.lax.complex(r.real, jnp.where(root.imag == 0, 0.0, r.imag))


def _unit(vector):
    # Twice, for a square of the first may overflow.
    vector = vector / jnp.max(jnp.abs(vector))
    return vector / jnp.linalg.norm(vector)
