"""Limit cycles past the Hopf point: amplitude, period, waveform, stability, birth and limit."""

from .branch import Branch, continuation
from .cycle import LimitCycle, find
from .floquet import Floquet, floquet
from .hopf import HopfNormalForm, hopf_normal_form
from .relay import RelayCycle, relay_limit

__all__ = [
    "Branch",
    "Floquet",
    "HopfNormalForm",
    "LimitCycle",
    "RelayCycle",
    "continuation",
    "find",
    "floquet",
    "hopf_normal_form",
    "relay_limit",
]
