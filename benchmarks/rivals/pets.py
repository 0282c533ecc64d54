"""A rival: planning by an ensemble of networks, probabilistic ensembles with trajectory sampling.

Chua et al., "Deep reinforcement learning in a handful of trials using probabilistic dynamics
models" (NeurIPS 2018, arXiv 1805.12114), written small: the ensemble is that of
`bayespg.models.networks`, every member follows each plan, and plans are found by the cross-entropy
method anew at every step. As in the paper the rewards are known, and the first episode is random.
Sizes are smaller than the paper's, so that a step takes tens of milliseconds of one core.

A plan takes too long to evaluate on twenty episodes: the episodes that are played are evaluated.
"""

import functools
import time
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from bayespg import models
from bayespg.models import networks
from bayespg.models.data import empty
from bayespg.models.features import Units, units_of

PLANS, ELITES, ROUNDS, AHEAD = 96, 12, 3, 25
"""Plans per round, the best of them that the next round is drawn from, rounds, steps of a plan."""
LEAST, FIRST = 0.05, 0.5
"""Standard deviation of plans at least, and in the first round."""
ROW = 2


def pendulum(x: Any, a: Any, y: Any) -> Any:
    angle = jnp.arctan2(x[..., 1], x[..., 0])
    return -(angle**2 + 0.1 * x[..., 2] ** 2 + 0.001 * (2 * a[..., 0]) ** 2)


def cart_pole(x: Any, a: Any, y: Any) -> Any:
    return jnp.where((jnp.abs(y[..., 0]) < 2.4) & (jnp.abs(y[..., 2]) < np.pi / 15), 1.0, -10.0)


REWARDS = {"Pendulum-v1": pendulum, "CartPole-v1": cart_pole}


@functools.partial(jax.jit, static_argnames=("reward", "encode"))
def plan(nets, states, changes, start, mean, key, reward, encode):
    """The plan, one action a row, that returns most in the mean over members."""
    members = len(nets.weights[0])

    def returns(plans, key):
        def step(carry, now):
            x, total = carry
            action, key = now
            a = jnp.broadcast_to(encode(action), (members, *encode(action).shape))
            means, variances = nets(states(x), a)
            noise = jnp.sqrt(variances) * jax.random.normal(key, means.shape)
            change = (means + noise)[..., :-1] * changes.scale + changes.mean
            y = x + change
            return (y, total + reward(x, jnp.broadcast_to(action, (*x.shape[:2], 1)), y)), None

        x = jnp.broadcast_to(start, (members, PLANS, start.size))
        keys = jax.random.split(key, AHEAD)
        carry = x, jnp.zeros((members, PLANS))
        return jnp.mean(jax.lax.scan(step, carry, (plans.swapaxes(0, 1), keys))[0][1], 0)

    def improve(carry, key):
        mean, deviation = carry
        drawn = mean + deviation * jax.random.normal(key, (PLANS, *mean.shape))
        plans = jnp.clip(drawn, -1.0, 1.0)
        best = plans[jnp.argsort(-returns(plans, jax.random.fold_in(key, 1)))[:ELITES]]
        return (jnp.mean(best, 0), jnp.maximum(jnp.std(best, 0), LEAST)), None

    first = mean, jnp.full_like(mean, FIRST)
    return jax.lax.scan(improve, first, jax.random.split(key, ROUNDS))[0][0]


def as_choice(action: Any) -> Any:
    up = (action > 0).astype(jnp.float32)
    return jnp.concatenate([1 - up, up], -1)


def as_number(action: Any) -> Any:
    return action


def run(task: str, seed: int, budget: int, threshold: float, limit: float = np.inf) -> dict:
    """Play until two episodes in a row reach the threshold, or steps or seconds are spent."""
    env: Any = gymnasium.make(task)
    chooses = isinstance(env.action_space, gymnasium.spaces.Discrete)
    d, inputs = env.observation_space.shape[0], models.choices(2) if chooses else models.numbers(1)
    encode = as_choice if chooses else as_number
    half = 1.0 if chooses else float(env.action_space.high[0])
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    data, learner = empty(d, inputs), networks.begin(key, d + inputs.size, d + 1)
    steps, returns, passed, begun = [], [], 0, time.perf_counter()
    states = changes = None
    while passed < ROW and (not steps or steps[-1] < budget):
        if time.perf_counter() - begun > limit:
            break
        if steps:
            rows = np.arange(data.count)
            X, Y = data.states[rows], data.following[rows] - data.states[rows]
            ones = np.ones(len(rows), np.float32)
            units = [units_of(jnp.asarray(z), ones) for z in (X, Y, data.rewards[rows, None])]
            key, one = jax.random.split(key)
            learner = networks.learned(learner, data, tuple(units), one)  # pyright: ignore
            states, changes = (Units(*map(jnp.asarray, (u.mean, u.scale))) for u in units[:2])
        x, _ = env.reset(seed=seed if not steps else None)
        mean, over, seen = jnp.zeros((AHEAD, 1)), False, []
        while not over:
            if steps:
                key, one = jax.random.split(key)
                mean = plan(
                    learner.networks, states, changes, jnp.asarray(x, jnp.float32), mean, one,
                    REWARDS[task], encode,
                )  # fmt: skip
                a = np.asarray(mean[0])
                mean = jnp.concatenate([mean[1:], jnp.zeros((1, 1))])
            else:
                a = rng.uniform(-1, 1, 1).astype(np.float32)
            y, r, ended, cut, _ = env.step(int(a[0] > 0) if chooses else half * a)
            seen.append((x, np.asarray(encode(a)), r, y, ended, not seen))
            x, over = y, ended or cut
        data = data.with_rows(*(np.array(z) for z in zip(*seen, strict=True)))
        steps.append((steps[-1] if steps else 0) + len(seen))
        returns.append(round(float(sum(row[2] for row in seen)), 2))
        passed = passed + 1 if returns[-1] >= threshold else 0
    return {"solved": steps[-ROW] if passed == ROW else None, "steps": steps, "evaluated": returns,
            "updates": len(steps), "seconds": round(time.perf_counter() - begun, 1),
            "stopped": None if passed == ROW or steps[-1] >= budget else f"after {limit:g} s",
            "given_up": None, "first_seconds": 0.0, "processor_seconds": []}  # fmt: skip
