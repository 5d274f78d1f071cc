"""Statistics of paths that come in chunks and are not kept.

Counts are added up as whole numbers of any size, so that a result does not depend on the size or
the order of the chunks, to the last bit. Real-valued paths are added up in double precision.
"""

from typing import Any, NamedTuple

import numpy as np

# Distinct values kept for quantiles; beyond, neighbours are put together.
MOST_VALUES = 2**15
# Numbers that wait until they are counted.
WAITING = 2**18
# Real values are counted in these parts of a job.
PARTS = 2**10
LOW = 2**31
MOST_BATCHES = 20


class Moments:
    """Number, sums and sums of products of vectors, exact for whole numbers."""

    def __init__(self, products: bool):
        self.count, self.products = 0, products
        self.first: Any = 0
        self.second: Any = 0

    def add(self, rows: np.ndarray) -> None:
        """Take vectors, shape (rows, ..., length)."""
        self.count += len(rows)
        self.first = self.first + _sum(rows)
        # In parts, for the products of many rows take memory.
        for start in range(0, max(len(rows), 1), 256):
            part = rows[start : start + 256]
            one, other = (part[..., None], part[..., None, :]) if self.products else (part, part)
            self.second = self.second + _sum_of_products(one, other)

    @property
    def mean(self) -> np.ndarray:
        """Means, shape (..., length); NaN of nothing."""
        return _ratio(self.first, self.count)

    @property
    def covariance(self) -> np.ndarray:
        """Unbiased variances, shape (..., length), or covariances, (..., length, length)."""
        first = self.first
        product = first[..., None] * first[..., None, :] if self.products else first * first
        return _ratio(self.count * self.second - product, self.count * (self.count - 1))


def _sum(rows: np.ndarray) -> np.ndarray:
    if rows.dtype.kind == "f":
        return rows.sum(axis=0, dtype=np.float64)
    return rows.sum(axis=0, dtype=np.int64).astype(object)


def _sum_of_products(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if one.dtype.kind == "f":
        return (one.astype(np.float64) * other).sum(axis=0)
    if np.abs(one).max(initial=0) >= LOW:
        return (one.astype(object) * other).sum(axis=0)
    product = one.astype(np.int64) * other
    # Each fits, a sum of many would not.
    high = (product >> 31).sum(axis=0).astype(object)
    return high * LOW + (product & (LOW - 1)).sum(axis=0).astype(object)


def _ratio(above: Any, below: int) -> np.ndarray:
    if not below:
        return np.full(np.shape(above), np.nan)
    # Of whole numbers of any size this is the nearest double.
    return np.asarray(above / below, dtype=np.float64)


class Tally:
    """How often each value was seen, in each column; by aligned bins where values are many."""

    def __init__(self, columns: int):
        self.values = [np.zeros(0, np.int64)] * columns
        self.counts = [np.zeros(0, np.int64)] * columns
        self.shifts = [0] * columns
        self.waiting: list[np.ndarray] = []
        self.real = False

    def add(self, rows: np.ndarray) -> None:
        """Take rows, shape (rows, columns)."""
        if rows.dtype.kind == "f":
            self.real, rows = True, np.round(rows * PARTS)
        self.waiting.append(rows.astype(np.int64))
        if sum(rows.size for rows in self.waiting) >= WAITING:
            self._count()

    def _count(self) -> None:
        if not self.waiting:
            return
        rows = np.concatenate(self.waiting)
        self.waiting = []
        for column, values in enumerate(rows.T):
            both = np.concatenate([self.values[column], values >> self.shifts[column]])
            weights = np.concatenate([self.counts[column], np.ones(len(values), np.int64)])
            found, counts = _merged(both, weights)
            while len(found) > MOST_VALUES:
                found, counts = _merged(found >> 1, counts)
                self.shifts[column] += 1
            self.values[column], self.counts[column] = found, counts

    def column(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Values seen, rising, and how often; the middles of bins where values are many."""
        self._count()
        width = 1 << self.shifts[column]
        values = self.values[column] * width + (width - 1) / 2
        return values / PARTS if self.real else values, self.counts[column]

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """The least value that at least this part of all does not exceed, (levels, columns)."""
        found = np.full((len(levels), len(self.values)), np.nan)
        for column in range(len(self.values)):
            values, counts = self.column(column)
            if len(values):
                # A level of 3/10 of ten values is the third, whatever 0.3 is in binary.
                wanted = np.ceil(levels * counts.sum() * (1 - 1e-12))
                place = np.searchsorted(np.cumsum(counts), np.maximum(wanted, 1))
                found[:, column] = values[place]
        return found


def _merged(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found, place = np.unique(values, return_inverse=True)
    return found, np.bincount(place.ravel(), counts, len(found)).astype(np.int64)


class Average(NamedTuple):
    """Average over time and replicas, and its standard error, from the means of batches."""

    value: np.ndarray
    standard_error: np.ndarray


class TimeAverage:
    """Averages over records, with standard errors from the means of batches of them.

    Replicas are independent; where they are few each path is cut into batches, whose means are
    taken as independent: they must be longer than the correlation lasts.
    """

    def __init__(self, records: int, replicas: int):
        self.batches = max(1, min(MOST_BATCHES, records, -(-MOST_BATCHES // replicas)))
        self.length = records // self.batches
        self.moments = Moments(products=False)

    def add(self, rows: np.ndarray) -> None:
        """Take paths, shape (rows, records, length); what is left over at the start is dropped."""
        used = rows[:, rows.shape[1] - self.batches * self.length :]
        dtype = np.float64 if rows.dtype.kind == "f" else np.int64
        batches = used.reshape(len(rows) * self.batches, self.length, rows.shape[2])
        self.moments.add(batches.sum(axis=1, dtype=dtype))

    @property
    def result(self) -> Average:
        """The averages so far."""
        variance = self.moments.covariance / max(self.moments.count, 1)
        return Average(self.moments.mean / self.length, np.sqrt(variance) / self.length)


class Autocorrelation:
    """Correlation of a series with itself, for lags up to half of its length."""

    def __init__(self, records: int):
        self.records, self.lags, self.paths = records, records // 2 + 1, 0
        self.products: Any = 0
        self.early: Any = 0
        self.late: Any = 0

    def add(self, series: np.ndarray) -> None:
        """Take series, shape (rows, records)."""
        spectrum = np.fft.rfft(series, 2 * self.records)
        products = np.fft.irfft(abs(spectrum) ** 2, 2 * self.records)[:, : self.lags]
        if series.dtype.kind != "f":
            # Of whole numbers they are whole.
            products, series = np.rint(products).astype(np.int64), series.astype(np.int64)
        sums = np.cumsum(series, axis=1)
        keep = self.records - np.arange(self.lags)
        self.paths += len(series)
        self.products = self.products + products.sum(axis=0)
        self.early = self.early + sums[:, keep - 1].sum(axis=0)
        self.late = self.late + (sums[:, -1:] - np.pad(sums, ((0, 0), (1, 0)))[:, : self.lags]).sum(
            axis=0
        )

    @property
    def result(self) -> np.ndarray:
        """Correlation at each lag, from zero on; one at lag zero."""
        pairs = self.paths * (self.records - np.arange(self.lags))
        if not self.paths:
            return np.full(self.lags, np.nan)
        mean = self.early[0] / pairs[0]
        covariance = self.products / pairs - mean * (self.early + self.late) / pairs + mean**2
        return covariance / covariance[0]
