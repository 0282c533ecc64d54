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
import functools
from typing import Any, NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support import checks, compilation
from bayespg._support.precision import to_numpy
from bayespg._support.random import child, episode_seeds, fast_key, host_key
from bayespg._support.types import Array
from bayespg._support.warning import warn
from bayespg.agents import build, describe, judging, metrics, serialise, settings, simulated, slopes
from bayespg.agents.agent import BAC
from bayespg.agents.base import BaseAgent
from bayespg.agents.judging import Record
from bayespg.agents.metrics import Evaluation
from bayespg.agents.simulated import Actor
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.advance import NotFinite
from bayespg.learning.batch import of_paths
from bayespg.models import Forecast, Knowledge, Model, experience, forecast, held_out, inside
from bayespg.models import model as models
from bayespg.models.data import Transitions, empty, inputs_of
from bayespg.models.experience import Experience
from bayespg.paths.observations import Normalised, Normaliser, no_statistics
from bayespg.paths.worlds import OnHost
from bayespg.policies import AnyPolicy, as_arrays, as_dtype
from bayespg.policies.features import Fourier
from bayespg.policies.heads import Choice, Composed, Normals, initial_scale
from bayespg.posterior import GradientPosterior
from bayespg.posterior.informed import Informed
from bayespg.runs.columns import Column

NAME = "mbac"
PARTS = {"policy": "fourier", "estimator": NAME, "update": "simulated"}
"""What a run's configuration names."""
SETTINGS = tuple(settings.GivenToMBAC.__annotations__)
"""The settings that MBAC uses; the others of `Settings` have no effect on it."""
UPDATES, LONGEST = 15, 200
"""Updates on simulated episodes at a time, and the steps of these episodes."""
SCALES = {"choices": 0.3, "means": 1.0}
"""Size of the waves in which the policy is linear."""
MOST = 8
"""Most real episodes of an update."""


class Effort(NamedTuple):
    """What depends on how many numbers are observed."""

    paths: int
    """Simulated episodes per update on them."""
    rounds: int
    """How often the policy is improved by `UPDATES` at most, as long as that pays."""
    waves: int
    """Waves in which the policy is linear."""
    enough: int
    """Steps that the real episodes of an update have together at least."""


FEW, MANY = Effort(64, 1, 50, 30), Effort(128, 3, 150, 100)
WIDE = 6
"""Observations of more numbers than these are many: networks learn as well."""
SURE = 1.0
"""Standard errors by which a policy must return more than another in simulated episodes to replace
it."""
LARGEST = 1e12
"""A weight of the statistics of real observations beside which simulated ones do not count."""
FADE, ENDED = 0.05, 0.2
"""Share of the persistence of exploration that an update takes away, and the further share if all
its episodes ended before the horizon."""
CURIOSITY = 1.0
"""What is earned per standard deviation of what is not known, while rewards say nothing about
states."""
STEPS = 10
"""Steps after which the intervals of the model are tested."""
COLUMNS = (
    Column.SLOPE, Column.SLOPE_ERROR, Column.SURE, Column.DIVERGENCE, Column.CONFIRMED,
    Column.PERSISTENCE, Column.PROMISED, Column.CAME, Column.KEPT, Column.AHEAD, Column.PREDICTED,
    Column.INSIDE,
)  # fmt: skip
KNOWN = "function"
"""What a stored configuration has in place of a function."""


