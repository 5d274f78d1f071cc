"""The two questions left open: how to use the jobs in transit, what it costs not to see them.

Each statement has its number, the truth that it is held against, and whether it holds; what is
recommended is tried on exact paths at scale 100.

Run:     python -m experiments.open_questions
Writes:  experiments/results/open_questions.json, .md and -criteria.png
Cost:    half an hour on two cores.
"""

from pathlib import Path
from typing import Any

from jaxlb import plot
from jaxlb.paper.claims import Claim

from .. import _record
from . import exact, observation, optimisers, robustness, sensitivity_alone
from .case import STAGES, Config

RESULTS = Path(__file__).parent.parent / "results"
NAME = "open_questions"


def run(config: Config) -> dict[str, Any]:
    """All statements, by their text."""
    optima = [sensitivity_alone.optima(stages) for stages in STAGES]
    plot.save(sensitivity_alone.picture(optima), RESULTS / f"{NAME}-criteria.png")
    claims = sensitivity_alone.statements(config, optima)
    trials = exact.trials(config)
    claims += exact.statements(config, trials, exact.found(config, trials))
    claims += observation.statements(observation.found(config))
    claims += optimisers.statements()
    claims += robustness.statements(config)
    _write(claims)
    return {claim.statement: vars(claim) for claim in claims}


def _write(claims: list[Claim]) -> None:
    """The report, beside its pictures."""
    holding = sum(claim.holds for claim in claims)
    lines = [
        "# The two open questions",
        "",
        f"{holding} of {len(claims)} statements hold.",
        "",
        f"![Three criteria over the gain]({NAME}-criteria.png)",
        "",
        "| About | Statement | Computed | Truth | |",
        "|---|---|---|---|---|",
    ]
    for claim in claims:
        cells = (
            claim.section,
            claim.statement,
            claim.computed,
            claim.truth,
            "holds" if claim.holds else "does not hold",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    (RESULTS / f"{NAME}.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    _record.main(run, Config(), RESULTS / f"{NAME}.json")
