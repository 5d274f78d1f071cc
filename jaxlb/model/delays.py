"""Action delay: the law of the time from a routing decision to the start of service.

A delay with phases (`AbstractPhaseDelay`) makes the system a finite Markov jump process: a job
enters the phases, moves among them and leaves into service, each at an exponential rate. `routes`
names those moves and `rates` their rates; `jaxlb.model.dynamics` builds everything from the two.

Compartments are numbered 0, 1, ... for the phases, then `num_phases` for service. A route's
source counts one higher, because source 0 is the dispatcher.
"""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float, Inexact

from .. import _checks
from .._elimination import solve
from .._logarithms import complex_log1p


class AbstractDelay(eqx.Module):
    """Law of the action delay, in seconds."""

    mean: eqx.AbstractVar[Float[Array, ""]]

    @property
    def valid(self) -> Bool[Array, ""]:
        """Whether its numbers are in their domain, for those that were traced when it was built."""
        return _checks.is_positive(self.mean)

    @property
    @abc.abstractmethod
    def squared_cv(self) -> Float[Array, ""]:
        """Squared coefficient of variation: variance over squared mean (0 for no delay)."""

    @abc.abstractmethod
    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        """Laplace-Stieltjes transform, the mean of exp(-r * delay), at complex `r` in 1/s."""


class AbstractPhaseDelay(AbstractDelay):
    """A delay made of exponential phases.

    Each also has `initial`, the probability that a job starts in each phase, shape (phases,), and
    `generator`, the rates from phase (row) to phase (column), shape (phases, phases), 1/s; what a
    row lacks to zero leads to service.
    """

    @property
    @abc.abstractmethod
    def num_phases(self) -> int:
        """Number of phases."""

    @abc.abstractmethod
    def occupancy(self) -> Float[Array, " phases"]:
        """Mean time a job spends in each phase, s; sums to `mean`."""

    @abc.abstractmethod
    def phase_transform(self, r: Inexact[Array, ""]) -> Complex[Array, " phases"]:
        """Transform of the time spent in each phase: initial (r I - generator)^-1, s."""

    @abc.abstractmethod
    def routes(self) -> tuple[np.ndarray, np.ndarray]:
        """Source and target of each move; constant for a given number of phases."""

    @abc.abstractmethod
    def rates(self) -> Float[Array, " moves"]:
        """Rate of each move: per arrival if its source is the dispatcher, else per job, 1/s."""

    def exit_rates(self) -> Float[Array, " phases"]:
        """Rate from each phase into service, 1/s."""
        law: Any = self
        out = -law.generator.sum(axis=1)
        # Rounding in the row sums must not leave a negative rate, nor take its derivative.
        return out + jax.lax.stop_gradient(jnp.where(out < 0, -out, 0.0))


