"""The paper's future work (Section 10), one experiment each; the page is docs/future-work.md.

    python benchmarks/future_work.py --parts gradients --out docs/results/future-work.jsonl
    python benchmarks/future_work.py --table docs/results/future-work.jsonl

    gradients   other partitions of the integrand, and the signature kernel: squared errors on the
                LQR of Figure 1 and on the random walk of Figure 6
    actor       kernel expansions on the paper's mountain car and on Pendulum
    fisher      ways to obtain G: their error, that of Model 2 with them, and their cost
    design      the bandit with chosen actions
    sarsa       GPSARSA and the actor-critic on the paper's mountain car

Settings were chosen with `--seed 0` and 20 runs: of noise 0.01, 0.1 and 1 for the two partitions,
and of 2 and 4 levels of signatures, those with the smaller errors. The table is of `--seed 1`.
Fixed before that: a method is ahead of, or behind, the one that it is
compared with if the 95 % interval of the ratio of mean squared errors (bootstrap over runs), or of
the difference of means (Student), does not contain 1, or 0; otherwise they are alike.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import lines
import numpy as np
import scipy.stats
from lines import Line

import bayespg
from bayespg import (
    Sparsify,
    estimators,
    evidence,
    fisher,
    gptd,
    kernels,
    partitions,
    policies,
    quadrature,
    rollout,
    scores,
    training,
    updates,
)
from bayespg._support.random import fast_key
from bayespg.environments import (
    LQR,
    Bandit,
    MountainCar,
    RandomWalk,
    exact_gradient,
    observe,
    spaces,
)
from bayespg.environments.base import Wrapper
from bayespg.environments.mountain_car import HIGH, LOW
from bayespg.learning.estimators import GPOMDP, BACPaper, Model1, Model2, Reinforce, draw
from bayespg.policies import Gaussian, LinearGaussian, Policy, Tabular, named
from bayespg.reproduce import mountain_car, random_walk

FLAT = float("inf")
PAIRS = np.stack(np.meshgrid(np.linspace(-3, 3, 9), np.linspace(-4, 4, 9)), -1).reshape(-1, 2)
PLACES = np.array([[x, a] for x in range(9) for a in (0, 1)])
NODES = 100
"""Paths without rewards that quadrature with the signature kernel draws."""


# Gradients

SCALES = {"LQR": 2.0, "random walk": 9.0}
"""Of states, in sequences."""
SIZES = {"LQR": (5, 20, 50), "random walk": (5, 20)}


def lqr() -> tuple[LQR, Policy]:
    return LQR(), LinearGaussian(jnp.asarray(-0.2), jnp.asarray(1.0))


def walk() -> tuple[RandomWalk, Policy]:
    return RandomWalk(horizon=80), Tabular(jnp.full(9, random_walk.START))


def on_pairs(length: float, other: float, pairs: np.ndarray) -> kernels.Kernel:
    """A Gaussian kernel on states and actions, with the variance 10 of `estimators.BAC`."""
    product = kernels.Product(kernels.Gaussian(length), kernels.Gaussian(other))
    return kernels.Scaled(kernels.Nystrom(product, (pairs[:, :1], pairs[:, 1:])), 10.0)


TASKS: dict[str, tuple[Callable[[], tuple[Any, Policy]], Any]] = {
    "LQR": (lqr, {
        "actor-critic": BACPaper(
            kernels.Nystrom(kernels.Gaussian(1.0), np.linspace(-4, 4, 12)[:, None]), None,
            limit_ends=True),
        "values of observations": partitions.Observed(on_pairs(1.5, 2.0, PAIRS)),
    }),
    "random walk": (walk, {
        "actor-critic": random_walk.INTEGRATED,
        "values of observations": partitions.Observed(on_pairs(3.0, 0.1, PLACES)),
    }),
}  # fmt: skip
BOTH = {
    "Monte Carlo, best baseline": Reinforce("best"),
    "GPOMDP": GPOMDP(),
    "Model 1": Model1(),
    "Model 2 + baseline": Model2(baseline=FLAT),
    "scored steps": partitions.ScoredSteps(),
}


def sequences(paths: Any, scale: float) -> jax.Array:
    """State, action and time of every step, (M, T + 1, 3), after a first point of zeros. A path
    that has ended stays where it is."""
    T, M = paths.mask.shape
    x, a = (v.reshape(T, M).astype(float) for v in (paths.states, paths.actions))
    points = jnp.stack(
        [x / scale, a / 2, jnp.broadcast_to(jnp.arange(1, T + 1)[:, None] / T, x.shape)], -1
    )
    steps = jnp.diff(points, axis=0, prepend=0.0)
    return jnp.moveaxis(
        jnp.pad(
            jnp.cumsum(jnp.where(paths.mask[..., None], steps, 0.0), 0), ((1, 0), (0, 0), (0, 0))
        ),
        1,
        0,
    )


SIGNATURE, SAMPLED = "signature kernel", "Fisher kernel, sampled"
SEQUENCES = kernels.Signature(kernels.Gaussian(1.0), 2)
WHOLE = f"Monte Carlo, best baseline, {NODES} paths more"


def by_sequences(batch, other, scale: float) -> dict[str, Any]:
    """The gradients of quadrature with signature kernels, scale and noise by evidence, and of the
    Fisher kernel with the same nodes."""
    found = {}
    X, Z = sequences(batch.paths, scale), sequences(other.paths, scale)
    W = (other.scores - other.scores.mean(0)) / NODES
    U = jnp.concatenate([batch.scores, other.scores])
    R = jnp.concatenate([batch.returns, other.returns])
    found[WHOLE] = Reinforce("best")(eqx.tree_at(lambda b: b.summed, batch, (R, U))).mean
    found[SIGNATURE] = integrated(SEQUENCES, X, batch.returns, Z, W)
    linear = kernels.Linear(estimators.actions_integrated_out(batch))
    found[SAMPLED] = integrated(linear, batch.scores, batch.returns, other.scores, W)
    return found


def integrated(kernel, X, y, Z, W):
    choice = evidence.choose(kernels.gram(kernel, X), y)
    kernel = kernels.Scaled(kernel, choice.scale)
    return quadrature.sampled(kernel, X, y, Z, W, noise=choice.noise, baseline=FLAT).mean


def gradients(options: argparse.Namespace) -> Iterator[Line]:
    for task, (make, own) in TASKS.items():
        judged = BOTH | own
        with jax.enable_x64(True):
            environment, policy = make()
            exact = np.asarray(exact_gradient(environment, policy))
            for M in SIZES[task]:

                def run(key, M=M, environment=environment, policy=policy, judged=judged, task=task):
                    first, second = jax.random.split(key)
                    batch, other = (
                        draw(environment, policy, k, m, jnp.float32)
                        for k, m in ((first, M), (second, NODES))
                    )
                    made = {name: of(batch).mean for name, of in judged.items()}
                    return made | by_sequences(batch, other, SCALES[task])

                keys = jax.random.split(jax.random.fold_in(fast_key(options.seed), M), options.runs)
                begun = time.process_time()
                found = jax.jit(lambda keys, run=run: jax.lax.map(run, keys, batch_size=4))(keys)
                spent = time.process_time() - begun
                for name, means in found.items():
                    errors = np.sum((np.asarray(means) - exact) ** 2, -1) / np.sum(exact**2)
                    yield {"part": "gradients", "task": task, "M": M, "method": name,
                           "errors": [round(float(e), 5) for e in errors], "seed": options.seed,
                           "cpu_seconds": round(spent, 1)}  # fmt: skip


# The actor


class Slower(Wrapper):
    """Pendulum with its observations divided by 0.7, 0.7 and 4, about their standard deviations."""

    environment: Any

    def observe(self, states):
        seen = observe(self.environment, states)
        return seen / jnp.array([0.7, 0.7, 4.0], seen.dtype)


def pendulum_return(environment):
    def mean_return(policy, key):
        found = rollout(environment, policies.as_dtype(policy, jnp.float32), key, 100)
        return jnp.where(found.mask, found.rewards, 0.0).sum(0).mean()

    return mean_return


def visited(environment, policy, seed: int) -> np.ndarray:
    """States of 20 episodes of the initial policy."""
    paths = rollout(environment, policy, fast_key(seed), 20)
    return np.asarray(paths.states)[np.asarray(paths.mask)][::5]


KEPT = Sparsify(0.1, 60)
"""The dictionary of a kernel expansion."""


def actors(seed: int) -> Iterator[tuple[str, Any, Any, Any, int, int, dict[str, tuple[Any, Any]]]]:
    """Task, environment, estimator, evaluation, paths and updates, and policies with updates."""
    natural, plain = updates.trust_region(0.05), updates.trust_region(0.05, natural=False)
    car, start = MountainCar(), policies.mountain_car_softmax()
    scales = 1 / (np.array(HIGH) - np.array(LOW))
    grown = policies.expansion(
        kernels.Gaussian(0.325), visited(car, start, seed), 3, KEPT, scales=scales
    )
    yield (
        "mountain car", car, mountain_car.METHODS[mountain_car.OURS].estimator,
        mountain_car.steps_to_goal, 10, 50,
        {
            "features of the paper, natural gradient": (start, natural),
            "features of the paper, gradient": (start, plain),
            "kernel expansion, natural gradient": (grown, natural),
            "kernel expansion, gradient": (grown, plain),
        },
    )  # fmt: skip
    swing = Slower(bayespg.BAC("jax/Pendulum-v1").world.environment)
    space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    actions = spaces.actions(space)
    waves = named.make("fourier", 3, actions, fast_key(0))
    grown = policies.expansion(kernels.Gaussian(1.0), visited(swing, waves, seed), space, KEPT)
    network = named.make("mlp", 3, actions, fast_key(0))
    yield (
        "Pendulum", swing, estimators.BAC(), pendulum_return(swing), 8, 80,
        {
            "100 random waves, natural gradient": (waves, natural),
            "network, natural gradient": (network, natural),
            "kernel expansion, natural gradient": (grown, natural),
            "kernel expansion, gradient": (grown, plain),
        },
    )  # fmt: skip


def actor(options: argparse.Namespace) -> Iterator[Line]:
    for task, environment, estimator, evaluate, paths, count, made in actors(options.seed):
        for name, (policy, update) in made.items():
            begun = time.process_time()
            many = jax.tree.map(
                lambda x: jnp.repeat(jnp.asarray(x)[None], options.actors, 0),
                policies.as_arrays(policy),
            )
            found = training.train(
                environment, many, estimator, update, key=fast_key(options.seed), updates=count,
                paths=paths, runs=options.actors, evaluate=evaluate, every=10,
            ).evaluations  # fmt: skip
            yield {"part": "actor", "task": task, "method": name,
                   "parameters": policies.count(policies.as_arrays(policy)),
                   "updates": found.updates.tolist(),
                   "values": np.round(np.asarray(found.values, float), 2).tolist(),
                   "seed": options.seed,
                   "cpu_seconds": round(time.process_time() - begun, 1)}  # fmt: skip


# The Fisher matrix


def scored(batch):
    return fisher.of_step_scores(
        scores.of_steps(batch.policy, batch.paths),
        fisher.step_weights(batch.steps),
    )


WAYS = {
    "outer products of path scores": estimators.monte_carlo_fisher,
    "outer products of step scores": scored,
    "actions integrated out": estimators.actions_integrated_out,
}


def fishers(options: argparse.Namespace) -> Iterator[Line]:
    for task, make in (("LQR", lqr), ("random walk", walk)):
        ways = WAYS | (
            {"maximum likelihood": estimators.maximum_likelihood} if task == "LQR" else {}
        )
        with jax.enable_x64(True):
            environment, policy = make()
            exact = np.asarray(exact_gradient(environment, policy))
            root = np.linalg.inv(np.linalg.cholesky(environment.fisher(policy)))
            for M in (5, 20, 100):
                keys = jax.random.split(jax.random.fold_in(fast_key(options.seed), M), options.runs)
                batch = draw(environment, policy, keys[0], M, jnp.float32)
                arrays, static = eqx.partition(batch, eqx.is_array)
                for name, way in (ways | {"exact": estimators.exact}).items():

                    def run(key, M=M, environment=environment, policy=policy, way=way):
                        batch = draw(environment, policy, key, M, jnp.float32)
                        G = way(batch)
                        used = Model2(baseline=FLAT, fisher=lambda _: G)(batch)
                        return G.matrix(), used.mean

                    G, means = jax.jit(lambda keys, run=run: jax.lax.map(run, keys))(keys)
                    away = root @ np.asarray(G) @ root.T - np.eye(len(root))
                    alone = jax.jit(
                        lambda a, way=way, rest=static: way(eqx.combine(a, rest)).matrix()
                    )
                    jax.block_until_ready(alone(arrays))
                    begun = time.process_time()
                    for _ in range(200):
                        jax.block_until_ready(alone(arrays))
                    spent = (time.process_time() - begun) / 200
                    errors = np.sum((np.asarray(means) - exact) ** 2, -1) / np.sum(exact**2)
                    size = np.sqrt(np.mean(np.sum(away**2, (1, 2))) / len(root))
                    yield {"part": "fisher", "task": task, "M": M, "method": name,
                           "error": float(f"{size:.3g}"), "microseconds": round(1e6 * spent),
                           "errors": [round(float(e), 5) for e in errors],
                           "seed": options.seed}  # fmt: skip


# Active sampling

REWARDS = {"a": lambda a: a, "a^2": lambda a: a**2, "sin 2a": lambda a: jnp.sin(2 * a)}
NOISE = 0.1
"""Standard deviation of the rewards of the bandit."""
CANDIDATES = np.linspace(-3.5, 3.5, 71)[:, None]


def of_gaussian(X):
    """int k(a, x) grad N(a; m, s^2) da at m = 0, s = 1, for k of length scale 1."""

    def integral(theta):
        return kernels.Gaussian(1.0).integral(X, theta[:1], theta[1:].reshape(1, 1) ** 2)

    return jax.jacobian(integral)(jnp.array([0.0, 1.0], X.dtype)).T


def bandit_scores(X):
    return jnp.concatenate([X, X**2 - 1], 1)


def designs(options: argparse.Namespace) -> Iterator[Line]:
    G, variance = np.diag([1.0, 2.0]), NOISE**2
    linear = kernels.Linear(fisher.Dense(G))
    seen = np.asarray(bandit_scores(CANDIDATES), float)
    best = {
        "Gaussian": quadrature.design(
            kernels.Gaussian(1.0), of_gaussian, CANDIDATES, 40, noise=variance).chosen,
        "Fisher": quadrature.design(linear, linear.cross, seen, 40, noise=variance).chosen,
    }  # fmt: skip
    for reward, function in REWARDS.items():
        with jax.enable_x64(True):
            exact = jax.grad(lambda t: Bandit(function).expected_return(Gaussian(t[0], t[1])))(  # noqa: B023
                jnp.array([0.0, 1.0])
            )
            for M in (5, 10, 20, 40):

                def run(key, M=M, function=function):
                    first, second = jax.random.split(key)
                    drawn, noise = (
                        jax.random.normal(k, s) for k, s in ((first, (M, 1)), (second, (M,)))
                    )

                    def observe(X):
                        return function(X[:, 0]) + NOISE * noise

                    def gaussian(X):
                        K = kernels.gram(kernels.Gaussian(1.0), X) + variance * jnp.eye(M)
                        return of_gaussian(X) @ jnp.linalg.solve(K, observe(X))

                    def model2(X):
                        return quadrature.model2(
                            bandit_scores(X), observe(X), G, noise=variance, baseline=FLAT
                        ).mean

                    chosen = {name: jnp.asarray(CANDIDATES[i[:M]]) for name, i in best.items()}
                    return {
                        "Monte Carlo": bandit_scores(drawn).T @ observe(drawn) / M,
                        "Gaussian kernel, actions of the policy": gaussian(drawn),
                        "Gaussian kernel, actions chosen": gaussian(chosen["Gaussian"]),
                        "Model 2 + baseline, actions of the policy": model2(drawn),
                        "Model 2 + baseline, actions chosen": model2(chosen["Fisher"]),
                    }

                keys = jax.random.split(
                    jax.random.fold_in(fast_key(options.seed), M), 4 * options.runs
                )
                found = jax.jit(jax.vmap(run))(keys)
                for name, means in found.items():
                    errors = np.sum((np.asarray(means) - exact) ** 2, -1)
                    yield {"part": "design", "task": reward, "M": M, "method": name,
                           "errors": [float(f"{e:.4g}") for e in errors],
                           "seed": options.seed}  # fmt: skip


# GPSARSA


EPISODES = (10, 30, 100, 200)


def control(options: argparse.Namespace) -> Iterator[Line]:
    car = MountainCar()
    kernel = kernels.Scaled(kernels.Product(kernels.Gaussian(0.2), kernels.Gaussian(0.1)), 100.0)
    for seed in range(options.actors):
        key = jax.random.fold_in(fast_key(options.seed), seed)
        critic = gptd.online(
            kernel, (np.zeros(2), np.zeros(1)), discount=car.discount, noise=1.0,
            sparsify=Sparsify(1.0, 200),
        )  # fmt: skip
        begun, before, values = time.process_time(), 0, []
        for upto in EPISODES:
            key, play, judge = jax.random.split(key, 3)
            critic, _ = gptd.sarsa(
                critic, car, 3, play, upto - before, epsilon=0.1, state_map=car.unit
            )
            values.append(round(float(steps(car, critic.critic(), judge)), 2))
            before = upto
        yield {"part": "sarsa", "method": "GPSARSA", "run": seed, "episodes": list(EPISODES),
               "values": values, "seed": options.seed,
               "cpu_seconds": round(time.process_time() - begun, 1)}  # fmt: skip
    begun = time.process_time()
    policy = jax.tree.map(
        lambda x: jnp.repeat(jnp.asarray(x)[None], options.actors, 0),
        policies.mountain_car_softmax(),
    )
    found = training.train(
        car, policy, mountain_car.METHODS[mountain_car.OURS].estimator, updates.trust_region(0.05),
        key=fast_key(options.seed), updates=40, paths=5, runs=options.actors,
        evaluate=mountain_car.steps_to_goal, every=2,
    ).evaluations  # fmt: skip
    for seed, row in enumerate(np.asarray(found.values)):
        at = [int(np.argmax(5 * found.updates >= upto)) for upto in EPISODES]
        yield {"part": "sarsa", "method": "actor-critic", "run": seed, "episodes": list(EPISODES),
               "values": [round(float(row[i]), 2) for i in at], "seed": options.seed,
               "cpu_seconds": round(time.process_time() - begun, 1)}  # fmt: skip


@eqx.filter_jit
def steps(car, critic, key):
    """Mean steps to the goal of the greedy policy."""
    states = car.reset(key, 500)

    def step(carry, _):
        states, taken, running = carry
        actions, _ = gptd.greedy(critic, car.unit(states), 3)
        following, _, ended = car.step(key, states, actions)
        return (following, taken + running, running & ~ended), None

    start = states, jnp.zeros(500), jnp.ones(500, bool)
    return jax.lax.scan(step, start, None, 200)[0][1].mean()


PARTS = {
    "gradients": gradients, "actor": actor, "fisher": fishers, "design": designs, "sarsa": control,
}  # fmt: skip


def measure(options: argparse.Namespace) -> Iterator[Line]:
    for part in options.parts:
        yield from PARTS[part](options)


# Tables


def ratio(rival: np.ndarray, ours: np.ndarray) -> tuple[float, float, float]:
    """The ratio of mean squared errors, rival to ours, with a 95 % interval: bootstrap over runs,
    which are pairs."""
    rng = np.random.default_rng(0)
    rows = rng.integers(len(ours), size=(2_000, len(ours)))
    low, high = np.quantile(rival[rows].mean(1) / ours[rows].mean(1), (0.025, 0.975))
    return float(rival.mean() / ours.mean()), float(low), float(high)


def verdict(low: float, high: float, even: float) -> str:
    return "ahead" if low > even else "behind" if high < even else "alike"


def of_errors(some: list[Line], base: str) -> list[str]:
    """Mean squared errors of every method, with the verdict against `base`."""
    rows, sizes = [], sorted({line["M"] for line in some})
    by = {(line["method"], line["M"]): np.array(line["errors"]) for line in some}
    rows += ["| | " + " | ".join(f"M = {M}" for M in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for name in dict.fromkeys(line["method"] for line in some):
        cells = []
        for M in sizes:
            errors = by[name, M]
            cell = f"{errors.mean():.3g} ± {errors.std(ddof=1) / len(errors) ** 0.5:.1g}"
            if name != base:
                cell += f", {verdict(*ratio(by[base, M], errors)[1:], 1.0)}"
            cells.append(cell)
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def of_values(some: list[Line], base: str, sign: int) -> list[str]:
    """Means of every method over runs, with the verdict against `base`; `sign` 1: more is
    better."""
    by: dict[str, np.ndarray] = {}
    for line in some:
        values = np.atleast_2d(line["values"])
        by[line["method"]] = (
            np.concatenate([by[line["method"]], values]) if line["method"] in by else values
        )
    at = some[0].get("updates") or some[0]["episodes"]
    shown = range(len(at)) if len(at) < 6 else (0, 1, 2, len(at) // 2, len(at) - 1)
    what = "updates" if "updates" in some[0] else "episodes"
    rows = [
        f"| {what} | " + " | ".join(str(at[i]) for i in shown) + " |",
        "|---" * (len(shown) + 1) + "|",
    ]
    for name, values in by.items():
        cells = []
        for i in shown:
            v, n = values[:, i], len(values)
            cell = f"{v.mean():.1f} ± {v.std(ddof=1) / n**0.5:.1f}"
            if name != base and at[i]:
                test = scipy.stats.ttest_ind(sign * v, sign * by[base][:, i], equal_var=False)
                cell += f", {verdict(*test.confidence_interval(0.95), 0.0)}"
            cells.append(cell)
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


BASES = {"gradients": "Model 2 + baseline", "fisher": "actions integrated out",
         "design": "Gaussian kernel, actions of the policy",
         "mountain car": "features of the paper, natural gradient",
         "Pendulum": "100 random waves, natural gradient", "sarsa": "actor-critic"}  # fmt: skip
"""What the others are compared with."""


def table(found: list[Line]) -> str:
    rows = []
    for part in dict.fromkeys(line["part"] for line in found):
        for task in dict.fromkeys(line.get("task", "") for line in found if line["part"] == part):
            some = [line for line in found if (line["part"], line.get("task", "")) == (part, task)]
            base = BASES.get(task) or BASES[part]
            of_base = [line for line in some if line["method"] == base]
            runs = len(of_base[0].get("errors") or of_base[0]["values"])
            runs = len(of_base) if "run" in some[0] else runs
            rows += [
                "",
                f"{part}, {task or 'mountain car'}: {runs} runs, compared with: {base}",
                "",
            ]
            if part == "fisher":
                rows += of_fisher(some)
            elif "errors" in some[0]:
                rows += of_errors(some, base)
            else:
                rows += of_values(some, base, 1 if task == "Pendulum" else -1)
    return "\n".join(rows)


def of_fisher(some: list[Line]) -> list[str]:
    """Error of G, error of Model 2 and microseconds."""
    sizes = sorted({line["M"] for line in some})
    rows = [
        "| | " + " | ".join(f"M = {M}: G, gradient, µs" for M in sizes) + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for name in dict.fromkeys(line["method"] for line in some):
        cells = [
            f"{line['error']:.2g}, {np.mean(line['errors']):.2g}, {line['microseconds']}"
            for line in sorted(some, key=lambda line: line["M"])
            if line["method"] == name
        ]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--runs", type=int, default=60, help="runs; design has four times as many")
    parser.add_argument("--actors", type=int, default=5, help="runs of actor and sarsa")
    parser.add_argument("--seed", type=int, default=1)
    lines.run(parser, measure, table)
