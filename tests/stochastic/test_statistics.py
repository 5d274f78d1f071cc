"""Statistics of chunks, against NumPy on all at once, in whole numbers and real ones."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from jaxlb.stochastic.statistics import Autocorrelation, Moments, Tally, TimeAverage

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(40, (1000, 5, 3)).astype(np.int32)


def chunks(rows, sizes):
    start = 0
    for size in itertools.cycle(sizes):
        if start >= len(rows):
            return
        yield rows[start : start + size]
        start += size


def moments(rows, sizes, products):
    found = Moments(products)
    for chunk in chunks(rows, sizes):
        found.add(chunk)
    return found


def test_moments_are_those_of_numpy():
    found = moments(COUNTS, (300, 7), True)
    np.testing.assert_allclose(found.mean, COUNTS.mean(axis=0), rtol=1e-14)
    for time in range(5):
        np.testing.assert_allclose(found.covariance[time], np.cov(COUNTS[:, time].T), rtol=1e-12)
    variance = moments(COUNTS, (300, 7), False).covariance
    np.testing.assert_allclose(variance, COUNTS.var(axis=0, ddof=1), rtol=1e-12)


@pytest.mark.parametrize("largest", [100, 2**31 - 1, 2**45])
@pytest.mark.parametrize("products", [False, True])
def test_moments_of_counts_are_the_same_bits_in_any_chunks_and_order(largest, products):
    rows = RNG.integers(largest // 2, largest, (600, 2, 2))
    one = moments(rows, (600,), products)
    for sizes, order in (((1, 13), slice(None)), ((256,), slice(None, None, -1))):
        other = moments(rows[order], sizes, products)
        np.testing.assert_array_equal(other.mean, one.mean)
        np.testing.assert_array_equal(other.covariance, one.covariance)


def test_variances_of_large_counts_lose_nothing():
    rows = 2**31 - 1 - np.array([[0], [0], [1]])
    exact = Fraction(1, 3)
    assert moments(rows, (2,), False).covariance[0] == float(exact)


def test_moments_of_real_numbers_are_those_of_numpy():
    rows = RNG.normal(3, 2, (500, 4))
    found = moments(rows, (33,), False)
    np.testing.assert_allclose(found.covariance, rows.var(axis=0, ddof=1), rtol=1e-12)


def test_of_too_few_rows_the_moments_are_no_numbers():
    assert np.isnan(moments(COUNTS[:1], (1,), False).covariance).all()
    none = Moments(True)
    none.add(COUNTS[:0])
    assert none.mean.shape == (5, 3)
    assert np.isnan(none.mean).all()
    assert np.isnan(none.covariance).all()


def test_quantiles_are_the_order_statistics():
    rows = COUNTS.reshape(1000, -1)
    tally = Tally(rows.shape[1])
    for chunk in chunks(rows, (300, 7)):
        tally.add(chunk)
    levels = np.array([0.05, 0.3, 0.5, 0.999])
    wanted = np.quantile(rows, levels, axis=0, method="inverted_cdf")
    np.testing.assert_array_equal(tally.quantiles(levels), wanted)


def test_quantiles_of_many_values_are_close_and_the_same_in_any_order(monkeypatch):
    monkeypatch.setattr("jaxlb.stochastic.statistics.MOST_VALUES", 500)
    monkeypatch.setattr("jaxlb.stochastic.statistics.WAITING", 1000)
    rows = RNG.integers(10**6, 2 * 10**6, (20_000, 1))
    levels = np.array([0.1, 0.5, 0.9])
    found = []
    for ordered in (rows, rows[::-1]):
        tally = Tally(1)
        for chunk in chunks(ordered, (900, 450)):
            tally.add(chunk)
        found.append(tally.quantiles(levels))
        assert len(tally.column(0)[0]) <= 500
        assert tally.column(0)[1].sum() == 20_000
    np.testing.assert_array_equal(*found)
    # Bins of 4096, of which the middle is taken.
    assert np.abs(found[0] - np.quantile(rows, levels, axis=0)).max() < 2100


def test_quantiles_of_real_numbers_are_within_a_thousandth_of_a_job():
    rows = RNG.normal(50, 5, (5000, 1))
    tally = Tally(1)
    tally.add(rows)
    wanted = np.quantile(rows, [0.25, 0.75], axis=0, method="inverted_cdf")
    np.testing.assert_allclose(tally.quantiles(np.array([0.25, 0.75])), wanted, atol=6e-4)


@pytest.mark.parametrize("replicas", [1, 3, 400])
def test_time_averages_have_honest_errors(replicas):
    """Independent paths of a correlated series: errors spread as they say, by 200 repetitions.

    Their ratio has a standard error of 5 % and batches leave correlations of 5 %: 25 % is 4 errors.
    """
    rng = np.random.default_rng(1)
    records = 2000 if replicas < 10 else 40
    values, errors = [], []
    for _ in range(200):
        noise = rng.normal(size=(replicas, records + 20))
        # A sum of the last three; its mean is 6.
        paths = 6 + noise[:, 20:] + noise[:, 19:-1] + noise[:, 18:-2]
        average = TimeAverage(records, replicas)
        for chunk in chunks(paths[..., None], (150,)):
            average.add(chunk)
        values.append(average.result.value[0])
        errors.append(average.result.standard_error[0])
    assert abs(np.mean(values) - 6) < 5 * np.std(values) / np.sqrt(200)
    assert abs(np.std(values) / np.sqrt(np.mean(np.square(errors))) - 1) < 0.25


def test_time_averages_of_counts_are_the_same_bits_in_any_chunks():
    results = []
    for sizes in ((1000,), (7, 300)):
        average = TimeAverage(5, 1000)
        for chunk in chunks(COUNTS, sizes):
            average.add(chunk)
        results.append(average.result)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0].value, COUNTS.mean(axis=(0, 1)), rtol=1e-13)


@pytest.mark.parametrize("kind", [np.int32, np.float64])
def test_autocorrelation_is_that_of_its_definition(kind):
    series = np.cumsum(RNG.normal(size=(60, 41)), axis=1) * 5 + 3
    series = np.round(series).astype(kind)
    found = Autocorrelation(41)
    for chunk in chunks(series, (11, 25)):
        found.add(chunk)
    apart = series - series.mean()
    wanted = [np.mean(apart[:, : 41 - lag] * apart[:, lag:]) for lag in range(21)]
    np.testing.assert_allclose(found.result, np.array(wanted) / wanted[0], rtol=1e-9)
