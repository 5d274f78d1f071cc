"""What a simulation gives: paths, and statistics of paths that were not kept."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from . import export
from .statistics import Autocorrelation, Average, Moments, Tally, TimeAverage

# What can be kept of an ensemble.
PARTS = (
    "jobs",
    "final",
    "mean",
    "variance",
    "covariance",
    "quantiles",
    "time_average",
    "histogram",
    "autocorrelation",
)


class Statistics(eqx.Module):
    """Statistics over the valid replicas; what was not asked for is `None`.

    Jobs are those in each compartment. The imbalance is Q_1 - Q_2, jobs in service at the first
    server less those at the second.

    - `mean`, `variance`: of jobs at each time, shape (times, servers, compartments).
      `imbalance_mean`, `imbalance_variance`: shape (times,). Standard errors of the means are
      sqrt(variance / count).
    - `covariance`: of any two of them, shape (times, servers, compartments, servers, compartments).
    - `levels`, shape (levels,). `quantiles`: the least value that this part of the replicas does
      not exceed, (levels, times, servers, compartments); `imbalance_quantiles`, (levels, times).
      Exact where a quantity takes at most 32 768 values, else to a 16 000th of their range.
    - `time_average`: of jobs over the records from `burn_in` on, over replicas too, with standard
      errors: a pair of arrays of shape (servers, compartments); `imbalance_square`, that of the
      squared imbalance.
    - `histogram`: values of the imbalance at those records, rising, and how often each was seen.
    - `lags`, s, and `autocorrelation` of the imbalance at those records, shape (lags,).
    - `count`: replicas that all this is over.
    """

    count: int
    mean: Any = None
    variance: Any = None
    covariance: Any = None
    imbalance_mean: Any = None
    imbalance_variance: Any = None
    levels: Any = None
    quantiles: Any = None
    imbalance_quantiles: Any = None
    time_average: Any = None
    imbalance_square: Any = None
    histogram: Any = None
    lags: Any = None
    autocorrelation: Any = None


class Ensemble(eqx.Module):
    """Paths of one stochastic system, or what was kept of them.

    - `times`: s, shape (times,).
    - `paths`: what `jobs` gives, or `None` if not kept.
    - `final`: the same at the last time, shape (replicas, servers, compartments), or `None`.
    - `valid`: shape (replicas,); false where the dispatcher's rule gave no probabilities (negative,
      not finite, or with another sum than one), or a traced time, scale, step or start was out of
      range: that path stays where it was, the others are unharmed.
    - `replicas`: the number of each, shape (replicas,).
    - `method`: the one that was used, and chosen where that was left open.
    - `step_size`: s, shape (times,), of the leaps before each record; `None` for exact paths.
    - `step_error`: estimate of the relative error that the steps make in means and in the
      variance of the imbalance (`jaxlb.stochastic.step_choice`); `None` but for the leap, the ring
      leap and the Gaussian leap, and for the last it does not tell of few jobs.
    - `statistics`: a `Statistics`, or `None`.
    """

    times: Float[Array, " times"]
    paths: Num[Array, "replicas times servers compartments"] | None
    valid: Bool[Array, " replicas"]
    replicas: Int[Array, " replicas"]
    method: str = eqx.field(static=True)
    # What may be `None` is not made of options, so that types do not ask at each use.
    final: Any = None
    step_size: Any = None
    step_error: Any = None
    statistics: Any = None

    @property
    def jobs(self) -> Num[Array, "... times servers compartments"]:
        """Counts, not divided by the scale: delay phases, then service.

        Job marks count jobs in transit in one compartment, ring leaps not at all. Real numbers
        from Gaussian leaps and the Langevin equation. **Raises:** `ValueError` if not kept.
        """
        if self.paths is None:
            raise ValueError('`keep` must have "jobs" for paths, and was without it.')
        return self.paths

    @property
    def queue(self) -> Num[Array, "... times servers"]:
        """Jobs in service, Q."""
        return self.jobs[..., -1]

    @property
    def in_transit(self) -> Num[Array, "... times servers phases"]:
        """Jobs in each delay phase, Z."""
        return self.jobs[..., :-1]

    def check(self) -> None:
        """Raise `ValueError` with the numbers of the replicas that are not valid, if any are."""
        failed = np.asarray(self.replicas)[~np.asarray(self.valid)]
        if len(failed):
            shown = ", ".join(map(str, failed[:10])) + (", ..." if len(failed) > 10 else "")
            raise ValueError(
                "`routing` must give probabilities (none negative, together 1) wherever a path "
                f"comes, and numbers must be in range, got else in {len(failed)} of "
                f"{len(self.valid)} replicas: {shown}."
            )

    def to_xarray(self) -> Any:
        """An `xarray.Dataset` of all that was kept, with units; needs xarray."""
        return export.to_xarray(self)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`: a row for each replica and time if paths were kept, else for each
        time; needs pandas."""
        return export.to_pandas(self)

    def to_csv(self, path: str | Path) -> None:
        """Write the rows of `to_pandas` to a file."""
        export.to_csv(self, path)


