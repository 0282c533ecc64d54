"""Ideas for the default learner, each measured beside the default on the same tasks and seeds.

    python benchmarks/leads.py run default,carried:0,1 back:0:Hopper-v5:1.0 [--jobs 5]
        [--evaluations 10] [--out results/leads.jsonl]
    python benchmarks/leads.py table docs/results/leads.jsonl

A lead changes one thing of the library in the process of its run and nothing in its files: `LEADS`
names them, with the tasks on which each could matter. A run of the default is evaluated with other
policies than the last one too, the rows `average` and `best`, because they cost no training. Seeds
are below 100, those for choosing; evaluations are of 5 episodes. `table` gives the differences from
the default, paired by task and seed, with their standard errors.
"""

import argparse
import functools
import math
import multiprocessing
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import suite
import suite_report
from rivals import sb3
from suite_tasks import TASKS, maker, steps_of

EPISODES, PART = 5, 0.4
DEFAULT = "default"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    modes = parser.add_subparsers(dest="do", required=True)
    runs = modes.add_parser("run", help="train and evaluate")
    runs.add_argument("plan", nargs="+", metavar="LEADS:SEEDS[:TASKS[:SHARE]]")
    runs.add_argument("--jobs", type=int, default=1)
    runs.add_argument("--evaluations", type=int, default=10)
    runs.add_argument("--out", type=Path, default=Path("results/leads.jsonl"))
    shown = modes.add_parser("table", help="differences from the default")
    shown.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args()
    if options.do == "run":
        run(options)
    else:
        print(table(options.files))


class Order(NamedTuple):
    """One run."""

    lead: str
    task: str
    seed: int
    fraction: float
    evaluations: int
    version: dict[str, str]

    @property
    def budget(self) -> int:
        return round(self.fraction * steps_of(self.task))

    @property
    def points(self) -> np.ndarray:
        return np.linspace(0, self.budget, self.evaluations + 1).round().astype(int)

    @property
    def key(self) -> tuple[Any, ...]:
        return self.lead, self.task, self.seed, self.budget


def run(options: argparse.Namespace) -> None:
    """All runs that are not in the file yet, those of one task and seed together."""
    done = {(r["label"], r["task"], r["seed"], r["budget"]) for r in sb3.read(options.out)}
    version = suite.version_of("bayespg")
    orders = [
        Order(lead, task, int(seed), share, options.evaluations, version)
        for leads, seeds, tasks, share in map(_part, options.plan)
        for seed in seeds for lead in leads for task in tasks or LEADS[lead].tasks
    ]  # fmt: skip
    orders = [order for order in orders if order.key not in done]
    begun = time.perf_counter()
    os.environ |= dict.fromkeys(suite.ALONE, "1") | {"JAX_PLATFORMS": "cpu"}
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.jobs, maxtasksperchild=1) as pool:  # a lead changes its process
        for order, lines in pool.imap_unordered(_tried, orders):
            name = f"{time.perf_counter() - begun:5.0f} s  {order.lead}, {order.task}, {order.seed}"
            if isinstance(lines, Exception):
                print(f"{name}: {type(lines).__name__}: {lines}", flush=True)
                continue
            for line in lines:
                sb3.append(options.out, line)
            scores = " ".join(f"{suite_report.score(line):.3f}" for line in lines if _scored(line))
            took, error = lines[0]["train_seconds"], lines[0]["error"] or ""
            print(f"{name}: {scores}, {took:.0f} s of training {error}", flush=True)


def _part(text: str) -> tuple[list[str], list[str], list[str], float]:
    """LEADS:SEEDS:TASKS:SHARE, commas within; without the last two the tasks of each lead, and
    `PART` of the budgets."""
    leads, seeds, tasks, share = [*text.split(":"), "", ""][:4]
    names = [task for task in tasks.split(",") if task]
    return leads.split(","), seeds.split(","), names, float(share or PART)


def _scored(line: Any) -> bool:
    return line["task"] in TASKS


def _tried(order: Order) -> tuple[Order, Any]:
    """The lines of a run, or what went wrong."""
    try:
        return order, train(order)
    except Exception as problem:
        traceback.print_exc()
        return order, problem


