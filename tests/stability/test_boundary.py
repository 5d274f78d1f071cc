import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb


def test_two_stages_lose_stability_at_the_critical_gain():
    """Equality in (22) puts the rightmost pair on the imaginary axis."""
    rng = np.random.default_rng(8)
    rates, means = 10 ** rng.uniform(-1, 1, (2, 200))

    @jax.jit
    @jax.vmap
    def around_the_boundary(service_rate, mean):
        def system(gain):
            return lb.System(4.0, service_rate, lb.Erlang(mean, 2), lb.Logit(gain / 4.0))

        critical = lb.stability.two_stage_critical_gain(system(1.0))
        gains = critical * jnp.array([1.0, 0.999, 1.001])
        return jax.vmap(lambda gain: lb.stability.rightmost_root(system(gain)))(gains)

    on, below, above = around_the_boundary(rates, means).T
    # Rounding of the largest entry of A_L, which is mu, gamma or the gain.
    stage = 2 / means
    scale = 2 * rates**2 / stage + 4 * rates + 2 * stage
    assert np.all(abs(on.real) < 1e-14 * scale)
    assert np.all(below.real < 0)
    assert np.all(above.real > 0)
    # The frequency squared is a_2 = 2 mu gamma + gamma^2; relative to it, twice that rounding.
    np.testing.assert_allclose(on.imag**2, 2 * rates * stage + stage**2, rtol=1e-12)


def test_critical_gain_of_the_paper_is_nine():
    for mean in [1.0, 4.0]:
        system = lb.System(15.0, 1.0, lb.Erlang(mean, 2), lb.Logit(1.0))
        assert lb.stability.two_stage_critical_gain(system) == 9


def test_critical_gain_is_differentiable_in_rate_and_mean():
    def gain(rate, mean):
        return lb.stability.two_stage_critical_gain(
            lb.System(1.0, rate, lb.Erlang(mean, 2), lb.Logit(1.0))
        )

    slopes = jax.grad(gain, (0, 1))(3.0, 0.5)
    # mu^2 D + 4 mu + 4 / D, so 2 mu D + 4 and mu^2 - 4 / D^2; a few roundings.
    np.testing.assert_allclose(slopes, [7.0, -7.0], rtol=2e-15)


@pytest.mark.parametrize("delay", [lb.Erlang(1.0, 3), lb.Deterministic(1.0)], ids=repr)
def test_critical_gain_is_that_of_two_stages_only(delay):
    system = lb.System(1.0, 1.0, delay, lb.Logit(1.0))
    with pytest.raises(ValueError, match=r"^`delay` must be Erlang\(mean, 2\), got "):
        lb.stability.two_stage_critical_gain(system)
