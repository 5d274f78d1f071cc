"""The main job: every figure, every claim, one report."""

from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from . import cases, report
from .claims import CLAIMS
from .figures import IMBALANCE, SAMPLED

FIGURES = (*SAMPLED, *IMBALANCE)
PARTS = (*FIGURES, "claims")


def reproduce(
    out: Path,
    parts: Sequence[str] = PARTS,
    horizon: float = cases.IMBALANCE_HORIZON,
    seed: int = 0,
    progress: Callable[[str], object] = str,
) -> Path:
    """Write the asked parts of `PARTS` and the report on them into the folder `out`.

    **Arguments:** `out`: a folder that exists. `horizon`: s, of Figures 5 to 7. `seed`: of the
    sample paths. `progress`: called with the name of each step when it begins; there are
    `num_steps(parts)` steps.

    **Returns:** the path of `report.html`.

    **Cost:** a minute and a half on two cores, compilation included.
    """
    keys = dict(zip(SAMPLED, jax.random.split(jax.random.key(seed), len(SAMPLED)), strict=True))
    figures, claims = [], []
    for name in FIGURES:
        if name in parts:
            progress(f"Figure {name[3:]}")
            made = SAMPLED[name](keys[name]) if name in SAMPLED else IMBALANCE[name](horizon)
            figures.append((made, report.write_figure(made, out)))
    if "claims" in parts:
        for claim in CLAIMS:
            progress(f"Claim: {claim.__name__.replace('_', ' ')}")
            claims.append(claim())
            # After each, so that a run that is stopped keeps what it found.
            report.write_claims(claims, out)
    progress("Report")
    report.write_markdown(claims, figures, out)
    return report.write_html(claims, figures, out)


def num_steps(parts: Sequence[str]) -> int:
    """How often `reproduce` calls `progress`."""
    return sum(name in parts for name in FIGURES) + ("claims" in parts) * len(CLAIMS) + 1
