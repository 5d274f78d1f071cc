import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")


def system(parameters, stages):
    """`parameters`: lambda theta, mu, D."""
    gain, service_rate, mean = parameters
    delay = lb.Deterministic(mean) if np.isinf(stages) else lb.Erlang(mean, stages)
    return lb.System(jnp.ones_like(gain), service_rate, delay, lb.Logit(gain))


@jax.jit
def five_stages(parameters, radius):
    return lb.stability.pseudospectral_abscissa(system(parameters, 5), radius)


def dense(parameters):
    gain, service_rate, mean = map(float, parameters)
    return closed_forms.difference_matrix(gain, service_rate, mean, 5)


def least_on_line(matrix, x):
    """Least singular value of A - z I on the line Re z = x, by ever finer grids."""
    top = np.linalg.norm(matrix, 2) + 1
    heights = abs(np.imag(np.linalg.eigvals(matrix)))
    y = np.concatenate(
        [np.linspace(0, 2 * top, 2000), *(heights + np.linspace(-1, 1, 201)[:, None])]
    )
    y = np.unique(y)
    values = y
    for _ in range(8):
        shifted = matrix - (x + 1j * y)[:, None, None] * np.eye(len(matrix))
        values = np.linalg.svd(shifted, compute_uv=False)[:, -1]
        best = values.argmin()
        y = np.linspace(y[max(best - 1, 0)], y[min(best + 1, len(y) - 1)], 21)
    return values.min()


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_pseudospectrum_ends_where_the_least_singular_value_is_the_radius(dtype):
    """On the vertical line through its rightmost point; it only grows to the right of that."""
    rng = np.random.default_rng(1)
    parameters = 10 ** rng.uniform([-2, -1, -1], [3, 1, 1], (20, 3))
    radii = 10 ** rng.uniform(-3, 1, 20)
    for numbers, radius in zip(
        jnp.asarray(parameters, dtype), jnp.asarray(radii, dtype), strict=True
    ):
        found = five_stages(numbers, radius)
        assert found.dtype == dtype
        matrix = dense(numbers)
        least = least_on_line(matrix, float(found))
        # Rounding of the norm; 1.2e-15 of it is the worst of 200, 1e-6 in float32.
        unit = 20 * float(jnp.finfo(dtype).eps) * np.linalg.norm(matrix, 2)
        assert abs(least - float(radius)) < unit
        assert float(found) > np.real(np.linalg.eigvals(matrix)).max() - unit


def test_pseudospectrum_of_a_normal_matrix_is_its_spectrum_widened():
    """One stage with mu = gamma and lambda theta = gamma: a multiple of 1 plus a rotation."""
    normal = system(jnp.array([2.0, 2.0, 0.5]), 1)
    for radius in [1e-6, 0.3, 10.0]:
        found = lb.stability.pseudospectral_abscissa(normal, radius)
        # A few roundings of the entries.
        np.testing.assert_allclose(found, radius - 2, atol=1e-14)


def test_small_radius_moves_the_abscissa_by_the_condition_of_the_rightmost_root():
    """1 / |y* x| for its unit left and right eigenvectors."""
    parameters = jnp.array([9.0, 0.7, 1.3])
    matrix = dense(parameters)
    roots, right = np.linalg.eig(matrix)
    first = np.real(roots).argmax()
    left = np.linalg.inv(right)[first]
    condition = np.linalg.norm(left)
    radius = 1e-7
    moved = (five_stages(parameters, radius) - np.real(roots[first])) / radius
    # The next term is the radius over the distance of the roots; rounding 1e-14 over the radius.
    np.testing.assert_allclose(moved, condition, rtol=1e-6)


def test_gradient_of_the_pseudospectral_abscissa_is_that_of_finite_differences():
    at, step = jnp.array([9.0, 0.7, 1.3, 0.2]), 1e-5

    def value(numbers):
        return five_stages(numbers[:3], numbers[3])

    shifted = at + step * jnp.concatenate([jnp.eye(4), -jnp.eye(4)])
    values = jnp.stack([value(numbers) for numbers in shifted])
    backward, forward = jax.jit(jax.grad(value))(at), jax.jit(jax.jacfwd(value))(at)
    # Square of the step times third derivatives of up to 1e3.
    np.testing.assert_allclose(backward, (values[:4] - values[4:]) / (2 * step), atol=3e-7)
    np.testing.assert_allclose(forward, backward, rtol=1e-12)


def test_pseudospectra_map_over_radii():
    parameters, radii = jnp.array([9.0, 0.7, 1.3]), jnp.array([1e-3, 0.1, 5.0])
    found = jax.vmap(five_stages, (None, 0))(parameters, radii)
    alone = [five_stages(parameters, radius) for radius in radii]
    # The same arithmetic in another order.
    np.testing.assert_allclose(found, alone, rtol=1e-12)
    assert np.all(np.diff(found) > np.diff(radii))


def test_pseudospectrum_needs_phases_and_a_radius():
    whole = system(jnp.array([1.0, 1.0, 1.0]), np.inf)
    message = (
        r"^`delay` must have phases for a pseudospectrum, got Deterministic: "
        r"use from_mean_cv, or Erlang with many stages, instead\.$"
    )
    with pytest.raises(ValueError, match=message):
        lb.stability.pseudospectral_abscissa(whole, 0.1)
    with pytest.raises(ValueError, match=r"^`radius` must be positive and finite, got 0\.0 1/s\."):
        lb.stability.pseudospectral_abscissa(system(jnp.array([1.0, 1.0, 1.0]), 2), 0.0)
    many = system(jnp.array([1.0, 1.0, 1.0]), 5000)
    with pytest.raises(ValueError, match=r"^`delay` must have fewer than 4096 phases for dense"):
        lb.stability.pseudospectral_abscissa(many, 0.1)


