"""`jaxlb simulate`: an ensemble of random paths as a table and a fan plot."""

from pathlib import Path
from typing import Any

import click
import jax
import numpy as np

from .. import Logit, System, stochastic
from ..stochastic.simulation import CLASSICAL
from .options import Number, Stages, delay_of, option, require_picture, require_writable

METHODS = "exact", "leap", "gaussian_leap", *CLASSICAL
# Without a step or a tolerance: estimated errors of a hundredth.
TOLERANCE = 0.01


@click.command("simulate")
@option("--arrival-rate", Number(), "Arrivals per server, 1/s.", default=15.0)
@option("--service-rate", Number(), "Completions per job in service, 1/s.", default=1.0)
@option("--delay-mean", Number(), "Mean time from routing to service, s.", default=1.0)
@option(
    "--stages",
    Stages(),
    "Exponential stages of the delay: 1 is exponential, inf constant; 2 if neither this nor "
    "--delay-cv is given.",
    required=False,
)
@option(
    "--delay-cv",
    Number(1e-3, 1e6, zero=True),
    "Instead of --stages: standard deviation of the delay over its mean; 0 is constant.",
    required=False,
)
@option("--sensitivity", Number(zero=True), "Of logit routing, per job.", default=1.0)
@option("--servers", click.IntRange(1), "How many, all alike.", default=2)
@option("--scale", Number(), "System size eta: all arrivals are so many times more.", default=100.0)
@option("--horizon", Number(), "Last time, s.", default=20.0)
@option("--records", click.IntRange(2), "Times in the table, evenly spaced.", default=201)
@option("--replicas", click.IntRange(1), "Random paths.", default=1000)
@option("--seed", click.IntRange(0, 2**32 - 1), "Random seed.", default=0)
@option("--method", click.Choice(METHODS), "How paths are drawn.", default="exact")
@option("--step-size", Number(), "Of a method by steps, s.", required=False)
@option(
    "--tolerance",
    Number(),
    "Instead of --step-size, for the leap: the error of means and of the variance of the imbalance "
    f"as estimated; {TOLERANCE} if neither is given.",
    required=False,
)
@option("--out", click.Path(path_type=Path), "CSV file of the statistics.", default="ensemble.csv")
@option(
    "--plot", click.Path(path_type=Path), "Picture: PNG, PDF or SVG, by the suffix.", required=False
)
def command(**given: Any) -> None:
    """Random paths of a finite system: how far from the fluid limit, how far apart?

    Starts as the paper does: `scale` jobs in service at each server but the first. Without options
    it is the paper's Figure 3, as an ensemble.

    \b
    Writes for each time: - mean and variance of the jobs at each server, in service and, as far as
                            the method counts them, in transit, and of the imbalance Q_1 - Q_2;
                          - their 5, 25, 50, 75 and 95 % quantiles.

    --method exact has the law of the jump process. leap is many times faster for large systems: it
    moves jobs by their exact law over a step, and is off only by how much routing changes in it.
    The others are for comparison.

    \b
    Examples:
      jaxlb simulate --plot fan.png
      jaxlb simulate --stages inf --sensitivity 0.1 --replicas 200
      jaxlb simulate --scale 1000 --replicas 100000 --method leap --tolerance 0.01 --plot fan.pdf
    """
    if given["plot"] is not None:
        require_picture(given["plot"])
    require_writable("--out", given["out"])
    jax.config.update("jax_enable_x64", True)
    if given["stages"] is None and given["delay_cv"] is None:
        given["stages"] = 2.0
    delay = delay_of(given["delay_mean"], given["stages"], given["delay_cv"])
    rates = given["arrival_rate"], given["service_rate"]
    system = System(*rates, delay, Logit(given["sensitivity"]), given["servers"])
    how = _how(given["method"], given["step_size"], given["tolerance"])
    key, times = jax.random.key(given["seed"]), np.linspace(0, given["horizon"], given["records"])
    ensemble = stochastic.simulate(
        system,
        key,
        times,
        given["scale"],
        given["replicas"],
        keep=("mean", "variance", "quantiles"),
        progress=True,
        **how,
    )
    ensemble.check()
    ensemble.to_csv(given["out"])
    click.echo(_said(ensemble, given))
    if given["plot"] is not None:
        from .. import plot

        sample = stochastic.simulate(system, key, times, given["scale"], **how)
        picture = plot.ensemble_overview(ensemble, system, given["scale"], sample)
        plot.save(picture, given["plot"])
        click.echo(f"Picture: {given['plot']}")


def _how(method: str, step_size: float | None, tolerance: float | None) -> dict[str, Any]:
    """The method and its steps."""
    if step_size is not None and tolerance is not None:
        raise click.UsageError(
            f"`--tolerance` must not be given with `--step-size`, got {tolerance:g} and "
            f"{step_size:g}."
        )
    estimated = method != "exact" and method not in CLASSICAL
    if method == "exact" and (step_size or tolerance):
        raise click.UsageError("`--method` must be one by steps with a step, got exact.")
    if method in CLASSICAL and step_size is None:
        raise click.UsageError(f"`--step-size` must be given with method {method}, got none.")
    if estimated and step_size is None and tolerance is None:
        tolerance = TOLERANCE
    return {"method": method, "step_size": step_size, "tolerance": tolerance}


def _said(ensemble: stochastic.Ensemble, given: dict[str, Any]) -> str:
    """What was done, in a few lines."""
    statistics = ensemble.statistics
    method = ensemble.method.replace("_", " ")
    lines = [f"{statistics.count} paths by the method: {method}."]
    if ensemble.step_size is not None:
        step = f"Steps of {float(ensemble.step_size.max()):.3g} s"
        error = ensemble.step_error
        lines[0] += f" {step}." if error is None else f" {step}, error about {float(error):.1%}."
    mean, spread = statistics.mean, np.sqrt(statistics.variance)
    if mean is not None:
        lines.append(
            f"At {given['horizon']:g} s server 1 has {mean[-1, 0, -1]:.4g} jobs in service, "
            f"standard deviation {spread[-1, 0, -1]:.3g}."
        )
    if given["servers"] > 1:
        of_imbalance = np.sqrt(statistics.imbalance_variance[-1])
        lines.append(
            f"The imbalance Q_1 - Q_2 has mean {statistics.imbalance_mean[-1]:.4g}, standard "
            f"deviation {of_imbalance:.3g}."
        )
    return "\n".join([*lines, f"Table: {given['out']}"])
