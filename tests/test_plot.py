"""Pictures of stability by what is drawn in them, against closed forms and NumPy's eigenvalues."""

import re
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.contour import QuadContourSet

import jaxlb as lb
from jaxlb import plot
from jaxlb.plot import chart, style

from . import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")

SYSTEM = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
CONSTANT = lb.System(15.0, 1.0, lb.Deterministic(1.0), lb.Logit(0.1))
STILL = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(0.0))


@pytest.fixture(scope="module")
def overview():
    return plot.stability_overview(SYSTEM)


@pytest.fixture(scope="module")
def panels(overview):
    """Those of the overview, by the name of their function; the rest are colour bars."""
    names = "chart", "locus", "abscissa", "stages"
    return dict(zip(names, overview.axes, strict=False))


def two_stage_gain(mean):
    """Critical lambda theta for mu = 1, L = 2: equation (22)."""
    return mean + 4 + 4 / mean


def boundary(ax):
    (contour,) = [part for part in ax.collections if isinstance(part, QuadContourSet)]
    return np.concatenate([path.vertices for path in contour.get_paths()]).T


def drawn(ax, label):
    """Data of the line whose label begins so."""
    (line,) = [line for line in ax.lines if str(line.get_label()).startswith(label)]
    return line, np.array(line.get_data(), float)


def eigenvalues(gain, mean, stages):
    return np.linalg.eigvals(closed_forms.difference_matrix(gain, 1.0, mean, stages))


def test_the_chart_draws_the_boundary_of_the_formula(panels):
    mean, theta = boundary(panels["chart"])
    # Straight pieces between points 2 % apart.
    np.testing.assert_allclose(15 * theta, two_stage_gain(mean), rtol=1e-3)
    assert mean.min() < 0.1
    assert mean.max() > 10


def test_the_chart_of_a_constant_delay_draws_its_boundary():
    """With y = w D the root is i w where mu D = -y / tan(y) and lambda theta D = y / sin(y)."""
    mean, theta = boundary(plot.stability_chart(CONSTANT, points=100))
    y = np.linspace(1.6, 3.14, 100_000)
    gain = np.interp(mean, -y / np.tan(y), -1 / np.cos(y))
    # Straight pieces between points 5 % apart.
    np.testing.assert_allclose(15 * theta, gain, rtol=1e-3)


def test_the_chart_takes_any_two_parameters():
    ax = plot.stability_chart(SYSTEM, "service_rate", "arrival_rate", points=100)
    service, arrival = boundary(ax)
    # 2 mu^2 / gamma + 4 mu + 2 gamma with gamma = 2; points 4 % apart.
    np.testing.assert_allclose(arrival, service**2 + 4 * service + 4, rtol=3e-3)
    ax = plot.stability_chart(SYSTEM, "stages", "sensitivity", points=100)
    stages, theta = boundary(ax)
    for number, gain in ((3, 5.12), (4, 4.0515254855), (8, 2.9712315803), (16, 2.5819119132)):
        # Published digits; points 4 % apart.
        np.testing.assert_allclose(15 * np.interp(number, stages, theta), gain, rtol=1e-3)


def test_the_colour_is_the_frequency_of_the_rightmost_root(panels):
    mesh = panels["chart"].collections[0]
    frequency = mesh.get_array()
    (left, right), (bottom, top) = panels["chart"].get_xlim(), panels["chart"].get_ylim()
    means = np.geomspace(left, right, frequency.shape[1])
    thetas = np.geomspace(bottom, top, frequency.shape[0])
    for row, column in ((0, 0), (10, 150), (150, 0), (150, 299), (299, 150)):
        root = max(eigenvalues(15 * thetas[row], means[column], 2), key=lambda r: r.real)
        # LAPACK's rounding.
        np.testing.assert_allclose(frequency.filled(0)[row, column], abs(root.imag), rtol=1e-10)
    assert frequency.mask[0, 0]


@pytest.mark.parametrize("high", [1.02, 1.2, 1.9, 6.0, 40.0, 1e6])
def test_a_logarithmic_axis_has_two_numbers_or_more(high):
    ax = style.new_axes()
    ax.set(xscale="log", xlim=(1.0, high))
    style.log_ticks(ax.xaxis, 1.0, high)
    figure: Any = ax.get_figure()
    figure.draw_without_rendering()
    labelled = [tick.get_text() for tick in ax.get_xticklabels() if tick.get_text()]
    places = [place for place in ax.get_xticks() if 1 <= place <= high]
    assert 2 <= len(places) <= 10
    assert len(set(labelled)) == len(labelled) >= 2


