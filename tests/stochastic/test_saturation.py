"""The gain that is left of a logit rule under fluctuating loads."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import integrate, stats

from jaxlb.stochastic.saturation import remaining_gain

pytestmark = pytest.mark.usefixtures("quick_compilation")

gain = jax.jit(remaining_gain, static_argnums=1)
DEVIATIONS = [0.01, 0.3, 1.0, 1.9, 2.1, 5.0, 30.0, 1e3]


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_two_servers_keep_the_mean_of_sech_squared(deviation):
    spread = mp.mpf(deviation) / 2
    scale = min(1, 1 / spread)
    points = [k * scale / 2 for k in range(100)]
    half = mp.quad(lambda z: mp.npdf(z) * mp.sech(spread * z) ** 2, points)
    wanted = float(2 * half)  # pyright: ignore
    found = gain(jnp.asarray(deviation), 2)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    single = gain(jnp.asarray(deviation, jnp.float32), 2)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, wanted, rtol=5e-7)


@pytest.mark.parametrize("deviation", [0.01, 0.3, 1.0, 1.4, 1.5, 3.0])
def test_three_servers_keep_the_mean_product_of_shares(deviation):
    """By a sum over the differences of the first two loads from the third."""
    spread = deviation / np.sqrt(2)
    # In steps that resolve the product, 1 wide, and the normal law.
    step = 0.2 * min(1.0, spread)
    side = np.arange(-13 * spread, 13 * spread + step, step)
    one, two = np.meshgrid(side, side)
    law = np.exp(-(one**2 - one * two + two**2) / (3 * spread**2))
    product = np.exp(-one - two) / (np.exp(-one) + np.exp(-two) + 1) ** 2
    found = gain(jnp.asarray(deviation), 3)
    np.testing.assert_allclose(found, 9 * (law * product).sum() / law.sum(), rtol=1e-12)


@pytest.mark.parametrize("servers", [2, 3, 10, 1000])
def test_under_wide_fluctuation_the_chance_of_a_tie_is_left(servers):
    """Then p_1 p_2 is not zero only where two loads are within about one of each other, and least.

    The next term is smaller by about the square of the deviation.
    """
    deviation = 1e4
    tie = integrate.quad(
        lambda z: stats.norm.pdf(z) ** 2 * stats.norm.sf(z) ** (servers - 2), -9, 9, epsrel=1e-12
    )
    found = gain(jnp.asarray(deviation), servers)
    np.testing.assert_allclose(found, servers**2 * tie[0] * np.sqrt(2) / deviation, rtol=1e-7)


@pytest.mark.parametrize("servers", [2, 3, 10])
def test_mean_product_of_shares_is_that_of_drawn_loads(servers):
    """4.5 standard errors: 7e-6 false alarms per new seed and case; this one is fixed."""
    rng = np.random.default_rng(servers)
    for deviation in (0.5, 3.0):
        load = rng.normal(size=(100_000, servers)) * deviation / np.sqrt(2)
        share = np.exp(-load) / np.exp(-load).sum(axis=1, keepdims=True)
        # Of any two servers.
        product = servers**2 * (1 - (share**2).sum(axis=1)) / (servers * (servers - 1))
        error = product.std() / np.sqrt(len(product))
        found = gain(jnp.asarray(deviation), servers)
        assert abs(found - product.mean()) < 4.5 * error


@pytest.mark.parametrize("servers", [2, 3, 1000])
def test_gain_is_whole_without_fluctuation_and_falls(servers):
    slopes_at = jax.jit(jax.vmap(jax.grad(lambda d: remaining_gain(d, servers))))
    deviations = jnp.array([0.0, *DEVIATIONS, 1e4])
    kept = np.array([gain(deviation, servers) for deviation in deviations])
    np.testing.assert_allclose(kept[0], 1.0, rtol=1e-13)
    assert (np.diff(kept) < 0).all()
    for dtype in (jnp.float32, jnp.float64):
        slopes = slopes_at(deviations.astype(dtype))
        assert np.isfinite(slopes).all()
        assert abs(slopes[0]) < jnp.finfo(dtype).eps
        assert (slopes[1:] < 0).all()
    step = 1e-5
    for deviation, slope in zip(DEVIATIONS[1:6], slopes[2:7], strict=True):
        ahead, back = (gain(jnp.asarray(deviation + s), servers) for s in (step, -step))
        np.testing.assert_allclose(slope, (ahead - back) / 2 / step, rtol=2e-6, atol=1e-8)
