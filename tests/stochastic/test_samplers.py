"""Laws of the samplers by bisection on their uniform number, against SciPy; no chance involved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxlb.stochastic import samplers

draw_poisson, draw_binomial = jax.jit(samplers.poisson), jax.jit(samplers.binomial)


def law(draw, largest):
    """Chance of each count from 0 to `largest`: a count grows with its uniform number."""
    counts = np.arange(largest + 1)
    low, high = np.zeros(largest + 1), np.ones(largest + 1)
    for _ in range(53):
        middle = (low + high) / 2
        above = np.asarray(draw(jnp.asarray(middle))) > counts
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.diff(low, prepend=0)


def distance(found, exact):
    """In total variation, what lies beyond the table included."""
    return (np.abs(found - exact).sum() + abs(found.sum() - exact.sum())) / 2


@pytest.mark.parametrize(
    ("mean", "bound"),
    # Searched for up to 12: rounding of 46 sums. Above, the figures stated, which were measured.
    [(1e-3, 1e-14), (1, 1e-14), (5, 1e-14), (12, 1e-13), (12.001, 6e-5), (40, 5e-6), (1000, 3e-7)],
)
def test_law_of_poisson_counts(mean, bound):
    largest = int(mean + 10 * np.sqrt(mean) + 30)
    found = law(lambda u: draw_poisson(u, jnp.full_like(u, mean)), largest)
    assert distance(found, stats.poisson.pmf(np.arange(largest + 1), mean)) < bound


@pytest.mark.parametrize(
    ("trials", "chance", "bound"),
    [
        (1, 0.3, 1e-14),
        (5, 0.5, 1e-14),
        (24, 0.5, 1e-13),
        (20, 0.9, 1e-14),
        (10**5, 1e-4, 1e-12),
        (25, 0.5, 1e-4),
        (30, 0.5, 6e-5),
        (100, 0.2, 3e-5),
        (1000, 0.7, 2e-6),
        (10**5, 2e-4, 3e-5),
    ],
)
def test_law_of_binomial_counts(trials, chance, bound):
    # Of 100 000 trials none of these has a mean above 20.
    found = law(
        lambda u: draw_binomial(u, jnp.full_like(u, trials), jnp.full_like(u, chance)),
        trials if trials <= 1000 else 100,
    )
    exact = stats.binom.pmf(np.arange(len(found)), trials, chance)
    assert distance(found, exact) < bound


@pytest.mark.parametrize("mean", [1e3, 1e5, 1e7, 1e9])
def test_large_counts_have_no_bias(mean):
    """Mean and variance over evenly spaced uniform numbers, which leave 1e-6 of the variance."""
    uniform = (jnp.arange(2_000_000) + 0.5) / 2_000_000
    for count, variance in (
        (draw_poisson(uniform, jnp.full_like(uniform, mean)), mean),
        (
            draw_binomial(uniform, jnp.full_like(uniform, 4 * mean), jnp.full_like(uniform, 0.25)),
            0.75 * mean,
        ),
    ):
        excess = np.asarray(count) - mean
        assert abs(excess.mean()) < 1e-3 * np.sqrt(variance)
        np.testing.assert_allclose(excess.var(), variance, rtol=2e-4)
        np.testing.assert_array_equal(count, np.round(count))


def test_ends_of_the_unit_interval_and_of_the_parameters():
    for uniform in (2.0**-53, 0.5, 1 - 2.0**-53):
        assert samplers.poisson(jnp.asarray(uniform), jnp.asarray(0.0)) == 0
        for trials, chance, count in ((0.0, 0.3, 0), (7.0, 0.0, 0), (7.0, 1.0, 7), (1e6, 1.0, 1e6)):
            given = (jnp.asarray(value) for value in (uniform, trials, chance))
            assert samplers.binomial(*given) == count
    rng = np.random.default_rng(1)
    trials, chance = np.floor(10 ** rng.uniform(0, 4, 10_000)), rng.random(10_000)
    for uniform in (2.0**-53, 1 - 2.0**-53):
        count = draw_binomial(jnp.full(10_000, uniform), jnp.asarray(trials), jnp.asarray(chance))
        assert np.all((count >= 0) & (count <= trials))
        assert np.all(draw_poisson(jnp.full(10_000, uniform), jnp.asarray(trials)) >= 0)


@pytest.mark.parametrize("mean", [5.0, 40.0])
def test_law_in_single_precision(mean):
    """Of 2^23 uniform numbers that are all there are: 1e-5 in total variation more."""
    with jax.enable_x64(False):
        uniform = (jnp.arange(2**23, dtype=jnp.float32) + 0.5) * np.float32(2.0**-23)
        count = np.asarray(draw_poisson(uniform, jnp.full_like(uniform, mean)))
    assert count.dtype == np.float32
    found = np.bincount(count.astype(int), minlength=120)[:120] / count.size
    assert distance(found, stats.poisson.pmf(np.arange(120), mean)) < 2e-5


def test_normal_quantile():
    uniform = np.concatenate([(np.arange(9999) + 0.5) / 9999, 10.0 ** -np.arange(2, 17)])
    found = jax.jit(samplers.normal_quantile)(uniform)
    exact = stats.norm.ppf(uniform)
    np.testing.assert_allclose(found, exact, rtol=2e-7, atol=1e-12)
