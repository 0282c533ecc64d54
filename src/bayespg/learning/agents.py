"""Training on real tasks: `BAC`, `BPG` and `MCPG` with the habits of other libraries.

    agent = bayespg.BAC("CartPole-v1", policy="mlp", seed=0)
    agent.learn(100_000)
    agent.evaluate(episodes=100)
    agent.predict(observation)
    agent.save("cartpole")

An agent is a shell around pure functions: it draws paths, hands them to `advance`, and keeps the
state that comes back.
"""

import dataclasses
import importlib.util
import math
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from bayespg._support import checks, compilation, device
from bayespg._support.statistics import student_interval, student_probability
from bayespg.environments.spaces import Bounded
from bayespg.environments.trajectories import Trajectories
from bayespg.learning import choices, settings
from bayespg.learning.advance import STAGES, NotFinite, advance, batch_of, begin
from bayespg.learning.batch import by_products
from bayespg.learning.estimators import Estimator, refuse_memory
from bayespg.paths.worlds import Acting, AnyEnvironment, OnHost, World, world
from bayespg.policies import AnyPolicy, as_dtype, named
from bayespg.runs import progress as interruption
from bayespg.runs.store import CONFIG, METRICS, Run

Row = dict[str, float]
"""What an update reports: a row of metrics.csv."""
Callback = Callable[["Agent", Row], Any]
"""Called after each update; an answer of False ends training."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns of whole episodes."""

    returns: np.ndarray
    lengths: np.ndarray
    level: float = 0.95

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Student's, over episodes: how well these episodes tell the mean of this policy. It says
        nothing of how another seed would have trained."""
        return student_interval(self.returns, self.level)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.1f} [{low:.1f}, {high:.1f}] over {self.returns.size} episodes"


class Agent:
    """A policy that learns in an environment.

    `environment` is a Gymnasium id, an environment, a function that makes one, a vector
    environment, or an `Environment` in JAX; `policy`, `estimator` and `update` are names (see
    `bayespg.learning.choices`) or objects. A policy may have a memory; without one given it is
    "linear", or the paper's in an environment of the paper. `options` go to `gymnasium.make`;
    everything else is in `Settings`. A setting that would have no effect is refused.
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
        self.options = _options(options, environment)
        with jax.enable_x64(True):  # all 64 bits of the seed
            key_policy, key_run = jax.random.split(jax.random.key(s.seed))
        self.world, policy, start = self._begin(environment, policy, key_policy)
        self.names = {
            "environment": environment, "policy": policy, "estimator": estimator, "update": update
        }  # fmt: skip
        found = choices.estimator(estimator, s["smoothing"])
        refuse_memory(found, start)
        self._double = not (found.needs.products and by_products(start))
        with self._precision():
            start = as_dtype(start, jnp.float64 if self._double else jnp.float32)
            self._estimator = found
            self._update = choices.update(update, s["limit"], s["rate"])
            self.state = begin(
                start, found, self._update, key_run, self.world.shape, self._normalised()
            )
        self.settings = s.as_done(self._facts())
        self._seconds = 0.0
        self.interrupted = False
        """Whether the last `learn` was ended by Ctrl-C."""
        self.reset()

    def _begin(
        self, environment: Any, policy: Any, key: Any
    ) -> tuple[World, str | AnyPolicy, AnyPolicy]:
        """Where to learn, what the policy is called, and the policy to start from."""
        s = self.settings
        known = choices.built_in(environment) if isinstance(environment, str) else None
        found = world(
            known.environment if known else environment, discount=s["discount"],
            horizon=s.horizon, lanes=min(s["lanes"], s.episodes), bounds=s["bounds"],
            options=self.options, processes=s.processes,
        )  # fmt: skip
        if isinstance(policy, AnyPolicy):
            return found, policy, policy
        if not isinstance(policy, str | None):
            raise ValueError(
                "policy: expected a name, a Policy or a MemoryPolicy, found "
                f"{type(policy).__name__}"
            )
        if known is not None and known.policy is not None:
            if policy not in (None, choices.PAPER):
                raise settings.no_effect(
                    "policy", policy, f"{environment} comes with the paper's policy"
                )
            return found, choices.PAPER, known.policy()
        if found.actions is None:
            raise ValueError("policy: for an environment of your own in JAX give a Policy object")
        policy = "linear" if policy is None else policy
        inputs = math.prod(found.shape)
        return found, policy, named.make(policy, inputs, found.actions, key, s["hidden"])

    def _facts(self) -> dict[str, tuple[Any, str]]:
        """Settings as they are in force, and why they can be no others."""
        s, found, task = self.settings, self.world, self.world.name
        host = found.host if isinstance(found, OnHost) else None
        policy, estimator, update = (
            name if isinstance(name, str) else f"a {type(name).__name__} of your own"
            for name in (self.names[kind] for kind in ("policy", "estimator", "update"))
        )
        limited, rated = update in choices.LIMITED, isinstance(self.names["update"], str)
        bounded = isinstance(found.actions, Bounded) and found.actions.bounded
        lanes = f"an update of {s.episodes} episodes fills no more lanes"
        if host is None:
            lanes = f"{task} in JAX draws all paths at once"
        elif host.lanes < min(s["lanes"], s.episodes):
            lanes = f"the environment that was given is {host.lanes} of them"
        return {
            "discount": (found.discount, f"{task} has its own discount, {found.discount:g}"),
            "horizon": (found.horizon, f"{task} ends episodes after {found.horizon} steps"),
            "lanes": (host and host.lanes, lanes),
            "processes": (s.processes and host is not None, f"{task} runs in JAX"),
            "normalise": (self.state.normaliser is not None, ""),
            "bounds": (s["bounds"] if bounded else None, f"actions of {task} have no bounds"),
            "hidden": (s["hidden"] if policy == "mlp" else None, f"{policy} has no such layers"),
            "smoothing": (
                self._estimator.needs.critic, f"{estimator} looks at returns, not at advantages"
            ),
            "limit": (s["limit"] if limited else None, f"{update} has no such limit"),
            "rate": (
                s["rate"] if rated and not limited else None, f"{update} takes no rate"
            ),
        }  # fmt: skip

    def _normalised(self) -> bool:
        wanted = self.settings.normalise
        if wanted and not self.world.real:
            raise ValueError("normalise: the observations are whole numbers; leave it out")
        return isinstance(self.world, OnHost) if wanted is None else wanted

    def _precision(self):
        return jax.enable_x64(self._double)

    @property
    def policy(self) -> AnyPolicy:
        return self.state.policy

    @property
    def parameters(self) -> int:
        kept = eqx.filter(self.state.policy, eqx.is_inexact_array)
        return sum(leaf.size for leaf in jax.tree.leaves(kept))

    # Acting.

    def draw(self) -> Trajectories:
        """The paths of the next update. They follow from the seed and the number of updates."""
        updates = int(self.state.updates)
        key = jax.random.fold_in(jax.random.fold_in(self.state.key, 1), updates)
        seeds = _seeds(self.settings.seed, updates, self.settings.episodes)
        with self._precision():
            return self.world.play(self.state.acting, key, seeds)

    def predict(self, observation: Any, deterministic: bool = True) -> Any:
        """The environment's action for one observation, as the environment gives it.

        A policy with memory remembers the observations since the last `reset`.
        """
        deterministic = checks.flag("deterministic", deterministic)
        key = jax.random.key(np.random.default_rng().integers(2**31))
        try:
            seen = self.world.encode(observation)
        except (TypeError, ValueError) as problem:
            raise ValueError(f"observation: {problem}") from None
        if not np.isfinite(seen).all():
            raise ValueError(f"observation: expected finite numbers, found {observation!r}")
        with self._precision():
            act = Acting(self.state.acting, key, deterministic, self._memory)
            _, actions = act(seen[None], 0, np.array([self._memory is None]))
        self._memory = act.memories
        return self.world.decode(actions)

    def reset(self) -> None:
        """Before the first `predict` of an episode: a policy with memory forgets the last one."""
        self._memory = None

    def evaluate(
        self, episodes: int = 100, *, deterministic: bool = False, seed: int | None = None
    ) -> Evaluation:
        """Whole episodes with the policy as it is, on seeds that training never uses; observation
        statistics stay as they are."""
        episodes = checks.whole("episodes", episodes, 1)
        deterministic = checks.flag("deterministic", deterministic)
        seed = self.settings.seed if seed is None else settings.seed("seed", seed)
        with jax.enable_x64(True):
            key = jax.random.fold_in(jax.random.key(seed), 2)
        seeds = _seeds(seed, -1, episodes)
        with self._precision():
            paths = self.world.play(self.state.acting, key, seeds, deterministic)
        return Evaluation(_undiscounted(paths), np.asarray(paths.mask).sum(0))

    # Learning.

    def update(self) -> Row:
        """Draw a batch, learn from it, say what happened. NotFinite where that came to numbers that
        are not finite: the agent then stays as it was."""
        begun = time.perf_counter()
        paths = self.draw()
        drawn = time.perf_counter()
        with self._precision():
            state, record = self._learn(paths)
            record = jax.tree.map(float, jax.device_get(record))
        if not record.sound:
            raise NotFinite(self._complaint(STAGES[int(record.stage)], paths))
        self.state = state
        done = time.perf_counter()
        self._seconds += done - begun
        found = _undiscounted(paths)
        lengths = np.asarray(paths.mask).sum(0)
        sure = _uphill(record.slope, record.slope_error, record.freedom)
        return {
            "update": int(self.state.updates), "steps": int(self.state.steps),
            "episodes": int(self.state.episodes), "seconds": self._seconds,
            "return": float(found.mean()),
            "return_error": float(found.std(ddof=1) / math.sqrt(found.size))
            if found.size > 1 else math.nan,
            "length": float(lengths.mean()),
            "terminated": float(np.mean(paths.terminated)),
            **{k: v for k, v in record._asdict().items() if k != "stage"}, "sure": sure,
            "seconds_drawing": drawn - begun, "seconds_learning": done - drawn,
        }  # fmt: skip

    def _learn(self, paths: Trajectories) -> tuple[Any, Any]:
        where = self.world
        return _learned(
            self._estimator, self._update, self.state, paths, where.discount, where.horizon,
            where.environment,
        )  # fmt: skip

    def _complaint(self, what: str, paths: Trajectories) -> str:
        """That an update was not made, and why, as far as one can see."""
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
        progress: bool = True,
        tensorboard: bool = False,
    ) -> "Agent":
        """Train for `steps` more environment steps, or until a callback answers False.

        With `run`, a directory, every update is written down and the run can be resumed, whatever
        happens. Ctrl-C ends after the current update.
        """
        steps = checks.whole("steps", steps, 1)
        progress, tensorboard = (
            checks.flag("progress", progress),
            checks.flag("tensorboard", tensorboard),
        )
        callbacks = [callbacks] if callable(callbacks) else list(_iterable(callbacks))
        if bad := [c for c in callbacks if not callable(c)]:
            raise ValueError(f"callbacks: expected functions of agent and row, found {bad[0]!r}")
        if not isinstance(run, str | Path | Run | None):
            raise ValueError(f"run: expected a directory, found {run!r}")
        if tensorboard and not isinstance(run, str | Path):
            raise settings.no_effect("tensorboard", True, "events go into a new run directory")
        begun, self.interrupted = int(self.state.steps), False
        if isinstance(run, str | Path):
            run = Run.create(run, self.config | {"steps": begun + steps}, tensorboard=tensorboard)
        with interruption.record(run) as book, interruption.bar(begun, steps, progress) as show:
            if book is not None:
                book.expect(int(self.state.updates))
            with interruption.after_this_update() as stop:
                while int(self.state.steps) < begun + steps and not stop.asked:
                    row = self.update()
                    if book is not None:
                        book.log(row)
                        book.checkpoint(self.state, {"seconds": self._seconds})
                    show(row)
                    if False in [callback(self, row) for callback in callbacks]:
                        break
            if stop.asked:
                self.interrupted = True
                show.say(
                    f"Interrupted after update {int(self.state.updates)}, which is complete."
                    + (f" Resume with: {resuming(book.path, self)}" if book else "")
                )
        return self

    # Keeping.

    @property
    def config(self) -> dict[str, Any]:
        """What it takes to make this agent again, objects as None."""
        names = {k: v if isinstance(v, str) else None for k, v in self.names.items()}
        return names | {"options": self.options} | dataclasses.asdict(self.settings)

    def save(self, path: str | Path) -> None:
        """A directory that `bayespg.load` reads.

        An agent saved there before is replaced, its settings with it. A training run is not, nor
        is anything that another program has left there.
        """
        if (Path(path) / CONFIG).exists():
            run = Run.open(path)
            if "steps" in run.config or (run.path / METRICS).exists():
                raise ValueError(
                    f"{path}: holds a training run, which keeps its own checkpoints; save the "
                    "agent in another directory"
                )
            if not self.names.keys() <= run.config.keys():
                raise ValueError(
                    f"{path}: its {CONFIG} is not of a saved agent; choose another directory"
                )
        else:
            run = Run.create(path, self.config)
        with run:
            run.replace(self.config, self.state, {"seconds": self._seconds})

    def restore(self, run: Run) -> bool:
        """Take over the newest checkpoint of a run; False where there is none yet."""
        with self._precision():
            found = run.restore(self.state)
            if found is None:
                return False
            state, meta = found
            self.state = jax.tree.map(
                lambda x: jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x, state
            )
        seconds = meta.get("seconds", 0.0)
        self._seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
        self.reset()
        return True


