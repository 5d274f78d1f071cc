"""The report: figures as PNG, PDF and CSV; claims as Markdown, JSON and one HTML page."""

import base64
import csv
import html
import io
import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

import jax
import matplotlib
import numpy as np

from .. import plot
from .claims import Claim
from .figures import PaperFigure

TITLE = "Load balancing with action delay: figures and claims"


def write_figure(figure: PaperFigure, folder: Path) -> str:
    """Write NAME.png, NAME.pdf and NAME.csv; return the PNG in base64."""
    drawn = plot.side_by_side(figure.panels)
    picture = io.BytesIO()
    with matplotlib.rc_context(plot.STYLE):
        drawn.savefig(picture, format="png")
        # Without a date the same figure gives the same bytes.
        drawn.savefig(folder / f"{figure.name}.pdf", metadata={"CreationDate": None})
    (folder / f"{figure.name}.png").write_bytes(picture.getvalue())
    with (folder / f"{figure.name}.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["panel", "curve", *dict.fromkeys(["t", *figure.columns])])
        for panel in figure.panels:
            for curve in panel.curves:
                against_time = figure.columns[0] == "t"
                columns = (curve.x, curve.y) if against_time else (curve.time, curve.x, curve.y)
                rows = np.stack([np.asarray(column, float) for column in columns], axis=1)
                label = curve.label.replace("$", "")
                table.writerows([panel.title, label, *map(repr, row)] for row in rows.tolist())
    return base64.b64encode(picture.getvalue()).decode("ascii")


def write_claims(claims: Sequence[Claim], folder: Path) -> None:
    """Write claims.json."""
    content = {
        "made_with": _made_with(),
        "holding": sum(claim.holds for claim in claims),
        "claims": [vars(claim) for claim in claims],
    }
    text = json.dumps(content, indent=2, ensure_ascii=False)
    (folder / "claims.json").write_text(text + "\n", encoding="utf-8")


def write_markdown(
    claims: Sequence[Claim], figures: Sequence[tuple[PaperFigure, str]], folder: Path
) -> None:
    """Write report.md, beside the figures that it shows."""
    lines = [f"# {TITLE}", "", _summary(claims), ""]
    if claims:
        lines += [
            "| Section | Claim | Computed | Truth | |",
            "|---|---|---|---|---|",
        ]
    for claim in claims:
        statement = claim.statement + (f" *{claim.remark}*" if claim.remark else "")
        cells = claim.section, statement, claim.computed, claim.truth, _verdict(claim)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    for figure, _ in figures:
        lines += ["", f"## {figure.title}", "", f"![{figure.title}]({figure.name}.png)", ""]
        lines += [figure.caption]
    lines += ["", _footer(), ""]
    (folder / "report.md").write_text("\n".join(lines), encoding="utf-8")


def write_html(
    claims: Sequence[Claim], figures: Sequence[tuple[PaperFigure, str]], folder: Path
) -> Path:
    """Write report.html, which needs no other file; return its path."""
    rows = "\n".join(
        f'<tr class="{"holds" if claim.holds else "fails"}"><td>{html.escape(claim.section)}</td>'
        f"<td>{html.escape(claim.statement)}"
        + (f'<p class="remark">{html.escape(claim.remark)}</p>' if claim.remark else "")
        + f"</td><td>{html.escape(claim.computed)}</td><td>{html.escape(claim.truth)}</td>"
        f'<td class="verdict"><span>{_verdict(claim)}</span></td></tr>'
        for claim in claims
    )
    table = Template(TABLE).substitute(rows=rows) if claims else ""
    pictures = "\n".join(
        f'<figure><img class="panels-{len(figure.panels)}" alt="{figure.title}" '
        f'src="data:image/png;base64,{picture}">'
        f"<figcaption><b>{figure.title}.</b> {html.escape(figure.caption)}</figcaption></figure>"
        for figure, picture in figures
    )
    page = Template(PAGE).substitute(
        title=TITLE,
        summary=html.escape(_summary(claims)),
        figures=pictures,
        claims=table,
        footer=html.escape(_footer()),
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _verdict(claim: Claim) -> str:
    return "holds" if claim.holds else "does not hold"


def _summary(claims: Sequence[Claim]) -> str:
    if not claims:
        return "Figures only; the claims were not asked for."
    holding = sum(claim.holds for claim in claims)
    return (
        f"{holding} of {len(claims)} claims of sections 3 to 5 hold. Each row gives the claim in "
        "our words, the number computed here and the truth it is held against."
    )


def _made_with() -> dict[str, str]:
    return {
        "jaxlb": version("jaxlb"),
        "jax": version("jax"),
        "diffrax": version("diffrax"),
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _footer() -> str:
    made = _made_with()
    return (
        f"Made on {made['date']} by jaxlb {made['jaxlb']} with JAX {made['jax']}, Diffrax "
        f"{made['diffrax']} and Python {made['python']} on {made['device']}. The paper: Load "
        "balancing in parallel infinite-server queues with action delay via phase representation "
        "(2026)."
    )


PAGE = files("jaxlb.paper").joinpath("page.html").read_text(encoding="utf-8")
TABLE = """<h2>Claims</h2>
<div class="wide"><table>
<thead><tr><th>Section</th><th>Claim</th><th>Computed</th><th>Truth</th><th></th></tr></thead>
<tbody>
$rows
</tbody></table></div>"""
