"""The row of a claims report."""

from dataclasses import dataclass, field
from typing import Any


def pair(root: complex, digits: int = 5) -> str:
    """A complex-conjugate pair for people."""
    return f"{root.real:.{digits}f} ± {root.imag:.{digits}f} i"


@dataclass(frozen=True)
class Claim:
    """One claim of the paper, in our words.

    `computed` and `truth` are for people, `numbers` for programs; `remark` says where the wording
    is true only in some regime.
    """

    section: str
    statement: str
    computed: str
    truth: str
    holds: Any
    numbers: dict[str, Any] = field(default_factory=dict)
    remark: str = ""

    def __post_init__(self):
        # Comparisons of arrays give numpy booleans, which JSON does not know.
        object.__setattr__(self, "holds", bool(self.holds))
        object.__setattr__(self, "numbers", {k: float(v) for k, v in self.numbers.items()})
