"""`MBAC`: a model of the task is learned from real episodes, and the policy on simulated ones.

    agent = bayespg.MBAC("Pendulum-v1", seed=0)
    agent.learn(3_000)
    agent.model.environment()

An update plays a real episode, or a few where they are short, updates the model
(`bayespg.models`) with all transitions so far, and improves the policy on episodes that the model
simulates (`bayespg.agents.simulated`).
"""

import concurrent.futures
import dataclasses
from typing import Any, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support.precision import to_numpy
from bayespg._support.random import child, episode_seeds, fast_key, host_key
from bayespg._support.types import Array
from bayespg._support.warning import warn
from bayespg.agents import build, describe, metrics, serialise, settings, simulated
from bayespg.agents.agent import BAC
from bayespg.agents.base import BaseAgent
from bayespg.agents.metrics import Evaluation
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.advance import NotFinite
from bayespg.learning.observations import Normalised, Normaliser, no_statistics
from bayespg.models import Forecast, Knowledge, Model, forecast, inside
from bayespg.models import model as models
from bayespg.models.data import Transitions, empty, inputs_of
from bayespg.paths.worlds import OnHost
from bayespg.policies import AnyPolicy, as_arrays, as_dtype
from bayespg.policies.features import Fourier
from bayespg.policies.heads import Choice, Composed, Normals, initial_scale
from bayespg.runs.columns import Column

NAME = "mbac"
PARTS = {"policy": "fourier", "estimator": NAME, "update": "simulated"}
"""What a run's configuration names."""
SETTINGS = tuple(settings.GivenToMBAC.__annotations__)
"""The settings that MBAC uses; the others of `Settings` have no effect on it."""
UPDATES, PATHS, LONGEST = 15, 64, 200
"""Updates on simulated episodes per real one, simulated episodes per update, and their steps."""
WAVES, SCALES = 50, {"choices": 0.3, "means": 1.0}
"""Number and size of the waves in which the policy is linear."""
ENOUGH, MOST = 30, 8
"""Steps that the episodes of an update have together at least, and the most episodes."""
AGAIN = 1.3
"""When there are this many times the transitions, the length scale of the model is chosen again,
and a policy that learns from scratch is compared with the one so far. An early model may be wrong
where nothing was observed; a policy that has learned to exploit that is hard to correct."""
LAST = 3
"""Updates whose simulated returns are compared."""
LARGEST = 1e12
"""A weight of the statistics of real observations beside which simulated ones do not count."""
FADE, ENDED = 0.05, 0.2
"""Share of the persistence of exploration that an update takes away, and the further share if all
its episodes ended before the horizon."""
CURIOSITY, COST = 1.0, 1e-4
"""What is earned per standard deviation of what is not known, while rewards say nothing about
states; and the rounding, as a share of the largest reward, up to which a reward is a function of
the action."""
FIRST, WINDOW = 5, 20
"""Updates whose real returns are compared, at the beginning of a run and now."""
HALF = 0.5
"""A model that predicts a smaller share of the variance of new transitions is of little use, unless
returns have risen."""
TESTED, STEPS = 128, 10
"""New transitions on which the model is tested before it learns from them, and the steps after
which its intervals are."""
KNOWN = "function"
"""What a stored configuration has in place of a function."""


class Record(eqx.Module):
    """What real episodes said about the model. Numbers that are not there yet are NaN."""

    first: Float[np.ndarray, " f"]
    """Returns of the first updates."""
    returns: Float[np.ndarray, " w"]
    """Returns of the last ones, the newest last."""
    predicted: Float[np.ndarray, " w"]
    """The share of the variance of their transitions that the model before had predicted."""
    useless: Bool[np.ndarray, ""]
    """Whether the model was given up."""

    def after(self, value: float, predicted: float) -> "Record":
        """With another update. The model is given up if `WINDOW` updates returned no more than the
        first ones did, by two standard errors, and it predicted less than `HALF` of their
        variance."""
        first = np.array(self.first)
        if np.isnan(first).any():
            first[np.argmax(np.isnan(first))] = value
        returns = np.append(self.returns[1:], value)
        shares = np.append(self.predicted[1:], predicted)
        error = np.sqrt(returns.var(ddof=1) / WINDOW + first.var(ddof=1) / FIRST)
        risen = returns.mean() > first.mean() + 2 * error
        known = np.nanmean(shares) if np.isfinite(shares).any() else np.nan
        useless = np.isfinite(returns).all() and not risen and known < HALF
        return Record(first, returns, shares, np.asarray(useless))


def _no_record() -> Record:
    first, returns, predicted = (np.full(n, np.nan) for n in (FIRST, WINDOW, WINDOW))
    return Record(first, returns, predicted, np.asarray(False))


