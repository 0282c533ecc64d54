"""How often the 95 % interval of a single component holds the gradient, for policies of which a
batch tries only a part: softmax bandits, and a tabular softmax policy on a chain.

    python benchmarks/components.py --out docs/results/components.jsonl
    python benchmarks/components.py --table docs/results/components.jsonl

Every run draws a new problem. Rewards of arms, and of states and actions of the chain, are standard
normal, and so are the policy's logits; a bandit's rewards have noise of variance 1. The chain has 8
states and 3 actions (left, stay, right; one move in five fails), starts at one end and takes 8
steps. The gradient is exact. A component is "informed" if a path took its action, in the chain
visited its state; the others are those that the data say nothing about. One line of JSON for each
problem, number of paths and estimator.
"""

import argparse

import jax
import jax.numpy as jnp
import lines
import numpy as np

from bayespg import evidence, monte_carlo
from bayespg._support.statistics import student_quantile
from bayespg.fisher import Dense
from bayespg.fisher.estimates import average
from bayespg.posterior import component_statistics

STATES, ACTIONS, STEPS = 8, 3, 8
ESTIMATORS = {
    "Model 2": lambda U, R, G: evidence.model2(U, R, G),
    "Monte Carlo": lambda U, R, G: monte_carlo.reinforce(U, R, G, baseline="mean"),
}


def bandit(n: int):
    """Scores, returns, G, gradient, and which components are informed."""

    def draw(key, M: int):
        k = jax.random.split(key, 4)
        logits, worth = jax.random.normal(k[0], (n,)), jax.random.normal(k[1], (n,))
        p = jax.nn.softmax(logits)
        arms = jax.random.categorical(k[2], logits, shape=(M,))
        R = worth[arms] + jax.random.normal(k[3], (M,))
        U = jax.nn.one_hot(arms, n) - p
        informed = jnp.zeros(n, bool).at[arms].set(True)
        return U, R, Dense(jnp.diag(p) - jnp.outer(p, p)), p * (worth - p @ worth), informed

    return draw


def chain(known: bool):
    """The same for the chain, with G of the visited states, or the exact one if it is `known`."""

    def draw(key, M: int):
        k = jax.random.split(key, 3)
        logits, reward = jax.random.normal(k[0], (2, STATES, ACTIONS))
        here = jnp.arange(STATES)
        there = jnp.clip(here[:, None] + jnp.array([-1, 0, 1]), 0, STATES - 1)
        P = 0.8 * jax.nn.one_hot(there, STATES) + 0.2 * jax.nn.one_hot(here, STATES)[:, None]
        pi = jax.nn.softmax(logits)

        def value(logits):
            V = jnp.zeros(STATES)
            for _ in range(STEPS):
                V = jnp.sum(jax.nn.softmax(logits) * (reward + P @ V), 1)
            return V[0]

        def step(s, key):
            key_action, key_move = jax.random.split(key)
            a = jax.random.categorical(key_action, logits[s])
            return jax.random.categorical(key_move, jnp.log(P[s, a])), (s, a)

        def path(key):
            _, (s, a) = jax.lax.scan(step, 0, jax.random.split(key, STEPS))
            score = jnp.zeros((STATES, ACTIONS)).at[s, a].add(1.0).at[s].add(-pi[s])
            roots = jnp.sqrt(pi[s])[:, :, None] * (jnp.eye(ACTIONS) - pi[s][:, None])
            factors = jnp.zeros((STEPS, ACTIONS, STATES, ACTIONS))
            factors = factors.at[jnp.arange(STEPS), :, s].set(roots)
            visited = jnp.zeros((STATES, ACTIONS), bool).at[s].set(True)
            return score.ravel(), reward[s, a].sum(), factors.reshape(-1, pi.size), visited.ravel()

        U, R, factors, visited = jax.vmap(path)(jax.random.split(k[2], M))
        G = average(factors)
        if known:
            at, visits = jax.nn.one_hot(0, STATES), jnp.zeros(STATES)
            for _ in range(STEPS):
                visits, at = visits + at, jnp.einsum("s,sa,sat->t", at, pi, P)
            blocks = visits[:, None, None] * jax.vmap(lambda p: jnp.diag(p) - jnp.outer(p, p))(pi)
            G = Dense(jax.scipy.linalg.block_diag(*blocks))
        return U, R, G, jax.grad(value)(logits).ravel(), visited.any(0)

    return draw


PROBLEMS = {
    "softmax, 10 arms": bandit(10),
    "softmax, 50 arms": bandit(50),
    "chain, G of visited states": chain(False),
    "chain, exact G": chain(True),
}


def measure(name: str, M: int, runs: int, seed: int) -> list[lines.Line]:
    def one(key):
        U, R, G, truth, informed = PROBLEMS[name](key, M)
        return [component_statistics(fit(U, R, G)) for fit in ESTIMATORS.values()], truth, informed

    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), runs)
        posteriors, truth, informed = jax.tree.map(
            np.asarray, jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=25))(keys)
        )
    found = []
    for estimator, (centre, spread, freedom) in zip(ESTIMATORS, posteriors, strict=True):
        reach = spread * student_quantile(0.95, freedom)
        held, finite = np.abs(centre - truth) <= reach, np.isfinite(reach)
        of = {"all": np.ones_like(informed), "informed": informed, "uninformed": ~informed}
        found.append(
            {
                "problem": name, "paths": M, "estimator": estimator, "runs": runs,
                **{f"held, {kind}": float(held[rows].mean()) for kind, rows in of.items()},
                "uninformed": float(np.mean(~informed)), "finite": float(finite.mean()),
                "width": float(np.median(2 * reach[finite])),
            }
        )  # fmt: skip
    return found


def table(found: list[lines.Line]) -> str:
    """For each estimator the shares of all and of informed components that are held, and the share
    of intervals that are finite."""
    estimators = list(dict.fromkeys(x["estimator"] for x in found))
    rows = [
        f"| policy | M | {' | '.join(estimators)} |",
        "|---|---" + "|---" * len(estimators) + "|",
    ]
    for problem, M in dict.fromkeys((x["problem"], x["paths"]) for x in found):
        cells = [
            f"{x['held, all']:.3f}, {x['held, informed']:.3f}, {x['finite']:.2f}"
            for x in found
            if (x["problem"], x["paths"]) == (problem, M)
        ]
        rows.append(f"| {problem} | {M} | {' | '.join(cells)} |")
    return "\n".join(rows)


def every(options: argparse.Namespace):
    for name in options.problems:
        for M in options.paths:
            yield from measure(name, M, options.runs, options.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", nargs="*", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--paths", type=int, nargs="*", default=[4, 8, 16, 64])
    parser.add_argument("--seed", type=int, default=1)
    lines.run(parser, every, table)


if __name__ == "__main__":
    main()
