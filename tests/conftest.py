import jax
import jaxtyping
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


@pytest.fixture
def run(monkeypatch, capsys):
    """Run `jaxlb ARGUMENTS`; return exit code, stdout and stderr."""
    # Not before type checks are in place.
    from jaxlb import cli

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["jaxlb", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def without_type_checks():
    """A user has no type checker at run time: wrong types must meet the package's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