class State(eqx.Module):
    """Everything a run needs to continue."""

    policy: Composed
    normaliser: Normaliser
    values: Float[Array, " q"]
    """Weights of the values of simulated states."""
    data: Transitions
    length: Int[np.ndarray, ""]
    """Which length scale the model has."""
    judged: Int[np.ndarray, ""]
    """Transitions by which it was chosen."""
    key: PRNGKeyArray
    updates: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    steps: Int[np.ndarray, ""]
    persistence: Float[Array, ""]
    record: Record
    plain: Any
    """The state of `BAC`, which takes over where the model is of no use."""

    @property
    def acting(self) -> AnyPolicy:
        if self.record.useless:
            return self.plain.acting
        return Normalised(self.policy, self.normaliser)

    def counted(self, played: Evaluation, **changes: Any) -> "State":
        """The state after another update, which learned from these episodes."""
        return dataclasses.replace(
            self, updates=np.asarray(self.updates + 1),
            episodes=np.asarray(self.episodes + len(played.returns)),
            steps=np.asarray(self.steps + played.lengths.sum()), **changes,
        )  # fmt: skip


@describe.with_settings("environment", only=SETTINGS, reward=None, terminated=None, options=None)
class MBAC(BaseAgent):
    """Model-based Bayesian actor-critic.

    `reward` and `terminated` are functions of one state, one action as the environment gets it, and
    the state that follows, written in JAX, for users who know them; otherwise both are learned. The
    other settings are `discount`, `horizon`, `workers`, `episode_timeout`, `persistence` and
    `seed`, as for other agents.
    """

    def __init__(
        self,
        environment: Any,
        *,
        reward: Any = None,
        terminated: Any = None,
        options: dict[str, Any] | None = None,
        **given: Unpack[settings.GivenToMBAC],
    ):
        super().__init__(
            environment=environment, reward=reward, terminated=terminated, options=options, **given
        )
        s = settings.of_kind("MBAC", given, SETTINGS, ["reward", "terminated"], PARTS)
        _refuse_what_is_no_function(reward=reward, terminated=terminated)
        self.known = Knowledge(reward, terminated)
        self.world = where = build.world_of(environment, s, self.options)
        vectors = where.real and not where.masks and len(where.observation.shape) == 1
        if where.actions is None or not vectors:
            raise ValueError(
                "environment: MBAC needs observations that are vectors of real numbers, and known "
                "actions without masks; use bayespg.BAC for others"
            )
        if isinstance(where, OnHost):
            where.host.observations.refuse_images()
        self.names = {"environment": environment, **PARTS}
        self.settings = s.in_force(
            build.of_world(s, where) | {"persistence": (s["persistence"], "")}
        )
        own = {name: getattr(self.settings, name) for name in SETTINGS}
        self._plain = BAC(environment, options=options, **own)
        self._plain.world = where
        size, inputs = where.observation.shape[0], inputs_of(where.actions)
        self._values = simulated.basis(size)
        key = host_key(s.seed)
        self._basis = models.basis(child(key, 3), size, inputs.size)
        self._fitted: tuple[Any, Model] | None = None
        features = Fourier(size, WAVES, scale=SCALES["choices" if inputs.sizes else "means"])
        if inputs.sizes:
            head: Any = Choice(features.size, inputs.sizes, where.actions.scalar)  # pyright: ignore
        else:
            head = Normals(features.size, inputs.size, initial_scale(inputs.size))
        zero = np.asarray(0, np.int64)
        with self.precision():
            self.state = State(
                policy=as_dtype(as_arrays(Composed(features, head)), jnp.float32),
                normaliser=no_statistics((size,)), values=jnp.zeros(self._values.size),
                data=empty(size, inputs), length=zero, judged=zero, key=child(key, 1),
                updates=zero, episodes=zero, steps=zero,
                persistence=jnp.asarray(s["persistence"], jnp.float32),
                record=_no_record(), plain=to_numpy(self._plain.state),
            )  # fmt: skip
        self._fresh = self.state.policy
        self.reset()

    @property
    def episodes(self) -> int:
        """The number of episodes that are played at once."""
        return self._plain.episodes if self.state.record.useless else 1

    @property
    def policy(self) -> AnyPolicy:
        return self._plain.policy if self.state.record.useless else self.state.policy

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        return serialise.parameters(self.policy)

    def with_parameters(self, parameters: Any) -> "MBAC":
        other = self._again()
        with self.precision():
            policy = serialise.replaced(self.policy, parameters)
        plain = bool(self.state.record.useless)
        other._take(eqx.tree_at(lambda s: (s.plain if plain else s).policy, self.state, policy))
        return other

    @property
    def config(self) -> dict[str, Any]:
        known = {k: None if v is None else KNOWN for k, v in self.known._asdict().items()}
        return self._named() | known | {k: getattr(self.settings, k) for k in SETTINGS}

    @property
    def model(self) -> Model:
        """The model of the task, given all transitions so far."""
        data = self.state.data
        if data.count == 0:
            raise ValueError("model: nothing has been observed yet; call learn first")
        if self._fitted is None or self._fitted[0] is not data:
            self._fitted = data, models.posterior(data, self._basis, self.state.length)
        return self._fitted[1]

    def forecast(self, seed: int = 0) -> tuple[Transitions, Forecast]:
        """A real episode that is not learned from, and the states that the model predicts from its
        first state and its actions."""
        key = child(host_key(settings.seed("seed", seed)), 3)
        with self.precision():
            paths = self.world.play(self.state.acting, key, episode_seeds(seed, -1, 1))
        old = self.state.data
        real = empty(old.states.shape[1], old.inputs, paths.mask.size).with_paths(paths)
        n = real.count
        return real, forecast(self.model, real.states[0], real.actions[:n])

    def _learn_from(self, played: list[Trajectories]) -> tuple[Evaluation, Any, dict[Any, float]]:
        """Update the model, and improve the policy on episodes that it simulates."""
        if self.state.record.useless:
            return self._learn_plainly(played)
        old, data = self.state, self.state.data
        fresh = empty(data.states.shape[1], data.inputs, sum(paths.mask.size for paths in played))
        for paths in played:
            data, fresh = data.with_paths(paths), fresh.with_paths(paths)
        tested = self._tested(fresh)
        again = int(data.seen) > AGAIN * int(old.judged)
        model = models.posterior(data, self._basis, None if again else old.length)
        key = jax.random.key_data(child(child(old.key, 2), int(old.updates)))
        key = fast_key(int(np.asarray(key)[0]) << 31 | int(np.asarray(key)[1]) >> 1)
        starts = [(old.policy, old.values)]
        if again and int(old.updates) > 0:
            starts.append((self._fresh, jnp.zeros_like(old.values)))
        with concurrent.futures.ThreadPoolExecutor(len(starts)) as pool:
            tried = list(pool.map(lambda start: self._improved(model, data, key, *start), starts))
        policy, values, progress = max(tried, key=lambda one: np.mean(one[2].returns[-LAST:]))
        numbers = jax.tree.leaves(eqx.filter((policy, values), eqx.is_inexact_array))
        if not all(np.isfinite(x).all() for x in numbers):
            raise NotFinite(
                f"update {int(old.updates) + 1}: the policy or its values are not finite"
            )
        episodes = metrics.evaluation(*played)
        ended = np.concatenate([np.asarray(paths.terminated) for paths in played])
        left = (1 - FADE) * (1 - ENDED * np.mean(ended))
        self.state = old.counted(
            episodes, policy=policy, normaliser=_units(model), values=values, data=data,
            length=np.asarray(model.length, np.int64),
            judged=np.asarray(data.seen if again else old.judged, np.int64),
            persistence=jnp.asarray(old.persistence * left, jnp.float32),
            record=old.record.after(float(episodes.returns.mean()), tested[Column.PREDICTED]),
        )  # fmt: skip
        self._fitted = data, model
        if self.state.record.useless:
            self._double = self._plain._double
            warn(
                f"update {int(self.state.updates)}: the model predicts little of what happens and "
                "returns have not risen; BAC goes on without it, from its own first policy"
            )
        columns = tested | {
            Column.PERSISTENCE: float(old.persistence),
            Column.DIVERGENCE: self._moved(old.policy, model),
            # No gradient of real episodes is estimated.
            Column.SLOPE: np.nan, Column.SLOPE_ERROR: np.nan, Column.SURE: np.nan,
            Column.SIMULATED: float(progress.returns[-1]),
            Column.AHEAD: float(np.mean(progress.lengths)),
            Column.CONFIRMED: float(np.clip(progress.agreement[-1], 0.0, 1.0)),
        }  # fmt: skip
        return episodes, ended, columns

    def _learn_plainly(self, played: list[Trajectories]) -> Any:
        """Learn as BAC does."""
        learned = self._plain._learn_from(played[0])
        self.state = self.state.counted(learned[0], plain=to_numpy(self._plain.state))
        return learned

    def _tested(self, fresh: Transitions) -> dict[Any, float]:
        """How well the model so far predicts new transitions: the share of the variance of changes
        of the state, or of rewards where it is smaller, and how many states are in the intervals.
        NaN before the first model, and where nothing varies."""
        if self.state.data.count == 0:
            return {Column.PREDICTED: np.nan, Column.INSIDE: np.nan}
        rows = np.arange(TESTED) * fresh.count // TESTED
        x, y, r = (z[rows].astype(float) for z in (fresh.states, fresh.following, fresh.rewards))
        found = self.model.predict_encoded(x, fresh.actions[rows])
        going = ~fresh.terminated[rows]
        shares = [
            _explained(y - x, np.asarray(found.following) - x),
            _explained(r[going, None], np.asarray(found.rewards)[going, None]),
        ]
        known = [share for share in shares if np.isfinite(share)]
        return {
            Column.PREDICTED: min(known, default=np.nan),
            Column.INSIDE: inside(self.model, fresh, STEPS),
        }

    def _moved(self, before: AnyPolicy, model: Model) -> float:
        """The divergence from the policy before to that of now, mean over observed states."""
        with self.precision():
            seen = self.state.normaliser(self._in_jax(np.asarray(model.observed.visited)))
            return float(_divergence(before, self.state.policy, seen))

    def _play(self) -> list[Trajectories]:
        """The real episodes of an update, one after the other."""
        if self.state.record.useless:
            return [self._plain._play()]
        state, played, steps = self.state, [], 0
        key = child(child(state.key, 1), int(state.updates))
        for k, seed in enumerate(episode_seeds(self.settings.seed, int(state.updates), MOST)):
            with self.precision():
                paths = self.world.play(
                    state.acting, child(key, k), [seed], persistence=state.persistence
                )
            played.append(paths)
            steps += int(np.asarray(paths.mask).sum())
            if steps >= ENOUGH:
                break
        return played

    def _improved(
        self, model: Model, data: Transitions, key: PRNGKeyArray, policy: Composed, values: Any
    ) -> Any:
        """The policy and its values after updates on simulated episodes, and how it went."""
        where = self.world
        known, curiosity = self.known, 0.0
        if known.reward is None and _silent(data):
            known, curiosity = known._replace(reward=_nothing), CURIOSITY
        environment = model.environment(
            horizon=min(LONGEST, where.horizon), discount=where.discount, curiosity=curiosity,
            known=known,
        )  # fmt: skip
        with self.precision():
            environment, normaliser = self._in_jax(to_numpy((environment, _units(model))))
            improved = simulated.improve(
                environment, policy, normaliser, self._values, values, key, UPDATES, PATHS
            )
            return jax.block_until_ready(improved)

    def _take(self, state: Any) -> None:
        """Counts and transitions stay NumPy arrays, in the precision that they have."""

        def learned(s: State) -> Any:
            return s.policy, s.normaliser, s.values, s.persistence

        self._plain._take(state.plain)
        self.state = eqx.tree_at(learned, to_numpy(state), self._in_jax(learned(state)))
        self.reset()
        self._double = self._plain._double and bool(self.state.record.useless)
        self._fitted = None


