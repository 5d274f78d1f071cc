"""The layers of the package: a module imports only what is below it."""

import ast
from pathlib import Path

import pytest

import jaxlb as lb

PACKAGE = Path(lb.__file__).parent

# Lowest first. A name stands for a module, or for a package with all that is in it; those of one
# layer do not import each other. The package itself, "", offers what is below it.
LAYERS = [
    {"_checks", "_elimination", "_exponential", "_logarithms"},
    {"model.delays"},
    {"model.fit", "model.information", "model.quantile"},
    {"model.routing"},
    {"model.memory"},
    {"model.system"},
    {"model.dynamics"},
    {"model.equilibrium"},
    {"model.imbalance"},
    {"model"},
    {"stability"},
    {"fluid", "stochastic"},
    {"design"},
    {"scan", "plot"},
    {""},
    {"paper"},
    {"cli"},
]
# `import jaxlb` must cost what JAX and Diffrax cost: elsewhere, and there inside functions only.
HEAVY = {"matplotlib", "click", "pandas", "xarray", "zarr", "dask"}
MAY_IMPORT_HEAVY = {"plot", "scan", "paper", "cli", "fluid.export", "stochastic.export"}


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in PACKAGE.rglob("*.py")}


def unit_of(module: str) -> str | None:
    """The entry of `LAYERS` that `module` belongs to: the longest name that it starts with."""
    units = {unit for layer in LAYERS for unit in layer}
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in units), None)


def layer_of(unit: str | None) -> int:
    return next(number for number, layer in enumerate(LAYERS) if unit in layer)


def imports(source: str, module: str, is_package: bool) -> set[str]:
    """Absolute names of the modules that `source` imports anywhere, functions included."""
    here = ["jaxlb", *module.split(".")] if module else ["jaxlb"]
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package
            base = here[: len(here) - up] if node.level else []
            base = [*base, node.module] if node.module else base
            for alias in node.names:
                # `from package import name` imports the module of that name, if there is one.
                inner = ".".join([*base, alias.name])
                is_module = inner.removeprefix("jaxlb.") in MODULES
                found.add(inner if is_module else ".".join(base))
    return found


def imports_of(module: str) -> set[str]:
    path = MODULES[module]
    return imports(path.read_text(), module, path.name == "__init__.py")


def uses(module: str) -> set[str]:
    """Modules of the package that `module` imports."""
    inside = {name for name in imports_of(module) if name.split(".")[0] == "jaxlb"}
    return {name.removeprefix("jaxlb").removeprefix(".") for name in inside}


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_its_place_in_the_layers(module):
    assert unit_of(module) is not None


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_lower_layers(module):
    unit = unit_of(module)
    for used in uses(module):
        other = unit_of(used)
        # Within a package of one layer its modules sort themselves out.
        assert other == unit or layer_of(other) < layer_of(unit), f"{module} imports {used}"


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_are_imported_only_where_they_are_used(module):
    heavy = HEAVY & {name.split(".")[0] for name in imports_of(module)}
    assert not heavy or {module, module.split(".")[0]} & MAY_IMPORT_HEAVY


def test_imports_are_found_in_every_form():
    source = """
import jax.numpy as jnp
import jaxlb as lb
from . import spectrum, Any
from .. import _checks
from ..model import System, dynamics
from jaxlb.fluid.trajectory import solve
def f():
    import matplotlib.pyplot as plt
    from ..model.delays import Erlang
"""
    wanted = {
        "jax.numpy",
        "jaxlb",
        "jaxlb._checks",
        "jaxlb.fluid.trajectory",
        "jaxlb.model",
        "jaxlb.model.delays",
        "jaxlb.model.dynamics",
        "jaxlb.stability",
        "jaxlb.stability.spectrum",
        "matplotlib.pyplot",
    }
    assert imports(source, "stability.boundary", False) == wanted
    one_level_up = source.replace("from ..", "from ...").replace("from . ", "from .. ")
    assert imports(one_level_up, "stability.more.boundary", False) == wanted
    assert imports("from .boundary import f", "stability", True) == {"jaxlb.stability.boundary"}
    assert imports("from . import fluid", "", True) == {"jaxlb.fluid"}
