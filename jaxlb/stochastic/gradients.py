"""Derivatives of expectations of the exact process in every parameter of the system."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from .. import _checks
from ..model.system import System, require_one
from . import coupled, exact, philox, score, step_choice
from .paths import Given, lanes
from .pathwise import pathwise
from .samples import FEWEST, Estimate, Sample, in_chunks, mean_and_error, observed
from .simulation import MAX_MEAN_JOBS, chosen, initial_counts

METHODS = "pathwise", "score", "coupled"

# Estimated error of the steps of Gaussian leaps.
TOLERANCE = 0.01
# Of finite differences, relative to the number changed.
RELATIVE_STEP = 0.05


class ExpectationGradient(eqx.Module):
    """An expectation and its derivatives.

    - `value`, `value_error`: estimate of E[f], and its standard error.
    - `estimate`, `standard_error`: of d E[f] / d number for every floating-point array of the
      system, in the place of that array: the structure that `jax.grad` gives.
    - `valid`: number of replicas that these come from; the others were left out because the
      dispatcher's rule gave no probabilities on their way (see `Ensemble`).
    """

    value: Float[Array, ""]
    value_error: Float[Array, ""]
    estimate: PyTree
    standard_error: PyTree
    valid: Int[Array, ""]


def expectation_gradient(
    system: System,
    observable: Callable[[Float[Array, "servers compartments"]], Any],
    key: Any,
    time: Any,
    scale: Any = 1.0,
    replicas: int = 4096,
    initial: Any = None,
    method: Literal["pathwise", "score", "coupled"] = "pathwise",
    step_size: Any = None,
    relative_step: Any = None,
) -> ExpectationGradient:
    """Derivatives of E[observable(jobs at `time`)], in all numbers of the system at once.

    **Arguments:**

    - `observable`: from jobs, shape (servers, compartments), as floats that are counts, *not*
      divided by the scale, to one number; a function in JAX, that need not be smooth.
    - `key`, `scale`, `replicas` (at least 2), `initial`: as in `simulate`. What replica k gives
      depends on `key` and k alone; memory for all replicas is one number for each parameter.
    - `time`: s, scalar >= 0.
    - `method`: "pathwise", derivatives of the paths of the Gaussian leap
      (`jaxlb.stochastic.gaussian`; by a ring for many phases, where `jobs` are those in service):
      by far the least variance, for a smooth observable, with a bias where counts are few; it
      takes thousands of numbers, as of a neural network that routes, at the cost of ten;
      "score", the covariance of the observable with the derivative of the path's log-likelihood
      (`jaxlb.stochastic.score`), without bias; "coupled", central differences of paths that share
      their events (`jaxlb.stochastic.coupled`), with the bias of differences.
    - `step_size`: s, of "pathwise"; by default such that `simulate` estimates an error of 0.01, and
      derivatives of the mean queues are within 0.01 of the largest in each number.
    - `relative_step`: of "coupled": each number moves up and down by that part of itself (a zero
      by that part of the root mean square of its array, or of one); 0.05 by default.

    Derivatives are of `dynamics.propensities`: those in probabilities, as the `initial` of
    `PhaseType`, are for each alone, so that only their combinations along sums of one have a
    meaning. A rule's shares are taken to sum to one whatever its numbers.

    At the end of a domain: **"score" does not see a rate that is zero**, and leaves out what it
    would do if it were not, as in `PhaseType` generators with zeros; "coupled" takes a difference
    to one side, with a bias of first order, and gives NaN for a number that can go neither way
    without making a rate negative.

    **Returns:** an `ExpectationGradient`. It has itself no derivative.

    **Raises:** `ValueError` on a bad argument, or where counts might not fit 32 bits.

    **Accuracy:** of E[(Q1 - Q2)^2] / eta^2 at time 2, in theta, lambda, mu and D, for four systems
    of known derivatives: at 10^6 replicas, with errors of 0.5 to 10 %, all 16 from "score" are
    within 1.5 standard errors, and from "coupled" within 2.3. The bias of "coupled" is up to 0.5 %
    there, and 2 % for a step of 0.1. That of "pathwise", with steps of 1/8, is 2, 0.3, 0.2 and
    0.3 % for lambda 2, D 1, theta 1, L 1 and scale 4, from (0, 4); 11, 1.2, 1.1 and 1.3 % for
    lambda 5 and scale 1, where jobs are few; and up to 6 % in the two systems of fewest jobs, but
    44 % of the one slope that is nearly zero (`experiments/expectation_gradients.py`). Standard
    errors are those of a mean of independent paths.

    **Cost:** variance of one path's estimate times its CPU microseconds (one core, float64; divide
    by the microseconds to be spent for the squared standard error), all four parameters at once,
    two servers, L = 1, mu = D = theta = 1 and lambda = 5 (same script):

        scale   method      theta   lambda     mu       D     microseconds a path
        1       pathwise       15      4.5     29      59       2.7
        1       score         340       67    490     850       1.9
        1       coupled      1600      200   2900    4400       5.5
        10      pathwise     0.59    0.047   0.19    0.86       2.7
        10      score          76       34    260     460        14
        10      coupled        52      8.8     71     110        37
        100     pathwise    0.042   0.0018 0.0046   0.048       3.2
        100     score          29       22    200     350       100
        100     coupled       5.9     0.90    4.8      13       330

    "score" costs about as much as the paths alone; "coupled" has two more of them for each number,
    "pathwise" one, and from eleven numbers on, by reverse mode, about ten together, with standard
    errors from the spread of 64 groups of replicas or more.
    A new `observable` compiles anew, so define it once.

    **Source:** Glynn (1990), Communications of the ACM 33(10), 75-84; Anderson (2012), SIAM J.
    Numerical Analysis 50(5), 2237-2258.
    """
    _check_choices(method, step_size, relative_step)
    require_one(system)
    key = _checks.key("key", key)
    time = _checks.not_negative("time", time, "s")
    scale = _checks.positive("scale", scale)
    replicas = _checks.integer("replicas", replicas, 2)
    dtype = jnp.result_type(time, scale, *system.numbers)
    name = chosen(system, "gaussian_leap" if method == "pathwise" else "direct")
    start, in_range = initial_counts(system, initial, scale, MAX_MEAN_JOBS, name)
    if not callable(observable):
        raise ValueError(f"`observable` must map jobs to one number, got {observable!r}.")
    # A ring of steps counts jobs in service only.
    shape = (len(start), 1) if name in step_choice.RINGS else start.shape
    seen = jax.eval_shape(observable, jnp.zeros(shape, dtype))
    if getattr(seen, "shape", None) != ():
        raise ValueError(f"`observable` must return one number, got {seen}.")
    possible = in_range & system.valid & _checks.is_not_negative(time)
    given = Given(
        system,
        key,
        jnp.zeros(1, jnp.int32),
        time.astype(dtype)[None],
        scale.astype(dtype),
        start.astype(dtype),
        possible,
    )
    if method == "score":
        found = _score(given, observable, replicas, lanes())
    elif method == "pathwise":
        choice = _choice(given, name, step_size)
        found = pathwise(given, observable, choice.steps, choice.slots, replicas, lanes())
    else:
        if relative_step is None:
            relative_step = RELATIVE_STEP
        relative_step = _checks.positive("relative_step", relative_step).astype(dtype)
        found = _coupled(given, observable, relative_step, replicas, lanes())
    return _result(system, *found)


def _check_choices(method: str, step_size: Any, relative_step: Any) -> None:
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {method!r}.")
    for name, value, wanted in (
        ("step_size", step_size, "pathwise"),
        ("relative_step", relative_step, "coupled"),
    ):
        if value is not None and method != wanted:
            raise ValueError(f'`{name}` must be left out with method "{method}", got {value!r}.')


def _choice(given: Given, name: str, step_size: Any) -> step_choice.Choice:
    """Steps of the Gaussian leap, and the slots of its ring if it has one."""
    dtype = given.times.dtype
    if step_size is None:
        return step_choice.within(given, name, jnp.asarray(TOLERANCE, dtype), slopes=True)
    step_size = _checks.positive("step_size", step_size, "s").astype(dtype)
    return step_choice.with_steps(given, name, step_size)


@eqx.filter_jit
def _score(given: Given, observable: Callable, replicas: int, lanes: int) -> Estimate:
    system = given.system

    def sample(ids) -> Sample:
        jobs, time_left, valid = _begin(given, ids, replicas)
        state = score.init(jobs, time_left, system)
        step = partial(score.step, scale=given.scale, system=system)
        state, valid = _run(step, state, valid, philox.stream(given.key, ids, 0))
        slopes = jax.vmap(lambda tree: ravel_pytree(tree)[0], -1, -1)(score.score(state, system))
        return observed(observable, state.jobs, given), slopes, valid

    values, scores, valid = in_chunks(sample, replicas, lanes)
    value, value_error = mean_and_error(values, valid)
    count = valid.sum()
    # The sample covariance: each f less the mean of the others, so that the mean is no bias.
    products = (values - value) * (scores - mean_and_error(scores, valid)[0][:, None])
    slope, slope_error = mean_and_error(products, valid)
    slope = slope * count / (count - 1)
    return value, value_error, slope, slope_error, count


@eqx.filter_jit
def _coupled(
    given: Given, observable: Callable, relative_step, replicas: int, lanes: int
) -> Estimate:
    systems, widths = coupled.perturbed(given.system, relative_step)
    parameters = len(widths)
    chains = 1 + 2 * parameters

    def sample(ids) -> Sample:
        jobs, time_left, valid = _begin(given, ids, replicas)
        state = coupled.init(jobs, time_left, chains)
        step = partial(coupled.step, scale=given.scale, systems=systems)
        state, valid = _run(step, state, valid, philox.stream(given.key, ids, 0))
        values = jax.vmap(lambda jobs: observed(observable, jobs, given))(state.jobs)
        raised, lowered = values[1 : 1 + parameters], values[1 + parameters :]
        return values[0], (raised - lowered) / widths[:, None], valid

    values, slopes, valid = in_chunks(sample, replicas, max(lanes // chains, FEWEST))
    return (*mean_and_error(values, valid), *mean_and_error(slopes, valid), valid.sum())


def _begin(given: Given, ids, replicas: int):
    """Jobs, time left and validity; replicas beyond those wanted have no time to move in."""
    given = given._replace(replicas=ids)
    time_left = jnp.where(given.valid & (ids < replicas), given.times[0], 0.0)
    return given.jobs.astype(jnp.int32), time_left, given.valid


def _run(step, state, valid, stream):
    """The state at the record, and whether each replica is still valid."""

    def one_event(carry):
        k, state, valid = carry
        running = state.time_left > 0
        uniforms = philox.uniforms(stream, k, exact.DRAWS, state.time_left.dtype)
        state, info = step(uniforms, state)
        return k + 1, state, valid & (info.valid | ~running)

    carry = jnp.uint32(0), state, valid
    _, state, valid = jax.lax.while_loop(
        lambda carry: jnp.any(carry[1].time_left > 0), one_event, carry
    )
    return state, valid


def _result(system: System, value, value_error, slope, slope_error, valid) -> ExpectationGradient:
    numbers, unravel = ravel_pytree(eqx.filter(system, eqx.is_inexact_array))
    dtype = numbers.dtype
    return ExpectationGradient(
        value.astype(dtype),
        value_error.astype(dtype),
        unravel(slope.astype(dtype)),
        unravel(slope_error.astype(dtype)),
        valid,
    )