def train(order: Order) -> list[dict[str, Any]]:
    """A run, and a line for each policy that is shown."""
    import bayespg  # first, for the thread pool  # noqa: F401
    from bayespg._support.random import child, host_key
    from bayespg.agents.metrics import evaluation
    from bayespg.environments.host import Host
    from bayespg.paths.worlds import OnHost

    suite.EPISODES = EPISODES
    lead = LEADS[order.lead]
    agent = lead.agent(maker(order.task), seed=order.seed)
    stage = OnHost(Host(maker(order.task), lanes=EPISODES, horizon=agent.settings.horizon))
    shown: dict[str, Any] = {order.lead: lambda agent, row: agent.state}
    if order.lead == DEFAULT:
        shown |= {"average": Average(agent), "best": Best(agent)}
    states = dict.fromkeys(shown, agent.state)
    evaluated: dict[Any, list[float]] = {}

    def evaluate(name: str, number: int, deterministic: bool) -> list[float]:
        of = id(states[name]), number, deterministic
        if of not in evaluated:  # several names may show one policy
            key = child(host_key(order.seed), 2**16 + 2 * number + deterministic)
            seeds = suite.evaluation_seeds(order.seed, number)
            with agent.precision():
                paths = stage.play(states[name].acting, key, seeds, deterministic)
            evaluated[of] = evaluation(paths).returns.tolist()
        return evaluated[of]

    curves = {name: suite.Curve(order.points, functools.partial(evaluate, name)) for name in shown}
    seconds, error, rows = 0.0, None, []
    while next(iter(curves.values())).waits_for < np.inf:
        begun = time.perf_counter()
        try:
            row = agent.update()
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
            traceback.print_exc()
            row = None
        spent = time.perf_counter() - begun
        steps = np.inf if row is None else int(agent.state.steps)
        for curve in curves.values():
            curve.record(steps, seconds)
        if row is None:
            break
        rows.append(row)
        seconds += spent
        evaluated.clear()
        states = {name: of(agent, row) for name, of in shown.items()}
        if steps >= order.budget:
            for curve in curves.values():
                curve.record(np.inf, seconds)
    common = {
        "task": order.task, "method": "bayespg", "seed": order.seed, "settings": {},
        "version": order.version, "budget": order.budget, "episodes_per_evaluation": EPISODES,
        "train_seconds": round(seconds, 2), "updates": len(rows), "error": error,
        "confirmed": _mean(rows, "confirmed"), "episodes": int(agent.state.episodes),
    }  # fmt: skip
    return [{"label": name} | common | curve.line() for name, curve in curves.items()]


def _mean(rows: list[Any], column: str) -> float:
    return round(float(np.mean([row[column] for row in rows])), 3) if rows else math.nan


# Policies that are shown instead of the last one.


class Average:
    """The mean of the parameters, later ones with more weight: the last quarter of the updates."""

    def __init__(self, agent: Any):
        self.updates, self.theta = 0, _theta(agent.state)

    def __call__(self, agent: Any, row: Any) -> Any:
        self.updates += 1
        self.theta = self.theta + min(1.0, 4 / (self.updates + 3)) * (
            _theta(agent.state) - self.theta
        )
        return _with(agent, agent.state, self.theta)


class Best:
    """The policy after the `WINDOW` updates with the highest mean return, if the mean return of the
    last `WINDOW` is lower by more than two standard errors; otherwise the last policy."""

    WINDOW = 10

    def __init__(self, agent: Any):
        self.recent: deque[Any] = deque(maxlen=self.WINDOW)
        self.highest, self.error, self.state = -math.inf, 0.0, agent.state

    def fallen(self, agent: Any, row: Any) -> bool:
        self.recent.append(row["return"])
        if len(self.recent) < self.WINDOW:
            return False
        mean, error = np.mean(self.recent), np.std(self.recent, ddof=1) / len(self.recent) ** 0.5
        if mean >= self.highest:
            self.highest, self.error, self.state = mean, error, agent.state
        return bool(self.highest - mean > 2 * math.hypot(error, self.error))

    def __call__(self, agent: Any, row: Any) -> Any:
        return self.state if self.fallen(agent, row) else agent.state


def _theta(state: Any) -> np.ndarray:
    from jax.flatten_util import ravel_pytree

    return np.asarray(ravel_pytree(_parameters(state.policy))[0])


