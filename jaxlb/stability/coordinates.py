"""Coordinates without bounds, logarithmic near a bound, so that a start may be far off."""

import numpy as np

from .polish import Region


def to_line(region: Region, point: np.ndarray) -> np.ndarray:
    """Each parameter as the logarithm of its distance from each of its bounds."""
    scale = region.scale(point)
    below = np.where(point > region.lower, point - region.lower, scale)
    above = np.where(point < region.upper, region.upper - point, scale)
    line = np.where(np.isfinite(below), np.log(below), 0.0)
    return line - np.where(np.isfinite(above), np.log(above), 0.0)


def from_line(region: Region, first: np.ndarray, line: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The point at these coordinates, and its derivative in each; those without bounds are
    measured from `first`."""
    low, high = np.isfinite(region.lower), np.isfinite(region.upper)
    grown, shrunk = np.exp(np.clip(line, -700, 700)), np.exp(-np.clip(line, -700, 700))
    width = np.where(low & high, region.upper - region.lower, 0.0)
    point = np.where(low, region.lower + grown, region.upper - shrunk)
    stretch = np.where(low, grown, shrunk)
    point = np.where(low & high, region.lower + width / (1 + shrunk), point)
    stretch = np.where(low & high, width / ((1 + shrunk) * (1 + grown)), stretch)
    scale = region.scale(first)
    free = ~low & ~high
    return np.where(free, first + scale * line, point), np.where(free, scale, stretch)
