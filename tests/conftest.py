import jax
import pytest

# The library leaves precision to its caller; closed forms are compared in double.
jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="module")
def quick_compilation():
    """Programs of this module are compiled in half the time, and run slower."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """Compiled programs of a module are dropped after it: of all modules they fill gigabytes."""
    yield
    jax.clear_caches()
