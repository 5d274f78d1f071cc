"""Tornado plots: the bars are the elasticities."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb
from jaxlb import plot

pytestmark = pytest.mark.usefixtures("quick_compilation")


def of(system, initial):
    """lambda^2 / mu_1 / D^3, whatever comes of it, and a start that does not matter."""
    rates = system.service_rates
    return system.arrival_rate**2 / rates[0] / system.delay.mean**3 + 0 * initial[0]


def study(arrival_rate: Any = 4.0, observable=of):
    system = lb.System(arrival_rate, [2.0, 1.0], lb.Deterministic(0.5), lb.Logit(1.0))
    return lb.fluid.sensitivity(system, observable, [1.0, 0.0])


def test_bars_are_elasticities_sorted_by_size_with_the_sign_as_colour():
    ax = plot.tornado(study())
    bars: Any = ax.patches
    np.testing.assert_allclose([bar.get_width() for bar in bars], [-3, 2, -1], rtol=1e-14)
    colours = [plot.ORANGE, plot.BLUE, plot.ORANGE]
    assert [bar.get_facecolor()[:3] for bar in bars] == [
        tuple(int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)) for colour in colours
    ]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["D = 0.5 s", "λ = 4 /s", "μ₁ = 2 /s"]
    assert [text.get_text() for text in ax.texts] == ["−3", "+2", "−1"]
    # The longest is on top.
    assert ax.yaxis_inverted()
    assert ax.get_title(loc="left") == "of 64"
    assert ax.get_xlabel().startswith("elasticity: % of of ")


def test_only_the_longest_bars_are_drawn_and_on_given_axes():
    ax = plot.tornado(study())
    assert plot.tornado(study(), most=1, ax=ax) is ax
    assert len(ax.patches) == 4


def test_numbers_are_beside_their_bars_and_nothing_is_cut_off():
    ax: Any = plot.tornado(study())
    figure = ax.figure
    figure.draw_without_rendering()
    for bar, text in zip(ax.patches, ax.texts, strict=True):
        assert not text.get_window_extent().overlaps(bar.get_window_extent().shrunk(0.99, 0.5))
        assert figure.bbox.fully_containsx(text.get_window_extent().x0)
        assert ax.bbox.padded(1).fully_containsx(text.get_window_extent().x1)


def test_without_bars_there_is_a_word():
    ax = plot.tornado(study(observable=lambda system, _: 0 * system.arrival_rate + 1))
    assert not ax.patches
    assert [text.get_text().strip() for text in ax.texts] == ["no parameter changes it"]
    assert ax.get_title(loc="left") == "observable 1"


def test_what_has_no_elasticities_is_refused():
    batch = jax.vmap(study)(jnp.array([1.0, 2.0]))
    complaint = "`sensitivity` must be of one system, got a batch of shape (2,)."
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        plot.tornado(batch)
    with pytest.raises(ValueError, match=r"^`sensitivity` must be of a value that was found and"):
        plot.tornado(study(observable=lambda system, _: 0 * system.arrival_rate))
    with pytest.raises(ValueError, match=r"^`most` must be an integer of at least 1, got 0"):
        plot.tornado(study(), most=0)
