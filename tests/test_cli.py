"""The command line: help that teaches, errors of one line."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxlb.cli import paper, stability

# `jaxlb stability` sets this for its process: the fixture sets it back.
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def no_computing(monkeypatch):
    """Make it an error to begin the work."""

    def reproduce(*_):
        raise AssertionError("computing began")

    monkeypatch.setattr(paper, "reproduce", reproduce)
    monkeypatch.setattr(stability, "System", reproduce)


@pytest.mark.usefixtures("no_computing")
@pytest.mark.parametrize(
    ("arguments", "name", "got"),
    [
        (["--horizon", "nan"], "--horizon", "nan"),
        (["--horizon", "inf"], "--horizon", "inf"),
        (["--horizon", "-3"], "--horizon", "-3"),
        (["--horizon", "0"], "--horizon", "0"),
        (["--horizon", "long"], "--horizon", "long"),
        (["--seed", "-1"], "--seed", "-1"),
        (["--seed", "1.5"], "--seed", "1.5"),
        (["--seed", str(2**32)], "--seed", str(2**32)),
        (["--only", "fig8"], "--only", "fig8"),
        (["--size", "3"], "--size", "--size"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_two(run, tmp_path, arguments, name, got):
    code, out, err = run("paper", "--out", tmp_path / "new", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert name in err
    assert got in err
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("no_computing")
def test_an_unwritable_folder_is_reported_before_any_computing(run, tmp_path):
    (tmp_path / "file").write_text("taken")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        code, _, err = run("paper", "--out", place)
        assert code == 2
        assert err.count("\n") == 1
        assert "`--out` must be a folder that can be written" in err
        assert str(place) in err


@pytest.mark.usefixtures("no_computing")
def test_an_error_is_one_line_whatever_was_given(run, tmp_path):
    (tmp_path / "file").write_text("taken")
    code, _, err = run("paper", "--out", f"{tmp_path}/file/be\nlow")
    assert code == 2
    assert err.count("\n") == 1


def test_a_horizon_beyond_the_solver_is_one_line_and_no_figure(run, tmp_path):
    code, _, err = run("paper", "--only", "fig5", "--horizon", "1e6", "--out", tmp_path)
    assert code == 2
    assert err.splitlines()[-1].startswith("jaxlb: `horizon` must be short enough")
    assert not list(tmp_path.iterdir())


def test_an_unknown_command_is_one_line_and_exit_code_two(run):
    code, _, err = run("papers")
    assert code == 2
    assert err.count("\n") == 1
    assert "papers" in err


def test_help_names_every_command_and_option(run):
    assert all(name in run()[1] for name in ("paper", "stability"))
    code, out, _ = run("paper", "--help")
    assert code == 0
    for word in ("--out", "--only", "--horizon", "--seed", "fig7", "Examples"):
        assert word in out


def test_an_interruption_is_told_and_exits_with_130(run, monkeypatch, tmp_path):
    def reproduce(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(paper, "reproduce", reproduce)
    code, _, err = run("paper", "--out", tmp_path)
    assert code == 130
    assert "interrupted" in err


def test_paper_shows_progress_and_prints_where_to_look(run, tmp_path):
    code, out, err = run("paper", "--only", "fig7", "--out", tmp_path / "deep" / "folder")
    assert code == 0
    assert out == f"Done. Open {tmp_path / 'deep' / 'folder' / 'report.html'}\n"
    assert err.splitlines() == ["[1/2] Figure 7", "[2/2] Report"]


def test_paper_asks_for_double_precision_before_it_begins(run, monkeypatch, tmp_path):
    steps = []
    monkeypatch.setattr(jax.config, "update", lambda *setting: steps.append(setting))
    monkeypatch.setattr(paper, "reproduce", lambda *_: steps.append("begun"))
    run("paper", "--out", tmp_path)
    assert steps == [("jax_enable_x64", True), "begun"]


def test_a_terminal_gets_a_bar_that_ends_full(run, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, _, err = run("paper", "--only", "fig7", "--out", tmp_path)
    assert code == 0
    assert "2/2" in err


def test_a_file_that_cannot_be_written_is_one_line(run, tmp_path):
    (tmp_path / "fig7.png").mkdir()
    code, _, err = run("paper", "--only", "fig7", "--out", tmp_path)
    assert code == 2
    assert err.splitlines()[-1].startswith(f"jaxlb: cannot write {tmp_path / 'fig7.png'}")


@pytest.mark.usefixtures("no_computing")
def test_an_empty_folder_name_is_refused(run):
    code, _, err = run("paper", "--out", "")
    assert code == 2
    assert err == "jaxlb: `--out` must be the name of a folder, got ''.\n"


# The numbers of the README, without which the command will not do.
README = {"arrival-rate": 15, "service-rate": 1, "delay-mean": 1, "sensitivity": 1}


def options(**changed):
    given = README | {name.replace("_", "-"): value for name, value in changed.items()}
    return [part for name, value in given.items() for part in (f"--{name}", value)]


def test_stability_says_that_two_stages_are_unstable_and_what_would_not_be(run):
    """By (22): K = 2 mu^2/gamma + 4 mu + 2 gamma is 9 at D = 1, 8 at its least, 15 at two delays
    that solve D^2 - 11 D + 4 = 0; root by mpmath; fastest decay at K = 1/27, abscissa -4/3."""
    code, out, err = run("stability", *options(stages=2))
    assert code == 0
    assert err == ""
    assert out.splitlines() == [
        "Erlang delay of 2 stages, mean 1 s, cv 0.7071.",
        "Unstable: an imbalance grows e-fold every 3.288 s, oscillating with period 1.868 s.",
        "Stable if the sensitivity is below 0.6 per job; beyond it oscillations of period 2.221 s "
        "grow.",
        "Stable for every mean delay if the sensitivity is below 0.5333 per job.",
        "At sensitivity 1 per job unstable for mean delays between 0.3765 s and 10.62 s.",
        "Fastest decay at sensitivity 0.002469 per job: time constant 0.75 s.",
    ]


def test_stability_says_that_a_sensitivity_is_on_the_boundary(run):
    _, out, _ = run("stability", *options(stages=2, sensitivity=0.6))
    line = "On the boundary: an imbalance neither dies out nor grows, oscillating with period "
    assert f"{line}2.221 s.\n" in out


def test_stability_of_one_stage_has_no_limit(run):
    _, out, _ = run("stability", *options(stages=1, delay_mean=4, sensitivity=0, arrival_rate=10))
    assert out.splitlines() == [
        "Exponential delay, mean 4 s, cv 1.",
        "Stable: an imbalance dies out with time constant 4 s, without oscillating.",
        "Stable for every sensitivity.",
        "At sensitivity 0 per job stable for every mean delay.",
        # (1 - mu D)^2 / (4 lambda D), -(mu + 1 / D) / 2.
        "Fastest decay at any sensitivity from 0.05625 per job on: time constant 1.6 s.",
    ]


CONSTANT = {"delay_mean": 2, "sensitivity": 0.5}


@pytest.mark.parametrize("shape", [{}, {"stages": "inf"}, {"delay_cv": 0}])
def test_without_variability_the_delay_is_constant(run, shape):
    _, out, _ = run("stability", *options(**CONSTANT, **shape))
    first, *rest = out.splitlines()
    why = "" if shape else ", as no variability was given"
    assert first == f"Constant delay, mean 2 s, cv 0{why}."
    # Stable for every delay below lambda theta = mu; at 7.5 from the delay with
    # w D + atan(w) = pi, w = sqrt(7.5^2 - 1), on.
    w = np.sqrt(7.5**2 - 1)
    assert rest[2] == "Stable for every mean delay if the sensitivity is below 0.06667 per job."
    critical = (np.pi - np.arctan(w)) / w
    assert rest[3] == f"At sensitivity 0.5 per job unstable for mean delays above {critical:.4g} s."


@pytest.mark.parametrize(
    ("cv", "name", "stages", "actual"),
    [
        (0.5, "Erlang", 4, 0.5),
        (0.0301, "Erlang", 1104, 1104**-0.5),
        (0.6, "MixedErlang", None, 0.6),
        (2, "PhaseType", None, 2),
    ],
)
def test_a_coefficient_of_variation_makes_its_delay(run, monkeypatch, cv, name, stages, actual):
    """All numbers of the law; the summary is that of another, which costs less."""
    summary = stability.stability.summary
    monkeypatch.setattr(stability.stability, "summary", lambda _: summary(two_stage_system()))
    code, out, _ = run("stability", *options(delay_cv=cv), "--json")
    given = json.loads(out)["system"]
    assert code == 0
    assert given["delay"] == name
    assert given["stages"] == stages
    np.testing.assert_allclose([given["delay_mean"], given["delay_cv"]], [1, actual], rtol=1e-12)


def two_stage_system():
    return stability.System(15.0, 1.0, stability.Erlang(1.0, 2), stability.Logit(1.0))


def test_json_is_one_object_with_all_numbers_and_null_for_infinity(run):
    code, out, err = run("stability", *options(stages=2), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out, parse_constant=pytest.fail)
    assert set(found) == {"system", *stability.stability.Summary._fields}
    assert found["stable"] is False
    assert found["decay_time"] is None
    assert found["system"]["stages"] == 2
    # Rounding.
    np.testing.assert_allclose(found["critical_sensitivity"], 0.6, rtol=1e-13)
    np.testing.assert_allclose(found["unstable_means"]["upper"], (11 + 105**0.5) / 2, rtol=1e-13)
    np.testing.assert_allclose(found["best_sensitivity"]["abscissa"], -4 / 3, rtol=1e-13)
    np.testing.assert_allclose(found["margins"]["gain"], 0.6, rtol=1e-13)


def test_plot_writes_the_overview_and_says_where(run, monkeypatch, tmp_path):
    """The overview itself is tested with the pictures."""
    from jaxlb import plot

    panel = plot.Panel("title", "x", "y", [plot.Curve("a", [0, 1], [0, 1], [0, 1])])
    drawn = []
    figure = plot.draw(panel).figure
    monkeypatch.setattr(plot, "stability_overview", lambda s: drawn.append(s) or figure)
    for place, start in (("a.png", b"\x89PNG"), ("b.PDF", b"%PDF"), ("c.svg", b"<?xml")):
        code, out, err = run("stability", *options(stages=2), "--plot", tmp_path / place)
        assert (code, err) == (0, "")
        assert out.endswith(f"Picture: {tmp_path / place}\n")
        assert (tmp_path / place).read_bytes().startswith(start)
    _, out, err = run("stability", *options(stages=2), "--json", "--plot", tmp_path / "a.png")
    assert err == f"Picture: {tmp_path / 'a.png'}\n"
    assert json.loads(out)["stable"] is False
    assert {system.delay.stages for system in drawn} == {2}
    # A link is written through, even one to a file that is not there yet.
    (tmp_path / "link.png").symlink_to(tmp_path / "there.png")
    run("stability", *options(stages=2), "--plot", tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink()
    assert (tmp_path / "there.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("no_computing")
@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("picture.gif", "`--plot` must end with .png, .pdf, .svg, got "),
        ("picture", "`--plot` must end with .png, .pdf, .svg, got "),
        ("absent/picture.png", "`--plot` must be a file that can be written, got "),
        ("folder.png", "`--plot` must be a file that can be written, got "),
    ],
)
def test_a_picture_that_cannot_be_is_reported_before_any_computing(run, tmp_path, place, complaint):
    (tmp_path / "folder.png").mkdir()
    code, out, err = run("stability", *options(stages=2), "--plot", tmp_path / place)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert complaint + repr(str(tmp_path / place)) in err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


@pytest.mark.usefixtures("no_computing")
@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"arrival_rate": -1}, "`--arrival-rate` must be from 1e-50 to 1e+50, got -1."),
        ({"service_rate": 0}, "`--service-rate` must be from 1e-50 to 1e+50, got 0."),
        ({"delay_mean": "nan"}, "`--delay-mean` must be from 1e-50 to 1e+50, got nan."),
        ({"delay_mean": 0}, "`--delay-mean` must be from 1e-50 to 1e+50, got 0."),
        ({"sensitivity": "inf"}, "`--sensitivity` must be 0 or from 1e-50 to 1e+50, got inf."),
        ({"sensitivity": "much"}, "`--sensitivity` must be 0 or from 1e-50 to 1e+50, got much."),
        ({"arrival_rate": "1_5"}, "`--arrival-rate` must be from 1e-50 to 1e+50, got 1_5."),
        ({"stages": 2.5}, "`--stages` must be a whole number from 1 to 1000000, or inf, got 2.5."),
        ({"stages": 0}, "`--stages` must be a whole number from 1 to 1000000, or inf, got 0."),
        (
            {"stages": "nan"},
            "`--stages` must be a whole number from 1 to 1000000, or inf, got nan.",
        ),
        ({"delay_cv": -0.5}, "`--delay-cv` must be 0 or from 0.001 to 1e+06, got -0.5."),
        ({"delay_cv": 1e-4}, "`--delay-cv` must be 0 or from 0.001 to 1e+06, got 0.0001."),
        (
            {"stages": 2, "delay_cv": 0.5},
            "`--stages` must not be given with `--delay-cv`, got 2 and 0.5.",
        ),
    ],
)
def test_a_bad_number_is_one_line_that_names_option_demand_and_value(run, changed, complaint):
    assert run("stability", *options(**changed)) == (2, "", f"jaxlb: {complaint}\n")


@pytest.mark.usefixtures("no_computing")
@pytest.mark.parametrize("missing", README)
def test_a_missing_number_is_named(run, missing):
    given = [
        part for name, value in README.items() if name != missing for part in (f"--{name}", value)
    ]
    assert run("stability", *given) == (2, "", f"jaxlb: Missing option '--{missing}'.\n")


def test_one_stage_is_never_on_the_boundary(run):
    """Its abscissa -(mu + gamma) / 2 is nothing beside a frequency of 1e25, and negative."""
    _, out, _ = run("stability", *options(stages=1, sensitivity=1e49))
    assert "Stable: an imbalance dies out with time constant 1 s, oscillating" in out


def test_no_sensitivity_has_no_sign(run):
    _, out, _ = run("stability", *options(stages=2, sensitivity="-0"))
    assert "At sensitivity 0 per job" in out


@pytest.mark.parametrize(("rate", "shape"), [(1e48, "stages"), (1e-48, "delay_cv")])
def test_the_verdict_scales_with_the_unit_of_time(run, rate, shape):
    """Rates in units of 10^-48 s, or 10^48 s: ends of the window move as the unit."""
    units = {"arrival_rate": 15 * rate, "service_rate": rate, "delay_mean": 1 / rate}
    units["sensitivity"] = 1
    # Two stages, also by their coefficient of variation.
    variable = {"stages": 2} if shape == "stages" else {"delay_cv": 0.5**0.5}
    _, out, _ = run("stability", *options(**units | variable), "--json")
    window = json.loads(out)["unstable_means"]
    np.testing.assert_allclose(window["lower"] * rate, (11 - 105**0.5) / 2, rtol=1e-9)


def test_help_of_stability_teaches(run):
    code, out, _ = run("stability", "--help")
    assert code == 0
    for word in ("--stages", "--delay-cv", "--json", "--plot", "null", "Examples", "1/s", "inf"):
        assert word in out


def test_stability_needs_no_matplotlib_unless_it_draws():
    code = """
import sys
from jaxlb import cli
sys.argv = ["jaxlb", "stability", "--help"]
try:
    cli.main()
finally:
    assert "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