def test_words_are_in_their_regions(panels):
    ax = panels["chart"]
    words = {text.get_text(): text.get_position() for text in ax.texts}
    assert set(words) == {"stable", "unstable"}
    for word, place in words.items():
        mean, theta = ax.transData.inverted().transform(ax.transAxes.transform(place))
        assert (15 * theta > two_stage_gain(mean)) == (word == "unstable")


def test_the_systems_own_point_is_marked_also_beyond_the_chart(panels):
    mark, place = drawn(panels["chart"], "this system")
    np.testing.assert_array_equal(place.ravel(), [1, 1])
    inside = mark.get_markerfacecolor()
    ax = plot.stability_chart(STILL, x_range=(2.0, 4.0), y_range=(0.1, 1.0), points=100)
    mark, place = drawn(ax, "this system (outside)")
    np.testing.assert_allclose(place.ravel(), [2.0, 0.1], rtol=1e-12)
    assert mark.get_markerfacecolor() != inside
    # Without sensitivity all is stable, and yet the chart shows where it would not be.
    assert {text.get_text() for text in ax.texts} == {"stable", "unstable"}


def test_a_law_without_formulas_has_a_coarser_chart():
    """Two stages in all but type."""
    delay = lb.MixedErlang(1.0, jnp.array([0.0, 1.0]))
    mixed = lb.System(15.0, 1.0, delay, lb.Logit(1.0))
    ax = plot.stability_chart(mixed, x_range=(0.5, 4.0), y_range=(0.2, 2.0), points=9)
    mean, theta = boundary(ax)
    # Straight pieces between points 30 % apart.
    np.testing.assert_allclose(15 * theta, two_stage_gain(mean), rtol=0.02)
    assert "cv = 0.7071" in ax.get_title(loc="left")


def roots_of(ax):
    dots = ax.collections[0]
    x, y = dots.get_offsets().T
    kept = np.isfinite(x)
    return np.array(dots.get_array())[kept], (x + 1j * y)[kept]


def test_every_root_drawn_solves_the_characteristic_equation_and_none_is_missing(panels):
    thetas, roots = roots_of(panels["locus"])
    passed = (roots + 1) * (1 + roots / 2) ** 2
    # Rounding; 1e-8 where two roots meet.
    np.testing.assert_allclose(passed, -15 * thetas, rtol=1e-9, atol=1e-9)
    assert len(roots) == 3 * len(np.unique(thetas))
    assert len(np.unique(thetas)) > 1000


