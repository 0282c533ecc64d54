"""Training on tasks: `BAC`, `BPG` and `MCPG`, with the interface of other libraries.

    agent = bayespg.BAC("CartPole-v1", seed=0)
    agent.learn(100_000)
    agent.evaluate(episodes=100)
    agent.predict(observation)
    agent.save("cartpole")

An agent is a shell around pure functions: it draws paths, calls `advance` with them, and keeps the
state that `advance` returns.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bayespg._support import checks, compilation, device
from bayespg._support.random import child, episode_seeds, host_key
from bayespg._support.warning import warn
from bayespg.agents import build, describe, metrics, names, predict, serialise, settings, store
from bayespg.agents.hints import Stuck, Unconfirmed
from bayespg.agents.imports import resuming
from bayespg.agents.metrics import Evaluation, Row
from bayespg.agents.store import Best
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.advance import (
    DESCRIBING,
    STAGES,
    NotFinite,
    advance,
    batch_of,
    begin,
)
from bayespg.learning.batch import by_products
from bayespg.learning.estimators import Estimator, refuse_memory
from bayespg.paths.players import WorkersLost
from bayespg.paths.worlds import AnyEnvironment
from bayespg.policies import AnyPolicy, as_dtype, count
from bayespg.runs import progress as interruption
from bayespg.runs.columns import Column
from bayespg.runs.store import Run

Callback = Callable[["Agent", Row], Any]
"""Called after each update; returning False ends training. Methods `start` and `end`, as those of
`bayespg.callbacks.Callback`, are called before the first update and after the last."""


@describe.with_settings("environment", "policy", "estimator", "update", options=None)
class Agent:
    """A policy that learns in an environment.

    `environment` is a Gymnasium id, an environment, a function that makes one, a vector
    environment, or an `Environment` in JAX; `policy`, `estimator` and `update` are names (see
    `bayespg.agents.names`) or objects. A policy may have a memory. The default policy of
    estimators with a damped metric is "fourier" for choices and "mlp" for continuous actions, and
    "linear" of all others; an environment of the paper has the paper's policy. `options` go to
    `gymnasium.make`; everything else is in `Settings`. A setting that would have no effect is
    refused.
    """

    def __init__(
        self,
        environment: AnyEnvironment,
        policy: str | AnyPolicy | None = None,
        estimator: str | Estimator = "bac",
        update: str | optax.GradientTransformationExtraArgs = "natural",
        *,
        options: dict[str, Any] | None = None,
        **given: Any,
    ):
        device.require()
        compilation.remember()
        s = self.settings = settings.made(given)
        self._asked = {
            "environment": environment, "policy": policy, "estimator": estimator, "update": update,
            "options": options,
        } | given  # fmt: skip
        self.options = names.options(options, environment)
        key_policy, key_run = (child(host_key(s.seed), number) for number in range(2))
        self._estimator = found = names.estimator(estimator, s["lambda_"], s.damping)
        asked = s.episodes
        s = dataclasses.replace(s, episodes=build.episodes(asked, found, policy))
        self.world = build.world_of(environment, s, self.options)
        policy, start = build.policy_of(policy, environment, self.world, s, found.needs, key_policy)
        self.names = {
            "environment": environment, "policy": policy, "estimator": estimator, "update": update
        }  # fmt: skip
        refuse_memory(found, start)
        self.world.refuse_misfit(start)
        s = dataclasses.replace(s, episodes=build.episodes(asked, found, start))
        self._double = not (found.needs.products and by_products(start))
        with self.precision():
            start = as_dtype(start, jnp.float64 if self._double else jnp.float32)
            self._update = names.update(update, s["limit"], s["rate"])
            self.state = _first(
                start, found, self._update, key_run, self.world.observation,
                normalised=build.normalised(s, self.world),
                persistence=build.persistence(s, found.needs), exempt=self.world.masks,
            )  # fmt: skip
        self.settings = s.as_done(build.in_force(s, self.world, self.names, found, start))
        self._seconds, self._begun, self._warned = 0.0, False, False
        self.interrupted = False
        """Whether the last `learn` was ended by Ctrl-C."""
        self.reset()

    @property
    def episodes(self) -> int:
        """The number of episodes of the next update."""
        asked = self.settings.episodes
        return asked if isinstance(asked, int) else self.state.trust.episodes()

    def precision(self) -> Any:
        """A context in which this agent's numbers are computed: single or double precision."""
        return jax.enable_x64(self._double)

    @property
    def policy(self) -> AnyPolicy:
        return self.state.policy

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the policy's parameters by name, as NumPy arrays."""
        return serialise.parameters(self.state.policy)

    @property
    def parameter_count(self) -> int:
        """n, the number of parameters."""
        return count(self.state.policy)

    def with_parameters(self, parameters: Any) -> "Agent":
        """A copy of this agent with other parameters: a dictionary as `parameters` gives it, or
        one vector of all of them in that order. This agent stays as it is."""
        other = self._again()
        with other.precision():
            policy = serialise.replaced(self.state.policy, parameters)
            other._take(eqx.tree_at(lambda s: s.policy, self.state, policy))
        return other

    def set_environment(
        self, environment: AnyEnvironment, options: dict[str, Any] | None = None
    ) -> None:
        """Go on in another environment, whose observations and actions are of the same kind: the
        policy and the statistics of observations stay."""
        other = self._again(environment=environment, options=options)
        serialise.refuse_another_kind(self, other)
        self.world, self.settings, self.names = other.world, other.settings, other.names
        self.options, self._asked = other.options, other._asked
        self.reset()

    def _again(self, **changes: Any) -> Any:
        """An agent that begins as this one did."""
        return type(self)(**self._asked | changes)

    def __reduce__(self) -> tuple[Any, ...]:
        content = serialise.arrays(self.state), self._seconds
        return _revived, (type(self), serialise.packed(self._asked, content))

    def __str__(self) -> str:
        return describe.agent(
            type(self).__name__, self.world.name, self.config, self.parameter_count, self.state
        )

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"

    # Acting.

    def draw(self) -> Trajectories:
        """The paths of the next update, determined by the seed and the number of updates so far."""
        updates = int(self.state.updates)
        key = child(child(self.state.key, 1), updates)
        seeds = episode_seeds(self.settings.seed, updates, self.episodes)
        with self.precision():
            return self.world.play(
                self.state.acting, key, seeds, persistence=self.state.persistence
            )

    def predict(
        self,
        observation: Any,
        deterministic: bool = True,
        *,
        episode_start: Any = None,
        action_masks: Any = None,
    ) -> Any:
        """The environment's action for one observation, as the environment gives it, or for a batch
        of them.

        A batch has one more axis in front, in every part of a Dict or Tuple: (B, 4) for CartPole,
        (B,) for Discrete observations. Its actions have the same axis in front. The most likely
        action is taken, or a random one where not `deterministic`.

        A policy with memory remembers the observations since the last `reset`, row by row. Where
        `episode_start` is true, B flags or one, a row begins an episode and its memory is cleared.
        An agent that was trained with masks needs `action_masks`, one for each row.
        """
        deterministic = checks.flag("deterministic", deterministic)
        told, self._memory = predict.predict(
            self.world, self.state.acting, self._memory, observation, deterministic,
            episode_start, action_masks, self.precision(),
        )  # fmt: skip
        return told

    def reset(self) -> None:
        """Clear the memory of the policy; call it before the first `predict` of an episode."""
        self._memory = None

    def evaluate(
        self, episodes: int = 100, *, deterministic: bool = False, seed: int | None = None
    ) -> Evaluation:
        """Play whole episodes with the current policy, on seeds that training never uses. The
        statistics of observations do not change."""
        episodes = checks.whole("episodes", episodes, 1)
        deterministic = checks.flag("deterministic", deterministic)
        first: int = self.settings.seed if seed is None else settings.seed("seed", seed)
        key, seeds = child(host_key(first), 2), episode_seeds(first, -1, episodes)
        with self.precision():
            paths = self.world.play(self.state.acting, key, seeds, deterministic)
        return metrics.evaluation(paths)

    # Learning.

    def update(self) -> Row:
        """Draw a batch, make one update, and return its row of metrics. Raises NotFinite if
        parameters, or what they are computed from, are not finite; the agent is then unchanged. A
        number that only describes the update is then NaN in its row, with one warning."""
        begun = time.perf_counter()
        with compilation.meanwhile(self._ahead()):
            paths = self.draw()
        drawn = time.perf_counter()
        with self.precision():
            state, record = self._learn(paths)
            record = jax.tree.map(float, jax.device_get(record))
        if not record.sound:
            raise NotFinite(self._complaint(STAGES[int(record.stage)], paths))
        self.state = state
        self._warn_of(record)
        done = time.perf_counter()
        self._seconds += done - begun
        return metrics.row(
            self.state, record, paths, self._seconds, drawing=drawn - begun, learning=done - drawn
        )

    def _learn(self, paths: Trajectories) -> tuple[Any, Any]:
        return _learner(self._double)(*self._arguments(paths))

    def _arguments(self, paths: Trajectories) -> tuple[Any, ...]:
        where = self.world
        return (
            self._estimator, self._update, self.state, paths, where.discount, where.horizon,
            where.environment,
        )  # fmt: skip

    def _ahead(self) -> Callable[[], Any] | None:
        """Before the first update, a function that compiles its program, if the shape of the paths
        is known before they are drawn; otherwise None."""
        first, self._begun = not self._begun, True
        with self.precision():
            paths = self.world.expected(self.state.acting, self.episodes) if first else None
            if paths is None:
                return None
            return _learner(self._double).lower(*self._arguments(paths)).lowered.compile

    def _warn_of(self, record: Any) -> None:
        """Warn, once per agent, of numbers that describe an update and are not finite."""
        names = [name for name in DESCRIBING if np.isnan(getattr(record, name))]
        if names and not self._warned:
            self._warned = True
            warn(
                f"update {int(self.state.updates)}: {', '.join(names)} not finite, and NaN in the "
                "metrics; they describe the update and do not change it. Later ones are not "
                "reported"
            )

    def _complaint(self, what: str, paths: Trajectories) -> str:
        """The message that an update was not made, with its likely reason."""
        taken, before = np.asarray(paths.mask), int(self.state.updates)
        rewards, seen = (np.abs(np.asarray(x)[taken]).max() for x in (paths.rewards, paths.states))
        advice = "scale rewards or observations in the environment"
        if self.world.real and self.state.normaliser is None:
            advice += ", or give normalise=True"
        return (
            f"update {before + 1}: {what} not finite (rewards reach {rewards:.3g}, observations "
            f"{seen:.3g}); the agent is as it was after update {before}; {advice}"
        )

    def learn(
        self,
        steps: int,
        *,
        callbacks: Iterable[Callback] | Callback = (),
        run: str | Path | Run | None = None,
        keep: str = "last",
        progress: bool = True,
        tensorboard: bool = False,
    ) -> "Agent":
        """Train for `steps` more environment steps, or until a callback returns False.

        With `run`, a directory, every update is saved and the run can be resumed after any
        interruption; a directory that holds the run of this very agent is trained for longer.
        ``keep="best"`` leaves the agent with the best policy of the run instead of the last one
        (see `bayespg.agents.store`); a run directory always keeps both. Ctrl-C ends training
        after the current update.
        """
        keep = checks.one_of("keep", keep, ("last", "best"))
        steps = checks.whole("steps", steps, 1)
        progress, tensorboard = (
            checks.flag("progress", progress),
            checks.flag("tensorboard", tensorboard),
        )
        callbacks = as_list(callbacks)
        if not isinstance(run, str | Path | Run | None):
            raise ValueError(f"run: expected a directory, found {run!r}")
        if tensorboard and not isinstance(run, str | Path):
            raise settings.no_effect("tensorboard", True, "events go into a new run directory")
        begun, self.interrupted = int(self.state.steps), False
        if isinstance(run, str | Path):
            run = store.run_of(self, run, begun + steps, tensorboard)
        with (
            run or contextlib.nullcontext() as book,
            interruption.bar(self._goal(steps), progress) as show,
        ):
            if book is not None:
                store.agree(self, book, self._meta())
            best = Best(book.metrics().get(Column.RETURN, []) if book else [])
            found = self.state
            hints = (Stuck(self.config["policy"]), Unconfirmed(self.settings.episodes))
            with contextlib.ExitStack() as ends, interruption.after_this_update() as stop:
                for one in callbacks:
                    _optional(one, "start")(self)
                    ends.callback(_optional(one, "end"), self)
                while int(self.state.steps) < begun + steps and not stop.asked:
                    try:
                        row = self.update()
                    except WorkersLost as problem:
                        raise WorkersLost(f"{problem}. {self._how_to_resume(book)}") from problem
                    if better := best(row[Column.RETURN]):
                        found = self.state
                    if book is not None:
                        book.log(row)
                        book.checkpoint(self.state, self._meta(), best=better)
                    show(row)
                    for hint in hints if progress else ():
                        if advice := hint(row):
                            show.say(advice)
                    if False in [callback(self, row) for callback in callbacks]:
                        break
            if stop.asked:
                self.interrupted = True
                show.say(
                    f"Interrupted after update {int(self.state.updates)}, which is complete."
                    + (f" Resume with: {resuming(book.path, self.config)}" if book else "")
                )
            if keep == "best":
                with self.precision():
                    kept = book.best(self.state) if book else None
                # With the counts of now, so that further training draws episodes not seen yet.
                found = kept[0] if kept else found
                self._take(eqx.tree_at(_counts, found, _counts(self.state)))
        return self

    def _how_to_resume(self, book: Run | None) -> str:
        done = f"The agent is as it was after update {int(self.state.updates)}"
        if book is None:
            return f"{done}; call learn again to continue"
        return f"{done}, which is saved. Resume with: {resuming(book.path, self.config)}"

    def _goal(self, steps: int) -> interruption.Goal:
        """What the progress bar counts."""
        return interruption.Goal(steps, int(self.state.steps))

    def extend(self, run: Run, steps: int) -> None:
        """Write into this agent's run that it ends at `steps` steps, counted from its beginning."""
        store.extend(self, run, steps, self._meta())

    # Saving.

    @property
    def config(self) -> dict[str, Any]:
        """The configuration from which this agent can be made again; objects are None."""
        names = {k: v if isinstance(v, str) else None for k, v in self.names.items()}
        return names | {"options": self.options} | dataclasses.asdict(self.settings)

    def save(self, path: str | Path) -> None:
        """Save the agent in a directory, for `bayespg.load`.

        An agent that was saved there before is replaced, with its settings. A training run is
        refused, and so is a directory of another program.
        """
        store.save(self, path, self._meta())

    def export(self, path: str | Path, batch: int = 1) -> None:
        """Write the policy as an ONNX file, from `batch` observations to their most likely actions,
        for programs without JAX (`bayespg.agents.export`)."""
        from bayespg.agents import export  # which is built on agents

        export.onnx(self, path, batch)

    def restore(self, run: Run, *, best: bool = False) -> bool:
        """Load the newest checkpoint of a run, or its best; False if there is none yet."""
        with self.precision():
            found = run.best(self.state) if best else run.restore(self.state)
            if found is None:
                return False
            self._take(found[0])
        self._continue(found[1])
        return True

    def _take(self, state: Any) -> None:
        """Go on from this state, which may hold NumPy arrays."""
        with self.precision():
            self.state = jax.tree.map(
                lambda x: jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x, state
            )
        self.reset()

    def _meta(self) -> dict[str, Any]:
        """What a checkpoint holds besides the state."""
        return {"seconds": self._seconds}

    def _continue(self, meta: Mapping[str, Any]) -> None:
        seconds = meta.get("seconds", 0.0)
        self._seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
        self.reset()