class NoDelay(AbstractPhaseDelay):
    """A routed job is in service at once."""

    def __init__(self):
        pass

    @property
    def mean(self) -> Float[Array, ""]:
        return jnp.zeros(())

    @property
    def valid(self) -> Bool[Array, ""]:
        return jnp.ones((), bool)

    @property
    def squared_cv(self) -> Float[Array, ""]:
        return jnp.zeros(())

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return _complex(jnp.ones_like(r))

    @property
    def num_phases(self) -> int:
        return 0

    @property
    def initial(self) -> Float[Array, " phases"]:
        return jnp.zeros((0,))

    @property
    def generator(self) -> Float[Array, "phases phases"]:
        return jnp.zeros((0, 0))

    def occupancy(self) -> Float[Array, " phases"]:
        return jnp.zeros((0,))

    def phase_transform(self, r: Inexact[Array, ""]) -> Complex[Array, " phases"]:
        return _complex(jnp.zeros((0,), jnp.asarray(r).dtype))

    def routes(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array([0]), np.array([0])

    def rates(self) -> Float[Array, " moves"]:
        return jnp.ones((1,))


class Deterministic(AbstractDelay):
    """Every job takes exactly `mean` seconds, > 0: the limit of Erlang delays with many stages.

    It has no phases, so that its fluid limit is a delay equation (`jaxlb.fluid.delay_limit`).
    """

    mean: Float[Array, ""] = eqx.field(converter=partial(_checks.positive, "mean", unit="s"))

    @property
    def squared_cv(self) -> Float[Array, ""]:
        return jnp.zeros_like(self.mean)

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return _complex(jnp.exp(-r * self.mean))


class Erlang(AbstractPhaseDelay):
    """Sum of `stages` exponential stages with total mean `mean`: the paper's delay.

    **Arguments:** `mean`: D, s, scalar > 0. `stages`: L, integer >= 1; it fixes shapes, so it is
    static. The rate of each stage is gamma = L / D.

    **Raises:** `ValueError` on a bad value.

    **Accuracy:** the transform is exp(-L log(1 + r D / L)) with both parts of the logarithm taken
    without cancellation: relative to 1 + |r D / (1 + r D / L)|, within 2e-15 of 40-digit arithmetic
    in float64 and 8e-7 in float32, up to 10^6 stages.
    """

    mean: Float[Array, ""] = eqx.field(converter=partial(_checks.positive, "mean", unit="s"))
    stages: int = eqx.field(static=True, converter=partial(_checks.integer, "stages", least=1))

    @property
    def stage_rate(self) -> Float[Array, ""]:
        """gamma = L / D, 1/s."""
        return self.stages / self.mean

    @property
    def squared_cv(self) -> Float[Array, ""]:
        return jnp.ones_like(self.mean) / self.stages

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return jnp.exp(-self.stages * complex_log1p(r / self.stage_rate))

    @property
    def num_phases(self) -> int:
        return self.stages

    @property
    def initial(self) -> Float[Array, " phases"]:
        return jnp.zeros((self.stages,), self.mean.dtype).at[0].set(1.0)

    @property
    def generator(self) -> Float[Array, "phases phases"]:
        return self.stage_rate * _chain(self.stages, self.mean.dtype)

    def occupancy(self) -> Float[Array, " phases"]:
        return jnp.full((self.stages,), self.mean / self.stages)

    def phase_transform(self, r: Inexact[Array, ""]) -> Complex[Array, " phases"]:
        passed = jnp.arange(1, self.stages + 1)
        return jnp.exp(-passed * complex_log1p(r / self.stage_rate)) / self.stage_rate

    def routes(self) -> tuple[np.ndarray, np.ndarray]:
        return np.arange(self.stages + 1), np.arange(self.stages + 1)

    def rates(self) -> Float[Array, " moves"]:
        return jnp.full((self.stages + 1,), self.stage_rate).at[0].set(1.0)


class MixedErlang(AbstractPhaseDelay):
    """A random number of exponential stages, all of one rate: `weights[k]` is P(k + 1 stages).

    **Arguments:** `mean`: s, scalar > 0. `weights`: probabilities, shape (stages,).

    **Raises:** `ValueError` on a bad value.

    **Source:** Tijms (1994), Stochastic Models: An Algorithmic Approach. Laws of this kind come
    as close as wanted to any positive one.
    """

    mean: Float[Array, ""] = eqx.field(converter=partial(_checks.positive, "mean", unit="s"))
    weights: Float[Array, " phases"] = eqx.field(
        converter=partial(_checks.probabilities, "weights")
    )

    @property
    def valid(self) -> Bool[Array, ""]:
        return super().valid & _checks.are_probabilities(self.weights)

    @property
    def stage_rate(self) -> Float[Array, ""]:
        """Rate of each stage, 1/s."""
        return (self._counts() @ self.weights) / self.mean

    @property
    def squared_cv(self) -> Float[Array, ""]:
        counts = self._counts()
        return (counts * (counts + 1)) @ self.weights / (counts @ self.weights) ** 2 - 1

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return self.weights @ jnp.exp(-self._counts() * complex_log1p(r / self.stage_rate))

    @property
    def num_phases(self) -> int:
        return self.weights.shape[-1]

    @property
    def initial(self) -> Float[Array, " phases"]:
        return self.weights[::-1]

    @property
    def generator(self) -> Float[Array, "phases phases"]:
        return self.stage_rate * _chain(self.num_phases, self.mean.dtype)

    def occupancy(self) -> Float[Array, " phases"]:
        return jnp.cumsum(self.initial) / self.stage_rate

    def phase_transform(self, r: Inexact[Array, ""]) -> Complex[Array, " phases"]:
        step = jnp.exp(-self._counts() * complex_log1p(r / self.stage_rate)) / self.stage_rate
        return jnp.convolve(self.initial, step)[: self.num_phases]

    def routes(self) -> tuple[np.ndarray, np.ndarray]:
        phases = np.arange(self.num_phases)
        return np.concatenate([0 * phases, phases + 1]), np.concatenate([phases, phases + 1])

    def rates(self) -> Float[Array, " moves"]:
        return jnp.concatenate([self.initial, jnp.full((self.num_phases,), self.stage_rate)])

    def _counts(self) -> Float[Array, " phases"]:
        return jnp.arange(1, self.num_phases + 1, dtype=self.mean.dtype)


class PhaseType(AbstractPhaseDelay):
    """Time to absorption of a Markov chain on phases.

    **Arguments:** `initial`: probability of starting in each phase, shape (phases,), sums to one.
    `generator`: shape (phases, phases), 1/s; negative diagonal, the rest non-negative, row sums
    zero or negative; every phase leads out.

    **Raises:** `ValueError` on a bad value.

    **Cost:** phases^2 kinds of event; a chain is better written as `Erlang` or `MixedErlang`.
    """

    initial: Float[Array, " phases"]
    generator: Float[Array, "phases phases"]

    def __init__(self, initial: Any, generator: Any):
        self.initial = _checks.probabilities("initial", initial)
        self.generator = _checks.sub_generator("generator", generator, self.initial.shape[0])

    @property
    def mean(self) -> Float[Array, ""]:
        return self.occupancy().sum()

    @property
    def valid(self) -> Bool[Array, ""]:
        given = _checks.are_probabilities(self.initial) & _checks.is_sub_generator(self.generator)
        return super().valid & given

    @property
    def squared_cv(self) -> Float[Array, ""]:
        occupancy = self.occupancy()
        second = 2 * solve(-self.generator.T, occupancy).sum()
        return second / occupancy.sum() ** 2 - 1

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return self.phase_transform(r) @ self.exit_rates()

    @property
    def num_phases(self) -> int:
        return self.initial.shape[-1]

    def occupancy(self) -> Float[Array, " phases"]:
        return solve(-self.generator.T, self.initial)

    def phase_transform(self, r: Inexact[Array, ""]) -> Complex[Array, " phases"]:
        resolvent = r * jnp.eye(self.num_phases, dtype=self.generator.dtype) - self.generator.T
        return solve(_complex(resolvent), _complex(self.initial))

    def routes(self) -> tuple[np.ndarray, np.ndarray]:
        phases = np.arange(self.num_phases)
        leave, reach = self._moves()
        source = np.concatenate([0 * phases, leave + 1, phases + 1])
        return source, np.concatenate([phases, reach, 0 * phases + self.num_phases])

    def rates(self) -> Float[Array, " moves"]:
        return jnp.concatenate([self.initial, self.generator[self._moves()], self.exit_rates()])

    def _moves(self) -> tuple[np.ndarray, np.ndarray]:
        leave, reach = np.nonzero(~np.eye(self.num_phases, dtype=bool))
        return leave, reach


class TransformDelay(AbstractDelay):
    """A delay known by its Laplace-Stieltjes transform alone.

    **Arguments:** `law`: callable, complex r in 1/s to the mean of exp(-r * delay); a function, or
    an Equinox module whose arrays may be traced, batched and differentiated. It is differentiated
    in r, at zero too, so it must be analytic there, and a removable singularity needs care. For a
    delay uniform on 0 to W seconds (the mean of a moving window),

        def window(r):
            still = r == 0
            z = jnp.where(still, 1.0, r * W)
            return jnp.where(still, 1 - r * W / 2 + (r * W) ** 2 / 6, -jnp.expm1(-z) / z)

    It has no phases, so the Markov process and the fluid ODE do not apply to it; stability does.

    **Raises:** `ValueError` unless `law` is callable and, where it can be seen, one at zero.
    """

    law: Callable[..., Any]

    def __init__(self, law: Callable[..., Any]):
        if not callable(law):
            raise ValueError(f"`law` must map complex r in 1/s to a transform, got {law!r}.")
        start = jnp.asarray(law(jnp.asarray(0j)))
        if start.shape != ():
            raise ValueError(f"`law` must return one number, got shape {start.shape}.")
        _checks.require("law", start, _is_one, "1 at r = 0")
        self.law = law

    @property
    def valid(self) -> Bool[Array, ""]:
        return super().valid & _is_one(self.transform(jnp.asarray(0j)))

    @property
    def mean(self) -> Float[Array, ""]:
        return -self._cumulant(jnp.asarray(0j))[1].real

    @property
    def squared_cv(self) -> Float[Array, ""]:
        _, variance = jax.jvp(
            lambda r: self._cumulant(r)[1], (jnp.asarray(0j),), (jnp.asarray(1 + 0j),)
        )
        return variance.real / self.mean**2

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return _complex(jnp.asarray(self.law(r)))

    def _cumulant(self, r: Complex[Array, ""]) -> tuple[Array, Array]:
        """Logarithm of the transform, and its slope."""
        return jax.jvp(lambda r: jnp.log(self.transform(r)), (r,), (jnp.ones_like(r),))


def _is_one(value: Any) -> Any:
    return abs(value - 1) <= 1e-6


def _chain(stages: int, dtype: Any) -> Float[Array, "stages stages"]:
    return jnp.eye(stages, k=1, dtype=dtype) - jnp.eye(stages, dtype=dtype)


def _complex(value: Any) -> Complex[Array, "..."]:
    return value.astype(jnp.result_type(value.dtype, jnp.complex64))
