"""Chunks, orders, devices and memory: what is kept does not depend on how it was made."""

import os
import subprocess
import sys
import tracemalloc
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import jaxlb as lb
from jaxlb.stochastic.ensemble import PARTS
from jaxlb.stochastic.simulation import chosen

pytestmark = pytest.mark.usefixtures("quick_compilation")

SYSTEM = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
TIMES = np.linspace(0.0, 3.0, 7)
STATISTICS = tuple(part for part in PARTS if part not in ("jobs", "final"))
# The other leaps have all but their one step in common with these.
METHODS = {
    "direct": {},
    "marks": {},
    "phase_leap": {"step_size": 0.25},
    "ring_leap": {"step_size": 0.25},
}


def simulate(replicas: Any = 50, method="leap", **options):
    if method == "leap":
        options.setdefault("step_size", 0.25)
    options.setdefault("chunk_size", 32)
    return lb.stochastic.simulate(SYSTEM, jr.key(0), TIMES, 8.0, replicas, method=method, **options)


@pytest.mark.parametrize("method", METHODS)
def test_paths_are_the_same_bits_in_any_chunks_and_order(method):
    whole = simulate(50, method, **METHODS[method])
    assert whole.valid.all()
    alone = simulate(50, method, chunk_size=1, **METHODS[method])
    np.testing.assert_array_equal(alone.jobs, whole.jobs)
    order = np.random.default_rng(0).permutation(50)
    shuffled = simulate(order, method, **METHODS[method])
    np.testing.assert_array_equal(shuffled.jobs, whole.jobs[order])
    np.testing.assert_array_equal(shuffled.replicas, order)


def test_statistics_are_the_same_bits_in_any_chunks_and_order():
    one = simulate(keep=STATISTICS).statistics
    for replicas, size in (
        (50, 1),
        (np.arange(50)[::-1], 32),
        (np.roll(np.arange(50), 9), 1),
    ):
        other = simulate(replicas, keep=STATISTICS, chunk_size=size).statistics
        assert same(one, other)


def same(one, other):
    left, right = (vars(statistics) for statistics in (one, other))
    for name, value in left.items():
        np.testing.assert_equal(right[name], value, err_msg=name)
    return True


def test_a_run_is_continued_by_the_numbers_of_its_replicas():
    whole, rest = simulate(), simulate(np.arange(18, 50))
    np.testing.assert_array_equal(rest.jobs, whole.jobs[18:])


PROGRAM = """
import sys, zlib
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
import jaxlb as lb
assert len(jax.devices()) == int(sys.argv[1])
system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
for method, step in (("marks", None), ("leap", .25)):
    found = lb.stochastic.simulate(
        system, jax.random.key(0), np.linspace(0, 3, 7), 8., 50, method=method, step_size=step,
        keep=("jobs", "variance"))
    bits = zlib.crc32(np.asarray(found.jobs).tobytes())
    print(bits, found.statistics.imbalance_variance.tolist())
"""


def test_paths_are_the_same_bits_on_one_two_and_eight_devices():
    assert len(jax.local_devices()) == 1
    wanted = ""
    for method in ("marks", "leap"):
        found = simulate(50, method, keep=("jobs", "variance"))
        bits = zlib.crc32(np.asarray(found.jobs).tobytes())
        wanted += f"{bits} {found.statistics.imbalance_variance.tolist()}\n"
    for devices in (2, 8):
        flags = f"--xla_force_host_platform_device_count={devices}"
        assert run(PROGRAM, str(devices), {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}) == wanted