@describe.with_settings("environment", "policy", update="natural", options=None)
def BAC(environment: Any, policy: str | AnyPolicy | None = None, **given: Any) -> Agent:
    """Bayesian actor-critic: values and advantages in one regression, natural steps."""
    return Agent(environment, policy, given.pop("estimator", "bac"), **given)


@describe.with_settings("environment", "policy", update="natural", options=None)
def BPG(environment: Any, policy: str | AnyPolicy | None = None, **given: Any) -> Agent:
    """Bayesian policy gradient: whole episodes, Model 2 with a flat baseline."""
    return Agent(environment, policy, given.pop("estimator", "model2"), **given)


@describe.with_settings("environment", "policy", update="natural", options=None)
def MCPG(environment: Any, policy: str | AnyPolicy | None = None, **given: Any) -> Agent:
    """Monte Carlo policy gradient: GPOMDP, the rival."""
    return Agent(environment, policy, given.pop("estimator", "mcpg"), **given)


def _revived(kind: type[Agent], content: bytes) -> Agent:
    """The agent that was pickled."""
    asked, (arrays, seconds) = serialise.unpacked(content)
    agent = kind(**asked)
    agent._take(serialise.with_arrays(agent.state, arrays))
    agent._continue({"seconds": seconds})
    return agent


