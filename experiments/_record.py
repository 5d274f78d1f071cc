"""How a result is kept: as JSON beside what made it: settings, commit, versions, machine."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

import jaxlb as lb

ROOT = Path(__file__).parent.parent


def main(run: Callable[[Any], dict], config: Any, path: Path) -> dict:
    """`run(config)` in double precision: its results kept at `path`, shown, and returned."""
    jax.config.update("jax_enable_x64", True)
    results = run(config)
    _save(path, config, results)
    for name, row in results.items():
        print(name, _rounded(row))
    return results


def on_one_core() -> None:
    """Start the program again on one core, so that no library has threads; where Linux allows."""
    if sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.execv(sys.executable, sys.orig_argv)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _save(path: Path, config: Any, results: dict) -> None:
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