def run(code, argument, environment):
    command = [sys.executable, "-c", code, argument]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_statistics_are_those_of_the_paths():
    found = simulate(keep=("jobs", "final", *STATISTICS), burn_in=1.0, levels=[0.1, 0.9])
    jobs = np.asarray(found.jobs)
    statistics = found.statistics
    assert statistics.count == 50
    np.testing.assert_array_equal(found.final, jobs[:, -1])
    np.testing.assert_allclose(statistics.mean, jobs.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(statistics.variance, jobs.var(axis=0, ddof=1), rtol=1e-11)
    apart = jobs - jobs.mean(axis=0)
    covariance = np.einsum("rtsc,rtuv->tscuv", apart, apart) / 49
    np.testing.assert_allclose(statistics.covariance, covariance, atol=1e-9)
    imbalance = jobs[:, :, 0, -1] - jobs[:, :, 1, -1]
    np.testing.assert_allclose(statistics.imbalance_mean, imbalance.mean(axis=0), rtol=1e-11)
    np.testing.assert_allclose(
        statistics.imbalance_variance, imbalance.var(axis=0, ddof=1), rtol=1e-11
    )
    for values, wanted in (
        (statistics.quantiles, jobs),
        (statistics.imbalance_quantiles, imbalance),
    ):
        order = np.quantile(wanted, [0.1, 0.9], axis=0, method="inverted_cdf")
        np.testing.assert_array_equal(values, order)
    late = imbalance[:, 2:]
    values, counts = np.unique(late, return_counts=True)
    np.testing.assert_array_equal(statistics.histogram[0], values)
    np.testing.assert_array_equal(statistics.histogram[1], counts)
    np.testing.assert_allclose(statistics.time_average.value, jobs[:, 2:].mean(axis=(0, 1)))
    np.testing.assert_allclose(statistics.imbalance_square.value, np.mean(late.astype(float) ** 2))
    np.testing.assert_allclose(statistics.lags, [0.0, 0.5, 1.0])
    apart = late - late.mean()
    wanted = [np.mean(apart[:, : 5 - lag] * apart[:, lag:]) for lag in range(3)]
    np.testing.assert_allclose(statistics.autocorrelation, np.array(wanted) / wanted[0])


def test_what_was_not_kept_is_not_there():
    found = simulate(keep="mean")
    assert found.final is None
    assert found.statistics.variance is None
    with pytest.raises(ValueError, match='`keep` must have "jobs" for paths'):
        _ = found.queue


def test_memory_does_not_grow_with_the_replicas_that_are_not_kept(monkeypatch):
    """Paths of 1500 more replicas would take 3.6 MB of 32-bit numbers."""
    # Numbers that wait to be counted take up to 20 MB otherwise, however many there are.
    monkeypatch.setattr("jaxlb.stochastic.statistics.WAITING", 10_000)
    times = np.linspace(0.0, 3.0, 101)
    peaks = []
    for replicas in (500, 2000):
        options = {"method": "leap", "step_size": 0.1, "chunk_size": 100}
        keep = ("mean", "variance", "quantiles", "time_average", "histogram")
        lb.stochastic.simulate(SYSTEM, jr.key(0), times, 1.0, 100, keep=keep, **options)
        tracemalloc.start()
        lb.stochastic.simulate(SYSTEM, jr.key(0), times, 1.0, replicas, keep=keep, **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A byte and a number for each replica, and what is seen rarely.
    assert peaks[1] - peaks[0] < 0.05 * 3.6e6


def test_a_failing_replica_is_named_and_is_not_in_the_statistics():
    def rule(queue):
        return jnp.where(queue[0] >= 3, jnp.nan, 0.5) * jnp.ones(2)

    system = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), rule)
    numbers = np.arange(100, 160)
    found = lb.stochastic.simulate(
        system, jr.key(0), [0.0, 0.5, 1.0], replicas=numbers, keep=("jobs", "mean")
    )
    failed = numbers[~np.asarray(found.valid)]
    assert 0 < len(failed) < 60
    assert found.statistics.count == 60 - len(failed)
    kept = np.asarray(found.jobs)[np.asarray(found.valid)]
    np.testing.assert_allclose(found.statistics.mean, kept.mean(axis=0), rtol=1e-13)
    with pytest.raises(ValueError, match=rf"`routing` must give .* of 60 replicas: {failed[0]}"):
        found.check()
    simulate().check()


def test_the_exact_method_is_chosen_by_the_system():
    delays = lb.Erlang(1.0, 2), lb.NoDelay(), lb.Erlang(1.0, 50), lb.Deterministic(1.0)
    for delay, method in zip(delays, ("direct", "direct", "marks", "marks"), strict=True):
        assert chosen(lb.System(1.0, 1.0, delay, lb.Logit(1.0)), "exact") == method
    unequal = lb.System(1.0, [1.0, 2.0], lb.Erlang(1.0, 8), lb.Logit(1.0))
    weighted = lb.System(1.0, 1.0, lb.Erlang(1.0, 8), lb.WeightedLogit(1.0, jnp.ones(8)))
    for system in (unequal, weighted):
        assert chosen(system, "exact") == "direct"


def test_traced_numbers_have_no_marks_unless_asked_for():
    def run(rate, **options):
        system = lb.System(rate, 1.0, lb.Erlang(1.0, 5), lb.Logit(1.0))
        return lb.stochastic.simulate(system, jr.key(0), [0.5], **options).jobs

    np.testing.assert_array_equal(jax.jit(run)(2.0), run(2.0, method="direct"))
    with pytest.raises(ValueError, match="must be concrete"):
        jax.jit(lambda rate: run(rate, method="marks"))(2.0)


def test_the_leap_is_chosen_by_the_system():
    for stages, method in ((2, "phase_leap"), (7, "ring_leap")):
        system = lb.System(1.0, 1.0, lb.Erlang(1.0, stages), lb.Logit(1.0))
        assert chosen(system, "leap") == method
    weighted = lb.System(1.0, 1.0, lb.Erlang(1.0, 7), lb.WeightedLogit(1.0, jnp.ones(7)))
    assert chosen(weighted, "leap") == "phase_leap"
    with pytest.raises(ValueError, match='must look at the queues alone for method "ring_leap"'):
        chosen(weighted, "ring_leap")


def test_a_bar_is_shown_on_request(capsys):
    simulate(progress=True)
    assert "50/50" in capsys.readouterr().err
    simulate()
    assert capsys.readouterr().err == ""
