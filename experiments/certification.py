"""Is the rightmost root right everywhere? 10^6 points in extended precision, 3000 in 50 digits.

Sets of random points: all over the domain (mu D in 1e-4 to 1e4, lambda theta D in 1e-6 to 1e6, 1 to
10^6 stages or infinitely many), gamma = mu, next to the double root, one stage, no feedback. Each
root is moved by Newton's method in 64-bit-mantissa arithmetic to the exact one and its branch is
checked: arg (z + m) + L arg V = pi, or real and right of the double root.

Run:     python -m experiments.certification
Needs:   the `test` extra, for mpmath; a long double of 80 bits (x86).
Writes:  experiments/results/certification.json; exit code 1 if a bound is not met.
Cost:    a minute and a half on one core.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import mpmath as mp
import numpy as np

import jaxlb as lb

from . import _record

RESULT = Path(__file__).parent / "results" / "certification.json"
WIDE = np.longdouble


@dataclass(frozen=True)
class Config:
    """Points, and the largest relative errors that are accepted."""

    seed: int = 3
    wide: int = 1_000_000
    others: int = 200_000
    in_fifty_digits: int = 3000
    # What abs(log(kappa / kappa*)) makes a point near the double root.
    near: float = 1e-4
    away_float64: float = 4e-14
    away_float32: float = 3e-5
    near_float64: float = 5e-8
    near_float32: float = 2e-3


def points(config: Config, name: str, rng: np.random.Generator) -> list[np.ndarray]:
    """lambda, mu, D, L and theta of one set."""
    size = config.wide if name == "wide" else config.others
    stages = np.floor(10 ** rng.uniform(0, 6, size))
    stages = np.where(rng.random(size) < 0.4, rng.integers(1, 12, size), stages)
    stages = np.where(rng.random(size) < 0.15, np.inf, stages)
    m, kappa = 10 ** rng.uniform(-4, 4, size), 10 ** rng.uniform(-6, 6, size)
    if name == "gamma = mu":
        stages = np.floor(10 ** rng.uniform(0, 4, size))
        m = stages.copy()
    if name == "one stage":
        stages = np.ones(size)
    if name == "near the double root":
        m = np.minimum(m, 60 * rng.random(size))
        m = np.where(m < 0.99 * stages, m, rng.uniform(0.01, 0.99, size) * stages)
        # Single precision has no gain below 1e-38.
        m = np.where(double_gain(m, stages) > 1e-30, m, m / 10)
        distance = 10 ** rng.uniform(-16, -4, size) * rng.choice([-1, 1], size)
        kappa = double_gain(m, stages) * (1 + distance)
    if name == "no feedback":
        kappa = np.zeros(size)
    arrival, mean = 10 ** rng.uniform(-2, 2, (2, size))
    return [arrival, m / mean, mean, stages, kappa / (arrival * mean)]


SETS = ("wide", "gamma = mu", "near the double root", "one stage", "no feedback")


def double_gain(m: Any, stages: Any) -> Any:
    """kappa* = ((L - m) / (L + 1))^(L + 1), its limit at infinity, (1 - m)^2 / 4 at one stage."""
    many = np.isinf(stages)
    L = np.where(many, 1.0, stages)
    finite = np.exp((L + 1) * np.log1p(-np.where(m < L, (1 + m) / (L + 1), 0)))
    gain = np.where(many, np.exp(-(1 + m)), np.where(m < L, finite, 0))
    return np.where(stages == 1, ((1 - m) / 2) ** 2, gain)


def exact(given: Any, found: Any) -> Any:
    """The roots next to `found` in extended precision, and whether each is on the right branch."""
    arrival, service, mean, stages, theta = (values.astype(WIDE) for values in given)
    m, kappa, z = service * mean, arrival * theta * mean, found.astype(np.clongdouble)
    z = z * mean
    many = np.isinf(stages)
    L = np.where(many, WIDE(1), stages)
    s = np.where(many, WIDE(0), 1 / L)
    t = np.where(many, WIDE(1), s)
    real = z.imag == 0
    sign = np.where(real, -1, 1)
    off = kappa == 0
    half_turn = np.arctan2(WIDE(0), WIDE(-1))
    target = np.log(np.where(off, WIDE(1), kappa)) + np.where(real, 0, 1j * half_turn)
    # A root that was rounded onto -m is left of it by what the feedback pulls there.
    pull = np.exp(-np.where(many, z.real, log1p(np.where(real & (m < L), s * z, 0)).real / t))
    z = np.where(real & (z.real == -m), z - kappa * pull, z)
    for _ in range(4):
        v, p = 1 + s * z, z + m
        bad = off | (v == 0) | (p == 0)
        v, p = np.where(bad, 1, v), np.where(bad, 1, p)
        value = np.where(many, z, log1p(s * z) / t) + np.log(sign * p) - target
        slope = 1 / v + 1 / p
        z = np.where(bad | (slope == 0), z, z - value / np.where(slope == 0, 1, slope))
    turned = np.angle(z + m) + np.where(many, z.imag, np.angle(1 + s * z) / t)
    critical = -(1 + m) / (1 + s)
    slack = 1e-6 * (1 + m)
    right = np.where(
        real,
        (z.real >= critical - slack) & (z.real + m <= slack * kappa) & (1 + s * z.real > 0),
        np.abs(turned - np.pi) < 1e-6,
    )
    close = np.abs(np.log(kappa / double_gain(m, stages))) < 0.1
    z = np.where(close, near_double(m, kappa, stages), z)
    # There the found root must lie on the same side, or be the double root itself.
    right = np.where(
        close, np.abs(z - found * mean) < 0.5 * np.abs(z + (1 + m) / (1 + s)) + slack, right
    )
    one = stages == 1
    quadratic, plain = of_one_stage(m, kappa), -np.where(many, m, np.minimum(m, L)) + 0j
    z = np.where(one, quadratic, np.where(off, plain, z))
    return z / mean, right | one | off


def near_double(m: Any, kappa: Any, stages: Any) -> Any:
    """The root by Newton's method in eta = ((1 + s) z + 1 + m) / c, small near the double root."""
    s = np.where(np.isinf(stages), WIDE(0), 1 / np.where(np.isinf(stages), WIDE(1), stages))
    t, c = np.where(s == 0, WIDE(1), s), 1 - s * m
    delta = np.clip(np.log(kappa / double_gain(m, stages)), -0.2, 0.2)
    eta = np.sqrt((-2 * delta / (1 + s)).astype(np.clongdouble))
    for _ in range(12):
        value = np.where(s == 0, eta, log1p(s * eta) / t) + log1p(-eta) - delta
        slope = -(1 + s) * eta / ((1 + s * eta) * (1 - eta))
        eta = np.where(slope == 0, eta, eta - value / np.where(slope == 0, 1, slope))
    return (c * eta - 1 - m) / (1 + s)


