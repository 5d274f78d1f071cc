"""The command line: help that teaches, errors of one line."""

import jax
import pytest

from jaxlb import cli


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `jaxlb ARGUMENTS`; return exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["jaxlb", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def no_computing(monkeypatch):
    """Make it an error to begin the work."""

    def reproduce(*_):
        raise AssertionError("computing began")

    monkeypatch.setattr(cli, "reproduce", reproduce)


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
    assert "paper" in run()[1]
    code, out, _ = run("paper", "--help")
    assert code == 0
    for word in ("--out", "--only", "--horizon", "--seed", "fig7", "Examples"):
        assert word in out


def test_an_interruption_is_told_and_exits_with_130(run, monkeypatch, tmp_path):
    def reproduce(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "reproduce", reproduce)
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
    monkeypatch.setattr(cli, "reproduce", lambda *_: steps.append("begun"))
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
