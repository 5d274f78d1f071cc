"""What `jaxlb paper` leaves behind."""

import csv
import json
import re

import numpy as np
import pytest

import jaxlb.paper
from jaxlb import plot
from jaxlb.paper import report
from jaxlb.paper.claims import Claim


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    steps = []
    path = jaxlb.paper.reproduce(folder, ["fig3", "fig7"], horizon=30.0, progress=steps.append)
    return folder, path, steps


def test_only_the_asked_figures_are_made_in_three_formats(made):
    folder, _, _ = made
    names = {path.name for path in folder.iterdir()}
    figures = {f"fig{n}.{ending}" for n in (3, 7) for ending in ("png", "pdf", "csv")}
    assert names == figures | {"report.md", "report.html"}
    assert (folder / "fig3.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "fig3.pdf").read_bytes().startswith(b"%PDF")


def test_progress_names_each_step_and_their_number_is_told_before(made):
    assert made[2] == ["Figure 3", "Figure 7", "Report"]
    assert jaxlb.paper.num_steps(["fig3", "fig7"]) == 3
    assert jaxlb.paper.num_steps(jaxlb.paper.PARTS) > 30


def test_tables_hold_the_plotted_numbers(made):
    with (made[0] / "fig7.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["panel", "curve", "t", "x"]
    linear = [row for row in rows if row["curve"] == "L = 1, linear"]
    t, x = (np.array([float(row[column]) for row in linear]) for column in "tx")
    assert t[-1] == 30.0
    # Closed form of section 4.3 with lambda 10, mu 1, gamma 1/4, theta 1; solver tolerance 1e-10.
    omega = np.sqrt(10 - 0.5625) / 2
    truth = np.exp(-0.625 * t) * (np.cos(omega * t) - 0.375 / omega * np.sin(omega * t))
    np.testing.assert_allclose(x, truth, atol=1e-8)


def test_the_page_needs_no_other_file(made):
    page = made[1].read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', page)
    assert len(sources) == 2
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "Figures only" in page
    assert "up to t = 30" in page


def test_claims_reach_every_format_with_their_verdicts(tmp_path):
    rows = [
        Claim("4.1", "a < b & c", "1 | 2", "1", True, {"n": 1.0}),
        Claim("5", "d", "3", "4", False, {}, "only if e > 0"),
    ]
    report.write_claims(rows, tmp_path)
    report.write_markdown(rows, [], tmp_path)
    page = report.write_html(rows, [], tmp_path).read_text(encoding="utf-8")
    saved = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert saved["holding"] == 1
    assert saved["claims"][1]["remark"] == "only if e > 0"
    assert {"jaxlb", "jax", "python", "device"} <= set(saved["made_with"])
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "1 \\| 2 | 1 | holds |" in text
    assert "| does not hold |" in text
    assert "a &lt; b &amp; c" in page
    assert page.count('class="fails"') == 1


def test_the_same_seed_gives_the_same_figure_and_another_seed_another_path(tmp_path):
    pictures = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        jaxlb.paper.reproduce(tmp_path / name, ["fig2"], seed=seed)
        pictures.append((tmp_path / name / "fig2.pdf").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def test_legends_cover_no_curve_and_nothing_is_cut_off():
    times = np.linspace(0, 1, 5)
    curves = [plot.Curve(f"curve number {n}", times, times, times * n) for n in range(7)]
    panel = plot.Panel("title", "time", "jobs", curves, [("start", 0.0, 0.0)])
    for panels in ([panel], [panel, panel]):
        figure = plot.side_by_side(panels)
        figure.draw_without_rendering()
        legend = figure.legends[0].get_window_extent()
        for ax in figure.axes:
            box = ax.get_tightbbox()
            assert box is not None
            assert not legend.overlaps(box)
        assert figure.bbox.padded(1).containsx(legend.x0)
        assert figure.bbox.padded(1).containsx(legend.x1)


def test_a_panel_is_drawn_on_the_axes_given():
    times = np.linspace(0, 1, 5)
    panel = plot.Panel("title", "time", "jobs", [plot.Curve("a", times, times, times)])
    ax = plot.draw(panel)
    assert plot.draw(panel, ax) is ax
    assert len(ax.lines) == 2
