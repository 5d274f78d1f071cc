"""`jaxlb simulate`: an ensemble as a table and a picture, errors of one line."""

import csv
from functools import partial

import jax
import numpy as np
import pytest

import jaxlb as lb

# The command sets double precision for its process, which the tests have anyway.
pytestmark = pytest.mark.usefixtures("quick_compilation")

QUICK = ("--scale", "4", "--horizon", "2", "--records", "5", "--replicas", "40")


@pytest.fixture
def simulate(run, monkeypatch, tmp_path):
    """Run `jaxlb simulate ARGUMENTS` in an empty folder; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    return partial(run, "simulate")


def test_the_table_is_that_of_the_library_for_the_papers_case(simulate, tmp_path):
    code, out, err = simulate(*QUICK, "--seed", 3)
    assert code == 0
    assert "40 paths by the method: direct." in out
    assert "40/40" in err
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    wanted = lb.stochastic.simulate(
        system,
        jax.random.key(3),
        np.linspace(0, 2, 5),
        4.0,
        40,
        keep=("mean", "variance", "quantiles"),
    )
    wanted.to_csv(tmp_path / "wanted.csv")
    assert (tmp_path / "ensemble.csv").read_text() == (tmp_path / "wanted.csv").read_text()
    rows = list(csv.DictReader((tmp_path / "ensemble.csv").read_text().splitlines()))
    assert float(rows[-1]["queue_1_mean"]) == wanted.statistics.mean[-1, 0, -1]
    said = f"server 1 has {wanted.statistics.mean[-1, 0, -1]:.4g} jobs in service"
    assert said in out


@pytest.mark.parametrize(
    ("arguments", "method"),
    [
        (("--stages", "inf"), "marks"),
        (("--method", "leap"), "phase leap. Steps of"),
        (("--method", "leap", "--stages", "9"), "ring leap. Steps of"),
        (("--method", "poisson_leap", "--step-size", "0.1"), "poisson leap. Steps of 0.1 s."),
        (("--delay-cv", "0.8", "--servers", "3"), "direct"),
        (("--servers", "1", "--sensitivity", "0"), "direct"),
    ],
)
def test_delays_methods_and_servers_are_those_asked_for(simulate, arguments, method):
    code, out, _ = simulate(*QUICK, *arguments, "--plot", "fan.png")
    assert code == 0
    assert f"by the method: {method}" in out
    assert "Picture: fan.png" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--scale", "-1"), "`--scale` must be from 1e-50 to 1e+50, got -1."),
        (("--scale", "1e30"), "`scale` must be such that the mean number of jobs stays below"),
        (("--replicas", "0"), "--replicas"),
        (("--records", "1"), "--records"),
        (("--method", "euler"), "--method"),
        (("--step-size", "0.1"), "`--method` must be one by steps with a step, got exact."),
        (
            ("--method", "langevin"),
            "`--step-size` must be given with method langevin, got none.",
        ),
        (
            ("--method", "leap", "--step-size", "0.1", "--tolerance", "0.1"),
            "`--tolerance` must not be given with `--step-size`, got 0.1 and 0.1.",
        ),
        (
            ("--stages", "2", "--delay-cv", "0.5"),
            "`--stages` must not be given with `--delay-cv`, got 2 and 0.5.",
        ),
        (("--out", "no/such/folder.csv"), "`--out` must be a file that can be written, got"),
        (("--plot", "fan.gif"), "`--plot` must end with .png, .pdf, .svg, got 'fan.gif'."),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_two(simulate, tmp_path, arguments, complaint):
    code, out, err = simulate(*arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert complaint in err
    assert not list(tmp_path.iterdir())


def test_help_teaches(simulate):
    code, out, _ = simulate("--help")
    assert code == 0
    for word in ("--tolerance", "Examples:", "Figure 3", "quantiles", "fan.png"):
        assert word in out