def of_one_stage(m: Any, kappa: Any) -> Any:
    """Rightmost or upper root of (z + m) (z + 1) + kappa, without cancellation."""
    gap = ((1 - m) / 2) ** 2 - kappa
    other = -(1 + m) / 2 - np.sqrt(np.maximum(gap, 0))
    real, turning = (m + kappa) / other, -(1 + m) / 2 + 1j * np.sqrt(np.maximum(-gap, 0))
    return np.where(gap >= 0, real + 0j, turning)


def log1p(z: Any) -> Any:
    """log(1 + z) for complex z, without cancellation near zero."""
    size = z.real * (2 + z.real) + z.imag**2
    length = np.where(abs(size) < 0.5, np.log1p(size), 2 * np.log(abs(1 + z)))
    return length / 2 + 1j * np.arctan2(z.imag, 1 + z.real)


def fifty_digits(given: list[np.ndarray], found: np.ndarray) -> np.ndarray:
    """Relative distance of each root from the exact one in 50-digit arithmetic."""
    mp.mp.dps = 50
    errors = []
    for *numbers, stages, sensitivity, root in zip(*given, found, strict=True):
        arrival, service, mean, theta = map(mp.mpf, (*numbers, sensitivity))
        s = mp.mpf(0) if np.isinf(stages) else 1 / mp.mpf(stages)
        m, kappa, z = service * mean, arrival * theta * mean, mp.mpmathify(complex(root)) * mean
        if kappa == 0:
            z = -(min(m, 1 / s) if s else m)
        elif s == 1:
            gap = ((1 - m) / 2) ** 2 - kappa
            z = -(1 + m) / 2 + mp.sqrt(gap)
        elif s * m < 1 and abs(delta := mp.log(kappa / star(m, s))) < 0.1:
            eta = mp.sqrt(-2 * delta / (1 + s))
            for _ in range(12):
                value = (mp.log(1 + s * eta) / s if s else eta) + mp.log(1 - eta) - delta
                eta += value * (1 + s * eta) * (1 - eta) / ((1 + s) * eta) if eta else 0
            z = ((1 - s * m) * eta - 1 - m) / (1 + s)
        else:
            real = z.imag == 0
            if z == -m:
                z = -m - kappa * (mp.exp(m) if not s else (1 - s * m) ** -stages)
            for _ in range(8):
                v, p = 1 + s * z, z + m
                value = (mp.log(v) / s if s else z) + mp.log(-p if real else p) - mp.log(kappa)
                z -= (value - (0 if real else mp.pi * 1j)) / (1 / v + 1 / p)
        errors.append(float(abs(mp.mpmathify(complex(root)) * mean - z) / abs(z)))
    return np.array(errors)