STORED = {
    "environment": str, "policy": str, "estimator": str, "update": str, "options": dict,
    "hidden": list,
}  # fmt: skip
"""What a configuration on disk holds besides numbers, which `Settings` judges."""
NAMED = {str: "string", dict: "object", list: "list"}

Imports = str | Iterable[str]
"""Modules, by name, that may be imported because a run directory asks for them."""


def load(path: str | Path, *, imports: Imports = (), **objects: Any) -> Agent:
    """An agent as it was saved, or as a run directory holds it.

    What was given as an object, not a name, must be given again: ``load(path, policy=...)``.

    A directory from somebody else runs no code of theirs. An environment of the form
    ``module:Task-v0`` that is read from it is refused unless the module is named in `imports`, or
    the environment is given again as ``environment=``. Modules in `imports` are imported first.
    """
    agent, run = reopen(path, imports=imports, **objects)
    if not agent.restore(run):
        raise ValueError(f"{path}: this run has no checkpoint yet; there is nothing to load")
    return agent


def reopen(
    path: str | Path, *, tensorboard: bool = False, imports: Imports = (), **objects: Any
) -> tuple[Agent, Run]:
    """The agent that a run directory describes, before any checkpoint, and the run."""
    run = Run.open(path, tensorboard=tensorboard)
    config: dict[str, Any] = {k: v for k, v in run.config.items() if k != "steps"}
    stored = {k: v for k, v in config.items() if k not in objects}
    for name, kind in STORED.items():
        if not isinstance(stored.get(name), kind | None):
            raise ValueError(
                f"{run.path / CONFIG}: {name}: expected a JSON {NAMED[kind]}, found "
                f"{stored[name]!r:.40}"
            )
    # Earlier versions recorded defaults also where there was nothing to set.
    usual = settings.DEFAULTS | {"policy": "linear", "hidden": list(settings.DEFAULTS["hidden"])}
    config = {k: v for k, v in config.items() if usual.get(k) != v or v is None} | objects
    for name in ("environment", "policy", "estimator", "update"):
        if config.get(name, run.config.get(name)) is None:
            raise ValueError(
                f"{path}: {name} was an object when this was saved; give it again: "
                f"load({str(path)!r}, {name}=...)"
            )
    allowed = import_all(imports)
    for module in _modules(stored.get("environment"), stored.get("options")):
        if module not in allowed:
            raise ValueError(
                f"{run.path / CONFIG}: asks to import the module '{module}', which would run its "
                f"code; if you trust it, say so with --import {module} on the command line, or "
                f"bayespg.load({str(path)!r}, imports={module!r}) in Python"
            )
    kind: Any = Agent
    if config.get("estimator", run.config.get("estimator")) == "pgpe":
        from bayespg.learning.pgpe import PGPE as kind
    try:
        return kind(**config), run
    except (ValueError, TypeError, ArithmeticError, AttributeError, LookupError) as problem:
        hint, called = "", stored.get("environment", "").rpartition(":")[2]
        if called and called not in gymnasium.registry and not choices.built_in(called):
            hint = "; name the module that registers it: --import, or imports= in Python"
        raise ValueError(f"{run.path / CONFIG}: {problem}{hint}") from problem