def _counts(state: Any) -> tuple[Any, ...]:
    return state.updates, state.episodes, state.steps


def _optional(callback: Any, name: str) -> Callable[["Agent"], Any]:
    """The method `start` or `end` of a callback, which need not have one."""
    return getattr(callback, name, lambda _: None)


def as_list(callbacks: Any) -> list[Callback]:
    """One callback or several, as a list."""
    if callable(callbacks):
        return [callbacks]
    if not isinstance(callbacks, Iterable):
        raise ValueError(f"callbacks: expected functions of agent and row, found {callbacks!r}")
    callbacks = list(callbacks)
    if bad := [c for c in callbacks if not callable(c)]:
        raise ValueError(f"callbacks: expected functions of agent and row, found {bad[0]!r}")
    return callbacks


_first = eqx.filter_jit(begin)
"""Compiled as one program instead of a dozen small ones."""


@functools.cache
def _learner(double: bool) -> Any:
    """`_learned`, compiled once for all agents of the same kind."""
    options: dict[str, Any] = {"compiler_options": compilation.quickly(double=double)}
    return eqx.filter_jit(_learned, **options)


def _learned(estimator, update, state, raw, discount, horizon, environment):
    batch = batch_of(state, raw, discount, horizon, environment)
    return advance(estimator, update, state, batch, raw)[:2]