def star(m: Any, s: Any) -> Any:
    """kappa* as in `double_gain`."""
    return ((1 - s * m) / (1 + s)) ** (1 / s + 1) if s else mp.exp(-1 - m)


def run(config: Config) -> dict:
    """Errors of each set, in both precisions."""
    rng = np.random.default_rng(config.seed)
    root = jax.jit(lambda *given: lb.stability.erlang_root(*given).root)
    rows = {}
    # Masked points divide by zero.
    np.seterr(all="ignore")
    for name in SETS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        double = points(config, name, rng)
        single = [values.astype(np.float32) for values in double]
        row = {"points": len(double[0])}
        for precision, given in (("float64", double), ("float32", single)):
            found = np.asarray(root(*given))
            truth, right = exact([values.astype(float) for values in given], found)
            wide = [values.astype(WIDE) for values in given]
            gain = double_gain(wide[1] * wide[2], wide[3])
            distance = np.abs(np.log(wide[0] * wide[4] * wide[2] / gain))
            error = np.abs(found - truth).astype(float) / np.abs(truth).astype(float)
            far = ~(distance < config.near)
            row |= {
                f"{precision}_nan": int(np.isnan(found).sum()),
                f"{precision}_wrong_branch": int((~right[far]).sum()),
                f"{precision}_median": float(np.median(error)),
                f"{precision}_max_away": float(error[far].max(initial=0)),
                f"{precision}_max_near": float(error[~far].max(initial=0)),
            }
        rows[name] = row
    few = [points(config, name, rng) for name in SETS]
    share = config.in_fifty_digits // len(SETS)
    some = [np.concatenate([of[:share] for of in column]) for column in zip(*few, strict=True)]
    errors = fifty_digits(some, np.asarray(root(*some)))
    near = np.arange(len(errors)) // share == SETS.index("near the double root")
    rows["fifty digits"] = {
        "points": len(errors),
        "float64_max_away": errors[~near].max(),
        "float64_max_near": errors[near].max(),
    }
    return rows


def complaints(config: Config, rows: dict) -> list[str]:
    """What is not as it must be."""
    found = []
    for name, row in rows.items():
        for key, value in row.items():
            precision, _, what = key.partition("_")
            bound = {
                "nan": 0,
                "wrong_branch": 0,
                "max_away": getattr(config, f"away_{precision}", None),
                "max_near": getattr(config, f"near_{precision}", None),
            }.get(what)
            if bound is not None and not value <= bound:
                found.append(f"{name}: {key} is {value:.3g}, above {bound:.3g}")
    return found


if __name__ == "__main__":
    config = Config()
    failed = complaints(config, _record.main(run, config, RESULT))
    print("\n".join(failed) or "Every bound is met.")
    sys.exit(bool(failed))