def resume(
    path: str | Path, *, tensorboard: bool = False, imports: Imports = (), **objects: Any
) -> tuple[Agent, Run]:
    """Agent and run as they were after the last whole update, ready for `learn(..., run=run)`.

    `imports` and `objects` are those of `load`.
    """
    agent, run = reopen(path, tensorboard=tensorboard, imports=imports, **objects)
    with run:
        agent.restore(run)
        run.truncate(int(agent.state.updates))
    return agent, run


def import_all(modules: Imports) -> list[str]:
    """Import modules that the user has named, for the environments that they register."""
    names = [modules] if isinstance(modules, str) else list(modules)
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as problem:
            raise ValueError(
                f"import: {name} cannot be imported ({problem}); install it, or put its folder on "
                "Python's path with PYTHONPATH"
            ) from problem
    return names


def _modules(environment: Any, options: Any) -> list[str]:
    """Modules that may be imported for an id and its options: what stands before a colon in the
    id, and in any string within the options where there is such a module (C:/models/ant.xml names
    none)."""
    found, left = [], [options]
    while left:
        match left.pop():
            case str() as text if ":" in text and _findable(text.partition(":")[0]):
                found.append(text.partition(":")[0])
            case dict() as parts:
                left += [*parts, *parts.values()]
            case list() | tuple() as parts:
                left += parts
    named = isinstance(environment, str) and ":" in environment
    return [environment.partition(":")[0], *found] if named else found


