"""Predictions tried on exact paths."""

import jax
import pytest

import jaxlb as lb
from jaxlb import design

from .cases import A, erlang

pytestmark = pytest.mark.usefixtures("quick_compilation")

KEY = jax.random.key(7)


def test_a_poisson_system_is_confirmed_and_a_wrong_prediction_is_not(monkeypatch):
    """Without feedback the variance is 2 lambda eta / mu exactly; three standard errors are passed
    by one new key in 370."""
    system = erlang(A, 2, lb.Logit(0.0))
    found = design.confirm(system, KEY, 4.0, replicas=16)
    assert found.predicted == pytest.approx(120.0, rel=1e-9)
    assert found.confirmed
    assert found.trusted
    # 800 / 4 records a path that are a time constant apart, in sixteen paths: about 2 %.
    assert 0.01 < found.standard_error / found.variance < 0.05
    monkeypatch.setattr("jaxlb.design.confirmation._predicted", lambda *_: (140.0, True))
    assert not design.confirm(system, KEY, 4.0, replicas=16).confirmed


def test_a_rule_with_a_memory_is_confirmed_too():
    system = erlang(A, 2, lb.LateLogit(0.05, 0.3))
    found = design.confirm(system, KEY, 100.0, replicas=8, duration=100.0)
    assert found.predicted == pytest.approx(
        float(design.observed_noise(system, 100.0).variance), rel=1e-12
    )
    assert found.confirmed


def test_wrong_arguments_are_named():
    system = erlang(A, 2, lb.Logit(0.0))
    with pytest.raises(ValueError, match=r"^`replicas` must be an integer of at least 2"):
        design.confirm(system, KEY, replicas=1)
    with pytest.raises(ValueError, match=r"^`duration` must be positive"):
        design.confirm(system, KEY, duration=-1.0)
