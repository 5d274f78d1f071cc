import subprocess
import sys
from importlib.metadata import version

import pytest

import jaxlb as lb


def run(code):
    """Standard output of `code` in a Python of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_import_loads_nothing_that_only_pictures_files_and_commands_need():
    loaded = run("import jaxlb, sys; print(*{name.split('.')[0] for name in sys.modules})")
    assert {"jax", "diffrax", "jaxlb"} <= set(loaded)
    needless = {
        "matplotlib",
        "click",
        "xarray",
        "zarr",
        "dask",
        "scipy",
        "pandas",
        "tqdm",
        "optax",
        "simpy",
    }
    assert not needless & set(loaded)


@pytest.mark.parametrize("x64", [False, True])
def test_import_leaves_the_settings_of_jax_alone(x64):
    code = f"""
import jax
jax.config.update("jax_enable_x64", {x64})
before = dict(jax.config.values)
import jaxlb as lb
lb.stability.spectral_abscissa(lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0)))
print(before == jax.config.values, jax.config.jax_enable_x64)
"""
    assert run(code) == ["True", str(x64)]


PUBLIC = [lb, lb.model, lb.fluid, lb.stability, lb.stochastic]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_public_names_are_listed_sorted_and_there(module):
    names = module.__all__
    assert sorted(names) == list(names)
    assert len(set(names)) == len(names)
    assert all(hasattr(module, name) for name in names)


def test_all_that_the_package_offers_is_listed():
    """In a fresh interpreter, where no test has loaded what is above the package."""
    names = set(run("import jaxlb; print(*vars(jaxlb))"))
    public = {name for name in names if not name.startswith("_")} | {"__version__"}
    # What the module itself needed: a function of importlib.
    assert public - {"version"} == set(lb.__all__)


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_function_and_class_of_a_public_module_is_listed(module):
    own = {
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "").startswith("jaxlb.")
    }
    assert own <= set(module.__all__)


def test_version_is_that_of_the_installed_package():
    assert lb.__version__ == version("jaxlb")