def test_roots_of_a_constant_delay_are_drawn_in_pairs():
    for system in (CONSTANT, lb.System(15.0, 1.0, lb.Erlang(1.0, 10**4), lb.Logit(0.1))):
        ax = plot.root_locus(system, [0.002, 0.1, 1.0])
        thetas, roots = roots_of(ax)
        stages = getattr(system.delay, "stages", np.inf)
        decay = np.exp(-roots if np.isinf(stages) else -stages * np.log1p(roots / stages))
        # Rounding of exponentials of up to 20, and of the logarithm times the stages.
        np.testing.assert_allclose(roots + 1 + 15 * thetas * decay, 0, atol=1e-8)
        assert [np.sum(thetas == theta) for theta in (0.002, 0.1, 1.0)] == [6, 6, 6]
        np.testing.assert_allclose(np.sort_complex(roots), np.sort_complex(roots.conj()))
        # One turn apart, and the first within half a turn.
        pairs = np.sort(roots[(thetas == 1) & (roots.imag > 0)].imag)
        assert np.array_equal(pairs // np.pi, [0, 2, 4])


def test_the_locus_marks_start_fastest_decay_crossing_and_the_system(panels):
    ax = panels["locus"]
    np.testing.assert_array_equal(drawn(ax, "without feedback")[1], [[-1, -2], [0, 0]])
    label = "fastest decay: θ = 0.002469"
    np.testing.assert_allclose(drawn(ax, label)[1].ravel(), [-4 / 3, 0], rtol=1e-14)
    x, y = drawn(ax, "Hopf point: θ = 0.6")[1]
    # Rounding.
    np.testing.assert_allclose(x, 0, atol=1e-14)
    np.testing.assert_allclose(y, [np.sqrt(8), -np.sqrt(8)], rtol=1e-14)
    x, y = drawn(ax, "this system: θ = 1")[1]
    truth = np.sort_complex(eigenvalues(15.0, 1.0, 2))
    # LAPACK's rounding.
    np.testing.assert_allclose(np.sort_complex(x + 1j * y), truth, rtol=1e-12)


def test_the_locus_of_any_phases_starts_at_the_roots_of_service_and_of_the_phases():
    law = lb.from_mean_cv(1.0, 1.5)
    assert isinstance(law, lb.PhaseType)
    system = lb.System(15.0, 1.0, law, lb.Logit(0.0))
    ax = plot.root_locus(system, [0.1, 1.0, 10.0])
    x, y = drawn(ax, "without feedback")[1]
    truth = np.append(-1.0, np.diag(law.generator))
    np.testing.assert_allclose(np.sort(x), np.sort(truth), rtol=1e-12)
    np.testing.assert_array_equal(y, 0)
    # Without sensitivity the system is there too.
    np.testing.assert_array_equal(drawn(ax, "this system: θ = 0")[1], [x, y])


def test_the_abscissa_is_drawn_and_marked(panels):
    ax = panels["abscissa"]
    thetas, abscissa = max((line.get_data() for line in ax.lines), key=lambda data: len(data[0]))
    for n in range(0, len(thetas), 100):
        # LAPACK's, near the double root the square root of its rounding.
        truth = np.real(eigenvalues(15 * thetas[n], 1.0, 2)).max()
        np.testing.assert_allclose(abscissa[n], truth, rtol=1e-6)
    for label, place in (
        ("fastest decay: θ = 0.002469, −1.333 /s", (1 / 405, -4 / 3)),
        ("Hopf point: θ = 0.6, 0 /s", (0.6, 0)),
        ("this system: θ = 1, 0.3042 /s", (1, 0.304157806659793)),
    ):
        np.testing.assert_allclose(drawn(ax, label)[1].ravel(), place, rtol=1e-13)


def test_sensitivity_zero_is_marked_at_the_edge():
    ax = plot.abscissa_against_sensitivity(STILL)
    mark, place = drawn(ax, "this system (outside): θ = 0, −1 /s")
    np.testing.assert_allclose(place.ravel(), [ax.get_xlim()[0], -1])
    assert mark.get_markerfacecolor() == "white"


def test_the_effect_of_stages_is_drawn_with_each_critical_sensitivity(panels):
    ax = panels["stages"]
    # Of 15 theta at mu D = 1; published to 10 digits.
    critical = {2: 9, 4: 4.0515254855, 8: 2.9712315803, np.inf: 2.2618263341}
    for stages, gain in critical.items():
        shown = "∞" if np.isinf(stages) else stages
        line, (thetas, abscissa) = drawn(ax, f"L = {shown},")
        assert str(line.get_label()).endswith(f": stable below {gain / 15:.4g}")
        crossing = np.interp(0, abscissa[thetas > 0.05], thetas[thetas > 0.05])
        # Points 3 % apart.
        np.testing.assert_allclose(15 * crossing, gain, rtol=1e-3)
    line, (thetas, abscissa) = drawn(ax, "L = 1, cv 1: always stable")
    # One stage with gamma = mu: -(mu + gamma) / 2 at any sensitivity.
    np.testing.assert_allclose(abscissa, -1, rtol=1e-12)


def test_the_systems_own_law_is_among_those_of_its_mean(panels):
    _, (thetas, abscissa) = drawn(panels["stages"], "this system, cv 0.7071: stable below 0.6")
    np.testing.assert_array_equal(abscissa, drawn(panels["stages"], "L = 2,")[1][1])
    # Two unlike phases in a row, 2/3 and 1/3 s: of variance 5/9.
    law = lb.PhaseType(jnp.array([1.0, 0.0]), jnp.array([[-1.5, 1.5], [0.0, -3.0]]))
    ax = plot.effect_of_stages(lb.System(15.0, 1.0, law, lb.Logit(0.2)))
    _, (thetas, abscissa) = drawn(ax, "this system, cv 0.7454: stable below ")
    for theta, height in zip(thetas[::50], abscissa[::50], strict=True):
        # (r + mu) (r + 3/2) (r + 3) + 9/2 lambda theta.
        roots = np.roots([1, 5.5, 9, 4.5 * (1 + 15 * theta)])
        np.testing.assert_allclose(height, roots.real.max(), rtol=1e-9)


def test_a_coarse_chart_finds_where_oscillation_begins():
    """omega^2 = x y - 1.1 where that is positive: within a fifth of a point of its own grid."""

    def frequency(x, y):
        return np.sqrt(np.maximum(x * y - 1.1, 0.0))

    axis = np.geomspace(0.1, 10, 32)
    xs, ys, finer = chart._finer(axis, axis, frequency(*np.meshgrid(axis, axis)), frequency)
    assert finer.shape == (156, 156) == (ys.size, xs.size)
    exact = frequency(*np.meshgrid(xs, ys))
    np.testing.assert_array_equal(finer > 0, exact > 0)
    # Straight pieces of log omega between points 16 % apart, beside a square root.
    np.testing.assert_allclose(finer, exact, rtol=0.15)


def test_legends_cover_no_data_and_nothing_is_cut_off(overview, panels):
    overview.draw_without_rendering()
    for ax in panels.values():
        legend = ax.get_legend().get_window_extent()
        assert not any(legend.overlaps(other.get_window_extent()) for other in overview.axes)
        assert not legend.overlaps(ax.xaxis.get_tightbbox())
        assert not any(
            legend.overlaps(other.get_legend().get_window_extent())
            for other in panels.values()
            if other is not ax
        )
        assert overview.bbox.padded(1).containsx(legend.x0)
        assert overview.bbox.padded(1).containsx(legend.x1)
        assert overview.bbox.padded(1).containsy(legend.y0)


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_the_same_picture_is_saved_as_the_same_bytes(tmp_path, suffix):
    start = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[suffix]
    panel = plot.Panel("title", "x", "y", [plot.Curve("a", [0, 1], [0, 1], [0, 1])])
    ax = plot.draw(panel)
    saved = []
    for name in ("a", "b"):
        plot.save(ax.figure, tmp_path / f"{name}{suffix.upper()}")
        saved.append((tmp_path / f"{name}{suffix.upper()}").read_bytes())
    assert saved[0] == saved[1]
    assert saved[0].startswith(start)


@pytest.mark.usefixtures("overview")
def test_no_picture_is_left_in_the_state_of_pyplot():
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("work", "complaint"),
    [
        (
            lambda: plot.stability_chart(SYSTEM, "delay"),
            "`x` must be one of arrival_rate, service_rate, mean, stages, sensitivity, "
            "got 'delay'.",
        ),
        (
            lambda: plot.stability_chart(SYSTEM, y="mean"),
            "`y` must be another parameter than `x`, got 'mean'.",
        ),
        (
            lambda: plot.stability_chart(SYSTEM, x_range=(0.0, 1.0)),
            "`x_range` must be positive and finite, got [0. 1.].",
        ),
        (
            lambda: plot.stability_chart(SYSTEM, y_range=(2.0, 1.0)),
            "`y_range` must be increasing, got 2 1.",
        ),
        (
            lambda: plot.stability_chart(SYSTEM, "stages", x_range=(0.5, 4.0)),
            "`x_range` must be at least 1, got 0.5.",
        ),
        (
            lambda: plot.stability_chart(SYSTEM, points=1),
            "`points` must be an integer of at least 2, got 1.",
        ),
        (
            lambda: plot.stability_chart(lb.System(1.0, 1.0, lb.NoDelay(), lb.Logit(1.0))),
            "`x` must be a parameter that varies freely with NoDelay and Logit, got 'mean'.",
        ),
        (
            lambda: plot.stability_chart(
                lb.System(1.0, 1.0, lb.from_mean_cv(1.0, 0.6), lb.Logit(1.0)), "stages"
            ),
            "`x` must be a parameter that varies freely with MixedErlang and Logit, got 'stages'.",
        ),
        (
            lambda: plot.root_locus(SYSTEM, [0.0, 1.0]),
            "`sensitivities` must be positive and finite, got [0. 1.] per job.",
        ),
        (
            lambda: plot.root_locus(SYSTEM, [1.0]),
            "`sensitivities` must be two or more, got [1.] per job.",
        ),
        (
            lambda: plot.effect_of_stages(SYSTEM, (0.5, 2)),
            "`stages` must be at least 1, got [0.5 2. ].",
        ),
        (
            lambda: plot.abscissa_against_sensitivity(
                lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lambda queue: queue / queue.sum())
            ),
            "`routing` must be a logit rule here, got QueueRule.",
        ),
        (
            lambda: plot.save(None, "picture.gif"),
            "`path` must end with .png, .pdf, .svg, got 'picture.gif'.",
        ),
    ],
)
def test_a_bad_argument_is_named(work, complaint):
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        work()