def _parameters(policy: Any) -> Any:
    import equinox as eqx

    return eqx.filter(policy, eqx.is_inexact_array)


def _with(agent: Any, state: Any, theta: np.ndarray) -> Any:
    import equinox as eqx
    import jax.numpy as jnp

    from bayespg.policies import flatten

    with agent.precision():
        old, rebuild = flatten(state.policy)
        policy = rebuild(jnp.asarray(theta, old.dtype))
    return eqx.tree_at(lambda s: s.policy, state, policy)


# The leads.


def _agent(task: str, **settings: Any) -> Any:
    from bayespg.agents.agent import Agent

    return Agent(task, **settings)


class Lead(NamedTuple):
    words: str
    tasks: Sequence[str]
    agent: Callable[..., Any] = _agent


def _changed(change: Callable[[], None]) -> Callable[..., Any]:
    """An agent of a library that is changed first."""

    def make(task: str, **settings: Any) -> Any:
        change()
        return _agent(task, **settings)

    return make


def _set(module: str, name: str, value: Any) -> Callable[[], None]:
    def change() -> None:
        import importlib

        setattr(importlib.import_module(module), name, value)

    return change


def _back(task: str, **settings: Any) -> Any:
    """Goes back to the best policy where returns have fallen."""
    from bayespg.agents.agent import Agent

    class Back(Agent):
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.best = Best(self)

        def update(self) -> Any:
            import equinox as eqx

            row = super().update()
            if self.best.fallen(self, row):
                best = self.best.state
                self.state = eqx.tree_at(
                    lambda s: (s.policy, s.normaliser, s.critic), self.state,
                    (best.policy, best.normaliser, best.critic), is_leaf=lambda x: x is None,
                )  # fmt: skip
                self.best.recent.clear()
            return row

    return Back(task, **settings)