@jax.jit
def worst_of_two_stages(gain, service_rate, shortest, longest):
    whole = system((gain, service_rate, jnp.ones_like(gain)), 2)
    return lb.stability.worst_abscissa(whole, shortest, longest)


def cubic_abscissa(gain, service_rate, mean):
    matrix = closed_forms.difference_matrix(gain, service_rate, mean, 2)
    return np.real(np.linalg.eigvals(matrix)).max()


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize(
    ("gain", "service_rate", "shortest", "longest"),
    [
        (10.0, 1.0, 0.1, 20.0),  # inside
        (10.0, 1.0, 0.01, 1.0),  # the longest
        (10.0, 1.0, 4.0, 100.0),  # the shortest
        (0.5, 1.0, 1e-3, 1e3),  # stable for every delay
        (50.0, 0.1, 1e-3, 1e3),
    ],
)
def test_worst_abscissa_is_that_of_a_fine_grid(gain, service_rate, shortest, longest, dtype):
    arguments = [jnp.asarray(x, dtype) for x in (gain, service_rate, shortest, longest)]
    found = worst_of_two_stages(*arguments)
    assert found.abscissa.dtype == found.mean.dtype == dtype
    means = np.geomspace(shortest, longest, 4001)
    values = [cubic_abscissa(gain, service_rate, mean) for mean in means]
    best = int(np.argmax(values))
    eps = float(jnp.finfo(dtype).eps)
    # The square of the grid's ratio below the true one, never above but for rounding.
    spacing = np.log(means[1] / means[0]) ** 2
    scale = service_rate + 2 / means[best]
    assert -50 * eps * scale < float(found.abscissa) - values[best] < spacing + 50 * eps * scale
    # The root of rounding, or a step of the grid.
    near = abs(np.log(float(found.mean) / means[best]))
    assert near < 1.01 * np.log(means[1] / means[0]) + 20 * eps**0.5
    assert cubic_abscissa(gain, service_rate, float(found.mean)) > values[best] - 50 * eps * scale


@jax.jit
def slope_along(numbers, way):
    return jax.jvp(lambda at: jnp.stack(worst_of_two_stages(*at)), (numbers,), (way,))[1]


@pytest.mark.parametrize("range_", [(0.1, 20.0), (0.01, 1.0), (4.0, 100.0)])
def test_gradient_of_the_worst_case_is_that_of_finite_differences(range_):
    at, step = jnp.array([10.0, 1.0, *range_]), 1e-3
    shifted = at + step * jnp.concatenate([jnp.eye(4), -jnp.eye(4)])
    values = jnp.stack([jnp.stack(worst_of_two_stages(*numbers)) for numbers in shifted])
    wanted = (values[:4] - values[4:]).T / (2 * step)
    # The square of the step; and 1e-8, of the place of the worst, over the step.
    way = jnp.array([1.0, -0.3, 0.2, 0.7])
    np.testing.assert_allclose(slope_along(at, way), wanted @ way, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "delay",
    [
        lb.Deterministic(3.0),
        lb.PhaseType([1.0, 0.0], np.array([[-3.0, 3.0], [0.0, -3.0]])),
    ],
    ids=lambda delay: type(delay).__name__,
)
def test_every_law_keeps_its_shape_and_its_own_mean_does_not_matter(delay):
    found = lb.stability.worst_abscissa(lb.System(1.0, 1.0, delay, lb.Logit(10.0)), 0.1, 20.0)
    if isinstance(delay, lb.Deterministic):

        def abscissa(mean):
            return float(closed_forms.rightmost_fixed_delay_root(1.0, 10.0, mean).real)

        # A few roundings, and no mean of a grid is worse.
        np.testing.assert_allclose(found.abscissa, abscissa(float(found.mean)), rtol=1e-14)
        assert found.abscissa >= max(map(abscissa, np.geomspace(0.1, 20.0, 300)))
        return
    wanted = worst_of_two_stages(10.0, 1.0, 0.1, 20.0)
    # LAPACK's rounding against that of the closed form; its root for the place.
    np.testing.assert_allclose(found.abscissa, wanted.abscissa, atol=1e-13)
    np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-6)


def test_bounds_are_positive_and_in_order():
    whole = system(jnp.array([1.0, 1.0, 1.0]), 2)
    for bounds, message in [
        ((1.0, 1.0), r"^`shortest` must be below `longest`, got 1\.0 and 1\.0 s\.$"),
        ((0.0, 1.0), r"^`shortest` must be positive and finite, got 0\.0 s\.$"),
        ((1.0, np.inf), r"^`longest` must be positive and finite, got inf s\.$"),
    ]:
        with pytest.raises(ValueError, match=message):
            lb.stability.worst_abscissa(whole, *bounds)
    none = lb.System(1.0, 1.0, lb.NoDelay(), lb.Logit(1.0))
    with pytest.raises(ValueError, match=r"^`delay` must be one whose mean can be changed, got No"):
        lb.stability.worst_abscissa(none, 1.0, 2.0)
