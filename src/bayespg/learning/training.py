"""The loop of Algorithms 2 and 4 in JAX: draw paths, estimate the gradient, update; whole runs
compiled, many seeds at once.

`train` is a function like any other of JAX. Outside a transformation it compiles itself, computes
in float64 and returns NumPy arrays; inside `jit` and `vmap` it computes in the precision of the
policy and returns JAX arrays. Settings of estimators and updates may be traced there:

    def run(rate, key):
        update = updates.conventional(rate)
        return train(environment, policy, estimator, update, key=key, updates=100, paths=8).history

    jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))(rates, keys)    # settings x seeds
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support import checks, device
from bayespg._support.precision import to_float64, to_numpy, traced
from bayespg._support.types import Array
from bayespg.environments import Environment, expected_return, observation
from bayespg.environments.trajectories import returns
from bayespg.learning.advance import State, advance, batch_of, begin
from bayespg.learning.batch import drawn
from bayespg.learning.estimators import Estimator, refuse_memory
from bayespg.paths.observations import Normalised
from bayespg.paths.rollout import rollout
from bayespg.paths.worlds import actions_in_jax
from bayespg.policies import AnyPolicy, as_arrays, as_dtype, fitting, flatten
from bayespg.posterior import LARGE, Covariance, GradientPosterior, influences
from bayespg.runs.numbers import shown

__all__ = [
    "Evaluations",
    "History",
    "Progress",
    "Result",
    "start",
    "step",
    "train",
]


def __dir__() -> list[str]:
    return sorted(__all__)


Progress = Callable[[int, int], None]
"""Called with updates done and updates in all."""


class History(NamedTuple):
    """One entry per update, measured before it was applied; the first axis is that of runs if there
    are several."""

    parameters: Float[Array, "*runs N n"] | None
    """None beyond 2048 parameters."""
    sample_return: Float[Array, "*runs N"]
    """Mean return of the paths drawn, discounted: what is maximised."""
    total_reward: Float[Array, "*runs N"]
    """The same without a discount: the mean sum of rewards, which other libraries report."""
    expected_return: Float[Array, "*runs N"]
    """eta(theta) if it has a closed form, otherwise NaN."""
    gradient_norm: Float[Array, "*runs N"]
    uncertainty: Float[Array, "*runs N"]
    """Square root of the trace of the robust covariance: roughly the standard error of the norm.
    NaN with many parameters, where it would cost a solve per path."""
    steps: Int[Array, "*runs N"]
    """Environment steps before the update."""
    running: Bool[Array, "*runs N"]
    """Whether the update was made: False once the stopping rule has fired."""


class Evaluations(NamedTuple):
    """Results of `evaluate` during training."""

    updates: Int[np.ndarray, " K"]
    """Updates made before each evaluation."""
    values: Any
    """One entry per evaluation; the first axis is that of runs if there are several."""


class Result(NamedTuple):
    """What training returns."""

    policy: Any
    history: History
    evaluations: Evaluations | None = None
    state: Any = None
    """Normaliser and critic included."""

    def __repr__(self) -> str:
        returns = np.asarray(self.history.sample_return)
        runs = f"{len(returns)} runs of " if returns.ndim > 1 else ""
        first, last = (shown(float(returns[..., i].mean()))[0] for i in (0, -1))
        return f"Result({runs}{returns.shape[-1]} updates, mean return {first} to {last})"


class Loop(NamedTuple):
    """What every update of a run has in common."""

    environment: Environment
    estimator: Estimator
    update: optax.GradientTransformationExtraArgs
    paths: int
    stop: float


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
    normalise: bool = False,
    persistence: float = 0.0,
    evaluate: Callable[[Any, PRNGKeyArray], Any] | None = None,
    every: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """BPG(theta_0, beta, N, M), Algorithm 2, with N = `updates` and M = `paths`; BAC(theta_0, M,
    epsilon), Algorithm 4, with `estimators.BACPaper` and epsilon = `stop`.

    A run ends early, its parameters frozen, after a step shorter than `stop`, |theta_{j+1} -
    theta_j| < stop. (The paper's Delta theta does not contain the learning rate; a rate need not
    exist here, so with a constant one `stop` is that rate times epsilon.)

    With `runs`, that many independent runs are computed in parallel, in equal shares on all
    devices of the default platform; the arrays of `policy` then hold the start of each in their
    leading axis. Paths are drawn in float32, the algebra is float64; inside a transformation the
    algebra has the precision of the policy. `normalise` normalises observations with statistics of
    earlier batches. `persistence` is that of exploration in the first batch; it fades.

    `evaluate(policy, key)` is compiled, and called at the start and after every `every` updates
    with a policy that takes raw observations. `progress` is called about fifty times. Neither
    changes the numbers: one compiled program makes the updates, however many at a time.
    """
    updates, paths = checks.whole("updates", updates, 1), checks.whole("paths", paths, 1)
    stop = checks.real("stop", stop, least=0)
    persistence = checks.real("persistence", persistence, least=0, most=1)
    every = _checked_every(every, updates, evaluate)
    policy = as_arrays(policy)
    runs = _checked_runs(runs, policy)
    loop = Loop(environment, estimator, update, paths, stop)
    inputs = environment, policy, estimator, key, stop, persistence
    if traced(inputs) or closes_over_tracers(update):
        if progress is not None:
            raise ValueError("progress: cannot be called inside jit or vmap; leave it out")
        state = _start_all(runs, loop, policy, key, normalise, persistence)
        return _inside(loop, state, key, updates, runs, evaluate, every)
    with jax.enable_x64(True):
        state = _start_all(runs, loop, to_float64(policy), key, normalise, persistence)
        records, asked = [], []
        key_evaluate = jax.random.fold_in(key, updates)

        def ask(done: int) -> None:
            if evaluate is not None and done % (every or updates) == 0:
                k = jax.random.fold_in(key_evaluate, done)
                asked.append((done, to_numpy(_ask(evaluate, state, k, runs))))

        ask(0)
        axis, done = int(runs is not None), 0
        for upto in _stops(updates, every, progress is not None):
            count = jnp.asarray(upto - done)
            state, record = _advance(loop, state, count, updates, runs is not None)
            records.append(to_numpy(_first(record, upto - done, axis)))
            done = upto
            ask(done)
            if progress is not None:
                progress(done, updates)
        history = jax.tree.map(lambda *parts: np.concatenate(parts, axis), *records)
        return Result(to_numpy(state.policy), history, _gathered(asked, axis), to_numpy(state))


def _gathered(asked: list[tuple[int, Any]], axis: int) -> Evaluations | None:
    """What was asked after each number of updates, if anything was."""
    if not asked:
        return None
    values = jax.tree.map(lambda *v: np.stack(v, axis), *(value for _, value in asked))
    return Evaluations(np.array([done for done, _ in asked]), values)


def closes_over_tracers(update: optax.GradientTransformation) -> bool:
    """Whether the functions of an update hold a value that is being traced, as those of
    ``optax.sgd(rate)`` do."""
    leaves, known = jax.tree.leaves(update), set()
    while leaves:
        leaf = leaves.pop()
        if isinstance(leaf, Tracer):
            return True
        if id(leaf) not in known:
            known.add(id(leaf))
            for cell in getattr(leaf, "__closure__", None) or ():
                leaves.extend(jax.tree.leaves(cell.cell_contents))
    return False


def _inside(
    loop: Loop, state: State, key: PRNGKeyArray, updates: int, runs: int | None,
    evaluate: Callable[[Any, PRNGKeyArray], Any] | None, every: int | None,
) -> Result:  # fmt: skip
    """`train` as part of a larger program: nothing leaves the device, and the updates between two
    evaluations are one pass of a scan."""
    many, every = runs is not None, every or updates
    arrays, fixed = eqx.partition(state, eqx.is_array)
    key_evaluate = jax.random.fold_in(key, updates)

    def ask(arrays, done):
        if evaluate is None:
            return None
        state = eqx.combine(arrays, fixed)
        return _ask(evaluate, state, jax.random.fold_in(key_evaluate, done), runs)

    def block(arrays, done):
        arrays, record = _updated(loop, arrays, fixed, every, every, many)
        return arrays, (record, ask(arrays, done))

    done = jnp.arange(every, updates + 1, every)
    last, (records, values) = jax.lax.scan(block, arrays, done)
    axis = int(many)
    history = jax.tree.map(lambda x: _joined(x, axis), records)
    state = eqx.combine(last, fixed)
    if evaluate is None:
        return Result(state.policy, history, None, state)
    begun = ask(arrays, 0)
    values = jax.tree.map(
        lambda a, b: jnp.concatenate([jnp.expand_dims(a, axis), jnp.moveaxis(b, 0, axis)], axis),
        begun, values,
    )  # fmt: skip
    asked = Evaluations(np.arange(0, updates + 1, every), values)
    return Result(state.policy, history, asked, state)


def _joined(x: Array, axis: int) -> Array:
    """Blocks of a history, along the first axis, as one history along `axis`."""
    x = jnp.moveaxis(x, 0, axis)
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _checked_every(every: Any, updates: int, evaluate: Any) -> int | None:
    every = None if every is None else checks.whole("every", every, 1)
    if evaluate is not None and (every is None or updates % every):
        raise ValueError(f"every: expected a divisor of updates = {updates}, found {every}")
    if evaluate is None and every is not None:
        raise ValueError(f"every: {every} would have no effect without evaluate; leave it out")
    return every


def _checked_runs(runs: Any, policy: AnyPolicy) -> int | None:
    if runs is None:
        return None
    runs = checks.whole("runs", runs, 1)
    axes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(eqx.filter(policy, eqx.is_array))}
    if axes != {(runs,)}:
        raise ValueError(
            f"runs: {runs} runs need policy arrays with a leading axis of {runs}, found {axes}"
        )
    return runs


@eqx.filter_jit
def _ask(evaluate, state, key, runs):
    def one(state, key):
        plain = state.normaliser is None
        return evaluate(state.policy if plain else state.acting, key)

    if runs is None:
        return one(state, key)
    return eqx.filter_vmap(one)(state, jax.random.split(key, runs))


def _stops(updates: int, every: int | None, progress: bool) -> list[int]:
    """Numbers of updates after which the compiled loop returns: to evaluate, to report, at the
    end."""
    stops = {updates}
    if every is not None:
        stops |= set(range(every, updates, every))
    if progress:
        stops |= set(range(max(1, updates // 50), updates, max(1, updates // 50)))
    return sorted(stops)


def _first(record: History, count: int, axis: int) -> History:
    return jax.tree.map(lambda x: jax.lax.slice_in_dim(x, 0, count, axis=axis), record)


@eqx.filter_jit
def _advance(loop: Loop, state: State, count: Int[Array, ""], room: int, many: bool):
    """`count` updates of one run or of many in parallel, and a history with room for `room`.

    `count` is traced, so that one compiled program serves every count. Programs compiled for
    different counts round differently: XLA removes a loop of one pass and fuses its body otherwise.
    """

    arrays, fixed = eqx.partition(state, eqx.is_array)
    arrays, history = _updated(loop, arrays, fixed, count, room, many, everywhere)
    return eqx.combine(arrays, fixed), history


def _updated(loop: Loop, state: State, fixed: State, count, room, many, everywhere=None):
    """`_advance` for the arrays of a state."""

    def one(state: State) -> tuple[State, History]:
        environment, estimator, update, paths, stop = loop
        whole = eqx.combine(state, fixed)
        state, history = step(environment, estimator, update, whole, paths, stop)
        return eqx.filter(state, eqx.is_array), history

    def run(state: State) -> tuple[State, History]:
        put = jax.lax.dynamic_update_index_in_dim

        def body(i, carry):
            state, record = one(carry[0])
            return state, jax.tree.map(lambda h, r: put(h, r, i, 0), carry[1], record)

        record = jax.eval_shape(one, state)[1]
        empty = jax.tree.map(lambda r: jnp.zeros((room, *r.shape), r.dtype), record)
        return jax.lax.fori_loop(0, count, body, (state, empty))

    if not many:
        return run(state)
    return jax.vmap(run)(state) if everywhere is None else everywhere(jax.vmap(run), state)


def everywhere(function: Callable[[Any], Any], state: Any) -> Any:
    """A function of runs side by side, with an equal share of them on every device.

    Devices that would leave shares unequal are not used. Runs do not depend on one another, so
    nothing is sent between devices.
    """
    runs, devices = jax.tree.leaves(state)[0].shape[0], device.all_devices()
    shares = max(count for count in range(1, len(devices) + 1) if runs % count == 0)
    if shares == 1:
        return function(state)
    mesh, spec = Mesh(np.array(devices[:shares]), ("runs",)), PartitionSpec("runs")
    shared = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return shared(state)


def start(
    environment: Environment,
    policy: AnyPolicy,
    estimator: Estimator,
    update: optax.GradientTransformationExtraArgs,
    key: PRNGKeyArray,
    normalise: bool = False,
    persistence: float = 0.0,
) -> State:
    """The state of a run before its first update."""
    refuse_memory(estimator, policy)
    fitting.check_in_jax(policy, environment, actions_in_jax(environment))
    return begin(
        policy, estimator, update, key, observation(environment),
        normalised=normalise, persistence=persistence,
    )  # fmt: skip


def _start_all(
    runs: int | None, loop: Loop, policy: AnyPolicy, key: PRNGKeyArray, normalise: bool,
    persistence: float,
) -> State:  # fmt: skip
    """`start` of one run, or of several side by side."""

    def one(policy, key):
        environment, estimator, update, *_ = loop
        return start(environment, policy, estimator, update, key, normalise, persistence)

    if runs is None:
        return one(policy, key)
    return eqx.filter_vmap(one)(policy, jax.random.split(key, runs))


def step(
    environment: Environment,
    estimator: Estimator,
    update: optax.GradientTransformationExtraArgs,
    state: State,
    paths: int,
    stop: float,
) -> tuple[State, History]:
    """One pass of Algorithm 2's loop: draw a batch and advance."""
    key, key_paths = jax.random.split(state.key)
    state = eqx.tree_at(lambda s: s.key, state, key)
    theta, persistence = flatten(state.policy)[0], state.exploration.persistence
    if state.normaliser is None:
        raw, summed = drawn(
            environment, state.policy, key_paths, paths, jnp.float32, estimator.needs.path_scores,
            persistence,
        )  # fmt: skip
    else:
        acting = Normalised(as_dtype(state.policy, jnp.float32), state.normaliser)
        raw, summed = rollout(environment, acting, key_paths, paths, persistence), None
    batch = batch_of(state, raw, environment.discount, environment.horizon, environment, summed)
    following, record, posterior = advance(
        estimator, update, state, batch, raw, stop, described=False
    )
    history = History(
        parameters=theta if theta.size <= LARGE else None,
        sample_return=batch.returns.mean(),
        total_reward=returns(raw).astype(theta.dtype).mean(),
        expected_return=expected_return(environment, state.policy),
        gradient_norm=record.gradient_norm,
        uncertainty=_uncertainty(posterior),
        steps=state.steps,
        running=state.running & (record.sound > 0),
    )
    return following, history


def _uncertainty(posterior: GradientPosterior) -> Float[Array, ""]:
    if isinstance(posterior.covariance, Covariance):
        return jnp.asarray(jnp.nan)
    return jnp.sqrt(jnp.sum(influences(posterior) ** 2))