def _paired(task: str, **settings: Any) -> Any:
    """Each start is played twice from four episodes on."""
    from bayespg.agents import agent as agents

    seeds = agents.episode_seeds

    def paired(seed: int, updates: int, count: int) -> list[int]:
        if count < 4 or updates < 0:
            return seeds(seed, updates, count)
        return [s for s in seeds(seed, updates, count // 2) for _ in range(2)]

    agents.episode_seeds = paired
    return _agent(task, **settings)


def _clipped() -> None:
    """Scores of Gaussians that are clipped to [-1, 1]."""
    import jax
    import jax.numpy as jnp

    from bayespg.policies.distributions import Gaussians

    def log_prob(self: Any, action: Any) -> Any:
        s = jnp.exp(self.log_scale)
        inside = jnp.clip(action, -1.0, 1.0)
        z = (inside - self.mean) / s
        low = jax.scipy.special.log_ndtr((-1.0 - self.mean) / s)
        high = jax.scipy.special.log_ndtr((self.mean - 1.0) / s)
        density = -0.5 * (z**2 + jnp.log(2 * jnp.pi)) - self.log_scale
        each = jnp.where(action <= -1, low, jnp.where(action >= 1, high, density))
        return jnp.sum(each)

    Gaussians.log_prob = log_prob


RHO = 0.3
"""Share of the fall of entropy that is kept."""


def _entropy() -> None:
    """g' = g - (1 - rho) max(0, theta'g / theta'D theta) D theta, for choices."""
    import jax.numpy as jnp
    import optax

    from bayespg.agents import names
    from bayespg.learning import updates

    def bounded(limit: float) -> Any:
        inner = updates.trust_region(limit)

        def update(g, state, params, *, posterior, **rest):
            D = posterior.fisher
            Dtheta = D.multiply(params)
            size = params @ Dtheta
            fall = jnp.maximum(0.0, params @ g / jnp.where(size > 0, size, 1.0))
            g = g - (1 - RHO) * jnp.where(size > 0, fall, 0.0) * Dtheta
            return inner.update(g, state, params, posterior=posterior, **rest)

        return optax.GradientTransformationExtraArgs(inner.init, update)

    made = functools.lru_cache(bounded)
    names.update = lambda choice, limit, rate: made(limit)
    import bayespg.agents.agent

    bayespg.agents.agent.names.update = names.update


@functools.cache
def _compiled(double: bool) -> Any:
    import equinox as eqx

    from bayespg._support import compilation
    from bayespg.learning.advance import advance, batch_of

    def learned(estimator, update, state, raw, discount, horizon, environment):
        batch = batch_of(state, raw, discount, horizon, environment)
        state, record, posterior = advance(estimator, update, state, batch, raw)
        return state, record, {k: posterior.info.get(k) for k in ("lead", "directions")}

    options: dict[str, Any] = {"compiler_options": compilation.fast(double=double)}
    return eqx.filter_jit(learned, **options)


def _observing() -> Any:
    """An agent that keeps what its estimator says in `info`, and hands it to `after`."""
    from bayespg.agents.agent import Agent

    class Observing(Agent):
        directions = math.nan

        def _learn(self, paths: Any) -> Any:
            state, record, said = _compiled(self._double)(*self._arguments(paths))
            self.directions = float(said["directions"])
            if said["lead"] is not None:
                self._estimator = self._estimator.after(said["lead"])
            return state, record

        def _ahead(self) -> Any:
            self._begun = True
            return None

    return Observing


def _carried(task: str, **settings: Any) -> Any:
    """The prior mean of the weights is mu times those of the update before."""
    import dataclasses

    import equinox as eqx
    import jax.numpy as jnp

    from bayespg import actor_critic
    from bayespg.actor_critic.products import Smoother
    from bayespg.actor_critic.steps import state_features
    from bayespg.algebra import sparse
    from bayespg.learning.estimators import BAC
    from bayespg.policies import flatten

    class Carried(BAC):
        before: Any = None
        sums: Any = None

        def __call__(self, batch: Any) -> Any:
            original, said = actor_critic.of_steps, {}
            theta = flatten(batch.policy)[0]
            w, sums = self.before.astype(theta.dtype), self.sums.astype(theta.dtype)
            mu = jnp.clip(sums[0] / jnp.where(sums[1] > 0, sums[1], 1.0), 0.0, 1.0)

            def around(rows, prior, noise, **rest):
                Psi, _ = state_features(rows, prior.state_kernel, rest["rank"])
                smooth = Smoother(Psi, jnp.asarray(noise, Psi.dtype), rows.segments)
                Uw = sparse.products(rows.scores).times(w)
                fit = jnp.stack([smooth(rows.y) @ Uw, smooth(Uw) @ Uw])
                found = original(rows._replace(y=rows.y - mu * Uw), prior, noise, **rest)
                mean = found.mean + mu * prior.readout.multiply(w)
                said["lead"] = mu * w + prior.fisher.solve(found.mean), 0.95 * sums + fit
                return eqx.tree_at(lambda p: p.mean, found, mean)

            actor_critic.of_steps = around
            try:
                posterior = super().__call__(batch)
            finally:
                actor_critic.of_steps = original
            posterior.info.update(said)
            return posterior

        def after(self, lead: Any) -> Any:
            return dataclasses.replace(self, before=lead[0], sums=lead[1])

    agent = _observing()(task, **settings)
    with agent.precision():
        theta = flatten(agent.state.policy)[0]
        agent._estimator = Carried(before=jnp.zeros_like(theta), sums=jnp.zeros(2, theta.dtype))
    return agent


def _lambda(task: str, **settings: Any) -> Any:
    """Of three values of lambda the one whose gradients agree most between episodes so far."""
    import dataclasses

    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from bayespg.learning.estimators import BAC

    class Chosen(BAC):
        sums: Any = None

        def __call__(self, batch: Any) -> Any:
            found, fresh = [], []
            for value in (0.9, 0.95, 0.98):
                one = BAC(lambda_=value)(batch)
                K = one.info["products"]
                own, M = jnp.trace(K), len(K)
                rho = (jnp.sum(K) - own) / max(M - 1, 1) / jnp.where(own > 0, own, 1.0)
                found.append(one)
                fresh.append(jnp.stack([rho, jnp.ones_like(rho)]) * M * (M - 1) / 2)
            sums = 0.95 * self.sums.astype(fresh[0].dtype) + jnp.stack(fresh)
            best = jnp.argmax(sums[:, 0] / sums[:, 1])
            each = [jax.tree.flatten(eqx.filter(one, eqx.is_array)) for one in found]
            chosen = [jnp.stack(leaves)[best] for leaves in zip(*(e[0] for e in each), strict=True)]
            rest = eqx.filter(found[0], eqx.is_array, inverse=True)
            posterior = eqx.combine(jax.tree.unflatten(each[0][1], chosen), rest)
            posterior.info["lead"] = sums
            return posterior

        def after(self, lead: Any) -> Any:
            return dataclasses.replace(self, sums=lead)

    agent = _observing()(task, **settings)
    with agent.precision():
        agent._estimator = Chosen(sums=jnp.zeros((3, 2)))
    return agent


STEPS_EACH = 8.0
"""Steps for each effective direction of the policy."""


def _by_directions(task: str, **settings: Any) -> Any:
    """The fewest episodes that have `STEPS_EACH` steps or more for each direction."""
    from bayespg.learning import trust

    class ByDirections(_observing()):  # pyright: ignore
        @property
        def episodes(self) -> int:
            asked, length = super().episodes, float(self.state.counts.length)
            if length == 0:
                return asked
            wanted = (
                M for M in (*trust.SIZES, 32, 64) if M * length >= STEPS_EACH * self.directions
            )
            return max(asked, next(wanted, 64))

    return ByDirections(task, **settings)


def _until_supported(task: str, **settings: Any) -> Any:
    """Episodes are added to a batch until their agreement supports a step."""
    from bayespg._support.random import child, episode_seeds
    from bayespg.learning import trust

    class UntilSupported(_observing()):  # pyright: ignore
        @property
        def episodes(self) -> int:
            return 2

        def draw(self) -> Any:
            updates, first = int(self.state.updates), 2 * self.more
            key = child(child(self.state.key, 1), updates + 2**20 * self.more)
            seeds = episode_seeds(self.settings.seed, updates, first + self.count)[first:]
            with self.precision():
                return self.world.play(
                    self.state.acting, key, seeds, persistence=self.state.exploration.persistence
                )

        def _learn(self, paths: Any) -> Any:
            before = self.state
            self.more = 0
            while True:
                found = super()._learn(paths)
                M, trusted = paths.mask.shape[1], found[0].trust
                rho = min(max(float(trusted.rho), 0.0), 1.0)
                enough = M * trust._share(rho, M) >= trust.ENOUGH
                long = 2 * int(np.asarray(paths.mask).sum()) > trust.STEPS
                if enough or trust.SIZES[-1] <= M or long:
                    return found
                self.state, self.more, self.count = before, M // 2, M
                paths = _together(paths, self.draw())

        more, count = 0, 2

    return UntilSupported(task, **settings)


def _together(a: Any, b: Any) -> Any:
    """Both batches as one."""
    T = max(len(a.mask), len(b.mask))

    def padded(x: Any) -> Any:
        x = np.asarray(x)
        return np.concatenate([x, np.zeros((T - len(x), *x.shape[1:]), x.dtype)])

    timed = [
        np.concatenate([padded(getattr(a, name)), padded(getattr(b, name))], 1)
        for name in ("states", "actions", "rewards", "mask")
    ]  # fmt: skip
    ends = [
        np.concatenate([np.asarray(getattr(a, name)), np.asarray(getattr(b, name))])
        for name in ("terminated", "final")
    ]
    return type(a)(*timed, *ends)


def _noise() -> None:
    """Initial noise of 1 / d of half the range."""
    from bayespg.policies import heads

    heads.initial_scale = lambda size: heads.SCALE / size


def _sizes() -> None:
    """Up to 64 episodes."""
    from bayespg.learning import trust

    trust.SIZES = (*trust.SIZES, 32, 64)


def _shorter() -> None:
    """Up to 64 episodes, and a third of the least length of steps."""
    from bayespg.learning import trust

    _sizes()
    trust.LEAST = 0.002


CARTPOLE, CAR, PENDULUM, LANDER = "CartPole-v1", "MountainCar-v0", "Pendulum-v1", "LunarLander-v3"
ONE, TWO = "InvertedPendulum-v5", "InvertedDoublePendulum-v5"
HOPPER, CHEETAH, SWIMMER, REACHER = "Hopper-v5", "HalfCheetah-v5", "Swimmer-v5", "Reacher-v5"
CONTINUOUS = (PENDULUM, TWO, HOPPER, CHEETAH, SWIMMER)
REDUCED = (CARTPOLE, CAR, LANDER, *CONTINUOUS)

LEADS: dict[str, Lead] = {
    DEFAULT: Lead("as it is", (*REDUCED, REACHER, ONE, "MountainCarContinuous-v0")),
    "quiet": Lead(
        "initial noise of 1 / d instead of 1 / √d for d components",
        (HOPPER, CHEETAH, SWIMMER, REACHER),
        _changed(_noise),
    ),
    "quieter": Lead(
        "half the initial noise",
        (*CONTINUOUS, REACHER, ONE, "MountainCarContinuous-v0"),
        _changed(_set("bayespg.policies.heads", "SCALE", 0.5)),
    ),
    "directions": Lead(
        "from the first update eight steps for each direction",
        (CARTPOLE, ONE, TWO, HOPPER, LANDER),
        _by_directions,
    ),
    "sizes": Lead(
        "up to 64 episodes instead of 16",
        (CARTPOLE, ONE, TWO, HOPPER, REACHER),
        _changed(_sizes),
    ),
    "shorter": Lead(
        "up to 64 episodes, and a third of the least length of steps",
        (CARTPOLE, ONE, TWO, HOPPER, REACHER),
        _changed(_shorter),
    ),
    "back": Lead("back to the best policy where returns have fallen", REDUCED, _back),
    "short": Lead(
        "more than two episodes in at most 2,000 steps",
        (CAR, LANDER, CHEETAH, SWIMMER),
        _changed(_set("bayespg.learning.trust", "STEPS", 2000)),
    ),
    "carried": Lead(
        "the prior mean of the gradient is that of the update before, as far as it predicted",
        REDUCED,
        _carried,
    ),
    "lambda": Lead(
        "of three lambdas that whose gradients agree most",
        (CAR, PENDULUM, LANDER, TWO, HOPPER, SWIMMER),
        _lambda,
    ),
    "clipped": Lead("scores of clipped Gaussians", CONTINUOUS, _changed(_clipped)),
    "entropy": Lead(
        "only 0.3 of the fall of entropy in each step", (CARTPOLE, CAR, LANDER), _changed(_entropy)
    ),
    "paired": Lead(
        "each start twice, from four episodes on", (CAR, PENDULUM, LANDER, TWO, HOPPER), _paired
    ),
    "supported": Lead(
        "more episodes until they agree, before the step",
        (CARTPOLE, LANDER, TWO, HOPPER),
        _until_supported,
    ),
    "exact": Lead(
        "exact algebra up to 1,000 parameters",
        (ONE, TWO, HOPPER, REACHER, SWIMMER),
        _changed(_set("bayespg.learning.batch", "MOST_DENSE", 1000)),
    ),
}


def table(files: Sequence[Path]) -> str:
    """Differences in score from the default, paired by task, seed and budget: the mean over tasks
    with the standard error of its means over seeds, and that of each task."""
    scores: dict[str, dict[tuple[Any, ...], float]] = {}
    for line in filter(_scored, (line for path in files for line in sb3.read(path))):
        key = line["task"], line["seed"], line["budget"]
        scores.setdefault(line["label"], {})[key] = suite_report.score(line)
    base, rows = scores.pop(DEFAULT), []
    for label, of in scores.items():
        apart: dict[str, list[float]] = {}
        for key in of.keys() & base.keys():
            apart.setdefault(key[0], []).append(of[key] - base[key])
        means = {task: np.mean(apart[task]) for task in TASKS if task in apart}
        if not means:
            continue
        repeated = [np.var(each, ddof=1) / len(each) for each in apart.values() if len(each) > 1]
        error = f" ± {math.sqrt(np.mean(repeated) / len(means)):.3f}" if repeated else ""
        words = LEADS[label].words if label in LEADS else SHOWN[label]
        each = ", ".join(f"{task.partition('-')[0]} {d:+.2f}" for task, d in means.items())
        runs = sum(map(len, apart.values()))
        rows.append((words, f"{np.mean(list(means.values())):+.3f}{error}", str(runs), each))
    rows.sort(key=lambda row: -float(row[1].split()[0]))
    return suite_report.table(("what is changed", "difference", "runs", "by task"), rows)


SHOWN = {
    "average": "the policy that is shown is an average over the last quarter of the updates",
    "best": "the best policy is shown where returns have fallen",
}


if __name__ == "__main__":
    sys.exit(main())