def _silent(data: Transitions) -> bool:
    """Whether rewards have said nothing about states: no episode ended, and each reward is what the
    action costs, a sum of functions c + b a + d a^2 + e |a| of its numbers. Until then episodes are
    simulated that go where the model is uncertain, whatever they cost: doing nothing would look
    best, and a goal would never be seen."""
    n = data.count
    if data.terminated[:n].any():
        return False
    A, rewards = np.asarray(data.actions[:n], float), np.asarray(data.rewards[:n], float)
    terms = np.concatenate([np.ones((n, 1)), A, A**2, np.abs(A)], 1)
    left = rewards - terms @ np.linalg.lstsq(terms, rewards, rcond=None)[0]
    return bool(np.abs(left).max() <= COST * max(np.abs(rewards).max(), 1e-300))


def _nothing(*_: Any) -> Float[Array, ""]:
    return jnp.zeros(())


def _explained(true: Any, predicted: Any) -> float:
    """The share of the variance that is predicted, in the mean over the numbers that vary, each at
    least zero; NaN if none does."""
    if not len(true):
        return np.nan
    total = np.mean((true - true.mean(0)) ** 2, 0)
    varies = total > 1e-12 * np.mean(true**2, 0)
    left = np.mean((true - predicted) ** 2, 0)[varies] / total[varies]
    return float(np.mean(np.maximum(1 - left, 0))) if left.size else np.nan


def _refuse_what_is_no_function(**given: Any) -> None:
    for name, value in given.items():
        if value == KNOWN:
            raise ValueError(
                f"{name}: was a function when this was saved; give it again: load(path, {name}=...)"
            )
        if value is not None and not callable(value):
            raise ValueError(f"{name}: expected a function, found {value!r}")


@eqx.filter_jit
def _divergence(before: Any, after: Any, seen: Float[Array, "N d"]) -> Float[Array, ""]:
    return jnp.mean(jax.vmap(lambda x: before(x).divergence(after(x)))(seen))


def _units(model: Model) -> Normaliser:
    """The units of the model, for the policy."""
    mean, scale = (np.asarray(x, np.float32) for x in (model.states.mean, model.states.scale))
    return Normaliser(jnp.asarray(mean), jnp.asarray(scale**2), jnp.asarray(LARGEST, jnp.float32))
