"""How a result is kept: as JSON beside what made it: settings, commit, versions, machine."""

import json
import platform
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

import jaxlb as lb

ROOT = Path(__file__).parent.parent


def save(path: Path, config: Any, results: dict) -> None:
    """Write the results of a run with `config`, a dataclass, to `path`."""
    content = {"made_with": _made_with(), "config": asdict(config), "results": results}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"Wrote {path.relative_to(ROOT)}.")


def _made_with() -> dict[str, Any]:
    return {
        "commit": _commit(),
        "jaxlb": lb.__version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "double_precision": jax.config.read("jax_enable_x64"),
        "device": jax.devices()[0].device_kind,
        "processor": _processor(),
    }


def _commit() -> str:
    """The commit checked out, and whether the files differ from it."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    """The processor's name as the system gives it."""
    listing = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.*)", listing.read_text()) if listing.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
