"""Everything about one system's stability on one page."""

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ..model import System
from .abscissa import abscissa_against_sensitivity, effect_of_stages
from .chart import stability_chart
from .locus import root_locus
from .style import STYLE


def stability_overview(system: System) -> Figure:
    """`stability_chart`, `root_locus`, `abscissa_against_sensitivity` and `effect_of_stages`.

    **Raises:** `ValueError` unless the rule is `Logit` and the delay one whose mean can be changed.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.5, 8.4), layout=ConstrainedLayoutEngine(wspace=0.05))
        panels = figure.subplots(2, 2)
        pictures = stability_chart, root_locus, abscissa_against_sensitivity, effect_of_stages
        for picture, ax in zip(pictures, panels.flat, strict=True):
            picture(system, ax=ax)
    return figure
