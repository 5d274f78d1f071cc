"""`jaxlb tune`: its numbers are those of the library, its errors one line."""

import json
from functools import partial

import numpy as np
import pytest

import jaxlb as lb
from jaxlb import design

# The command sets double precision for its process, which the tests have anyway.
pytestmark = pytest.mark.usefixtures("quick_compilation")

RATES = ("--arrival-rate", "1500", "--service-rate", "1")


@pytest.fixture
def tune(run, monkeypatch, tmp_path):
    """Run `jaxlb tune ARGUMENTS` in an empty folder; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    return partial(run, "tune", *RATES)


def test_advice_of_the_papers_case_at_its_scale(tune, tmp_path):
    """Two stages, 100 times case A: theta is 1 / 100 of that of the fluid system."""
    code, out, _ = tune(
        "--delay-mean", 1, "--stages", 2, "--temperature", 100, "--json", "--plot", "tuning.svg"
    )
    assert code == 0
    found = json.loads(out)
    assert found["critical_sensitivity"] == pytest.approx(0.006, rel=1e-9)
    assert found["present"]["sensitivity"] == 0.01
    assert found["present"]["decay_time"] is None
    assert not found["present"]["trusted"]
    # Closed forms: the double root, the zero of the slope, ln 20.
    assert found["fastest"]["sensitivity"] == pytest.approx(1 / 27 / 1500, rel=1e-8)
    assert found["fastest"]["decay_time"] == pytest.approx(0.75, rel=1e-6)
    assert found["steadiest"]["sensitivity"] == pytest.approx(0.001, rel=1e-9)
    assert found["steadiest"]["relative"] == pytest.approx(np.sqrt(0.8), rel=1e-4)
    assert found["random"]["settling_time"] == pytest.approx(np.log(20), rel=1e-8)
    assert found["soonest"]["settling_time"] < 1.66
    # All jobs counted in full: (1 + kappa D) / (1 + kappa (D + 1 / mu)).
    assert found["counting"]["relative"] == pytest.approx(np.sqrt(16 / 31), rel=1e-3)
    assert found["counting_fixes_it"]
    system = lb.System(1500.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(0.01))
    best = design.lqr(system, 0.1)
    np.testing.assert_allclose(found["weighted"]["weights"], best.weights, rtol=1e-9)
    assert "<svg" in (tmp_path / "tuning.svg").read_text()
    code, out, _ = tune("--delay-mean", 1, "--stages", 2, "--sensitivity", 0.01)
    assert code == 0
    assert "Safe: sensitivity below 0.006 per job, temperature above 166.7 jobs" in out
    assert "Yours, 0.01 per job, is UNSTABLE." in out
    assert "Counting the jobs in transit fixes it" in out
    rows = {line[:25].strip(): line for line in out.splitlines()}
    assert " never " in rows["present setting"]
    assert "infinite" in rows["random routing"]


def test_measured_delays_are_fitted_by_two_moments():
    from jaxlb.cli.measured import read_delays

    def measured(text, column=None, path="delays.csv"):
        from pathlib import Path

        Path(path).write_text(text)
        return read_delays(Path(path), column)

    values = np.random.default_rng(1).gamma(2.0, 0.5, 50)
    lines = "\n".join(f"a,{value}" for value in values)
    found = measured(f"name,startup\n{lines}\n", "startup")
    assert found.number == 50
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.cv == pytest.approx(values.std(ddof=1) / values.mean(), rel=1e-12)
    assert measured(f"name,startup\n{lines}\n", "2") == found
    assert measured("1.0\n3.0\n").mean == 2.0
    assert measured("delay\n1.0\n3.0\n").column == "delay"


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "`--delay-mean` or `--delays` must be given, got neither."),
        (("--delay-mean", 1, "--column", "x"), "`--column` must be of `--delays`, got 'x' alone."),
        (
            ("--delay-mean", 1, "--sensitivity", 1, "--temperature", 1),
            "`--temperature` must not be given with `--sensitivity`, got 1 and 1.",
        ),
        (
            ("--delays", "two.csv"),
            "`--column` must be given, for 'two.csv' has 2: a, b.",
        ),
        (
            ("--delays", "two.csv", "--column", "c"),
            "`--column` must be one of a, b, or a number from 1 to 2, got 'c'.",
        ),
        (
            ("--delays", "two.csv", "--column", "b"),
            "`--delays` must hold positive numbers of seconds, got '-2' in row 3 of 'two.csv'.",
        ),
        (
            ("--delays", "two.csv", "--column", "a", "--delay-mean", 1),
            "`--delay-mean` must not be given with `--delays`, got 1.",
        ),
        (("--delays", "one.csv"), "`--delays` must hold two delays or more, got 1."),
        (("--delays", "none.csv"), "`--delays` must have rows, got an empty 'none.csv'."),
        (("--delay-mean", 0), "`--delay-mean` must be from 1e-50 to 1e+50, got 0."),
        (
            ("--delay-mean", 1, "--plot", "picture.txt"),
            "`--plot` must end with .png, .pdf, .svg, got 'picture.txt'.",
        ),
    ],
)
def test_errors_are_one_line(tune, tmp_path, arguments, message):
    (tmp_path / "two.csv").write_text("a,b\n1,1\n2,-2\n")
    (tmp_path / "one.csv").write_text("1.5\n")
    (tmp_path / "none.csv").write_text("")
    code, out, err = tune(*arguments)
    assert (code, out, err) == (2, "", f"jaxlb: {message}\n")
