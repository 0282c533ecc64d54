"""The loop of Algorithms 2 and 4: draw paths, estimate the gradient, update; whole runs compiled,
many seeds at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.precision import to_float64, to_numpy, traced
from bayespg._support.types import Array
from bayespg.environments import Environment, expected_return
from bayespg.learning.estimators import Estimator, StepEstimator, draw
from bayespg.policies import AnyPolicy, flatten
from bayespg.posterior import LARGE, Covariance, influences

Progress = Callable[[int, int], None]
"""Called with updates done and updates in all."""


class History(NamedTuple):
    """One entry an update, measured before it was applied; runs in front where there are
    several."""

    parameters: Float[Array, "*runs N n"] | None
    """None beyond 2048 parameters."""
    sample_return: Float[Array, "*runs N"]
    """Mean return of the paths drawn."""
    expected_return: Float[Array, "*runs N"]
    """eta(theta) where the environment knows it, NaN where not."""
    gradient_norm: Float[Array, "*runs N"]
    uncertainty: Float[Array, "*runs N"]
    """Square root of the trace of the robust covariance: the norm's standard error, roughly. NaN
    beyond 2048 parameters, where it would cost a solve a path."""
    running: Bool[Array, "*runs N"]
    """Whether the update was made: False once the stopping rule has fired."""


class Evaluations(NamedTuple):
    """What `evaluate` found along the way."""

    updates: Int[np.ndarray, " K"]
    """Updates done before each."""
    values: Any
    """One entry an evaluation, runs in front where there are several."""


class Result(NamedTuple):
    """What training returns."""

    policy: Any
    history: History
    evaluations: Evaluations | None = None


class State(eqx.Module):
    """All a run needs to go on."""

    policy: AnyPolicy
    optimiser: Any
    key: PRNGKeyArray
    running: Bool[Array, ""]


def train(
    environment: Environment,
    policy: AnyPolicy,
    estimator: Estimator,
    update: optax.GradientTransformationExtraArgs,
    *,
    key: PRNGKeyArray,
    updates: int,
    paths: int,
    stop: float = 0.0,
    runs: int | None = None,
    evaluate: Callable[[Any, PRNGKeyArray], Any] | None = None,
    every: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """BPG(theta_0, beta, N, M), Algorithm 2, with N = `updates` and M = `paths`; BAC(theta_0, M,
    epsilon), Algorithm 4, with `estimators.BAC` and epsilon = `stop`.

    A run ends early, its parameters frozen, after a step shorter than `stop`, |theta_{j+1} -
    theta_j| < stop. (The paper's Delta theta does not contain the learning rate; a rate need not
    exist here, so with a constant one `stop` is that rate times epsilon.)

    With `runs`, that many independent runs go side by side; the arrays of `policy` then hold the
    start of each in their leading axis. Paths are drawn in float32, the algebra is float64.
    `evaluate(policy, key)`, compiled, is asked at the start and after `every` updates; `progress`
    is called some fifty times along the way. Neither changes the numbers: the same compiled program
    does the updates, however many it does at a time.
    """
    updates, paths = checks.whole("updates", updates, 1), checks.whole("paths", paths, 1)
    runs = None if runs is None else checks.whole("runs", runs, 1)
    every = None if every is None else checks.whole("every", every, 1)
    stop = checks.real("stop", stop, least=0)
    if evaluate is not None and (every is None or updates % every):
        raise ValueError(f"every: expected a divisor of updates = {updates}, found {every}")
    if evaluate is None and every is not None:
        raise ValueError(f"every: {every} would have no effect without evaluate; leave it out")
    axes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(policy)}
    if runs is not None and axes != {(runs,)}:
        raise ValueError(
            f"runs: {runs} runs need policy arrays with a leading axis of {runs}, found {axes}"
        )
    with jax.enable_x64(True):
        policy = to_float64(policy)
        if runs is None:
            state = begin(policy, update, key)
        else:
            state = jax.vmap(lambda p, k: begin(p, update, k))(policy, jax.random.split(key, runs))
        records, asked = [], []
        key_evaluate = jax.random.fold_in(key, updates)

        def ask(done: int) -> None:
            if evaluate is not None and done % (every or updates) == 0:
                k = jax.random.fold_in(key_evaluate, done)
                asked.append((done, to_numpy(_ask(evaluate, state.policy, k, runs))))

        ask(0)
        axis, done = int(runs is not None), 0
        for upto in _stops(updates, every, progress is not None):
            count = jnp.asarray(upto - done)
            state, record = _advance(
                environment, estimator, update, state, paths, stop, count, updates, runs is not None
            )
            records.append(to_numpy(_first(record, upto - done, axis)))
            done = upto
            ask(done)
            if progress is not None:
                progress(done, updates)
        history = jax.tree.map(lambda *parts: np.concatenate(parts, axis), *records)
        evaluations = None
        if asked:
            values = jax.tree.map(lambda *v: np.stack(v, axis), *(value for _, value in asked))
            evaluations = Evaluations(np.array([done for done, _ in asked]), values)
        return Result(to_numpy(state.policy), history, evaluations)


@eqx.filter_jit
def _ask(evaluate, policy, key, runs):
    if runs is None:
        return evaluate(policy, key)
    return jax.vmap(evaluate)(policy, jax.random.split(key, runs))


def _stops(updates: int, every: int | None, progress: bool) -> list[int]:
    """After how many updates the compiled loop comes back: to evaluate, to report, at the end."""
    stops = {updates}
    if every is not None:
        stops |= set(range(every, updates, every))
    if progress:
        stops |= set(range(max(1, updates // 50), updates, max(1, updates // 50)))
    return sorted(stops)


def _first(record: History, count: int, axis: int) -> History:
    return jax.tree.map(lambda x: jax.lax.slice_in_dim(x, 0, count, axis=axis), record)


def begin(
    policy: AnyPolicy, update: optax.GradientTransformationExtraArgs, key: PRNGKeyArray
) -> State:
    """The state of a run before its first update."""
    policy = jax.tree.map(jnp.asarray, to_float64(policy) if not traced(policy) else policy)
    return State(policy, update.init(flatten(policy)[0]), key, jnp.asarray(True))


@eqx.filter_jit
def _advance(environment, estimator, update, state, paths, stop, count, room, many):
    """`count` updates, of one run or of many side by side, and a history with room for `room`.

    `count` is traced, so that one compiled program serves every count. Programs compiled for
    different counts round differently: XLA removes a loop of one pass and fuses its body otherwise.
    """

    def one(state: State) -> tuple[State, History]:
        return step(environment, estimator, update, state, paths, stop)

    def run(state: State) -> tuple[State, History]:
        put = jax.lax.dynamic_update_index_in_dim

        def body(i, carry):
            state, record = one(carry[0])
            return state, jax.tree.map(lambda h, r: put(h, r, i, 0), carry[1], record)

        record = jax.eval_shape(one, state)[1]
        empty = jax.tree.map(lambda r: jnp.zeros((room, *r.shape), r.dtype), record)
        return jax.lax.fori_loop(0, count, body, (state, empty))

    return (jax.vmap(run) if many else run)(state)


def step(
    environment: Environment,
    estimator: Estimator,
    update: optax.GradientTransformationExtraArgs,
    state: State,
    paths: int,
    stop: float,
) -> tuple[State, History]:
    """One pass of Algorithm 2's loop, lines 2 and 3."""
    key, key_paths = jax.random.split(state.key)
    policy = state.policy
    of_paths = not isinstance(estimator, StepEstimator)
    sample = draw(environment, policy, key_paths, paths, jnp.float32, of_paths)
    posterior = estimator(sample)
    theta, rebuild = flatten(policy)
    change, optimiser = update.update(posterior.mean, state.optimiser, theta, posterior=posterior)
    change = jnp.asarray(change)
    norm = jnp.linalg.norm(posterior.mean)
    # A gradient that is not finite stops the run too: its parameters stay what they were.
    running = state.running & jnp.all(jnp.isfinite(change))
    record = History(
        parameters=theta if theta.size <= LARGE else None,
        sample_return=sample.returns.mean(),
        expected_return=expected_return(environment, policy),
        gradient_norm=norm,
        uncertainty=(
            jnp.asarray(jnp.nan)
            if isinstance(posterior.covariance, Covariance)
            else jnp.sqrt(jnp.sum(influences(posterior) ** 2))
        ),
        running=running,
    )
    policy = rebuild(jnp.where(running, theta + change, theta))
    # Algorithm 4, lines 7 and 8: the step that is too short is taken, and is the last.
    going_on = running & (jnp.linalg.norm(change) >= stop)
    return State(policy, optimiser, key, going_on), record
