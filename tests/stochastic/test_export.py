"""Ensembles as tables: what pandas and xarray read is what was kept."""

import jax.random as jr
import numpy as np
import pandas as pd
import pytest

import jaxlb as lb
from jaxlb.stochastic.ensemble import PARTS

pytestmark = pytest.mark.usefixtures("quick_compilation")

SYSTEM = lb.System(4.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
TIMES = np.linspace(0.0, 2.0, 5)


def ensemble(keep):
    return lb.stochastic.simulate(
        SYSTEM, jr.key(0), TIMES, 3.0, 20, keep=keep, method="leap", step_size=0.5
    )


def test_a_table_of_paths_has_a_row_for_each_replica_and_time(tmp_path):
    found = ensemble("jobs")
    table = found.to_pandas()
    assert table.index.names == ["replica", "time"]
    assert len(table) == 100
    np.testing.assert_array_equal(table["queue_2"].to_numpy().reshape(20, 5), found.queue[..., 1])
    np.testing.assert_array_equal(
        table["transit_1_2"].to_numpy().reshape(20, 5), found.in_transit[..., 0, 1]
    )
    found.to_csv(tmp_path / "paths.csv")
    again = pd.read_csv(tmp_path / "paths.csv").set_index(["replica", "time"])
    pd.testing.assert_frame_equal(
        again, table, check_dtype=False, check_index_type=False, check_exact=True
    )


def test_a_table_of_statistics_has_a_row_for_each_time(tmp_path):
    found = ensemble(("mean", "variance", "quantiles"))
    table = found.to_pandas()
    np.testing.assert_array_equal(table.index, TIMES)
    statistics = found.statistics
    np.testing.assert_array_equal(table["queue_1_mean"], statistics.mean[:, 0, -1])
    np.testing.assert_array_equal(table["transit_2_1_variance"], statistics.variance[:, 1, 0])
    np.testing.assert_array_equal(table["imbalance_q0.95"], statistics.imbalance_quantiles[-1])
    np.testing.assert_array_equal(table["queue_2_q0.05"], statistics.quantiles[0, :, 1, -1])
    found.to_csv(tmp_path / "statistics.csv")
    again = pd.read_csv(tmp_path / "statistics.csv")
    # pandas reads to the last bit or the one beside it.
    pd.testing.assert_frame_equal(again.set_index("time"), table, rtol=1e-15)


def test_a_dataset_has_all_that_was_kept_with_units():
    found = ensemble(PARTS)
    data = found.to_xarray()
    assert data["jobs"].dims == ("replica", "time", "server", "compartment")
    np.testing.assert_array_equal(data["jobs"], found.jobs)
    np.testing.assert_array_equal(data["final"], found.final)
    np.testing.assert_array_equal(data["covariance"], found.statistics.covariance)
    median = data["quantiles"].sel(level=0.5, time=1.0).isel(server=1, compartment=-1)
    assert float(median) == found.statistics.quantiles[2, 2, 1, -1]
    np.testing.assert_array_equal(data["imbalance"], found.statistics.histogram[0])
    assert int(data["histogram"].sum()) == 100
    np.testing.assert_array_equal(data["time_average"], found.statistics.time_average.value)
    assert float(data["autocorrelation"].sel(lag=0.0)) == 1
    assert data["variance"].attrs["units"] == "jobs^2"
    assert data["time"].attrs["units"] == "s"
    assert data.attrs["method"] == "phase_leap"
    assert data.attrs["step_error"] == float(found.step_error)


def test_without_rows_over_time_there_is_no_table(tmp_path):
    with pytest.raises(ValueError, match='`keep` must have "jobs", "mean", "variance" or'):
        ensemble("histogram").to_pandas()
    with pytest.raises(ValueError, match='`keep` must have "jobs", "mean", "variance" or'):
        ensemble("final").to_csv(tmp_path / "none.csv")
    assert not (tmp_path / "none.csv").exists()