def _findable(module: str) -> bool:
    """Whether importing it could run anything; nothing is imported to find out."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except ValueError:
        return True


def resuming(path: Path, agent: Agent) -> str:
    """The command that goes on with a run."""
    words = ["bayespg", "train", "--resume", str(path)]
    for module in _modules(agent.config["environment"], agent.options):
        words += ["--import", module]
    return shlex.join(words)


def BAC(environment: Any, policy: str | AnyPolicy | None = None, **given: Any) -> Agent:
    """Bayesian actor-critic: advantages explained by states and scores together, followed along
    the natural gradient."""
    return Agent(environment, policy, given.pop("estimator", "bac"), **given)


def BPG(environment: Any, policy: str | AnyPolicy | None = None, **given: Any) -> Agent:
    """Bayesian policy gradient: whole episodes, Model 2 with a flat baseline."""
    return Agent(environment, policy, given.pop("estimator", "model2"), **given)


def MCPG(environment: Any, policy: str | AnyPolicy | None = None, **given: Any) -> Agent:
    """Monte Carlo policy gradient: GPOMDP, the rival."""
    return Agent(environment, policy, given.pop("estimator", "mcpg"), **given)


def _options(options: Any, environment: Any) -> dict[str, Any]:
    """What `gymnasium.make` gets."""
    if not isinstance(options, Mapping | None):
        raise ValueError(f"options: expected a dictionary for gymnasium.make, found {options!r}")
    if options and (not isinstance(environment, str) or choices.built_in(environment)):
        reason = "they go to gymnasium.make, and the environment is no Gymnasium id"
        raise settings.no_effect("options", options, reason)
    return dict(options or {})


def _iterable(callbacks: Any) -> Iterable[Any]:
    if not isinstance(callbacks, Iterable):
        raise ValueError(f"callbacks: expected functions of agent and row, found {callbacks!r}")
    return callbacks


def _undiscounted(paths: Trajectories) -> np.ndarray:
    """Returns of whole episodes, in float64."""
    return np.where(paths.mask, paths.rewards, 0.0).sum(0, dtype=np.float64)


@eqx.filter_jit
def _learned(estimator, update, state, raw, discount, horizon, environment):
    batch = batch_of(state, raw, discount, horizon, environment)
    return advance(estimator, update, state, batch, raw)[:2]


def _seeds(seed: int, updates: int, count: int) -> list[int]:
    """Of episodes: other ones for each update, and for evaluation (-1)."""
    found = np.random.SeedSequence([seed, updates + 1]).generate_state(count)
    return [int(s) for s in found]


def _uphill(slope: float, error: float, freedom: float) -> float:
    """Student's t of the slope along the step taken. As a probability that the step leads uphill it
    is optimistic, because the same episodes chose the step and judge it."""
    if not error > 0:
        return 0.5 if slope == 0 or math.isnan(slope) else float(slope > 0)
    return float(student_probability(slope / error, max(freedom, 1.0)))
