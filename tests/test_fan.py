"""Fan plots: the bands, lines and labels are those of the ensemble."""

from typing import Any

import jax.random as jr
import numpy as np
import pytest

import jaxlb as lb
from jaxlb import plot

pytestmark = pytest.mark.usefixtures("quick_compilation")

SYSTEM = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
TIMES = np.linspace(0.0, 4.0, 9)


def simulate(system=SYSTEM, **options):
    options = {"keep": ("mean", "quantiles"), "replicas": 60} | options
    return lb.stochastic.simulate(system, jr.key(0), TIMES, 10.0, **options)


def curve(ax, label):
    (line,) = [line for line in ax.lines if line.get_label() == label]
    return line.get_ydata()


@pytest.mark.parametrize("imbalance", [False, True])
def test_bands_and_lines_are_those_of_the_ensemble(imbalance):
    found, sample = simulate(), simulate(replicas=1, keep="jobs")
    ax: Any = plot.fan(found, SYSTEM, 10.0, sample, imbalance=imbalance)
    statistics, queue = found.statistics, np.asarray(sample.queue[0])
    quantiles = statistics.quantiles[:, :, 0, -1]
    path, sign = queue[:, 0], 0
    if imbalance:
        quantiles, path, sign = statistics.imbalance_quantiles, queue[:, 0] - queue[:, 1], 1
    np.testing.assert_array_equal(curve(ax, "median"), quantiles[2])
    np.testing.assert_array_equal(curve(ax, "one path"), path)
    fluid = np.asarray(lb.fluid.solve(SYSTEM, TIMES).queue)
    limit = 10 * (fluid[:, 0] - sign * fluid[:, 1])
    np.testing.assert_allclose(curve(ax, "fluid limit"), limit, atol=1e-9)
    for band, (low, high) in zip(ax.collections, ((0, 4), (1, 3)), strict=True):
        points = band.get_paths()[0].vertices
        assert points[:, 1].min() == quantiles[low].min()
        assert points[:, 1].max() == quantiles[high].max()
    labels = {text.get_text() for text in ax.get_legend().get_texts()}
    assert {"90 % of 60 paths", "50 % of 60 paths"} <= labels


@pytest.mark.parametrize(
    ("delay", "has"), [(lb.Deterministic(1.0), True), (lb.QuantileDelay(lambda u: 0.5 + u), False)]
)
def test_of_delays_without_phases_only_a_fixed_one_has_a_fluid_limit(delay, has):
    system = lb.System(4.0, 1.0, delay, lb.Logit(1.0))
    ax = plot.fan(simulate(system), system, 10.0)
    assert ("fluid limit" in [line.get_label() for line in ax.lines]) == has


def test_the_overview_has_the_imbalance_where_there_is_one():
    assert len(plot.ensemble_overview(simulate(), SYSTEM, 10.0).axes) == 2
    alone = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0), num_servers=1)
    assert len(plot.ensemble_overview(simulate(alone, initial=[3.0]), alone, 10.0).axes) == 1


def test_levels_that_were_not_kept_are_named():
    with pytest.raises(ValueError, match="`ensemble` must have quantiles at the levels"):
        plot.fan(simulate(levels=[0.1, 0.9]), SYSTEM, 10.0)
    with pytest.raises(ValueError, match="`ensemble` must have quantiles at the levels"):
        plot.fan(simulate(keep="mean"), SYSTEM, 10.0)
