"""The birth of the limit cycle: normal form of the Hopf point in the sensitivity.

Near it the load's difference is 2 Re(z e^(i omega t)), where z moves slowly:

    dz/dt = S log(theta / theta_c) z + c z |z|^2,    S = 1 / G'(i omega),    c = -theta_c^2 S / 4,

for tanh gives an oscillation of amplitude 2 |z| a gain that is theta^2 |z|^2 / 4 less. Both come
from one S, so that where an increasing sensitivity makes balance unstable, Re S > 0, the cycle is
stable: the Hopf point is supercritical, whatever the delay.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from ...model import imbalance
from ...model.system import System, require_one
from ...stability import critical_sensitivity, hopf_frequency, open_loop
from ...stability.domain import flagged, is_valid


class HopfNormalForm(eqx.Module):
    """How the cycle is born as the sensitivity passes its critical value.

    - `sensitivity`: the critical one, per job. `frequency`: rad/s.
    - `root_speed`: derivative of the root r in log theta, 1/s.
    - `first_lyapunov_coefficient`: c above, 1/s per squared job; its real part is negative where
      the Hopf point is supercritical.
    - `exists`: whether there is such a point; else the others are NaN.
    """

    sensitivity: Float[Array, ""]
    frequency: Float[Array, ""]
    root_speed: Complex[Array, ""]
    first_lyapunov_coefficient: Complex[Array, ""]
    exists: Bool[Array, ""]

    @property
    def is_supercritical(self) -> Bool[Array, ""]:
        """Whether a small stable cycle is born, and no unstable one before."""
        return self.exists & (self.first_lyapunov_coefficient.real < 0)


def hopf_normal_form(system: System) -> HopfNormalForm:
    """Normal form at the critical sensitivity; the rule's own is not used.

    **Arguments:** `system`: as for `find`.

    **Returns:** a `HopfNormalForm`; differentiable in every number of the system.

    **Accuracy:** 1e-13, relative, against the projection of the cubic term on the eigenvectors of
    A_L in another program (`tests/fluid/test_hopf.py`).

    **Raises:** as `find`.

    **Source:** Kuznetsov (2004), Elements of Applied Bifurcation Theory, section 3.5.
    """
    require_one(system)
    imbalance.require_closed(system)
    return _hopf_normal_form(system)


@eqx.filter_jit
def _hopf_normal_form(system: System) -> HopfNormalForm:
    critical, frequency = critical_sensitivity(system), hopf_frequency(system)
    exists = is_valid(system) & jnp.isfinite(critical) & (frequency > 0)
    return flagged(exists, _at, system, critical, frequency)


def _at(system: System, critical, frequency) -> HopfNormalForm:
    system = eqx.tree_at(lambda system: system.routing.sensitivity, system, critical)
    root = jax.lax.complex(jnp.zeros_like(frequency), frequency)
    _, slope = jax.jvp(lambda r: open_loop(system, r), (root,), (jnp.ones_like(root),))
    speed = 1 / slope
    coefficient = -(critical**2) / 4 * speed
    return HopfNormalForm(critical, frequency, speed, coefficient, jnp.ones((), bool))
