"""Limit cycles past the Hopf point: amplitude, period, waveform."""

from .cycle import LimitCycle, find

__all__ = ["LimitCycle", "find"]