class Collector:
    """Takes chunks of paths, and keeps of them what was asked for."""

    def __init__(
        self,
        keep: tuple[str, ...],
        times: np.ndarray,
        replicas: int,
        levels: np.ndarray,
        burn_in: float,
    ):
        self.keep, self.times, self.levels, self.burn_in = keep, times, levels, burn_in
        self.count, self.late = 0, times >= burn_in
        self.shape: tuple[int, ...] = ()
        self.kept: dict[str, list[np.ndarray]] = {"jobs": [], "final": []}
        self.moments = Moments(products="covariance" in keep)
        self.imbalance_moments = Moments(products=False)
        self.tally: Tally | None = None
        self.histogram = Tally(1)
        records = int(self.late.sum())
        self.averages, self.squares = (TimeAverage(records, replicas) for _ in range(2))
        self.correlation = Autocorrelation(records)

    def add(self, jobs: np.ndarray, valid: np.ndarray) -> None:
        """Take paths, shape (rows, times, servers, compartments)."""
        self.shape = jobs.shape[1:]
        if "jobs" in self.keep:
            self.kept["jobs"].append(jobs)
        if "final" in self.keep:
            self.kept["final"].append(jobs[:, -1])
        jobs = jobs[valid]
        self.count += len(jobs)
        flat = jobs.reshape(*jobs.shape[:2], jobs.shape[2] * jobs.shape[3])
        imbalance = _imbalance(jobs)
        late = imbalance[:, self.late]
        if {"mean", "variance", "covariance"} & set(self.keep):
            self.moments.add(flat)
            self.imbalance_moments.add(imbalance)
        if "quantiles" in self.keep:
            columns = np.concatenate(
                [flat.reshape(len(jobs), flat.shape[1] * flat.shape[2]), imbalance], axis=1
            )
            self.tally = self.tally or Tally(columns.shape[1])
            self.tally.add(columns)
        if "time_average" in self.keep:
            self.averages.add(flat[:, self.late])
            wide = np.float64 if late.dtype.kind == "f" else np.int64
            self.squares.add(late[..., None].astype(wide) ** 2)
        if "histogram" in self.keep:
            self.histogram.add(late.reshape(-1, 1))
        if "autocorrelation" in self.keep:
            self.correlation.add(late)

    def statistics(self) -> Statistics | None:
        """Of all that was taken."""
        if not set(self.keep) - {"jobs", "final"}:
            return None
        found: dict[str, Any] = {"count": self.count}
        shape = self.shape
        if {"mean", "variance"} & set(self.keep):
            found["mean"] = self.moments.mean.reshape(shape)
            found["imbalance_mean"] = self.imbalance_moments.mean
        if "variance" in self.keep:
            variance = self.moments.covariance
            if self.moments.products:
                variance = np.diagonal(variance, axis1=1, axis2=2)
            found["variance"] = variance.reshape(shape)
            found["imbalance_variance"] = self.imbalance_moments.covariance
        if "covariance" in self.keep:
            found["covariance"] = self.moments.covariance.reshape(*shape, *shape[1:])
        if self.tally is not None:
            quantiles = self.tally.quantiles(self.levels)
            found["levels"] = self.levels
            found["quantiles"] = quantiles[:, : -len(self.times)].reshape(-1, *shape)
            found["imbalance_quantiles"] = quantiles[:, -len(self.times) :]
        if "time_average" in self.keep:
            parts = (part.reshape(shape[1:]) for part in self.averages.result)
            found["time_average"] = Average(*parts)
            found["imbalance_square"] = Average(*(part[0] for part in self.squares.result))
        if "histogram" in self.keep:
            found["histogram"] = self.histogram.column(0)
        if "autocorrelation" in self.keep:
            correlation = self.correlation.result
            late = self.times[self.late]
            found["lags"] = late[: len(correlation)] - late[0]
            found["autocorrelation"] = correlation
        return Statistics(**found)

    def paths(self, part: str) -> Num[Array, "..."] | None:
        """Paths, "jobs", or "final" states, of all replicas, if they were to be kept."""
        return jnp.asarray(np.concatenate(self.kept[part])) if part in self.keep else None


def _imbalance(jobs: np.ndarray) -> np.ndarray:
    """Q_1 - Q_2, or the queue of the only server."""
    queue = jobs[..., -1]
    return queue[..., 0] - queue[..., 1] if queue.shape[-1] > 1 else queue[..., 0]
