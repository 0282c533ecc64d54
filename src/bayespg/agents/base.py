"""What all agents share: acting, evaluating, the loop of `learn` with its run directory, saving.

A kind of agent adds how it is made, what it plays before an update, and how it learns from that.
"""

import abc
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bayespg._support import checks, compilation, device
from bayespg._support.random import child, episode_seeds, host_key
from bayespg.agents import describe, export, metrics, names, predict, serialise, settings, store
from bayespg.agents.hints import Constant, Stuck, Unconfirmed
from bayespg.agents.imports import resuming
from bayespg.agents.metrics import Evaluation, Row
from bayespg.agents.settings import Settings
from bayespg.agents.store import Best
from bayespg.paths.players import WorkersLost
from bayespg.paths.worlds import AnyEnvironment, World
from bayespg.policies import AnyPolicy
from bayespg.runs import progress as interruption
from bayespg.runs.columns import Column
from bayespg.runs.store import MEMBER, Run

A = TypeVar("A", bound="BaseAgent")
Callback = Callable[["BaseAgent", Row], Any]
"""Called after each update; returning False ends training. Methods `start` and `end`, as those of
`bayespg.callbacks.Callback`, are called before the first update and after the last."""


class BaseAgent(abc.ABC):
    """A policy that learns in an environment; `bayespg.Agent`, `bayespg.PGPE` and `bayespg.MBAC`
    are the kinds of it. A kind sets the attributes below, and calls `reset`, when it is made."""

    world: World
    settings: Settings
    options: dict[str, Any]
    names: dict[str, Any]
    """Environment, policy, estimator and update, as names or objects."""
    state: Any
    """Everything a run needs to continue; a checkpoint holds it."""
    _double: bool = False
    _seconds: float = 0.0
    max_episodes: int | None = None
    """The number of episodes after which training ends."""
    interrupted: bool = False
    """Whether the last `learn` was ended by Ctrl-C."""

    def __init__(self, **asked: Any):
        """`asked` are the arguments with which the agent is made."""
        device.require()
        compilation.remember()
        self._asked = asked
        self.options = names.options(asked["options"], asked["environment"])

    # What a kind of agent adds.

    @property
    @abc.abstractmethod
    def parameters(self) -> dict[str, np.ndarray]:
        """Copies of the policy's parameters by name, as NumPy arrays."""

    @abc.abstractmethod
    def with_parameters(self: A, parameters: Any) -> A:
        """A copy of this agent with other parameters: a dictionary as `parameters` gives it, or
        one vector of all of them in that order. This agent stays as it is."""

    @property
    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """The configuration from which this agent can be made again; objects are None."""

    @property
    @abc.abstractmethod
    def episodes(self) -> int:
        """The number of episodes of the next update."""

    @abc.abstractmethod
    def _play(self) -> Any:
        """The episodes of the next update."""

    @abc.abstractmethod
    def _learn_from(self, played: Any) -> tuple[Evaluation, Any, dict[Any, float]]:
        """Make one update from what `_play` returned: move to the next state. Returns the episodes,
        whether each ended by itself, and the columns that describe the update. Raises NotFinite if
        parameters, or what they are computed from, are not finite; the agent is then unchanged."""

    @abc.abstractmethod
    def _take(self, state: Any) -> None:
        """Continue from this state, which may hold NumPy arrays."""

    # What all agents do.

    def _in_jax(self, tree: Any) -> Any:
        """The tree with arrays of JAX in place of NumPy's, in this agent's precision."""
        with self.precision():
            return jax.tree.map(
                lambda x: jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x, tree
            )

    def precision(self) -> Any:
        """A context in which this agent's numbers are computed: single or double precision."""
        return jax.enable_x64(self._double)

    @property
    def policy(self) -> AnyPolicy:
        return self.state.policy

    @property
    def parameter_count(self) -> int:
        """n, the number of parameters."""
        return sum(values.size for values in self.parameters.values())

    def _named(self) -> dict[str, Any]:
        """Names and options for `config`."""
        names = {k: v if isinstance(v, str) else None for k, v in self.names.items()}
        return names | {"options": self.options}

    def set_environment(
        self, environment: AnyEnvironment, options: dict[str, Any] | None = None
    ) -> None:
        """Continue in another environment, whose observations and actions are of the same kind: the
        policy and the statistics of observations stay."""
        other = self._elsewhere(environment, options)
        self.world, self.settings, self.names = other.world, other.settings, other.names
        self.options, self._asked = other.options, other._asked
        self.reset()

    def _elsewhere(self, environment: AnyEnvironment, options: Any = None) -> Any:
        """An agent that begins as this one did, in another environment of the same kind."""
        other = self._again(environment=environment, options=options)
        serialise.refuse_another_kind(self, other)
        return other

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
        actions, self._memory = predict.predict(
            self, self._memory, observation, deterministic, episode_start, action_masks
        )
        return actions

    def reset(self) -> None:
        """Clear the memory of the policy; call it before the first `predict` of an episode."""
        self._memory = None

    def evaluate(
        self,
        episodes: int = 100,
        *,
        deterministic: bool = False,
        seed: int | None = None,
        environment: AnyEnvironment | None = None,
    ) -> Evaluation:
        """Play whole episodes with the current policy, on seeds that training never uses. The
        statistics of observations do not change. With `environment` they are played there, for
        instance without a wrapper that changes rewards; its observations and actions must be of
        the same kind."""
        episodes = checks.whole("episodes", episodes, 1)
        deterministic = checks.flag("deterministic", deterministic)
        first: int = self.settings.seed if seed is None else settings.seed("seed", seed)
        key, seeds = child(host_key(first), 2), episode_seeds(first, -1, episodes)
        where = self.world if environment is None else self._elsewhere(environment).world
        with self.precision():
            paths = where.play(self.state.acting, key, seeds, deterministic)
        return metrics.evaluation(paths)

    def update(self) -> Row:
        """Play the episodes of one update, make it, and return its row of metrics. Raises NotFinite
        if parameters, or what they are computed from, are not finite; the agent is then unchanged.
        A number that only describes the update is then NaN in its row, with one warning."""
        begun = time.perf_counter()
        played = self._play()
        drawn = time.perf_counter()
        episodes, terminated, columns = self._learn_from(played)
        done = time.perf_counter()
        self._seconds += done - begun
        return metrics.row(
            self.state, columns, episodes, terminated, self._seconds, drawing=drawn - begun,
            learning=done - drawn,
        )  # fmt: skip

    def learn(
        self: A,
        steps: int | None = None,
        *,
        episodes: int | None = None,
        callbacks: Iterable[Callback] | Callback = (),
        run: str | Path | Run | None = None,
        keep: str = "last",
        progress: bool = True,
        tensorboard: bool = False,
    ) -> A:
        """Train for `steps` more environment steps, or for `episodes` more episodes, or until a
        callback returns False.

        With `run`, a directory, every update is saved and the run can be resumed after any
        interruption; a directory that holds the run of this very agent is trained for longer.
        ``keep="best"`` leaves the agent with the best policy of the run instead of the last one
        (see `bayespg.agents.store`); a run directory always keeps both. Ctrl-C ends training
        after the current update.
        """
        last = self.max_episodes or math.inf
        if episodes is not None:
            if steps is not None:
                raise ValueError("episodes: give steps or episodes, not both")
            last = min(last, int(self.state.episodes) + checks.whole("episodes", episodes, 1))
            steps = episodes * self.world.horizon
        if steps is None:
            raise ValueError("steps: give steps or episodes, found neither")
        keep = checks.one_of("keep", keep, ("last", "best"))
        steps = checks.whole("steps", steps, 1)
        progress = checks.flag("progress", progress)
        tensorboard = checks.flag("tensorboard", tensorboard)
        callbacks = as_list(callbacks)
        if not isinstance(run, str | Path | Run | None):
            raise ValueError(f"run: expected a directory, found {run!r}")
        if tensorboard and not isinstance(run, str | Path):
            raise settings.no_effect("tensorboard", True, "events go into a new run directory")
        if self.state.episodes >= last:
            return self
        begun, self.interrupted = int(self.state.steps), False
        if isinstance(run, str | Path):
            run = store.run_of(self, run, begun + steps, tensorboard)
        with (
            run or contextlib.nullcontext(),
            interruption.bar(self._goal(steps, last, run), progress) as show,
        ):
            if run is not None:
                store.agree(self, run)
            best_state = self._loop(begun + steps, last, callbacks, run, show, hint=progress)
            if self.interrupted:
                done = f"Interrupted after update {int(self.state.updates)}, which is complete"
                show.say(f"{done}; {self._how_to_resume(run)}")
            if keep == "best":
                with self.precision():
                    stored = run.best(self.state) if run else None
                # With the current counts, so that further training draws new episodes.
                best_state = stored[0] if stored else best_state
                self._take(eqx.tree_at(_counts, best_state, _counts(self.state)))
        return self

    def _loop(
        self, end: int, last: float, callbacks: list[Callback], run: Run | None, show: Any,
        hint: bool,
    ) -> Any:  # fmt: skip
        """Updates until `end` steps or `last` episodes; returns the state after the best update."""
        best = Best(run.metrics().get(Column.RETURN, []) if run else [])
        best_state = self.state
        hints = ()
        if hint:
            config, episodes = self.config, self.settings.episodes
            hints = Constant(), Stuck(config["policy"]), Unconfirmed(episodes)
        with contextlib.ExitStack() as ends, interruption.after_this_update() as stop:
            for one in callbacks:
                getattr(one, "start", _nothing)(self)
                ends.callback(getattr(one, "end", _nothing), self)
            while self.state.steps < end and self.state.episodes < last and not stop.asked:
                try:
                    row = self.update()
                except WorkersLost as problem:
                    done = f"The agent is as it was after update {int(self.state.updates)}"
                    how = self._how_to_resume(run)
                    raise WorkersLost(f"{problem}. {done}; {how}") from problem
                if better := best(row[Column.RETURN]):
                    best_state = self.state
                if run is not None:
                    run.log(row)
                    run.checkpoint(self.state, self._meta(), best=better)
                show(row)
                for advice in filter(None, [hint(row) for hint in hints]):
                    show.say(advice)
                if False in [callback(self, row) for callback in callbacks]:
                    break
        self.interrupted = stop.asked
        return best_state

    def _goal(self, steps: int, last: float, run: Run | None) -> interruption.Goal:
        """What the progress bar counts: episodes where their number is limited, else steps. In a
        folder of several seeds it says which seed."""
        member = run is not None and MEMBER.fullmatch(run.path.name)
        of = f"seed {member[1]}: " if member else ""
        if math.isinf(last):
            return interruption.Goal(steps, int(self.state.steps), of=of)
        begun = int(self.state.episodes)
        return interruption.Goal(int(last) - begun, begun, Column.EPISODES, of)

    def _how_to_resume(self, run: Run | None) -> str:
        if run is None:
            return "call learn again to continue"
        return f"resume with: {resuming(run.path, self.config)}"

    def extend(self, run: Run, steps: int) -> None:
        """Write into this agent's run that it ends at `steps` steps, counted from its beginning."""
        store.extend(self, run, steps)

    def save(self, path: str | Path) -> None:
        """Save the agent in a directory, for `bayespg.load`; or, if `path` ends in ".bayespg", as
        one file, a zip of arrays and JSON.

        An agent that was saved there before is replaced, with its settings. A training run is
        refused, and so is a directory of another program.
        """
        store.save(self, path)

    @classmethod
    def load(cls: type[A], path: str | Path, *, best: bool = False, **given: Any) -> A:
        """`bayespg.load` for an agent that is known to be of this class; ValueError if another
        kind was saved. `given` are the further arguments of `bayespg.load`."""
        import bayespg  # whose `load` knows all kinds of agents

        agent = bayespg.load(path, best=best, **given)
        if not isinstance(agent, cls):
            raise ValueError(
                f"{path}: holds an agent of class {type(agent).__name__}, not {cls.__name__}; use "
                "bayespg.load"
            )
        return agent

    def export(self, path: str | Path, batch: int = 1) -> None:
        """Write the policy as an ONNX file, from `batch` observations to their most likely actions,
        for programs without JAX (`bayespg.agents.export`)."""
        export.onnx(self.world, self.state.acting, path, batch)

    def restore(self, run: Run, *, best: bool = False) -> bool:
        """Load the newest checkpoint of a run, or its best; False if there is none yet."""
        with self.precision():
            checkpoint = run.best(self.state) if best else run.restore(self.state)
            if checkpoint is None:
                return False
            self._take(checkpoint[0])
        self._continue(checkpoint[1])
        return True

    def _meta(self) -> dict[str, Any]:
        """What a checkpoint holds besides the state."""
        return {"seconds": self._seconds}

    def _continue(self, meta: Mapping[str, Any]) -> None:
        seconds = meta.get("seconds", 0.0)
        self._seconds = float(seconds) if isinstance(seconds, int | float) else 0.0


def _revived(kind: Any, content: bytes) -> BaseAgent:
    """The agent that was pickled."""
    asked, (arrays, seconds) = serialise.unpacked(content)
    agent = kind(**asked)
    agent._take(serialise.with_arrays(agent.state, arrays))
    agent._continue({"seconds": seconds})
    return agent


def _counts(state: Any) -> tuple[Any, ...]:
    return state.updates, state.episodes, state.steps


def _nothing(agent: BaseAgent) -> None:
    """What a callback without `start` or `end` does there."""


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
