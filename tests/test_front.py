"""Pictures of trade-offs: what is drawn is what was found."""

import re
from typing import Any

import numpy as np
import pytest

import jaxlb as lb
from jaxlb import plot
from jaxlb.design import Front

VALUES = np.array([[3.0, 9.0], [2.0, 5.0], [1.0, 4.0]])


def found(names=("decay_rate", "settling_time"), values=VALUES, **flags: Any):
    system = lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    count = len(values)
    front = Front(
        names=names,
        units=("1/s", "s"),
        more=(True, False),
        values=values,
        systems=(system,) * count,
        parameters={"routing.sensitivity": np.ones(count)},
        converged=np.ones(count, bool),
        conditional=np.zeros(count, bool),
        present=np.array([1.5, 8.0]),
        message="",
    )
    return front._replace(**flags)


def entries(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def line(ax, label) -> Any:
    return next(line for line in ax.lines if line.get_label() == label)


def test_line_and_dots_are_the_designs_and_marks_the_ends():
    ax = plot.front(found())
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), VALUES)
    (dots,) = ax.collections
    np.testing.assert_array_equal(dots.get_offsets(), VALUES)
    np.testing.assert_array_equal(line(ax, "best decay rate").get_xydata(), VALUES[:1])
    np.testing.assert_array_equal(line(ax, "best settling time").get_xydata(), VALUES[-1:])
    np.testing.assert_array_equal(line(ax, "present setting").get_xydata(), [[1.5, 8.0]])
    assert entries(ax) == ["best decay rate", "best settling time", "present setting"]
    assert ax.get_xlabel() == "decay rate (1/s)"
    assert ax.get_ylabel() == "settling time (s)"
    assert ax.get_title(loc="left") == "Trade-off: better is right and down"


def test_designs_in_doubt_are_marked():
    doubt = np.array([False, True, False])
    ax = plot.front(found(converged=~doubt, conditional=doubt))
    label = "unstable at some lower sensitivity"
    np.testing.assert_array_equal(line(ax, label).get_xydata(), VALUES[1:2])
    (dots,) = ax.collections
    white = np.all(np.asarray(dots.get_facecolor()) == 1, axis=1)
    np.testing.assert_array_equal(white, doubt)
    assert entries(ax)[3:] == [label, "not certified to be best"]


def test_a_bound_is_a_line_on_the_axis_of_the_settling_time():
    up = plot.front(found(), bound=0.5)
    assert set(line(up, "no dispatcher is sooner").get_ydata()) == {0.5}
    swapped = found(("settling_time(tolerance=0.1)", "decay_rate"), more=(False, True))
    across = plot.front(swapped, bound=0.5)
    assert set(line(across, "no dispatcher is sooner").get_xdata()) == {0.5}
    assert across.get_title(loc="left") == "Trade-off: better is left and up"


def test_several_fronts_have_a_colour_and_an_entry_each_on_given_axes():
    ax = plot.front({"full": found(), "partial": found(values=VALUES + 1)})
    assert entries(ax)[:2] == ["full", "partial"]
    assert [ax.lines[k].get_color() for k in range(2)] == [plot.BLUE, plot.ORANGE]
    # The present setting is one system, unless it has no value.
    assert len(line(ax, "present setting").get_xydata()) == 1
    nowhere = found(present=np.array([1.5, np.nan]))
    assert plot.front(nowhere, ax=ax) is ax
    assert "present setting" not in entries(plot.front(nowhere))


def test_values_far_apart_are_on_a_logarithmic_axis():
    ax = plot.front(found(present=np.array([1.5, 80.0])))
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")


def test_nothing_is_cut_off():
    doubt = np.array([False, True, False])
    fronts = {"rules that see the phases": found(converged=doubt, conditional=doubt),
              "rules that see the total": found(values=VALUES + 1)}  # fmt: skip
    ax: Any = plot.front(fronts, bound=0.5)
    figure = ax.figure
    figure.draw_without_rendering()
    for text in (*ax.get_legend().get_texts(), ax.title, ax.xaxis.label, ax.yaxis.label):
        assert figure.bbox.contains(*text.get_window_extent().min)
        assert figure.bbox.contains(*text.get_window_extent().max)


@pytest.mark.parametrize(
    ("fronts", "bound", "complaint"),
    [
        ({}, None, "`fronts` must be one to 4, got 0."),
        ([found()], None, "`fronts` must be of type dict"),
        ({"one": VALUES}, None, "`fronts` must be of type Front"),
        ({"one": found(), "two": found(("a", "b"))}, None, "`fronts` must be of the same crit"),
        (found(("a", "b")), 1.0, "`bound` must be left out unless a criterion is settling_time"),
        (found(), -1.0, "`bound` must be positive and finite"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_what_cannot_be_drawn_is_refused(fronts, bound, complaint):
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        plot.front(fronts, bound)
