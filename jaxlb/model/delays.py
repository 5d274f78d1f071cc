"""Action delay: the law of the time from a routing decision to the start of service.

A delay with phases (`AbstractPhaseDelay`) makes the system a finite Markov jump process: a job
enters the phases, moves among them and leaves into service, each at an exponential rate. `routes`
names those moves and `rates` their rates; `jaxlb.model.dynamics` builds everything from the two.

Compartments are numbered 0, 1, ... for the phases, then `num_phases` for service. A route's
source counts one higher, because source 0 is the dispatcher.
"""

import abc
import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Inexact

from .. import _checks

# A fit with more phases than this would be a deterministic delay in all but name.
MAX_FITTED_STAGES = 1_000_000
# Beyond this one job in 10^12 carries the mean.
MAX_FITTED_CV = 1e6


class AbstractDelay(eqx.Module):
    """Law of the action delay, in seconds."""

    mean: eqx.AbstractVar[Float[Array, ""]]

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


class NoDelay(AbstractPhaseDelay):
    """A routed job is in service at once."""

    def __init__(self):
        pass

    @property
    def mean(self) -> Float[Array, ""]:
        return jnp.zeros(())

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

    It has no phases, so the Markov process and the fluid ODE do not apply to it; stability does.
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
        return jnp.exp(-self.stages * _log1p(r / self.stage_rate))

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
        return jnp.exp(-passed * _log1p(r / self.stage_rate)) / self.stage_rate

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
    def stage_rate(self) -> Float[Array, ""]:
        """Rate of each stage, 1/s."""
        return (self._counts() @ self.weights) / self.mean

    @property
    def squared_cv(self) -> Float[Array, ""]:
        counts = self._counts()
        return (counts * (counts + 1)) @ self.weights / (counts @ self.weights) ** 2 - 1

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return self.weights @ jnp.exp(-self._counts() * _log1p(r / self.stage_rate))

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
        step = jnp.exp(-self._counts() * _log1p(r / self.stage_rate)) / self.stage_rate
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
    def squared_cv(self) -> Float[Array, ""]:
        occupancy = self.occupancy()
        second = 2 * jnp.linalg.solve(-self.generator.T, occupancy).sum()
        return second / occupancy.sum() ** 2 - 1

    def transform(self, r: Inexact[Array, ""]) -> Complex[Array, ""]:
        return self.phase_transform(r) @ self._exit_rates()

    @property
    def num_phases(self) -> int:
        return self.initial.shape[-1]

    def occupancy(self) -> Float[Array, " phases"]:
        return jnp.linalg.solve(-self.generator.T, self.initial)

    def phase_transform(self, r: Inexact[Array, ""]) -> Complex[Array, " phases"]:
        resolvent = r * jnp.eye(self.num_phases, dtype=self.generator.dtype) - self.generator.T
        return jnp.linalg.solve(_complex(resolvent), _complex(self.initial))

    def routes(self) -> tuple[np.ndarray, np.ndarray]:
        phases = np.arange(self.num_phases)
        leave, reach = self._moves()
        source = np.concatenate([0 * phases, leave + 1, phases + 1])
        return source, np.concatenate([phases, reach, 0 * phases + self.num_phases])

    def rates(self) -> Float[Array, " moves"]:
        return jnp.concatenate([self.initial, self.generator[self._moves()], self._exit_rates()])

    def _moves(self) -> tuple[np.ndarray, np.ndarray]:
        leave, reach = np.nonzero(~np.eye(self.num_phases, dtype=bool))
        return leave, reach

    def _exit_rates(self) -> Float[Array, " phases"]:
        out = -self.generator.sum(axis=1)
        # Rounding in the row sums must not leave a negative rate.
        return jnp.where(out < 0, 0.0, out)


def from_mean_cv(mean: Any, cv: float) -> AbstractDelay:
    """The usual delay with a given mean and coefficient of variation.

    A mixture of two Erlangs of one rate below cv = 1 (one Erlang where cv^2 = 1/L), the exponential
    at 1, a two-phase hyperexponential with balanced means above 1, and `Deterministic` at 0.

    **Arguments:** `mean`: s, > 0, may be traced. `cv`: standard deviation over mean, 0 or from
    0.001 to 10^6; it fixes the number of phases, so it must be concrete.

    **Raises:** `ValueError` on a bad value.

    **Source:** Tijms (1994), Stochastic Models: An Algorithmic Approach.
    """
    if not _checks.is_concrete(cv):
        raise ValueError(f"`cv` fixes an array shape, so it must be concrete, got {cv}.")
    _checks.not_negative("cv", cv)
    if cv == 0:
        return Deterministic(mean)
    if cv > MAX_FITTED_CV or cv**2 * MAX_FITTED_STAGES < 1 - 1e-9:
        raise ValueError(f"`cv` must be 0 or from 0.001 to {MAX_FITTED_CV:g}, got {cv}.")
    mean, square = _checks.positive("mean", mean, "s"), float(cv) ** 2
    if square > 1:
        lean = math.sqrt((square - 1) / (square + 1))
        # (1 - lean) / 2, which would cancel.
        rare = 1 / ((square + 1) * (1 + lean))
        initial = jnp.array([1 - rare, rare], mean.dtype)
        return PhaseType(initial, jnp.diag(-2 * initial / mean))
    # The slack keeps a cv such as 1 / sqrt(3) on the pure Erlang that it names.
    stages = math.ceil(1 / square - 1e-9)
    if abs(stages * square - 1) <= 1e-9:
        return Erlang(mean, stages)
    fewer = (stages * square - math.sqrt(stages * (1 + square - stages * square))) / (1 + square)
    weights = [0.0] * (stages - 2) + [fewer, 1 - fewer]
    return MixedErlang(mean, jnp.array(weights, mean.dtype))


def _chain(stages: int, dtype: Any) -> Float[Array, "stages stages"]:
    return jnp.eye(stages, k=1, dtype=dtype) - jnp.eye(stages, dtype=dtype)


def _complex(value: Any) -> Complex[Array, "..."]:
    return value.astype(jnp.result_type(value.dtype, jnp.complex64))


def log1p(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 + x) for real x > -1; `jnp.log1p` in float64 loses up to 127 ulp near -0.4."""
    small = jnp.abs(x) <= 0.25
    q = jnp.where(small, x, 0.0)
    return jnp.where(small, 2 * jnp.arctanh(q / (2 + q)), jnp.log(jnp.where(small, 1.0, 1 + x)))


def log1p_parts(x: Float[Array, "..."], y: Float[Array, "..."]) -> tuple[Array, Array]:
    """Real and imaginary part of log(1 + x + i y), principal branch, each without cancellation."""
    grown = x * (2 + x) + y * y
    small = jnp.abs(grown) <= 0.25
    q = jnp.where(small, grown, 0.0)
    size = jnp.where(small, 1.0, (1 + x) ** 2 + y * y)
    return jnp.where(small, jnp.arctanh(q / (2 + q)), jnp.log(size) / 2), jnp.arctan2(y, 1 + x)


def _log1p(z: Inexact[Array, "..."]) -> Complex[Array, "..."]:
    z = _complex(jnp.asarray(z))
    return jax.lax.complex(*log1p_parts(z.real, z.imag))