class State(eqx.Module):
    """Everything a run needs to continue."""

    actor: Actor
    experience: Experience
    key: PRNGKeyArray
    updates: Int[np.ndarray, ""]
    episodes: Int[np.ndarray, ""]
    steps: Int[np.ndarray, ""]
    persistence: Float[Array, ""]
    record: Record
    plain: Any
    """The state of `BAC`, which takes over where the model is of no use."""

    @property
    def data(self) -> Transitions:
        return self.experience.data

    @property
    def acting(self) -> AnyPolicy:
        if self.record.plain:
            return self.plain.acting
        return Normalised(self.actor.policy, self.actor.normaliser)

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
        size, inputs = where.observation.shape[0], inputs_of(where.actions)
        key = host_key(s.seed)
        self._basis = models.basis(child(key, 3), size, inputs.size)
        self._plain = BAC(environment, options=options, **own)
        self._plain.world = where
        self._values = simulated.basis(size)
        self._effort = MANY if size > WIDE else FEW
        self._fitted: tuple[Experience, Model] | None = None
        features = Fourier(
            size, self._effort.waves, scale=SCALES["choices" if inputs.sizes else "means"]
        )
        if inputs.sizes:
            head: Any = Choice(features.size, inputs.sizes, where.actions.scalar)  # pyright: ignore
        else:
            head = Normals(features.size, inputs.size, initial_scale(inputs.size))
        zero = np.asarray(0, np.int64)
        with self.precision():
            self._fresh = Actor(
                as_dtype(as_arrays(Composed(features, head)), jnp.float32),
                no_statistics((size,)), jnp.zeros(self._values.size),
            )  # fmt: skip
            self.state = State(
                actor=self._fresh, key=child(key, 1),
                experience=experience.nothing(child(key, 4), size, inputs),
                updates=zero, episodes=zero, steps=zero,
                persistence=jnp.asarray(s["persistence"], jnp.float32),
                record=judging.begin(), plain=to_numpy(self._plain.state),
            )  # fmt: skip
        self.reset()

    @property
    def episodes(self) -> int:
        """The number of episodes that are played at once."""
        return self._plain.episodes if self.state.record.plain else 1

    @property
    def policy(self) -> AnyPolicy:
        return self._plain.policy if self.state.record.plain else self.state.actor.policy

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        return serialise.parameters(self.policy)

    def with_parameters(self, parameters: Any) -> "MBAC":
        other = self._again()
        with self.precision():
            policy = serialise.replaced(self.policy, parameters)
        plain = self.state.record.plain
        other._take(
            eqx.tree_at(lambda s: (s.plain if plain else s.actor).policy, self.state, policy)
        )
        return other

    @property
    def config(self) -> dict[str, Any]:
        known = {k: None if v is None else KNOWN for k, v in self.known._asdict().items()}
        return self._named() | known | {k: getattr(self.settings, k) for k in SETTINGS}

    @property
    def model(self) -> Model:
        """The model of the task, given all transitions so far."""
        if self.state.data.count == 0:
            raise ValueError("model: nothing has been observed yet; call learn first")
        now = self.state.experience
        if self._fitted is None or self._fitted[0] is not now:
            self._fitted = now, now.model(self._basis)
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

    def gradient(
        self, episodes: int = 20, *, draws: int = 16, seed: int = 0
    ) -> tuple[GradientPosterior, Informed]:
        """The posterior of the gradient of the expected discounted return at the current policy,
        from real episodes that are not learned from, and the prior of it: mean and covariance over
        draws of the model. The posterior also allows for a model that is wrong
        (`bayespg.agents.slopes`)."""
        episodes = checks.whole("episodes", episodes, 3)
        key = child(host_key(settings.seed("seed", seed)), 4)
        keys = [fast_key(k) for k in range(checks.whole("draws", draws, 2))]
        state, where, model = self.state, self.world, self.model
        with self.precision():
            raw = where.play(state.acting, key, episode_seeds(seed, -1, episodes))
        horizon = min(LONGEST, where.horizon)
        believed = [
            slopes.predicted(
                model.environment(k, horizon=horizon, discount=where.discount, known=self.known),
                state.actor.policy, state.actor.normaliser, k,
            )
            for k in keys
        ]  # fmt: skip
        with jax.enable_x64(True):
            policy = as_dtype(state.actor.policy, jnp.float64)
            batch = of_paths(
                policy, raw, discount=where.discount, horizon=where.horizon,
                normaliser=state.actor.normaliser,
            )  # fmt: skip
            prior = slopes.believed(np.asarray(believed))
            return slopes.corrected(batch, prior), prior

    def _learn_from(self, played: list[Trajectories]) -> tuple[Evaluation, Any, dict[Any, float]]:
        """Update the model, and improve the policy on episodes that it simulates. Where the model
        is in doubt, BAC learns from them as well, and plays the next ones."""
        if self.state.record.useless:
            return self._learn_plainly(played)
        doubted, known = self.state.record.plain, {}
        if doubted:
            known = self._plain._learn_from(played[0])[2]
        self._double = False
        old, data = self.state, self.state.data
        fresh = empty(data.states.shape[1], data.inputs, sum(paths.mask.size for paths in played))
        for paths in played:
            data, fresh = data.with_paths(paths), fresh.with_paths(paths)
        before = self.model if old.data.count else None
        shares, within = (np.nan, np.nan), np.nan
        if before is not None:
            shares, within = _tested(before, fresh)
        key = jax.random.key_data(child(child(old.key, 2), int(old.updates)))
        key = fast_key(int(np.asarray(key)[0]) << 31 | int(np.asarray(key)[1]) >> 1)
        both = data.states.shape[1] > WIDE or old.record.poor
        now, model = old.experience.after(
            data, fresh, before, self._basis, jax.random.fold_in(key, 99), both
        )
        episodes = metrics.evaluation(*played)
        came = self._discounted(played)
        silent = judging.silent(data)
        # An exploring policy goes where the model predicts little.
        told = (np.nan, np.nan) if silent else shares
        record = old.record.after(float(episodes.returns.mean()), told, came, model.noise)
        actor, promised, begun = old.actor, np.nan, False
        ahead = confirmed = np.nan
        if not record.plain:
            # What the next update needs to test the model is compiled beside this one's program.
            later = None if before else functools.partial(_tested, model, fresh)
            with compilation.meanwhile(later):
                best, promises, begun = self._chosen(model, silent, key, now.grown, record.missed)
            actor, progress = best.actor, best.progress
            if not silent:
                promised = float(np.mean(promises[: len(promises) // 2]))
            ahead = float(np.asarray(progress.lengths).mean())
            confirmed = float(np.clip(np.asarray(progress.agreement)[-1], 0.0, 1.0))
        numbers = jax.tree.leaves(eqx.filter(actor, eqx.is_inexact_array))
        if not all(np.isfinite(x).all() for x in numbers):
            raise NotFinite(
                f"update {int(old.updates) + 1}: the policy or its values are not finite; the "
                f"agent is as it was after update {int(old.updates)}; scale rewards or "
                "observations in the environment"
            )
        ended = np.concatenate([np.asarray(paths.terminated) for paths in played])
        left = (1 - FADE) * (1 - ENDED * np.mean(ended))
        self.state = old.counted(
            episodes, actor=actor, experience=now,
            persistence=jnp.asarray(old.persistence * left, jnp.float32),
            record=record.promising(promised, begun or doubted),
            plain=to_numpy(self._plain.state),
        )  # fmt: skip
        self._fitted = now, model
        self._double = self._plain._double and record.plain
        if record.plain and not record.useless and old.record.doubts == 0:
            warn(_doubt(data))
        if self.state.record.useless:
            warn(
                f"update {int(self.state.updates)}: the model was given up, because it predicts "
                "little of what happens or real episodes do not gain what it promises; training "
                "continues with BAC on real episodes"
            )
        columns = {
            Column.PREDICTED: float(np.fmin(*shares)), Column.INSIDE: within,
            Column.PERSISTENCE: float(old.persistence),
            Column.DIVERGENCE: np.nan if record.plain else self._moved(old.actor, model),
            Column.PROMISED: float(old.record.promise), Column.CAME: came,
            Column.KEPT: record.kept, Column.AHEAD: ahead, Column.CONFIRMED: confirmed,
        }  # fmt: skip
        return episodes, ended, _columns(columns | known)

    def _learn_plainly(self, played: list[Trajectories]) -> Any:
        """Learn as BAC does."""
        episodes, ended, columns = self._plain._learn_from(played[0])
        self.state = self.state.counted(episodes, plain=to_numpy(self._plain.state))
        return episodes, ended, _columns(columns)

    def _chosen(
        self, model: Model, silent: bool, key: PRNGKeyArray, again: bool, missed: bool
    ) -> tuple[simulated.Improved, Float[np.ndarray, " M"], bool]:
        """The policy so far, an improved one if it returns more in simulated episodes, or one that
        learned from scratch if that returns more than both: their simulated returns, and whether it
        has just begun. A policy that has `missed` what was promised is replaced in any case."""
        old, units = self.state, _units(model)
        scratch = eqx.tree_at(lambda x: x.normaliser, self._fresh, units)
        first = bool(old.actor.normaliser.count < 1)
        now = eqx.tree_at(lambda x: x.normaliser, old.actor, units) if first else old.actor
        starts = [scratch if missed else now]
        if again and not first and not missed:
            starts.append(scratch)
        with concurrent.futures.ThreadPoolExecutor(len(starts)) as pool:
            tried = list(pool.map(lambda start: self._improved(model, silent, key, start), starts))
        best = tried[0]
        if not missed and not _better(best.after, best.before):
            best = eqx.tree_at(lambda x: (x.actor, x.after), best, (starts[0], best.before))
        begun = missed or _better(tried[-1].after, best.after)
        best = tried[-1] if begun else best
        for number in range(1, self._effort.rounds):
            if not _better(best.after, best.before):
                break
            more = self._improved(model, silent, jax.random.fold_in(key, number), best.actor)
            if _better(more.after, more.before):
                best = more
        return best, np.asarray(best.after, float), begun

    def _discounted(self, played: list[Trajectories]) -> float:
        """The mean of `trajectories.returns`, by NumPy: JAX would compile a program for every
        length of an episode."""

        def returns(paths: Trajectories) -> Any:
            rewards = np.where(paths.mask, paths.rewards, 0.0)
            return self.world.discount ** np.arange(len(rewards)) @ rewards

        return float(np.mean([returns(paths) for paths in played]))

    def _moved(self, before: Actor, model: Model) -> float:
        """The divergence from the previous policy to the current one, mean over observed states."""
        with self.precision():
            seen = self._in_jax(np.asarray(model.observed.visited))
            return float(models.compiled(_divergence)(before, self.state.actor, seen))

    def _play(self) -> list[Trajectories]:
        """The real episodes of an update, one after the other."""
        if self.state.record.plain:
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
            if steps >= self._effort.enough:
                break
        return played

    def _improved(
        self, model: Model, silent: bool, key: PRNGKeyArray, actor: Actor
    ) -> simulated.Improved:
        """The policy and its values after updates on simulated episodes. If rewards have been
        `silent` about states and are not known, these pay for curiosity alone."""
        where = self.world
        silent = silent and self.known.reward is None
        environment = model.environment(
            horizon=min(LONGEST, where.horizon), discount=where.discount,
            curiosity=CURIOSITY if silent else 0.0, known=self.known,
        )  # fmt: skip
        if silent:
            environment = eqx.tree_at(lambda e: e.paid, environment, replace_fn=jnp.zeros_like)
        with self.precision():
            environment, actor, units = self._in_jax(to_numpy((environment, actor, _units(model))))
            improved = simulated.improve(
                environment,
                actor,
                units,
                self._values,
                key,
                UPDATES,
                self._effort.paths,
                where.horizon <= LONGEST,
            )
            return jax.block_until_ready(improved)

    def _take(self, state: Any) -> None:
        """Counts and transitions stay NumPy arrays, in the precision that they have."""

        def learned(s: State) -> Any:
            return s.actor, s.persistence

        self._plain._take(state.plain)
        self.state = eqx.tree_at(learned, to_numpy(state), self._in_jax(learned(state)))
        self.reset()
        self._double = self._plain._double and self.state.record.plain
        self._fitted = None


def _doubt(data: Transitions) -> str:
    """Why `BAC` plays, in a sentence."""
    n = data.count
    varies = np.ptp(data.following[:n] - data.states[:n], axis=0).any()
    why = (
        "most of what happens looks like noise to the model"
        if varies
        else "observations never change, so there is nothing to predict"
    )
    return f"{why}; training continues with BAC on real episodes until this changes"


def _columns(known: dict[Any, float]) -> dict[Any, float]:
    """The columns of every update, those that are not known NaN: a run keeps the same ones whoever
    learns. No gradient of real episodes is estimated unless BAC learns."""
    return {name: known.get(name, np.nan) for name in COLUMNS}


def _tested(model: Model, fresh: Transitions) -> tuple[tuple[float, float], float]:
    """What the model predicts of new transitions, and the share inside its intervals."""
    return held_out.shares(model, fresh), inside(model, fresh, STEPS)


def _better(returns: Any, others: Any) -> bool:
    """Whether a policy returns more than another, in episodes with the same random numbers."""
    more = np.asarray(returns, float) - np.asarray(others, float)
    return bool(more.mean() > SURE * more.std(ddof=1) / np.sqrt(len(more)))


def _refuse_what_is_no_function(**given: Any) -> None:
    for name, value in given.items():
        if value == KNOWN:
            raise ValueError(
                f"{name}: was a function when this was saved; give it again: load(path, {name}=...)"
            )
        if value is not None and not callable(value):
            raise ValueError(f"{name}: expected a function, found {value!r}")


def _divergence(before: Actor, after: Actor, seen: Float[Array, "N d"]) -> Float[Array, ""]:
    def apart(x: Any) -> Any:
        one, other = (actor.policy(actor.normaliser(x)) for actor in (before, after))
        return one.divergence(other)

    return jnp.mean(jax.vmap(apart)(seen))


def _units(model: Model) -> Normaliser:
    """The units of the model, for the policy."""
    mean, scale = (np.asarray(x, np.float32) for x in (model.states.mean, model.states.scale))
    return Normaliser(jnp.asarray(mean), jnp.asarray(scale**2), jnp.asarray(LARGEST, jnp.float32))
