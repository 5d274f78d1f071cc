"""Ensembles for other programs: xarray, pandas, CSV."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

AXES = {
    "jobs": ("replica", "time", "server", "compartment"),
    "final": ("replica", "server", "compartment"),
    "valid": ("replica",),
    "mean": ("time", "server", "compartment"),
    "variance": ("time", "server", "compartment"),
    "covariance": ("time", "server", "compartment", "server_2", "compartment_2"),
    "imbalance_mean": ("time",),
    "imbalance_variance": ("time",),
    "quantiles": ("level", "time", "server", "compartment"),
    "imbalance_quantiles": ("level", "time"),
    "autocorrelation": ("lag",),
}
UNITS = {"variance": "jobs^2", "imbalance_variance": "jobs^2", "covariance": "jobs^2"}
WITHOUT_UNIT = {"valid", "autocorrelation"}


def to_xarray(ensemble: Any) -> Any:
    """All that was kept as a Dataset."""
    import xarray as xr

    statistics = ensemble.statistics
    arrays = {"jobs": ensemble.paths, "final": ensemble.final, "valid": ensemble.valid}
    coordinates = {
        "time": ("time", np.asarray(ensemble.times), {"units": "s"}),
        "replica": ("replica", np.asarray(ensemble.replicas)),
    }
    if statistics is not None:
        arrays |= {name: getattr(statistics, name) for name in AXES if hasattr(statistics, name)}
        if statistics.levels is not None:
            coordinates["level"] = ("level", statistics.levels)
        if statistics.lags is not None:
            coordinates["lag"] = ("lag", statistics.lags, {"units": "s"})
    variables = {}
    for name, array in arrays.items():
        if array is not None:
            units = {} if name in WITHOUT_UNIT else {"units": UNITS.get(name, "jobs")}
            variables[name] = (AXES[name], np.asarray(array), units)
    if statistics is not None and statistics.time_average is not None:
        axes = "server", "compartment"
        for name, value in zip(("", "_error"), statistics.time_average, strict=True):
            variables[f"time_average{name}"] = (axes, value, {"units": "jobs"})
        for name, value in zip(("", "_error"), statistics.imbalance_square, strict=True):
            variables[f"imbalance_square{name}"] = ((), value, {"units": "jobs^2"})
    if statistics is not None and statistics.histogram is not None:
        values, counts = statistics.histogram
        coordinates["imbalance"] = ("imbalance", values, {"units": "jobs"})
        variables["histogram"] = ("imbalance", counts)
    attributes = {"method": ensemble.method}
    if ensemble.step_size is not None:
        variables["step_size"] = ("time", np.asarray(ensemble.step_size), {"units": "s"})
    if ensemble.step_error is not None:
        attributes["step_error"] = float(ensemble.step_error)
    return xr.Dataset(variables, coordinates, attributes)


def to_pandas(ensemble: Any) -> Any:
    """Paths, or statistics at each time, as a table."""
    import pandas as pd

    columns, index = _columns(ensemble)
    return pd.DataFrame(columns).set_index(index)


def to_csv(ensemble: Any, path: str | Path) -> None:
    """The same table as a file; numbers as short as they can be without loss."""
    columns, _ = _columns(ensemble)
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def _columns(ensemble: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    """Columns of the table, and which of them are its index."""
    times = np.asarray(ensemble.times)
    if ensemble.paths is not None:
        jobs = np.asarray(ensemble.paths)
        replicas, records = jobs.shape[:2]
        columns = {
            "replica": np.repeat(np.asarray(ensemble.replicas), records),
            "time": np.tile(times, replicas),
        }
        named = _by_name(jobs)
        columns |= {name: values.reshape(-1) for name, values in named.items()}
        columns["valid"] = np.repeat(np.asarray(ensemble.valid), records)
        return columns, ["replica", "time"]
    columns = _statistics_by_name(ensemble.statistics) if ensemble.statistics is not None else {}
    if not columns:
        raise ValueError(
            '`keep` must have "jobs", "mean", "variance" or "quantiles" for a table over time, '
            "and was without them."
        )
    return {"time": times} | columns, ["time"]


def _statistics_by_name(statistics: Any) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for what in ("mean", "variance"):
        values = getattr(statistics, what)
        if values is not None:
            columns |= {f"{name}_{what}": column for name, column in _by_name(values).items()}
            columns[f"imbalance_{what}"] = getattr(statistics, f"imbalance_{what}")
    if statistics.quantiles is not None:
        for number, level in enumerate(statistics.levels):
            named = _by_name(statistics.quantiles[number])
            named["imbalance"] = statistics.imbalance_quantiles[number]
            columns |= {f"{name}_q{level:g}": column for name, column in named.items()}
    return columns


def _by_name(jobs: np.ndarray) -> dict[str, np.ndarray]:
    """Jobs of each compartment, (..., servers, compartments), by name."""
    servers, compartments = jobs.shape[-2:]
    named = {}
    for server in range(servers):
        named[f"queue_{server + 1}"] = jobs[..., server, -1]
        for phase in range(compartments - 1):
            named[f"transit_{server + 1}_{phase + 1}"] = jobs[..., server, phase]
    return named
