"""Whole training: steps a second, where the time goes, what an estimator costs."""

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from measure import Table, once

from bayespg.agents.agent import Agent
from bayespg.environments.trajectories import Trajectories
from bayespg.learning.batch import Batch
from bayespg.learning.estimators import BAC, MonteCarlo
from bayespg.policies.features import MLP
from bayespg.policies.heads import Choice, Composed
from bayespg.posterior import direction_statistics

TASKS = (("CartPole-v1", 20_000), ("Pendulum-v1", 20_000))
POLICIES = ("linear", "mlp")
LENGTH, INPUTS = 250, 8


def run(quick: bool) -> list[Table]:
    batches = (2000,) if quick else (2000, 15_000)
    return [_throughput(4000 if quick else None), _estimators(batches)]


def _throughput(steps: int | None) -> Table:
    rows = []
    for task, most in TASKS:
        for policy in POLICIES:
            hidden = (64, 64) if policy == "mlp" else None
            agent = Agent(task, policy, episodes=8, hidden=hidden, seed=0)
            agent.learn(steps or most, progress=False)  # compiles every length that occurs
            kept: list[dict[str, float]] = []
            inside = _timed(agent.world.host)
            begun, before = time.perf_counter(), int(agent.state.steps)
            agent.learn(
                steps or most, callbacks=lambda _, row, kept=kept: kept.append(row), progress=False
            )
            seconds, done = time.perf_counter() - begun, int(agent.state.steps) - before
            environment = sum(inside)
            drawing, learning = (
                sum(row[name] for row in kept) for name in ("seconds_drawing", "seconds_learning")
            )
            shares = [100 * x / seconds for x in (environment, drawing - environment, learning)]
            rows.append([task, policy, agent.parameter_count, done, done / seconds, *shares])
    return Table(
        "Training speed",
        ["task", "policy", "parameters", "steps", "steps/s", "environment %", "policy %",
         "learning %"],
        rows,
        ["8 environments side by side, 8 episodes per update, after all is compiled. Policy: its "
         "choices, and keeping the paths; learning: estimator, update, values. The rivals': "
         "benchmarks/rivals/sb3.py throughput."],
    )  # fmt: skip


def _timed(host: Any) -> list[float]:
    """Seconds of every call into the environments, from now on."""
    found: list[float] = []
    for name in ("begin", "advance"):

        def call(*arguments: Any, inner: Any = getattr(host, name)) -> Any:
            begun = time.perf_counter()
            answer = inner(*arguments)
            found.append(time.perf_counter() - begun)
            return answer

        setattr(host, name, call)
    return found


def _estimators(batches: tuple[int, ...]) -> Table:
    policy = Composed(MLP(INPUTS, (64, 64), key=jax.random.key(0)), Choice(65, (4,), True))
    head = 0.3 * jax.random.normal(jax.random.key(1), policy.head.weights.shape)
    policy = eqx.tree_at(lambda p: p.head.weights, policy, head)
    rivals = {
        "plain policy gradient": MonteCarlo("mean", weights="uniform"),
        "rebased": MonteCarlo("states", weights="uniform"),
        "actor-critic": BAC(),
    }
    gradient = eqx.filter_jit(lambda estimator, batch: estimator(batch).mean)

    @eqx.filter_jit
    def call(estimator, batch):
        found = estimator(batch)
        return found.mean, direction_statistics(found, found.mean)

    rows = []
    for N in batches:
        keys = jax.random.split(jax.random.key(2), 3)
        states = jax.random.normal(keys[0], (LENGTH, N // LENGTH, INPUTS), jnp.float32)
        steps = states.shape[:2]
        paths = Trajectories(
            states, jax.random.randint(keys[1], steps, 0, 4),
            jax.random.normal(keys[2], steps, jnp.float32), jnp.ones(steps, bool),
            jnp.ones(steps[1], bool), states[-1],
        )  # fmt: skip
        batch = Batch(policy, paths, 0.0, LENGTH)
        first = None
        for name, estimator in rivals.items():
            cells = []
            for function in (gradient, call):
                arguments = (estimator, batch)
                compiling = once(lambda f=function, a=arguments: f(*a))[0]
                best = min(once(lambda f=function, a=arguments: f(*a))[0].wall for _ in range(5))
                cells += [best, compiling.wall - best]
            first = first or cells[0]
            rows.append([name, N, *cells, cells[0] / first])
    return Table(
        "Cost of an estimator on one batch, MLP 64 x 64",
        ["", "N", "gradient s", "compile s", "with error bars s", "compile s", "times plain"],
        rows,
        [f"Episodes of {LENGTH} steps, {INPUTS} numbers an observation, 4 actions. Gradient: the "
         "mean alone, XLA leaves out the rest; with error bars: the slope along it too, with its "
         "standard error from leaving episodes out. Times plain: of the gradient."],
    )  # fmt: skip
