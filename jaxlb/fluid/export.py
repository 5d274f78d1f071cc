"""Sensitivity studies for other programs: pandas."""

from collections.abc import Sequence
from typing import Any


def to_pandas(rows: Sequence[Any]) -> Any:
    """Rows with a `name` as a table."""
    import pandas as pd

    return pd.DataFrame(rows).set_index("name")
