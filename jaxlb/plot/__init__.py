"""Pictures: one function each, returning the matplotlib Axes; no display and no global state.

Those of stability take a `System`, `tornado` a study of `fluid.sensitivity`. A picture of curves is
a `Panel` of `Curve`s, plain data that can also be written as a table.
"""

from .abscissa import abscissa_against_sensitivity, effect_of_stages
from .advice import tuning
from .chart import stability_chart
from .cycle import bifurcation_diagram, phase_portrait, waveforms
from .fan import ensemble_overview, fan
from .front import front
from .locus import root_locus
from .overview import stability_overview
from .panel import Curve, Panel, draw, side_by_side
from .style import BLACK, BLUE, GREEN, ORANGE, PURPLE, STYLE, save
from .tornado import tornado

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "ORANGE",
    "PURPLE",
    "STYLE",
    "Curve",
    "Panel",
    "abscissa_against_sensitivity",
    "bifurcation_diagram",
    "draw",
    "effect_of_stages",
    "ensemble_overview",
    "fan",
    "front",
    "phase_portrait",
    "root_locus",
    "save",
    "side_by_side",
    "stability_chart",
    "stability_overview",
    "tornado",
    "tuning",
    "waveforms",
]
