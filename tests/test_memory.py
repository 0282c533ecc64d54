"""Policies with memory: scores and information against naive loops, differences and enumeration."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bayespg import fisher, kernels, scores, updates
from bayespg._support.precision import to_float64
from bayespg._support.random import fast_key
from bayespg.environments import LQR, History, Noisy, TMaze
from bayespg.learning.estimators import BAC, FittedValues, Model2, draw
from bayespg.learning.training import train
from bayespg.policies import FiniteStateController, Recurrent, flatten, memory

MAZE = TMaze(length=1, horizon=3)
POLICIES = {
    "finite-state controller": FiniteStateController.random(jax.random.key(1), 4, 3, 2),
    "recurrent": Recurrent.random(jax.random.key(2), 4, 3, 2),
}
CHOICES = {
    "finite-state controller": list(itertools.product(range(3), range(2))),
    "recurrent": list(range(3)),
}
OURS = Model2(noise=0.1, scale=0.01, baseline=float("inf"))


@pytest.fixture(params=POLICIES, scope="module")
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def sample(kind):
    """200 paths of at most three steps."""
    with jax.enable_x64(True):
        policy = jax.tree.map(jnp.asarray, to_float64(POLICIES[kind]))
        return jax.jit(lambda key: draw(MAZE, policy, key, 200))(fast_key(7))


@pytest.fixture
def policy(sample, x64):
    return sample.policy


def softmax(y):
    return np.exp(y - y.max()) / np.exp(y - y.max()).sum()


def sigmoid(y):
    return 1 / (1 + np.exp(-y))


def naive_controller(theta, observations, choices):
    """log p of a path, K = 2 and 3 actions, in the order of the parameters."""
    actions, transitions = theta[:24].reshape(2, 3, 4), theta[24:].reshape(2, 2, 4)
    i, total = 0, 0.0
    for o, (a, j) in zip(observations, choices, strict=True):
        total += np.log(softmax(actions[i] @ o)[a]) + np.log(softmax(transitions[i] @ o)[j])
        i = j
    return total


def naive_recurrent(theta, observations, choices):
    """log p of a path; the GRU of Cho et al. with two hidden units, as Equinox orders it."""
    W, V, b, bn, head, bias = np.split(theta, np.cumsum([24, 12, 6, 2, 6]))
    W, V, head = W.reshape(6, 4), V.reshape(6, 2), head.reshape(3, 2)
    h, total = np.zeros(2), 0.0
    for o, a in zip(observations, choices, strict=True):
        x, y = W @ o + b, V @ h
        reset, update = sigmoid(x[:2] + y[:2]), sigmoid(x[2:4] + y[2:4])
        new = np.tanh(x[4:] + reset * (y[4:] + bn))
        h = new + update * (h - new)
        total += np.log(softmax(head @ h + bias)[a])
    return total


NAIVE = {"finite-state controller": naive_controller, "recurrent": naive_recurrent}


@pytest.mark.slow("recurrent")
def test_a_path_s_score_is_the_difference_quotient_of_its_log_likelihood(kind, sample, policy):
    paths, found = sample.paths, np.asarray(sample.scores)
    theta, h = np.asarray(flatten(policy)[0]), 1e-6
    lengths = np.asarray(paths.lengths)[:20]
    assert set(lengths) == {2, 3}
    for i, steps in enumerate(lengths):
        o, c = np.asarray(paths.states[:steps, i]), np.asarray(paths.actions[:steps, i])
        quotients = [
            (NAIVE[kind](theta + d, o, c) - NAIVE[kind](theta - d, o, c)) / (2 * h)
            for d in h * np.eye(theta.size)
        ]
        np.testing.assert_allclose(found[i], quotients, rtol=1e-6, atol=1e-8)


@pytest.mark.slow("recurrent")
def test_scores_of_steps_sum_to_scores_of_paths(sample, policy):
    steps = np.asarray(eqx.filter_jit(scores.of_steps)(policy, sample.paths))
    np.testing.assert_allclose(steps.sum(0), sample.scores, atol=1e-12)
    assert not steps[~np.asarray(sample.paths.mask)].any()


def test_information_is_the_expectation_over_the_choice_of_each_step(kind, sample, policy):
    o, c = sample.paths.states[:, 0], sample.paths.actions[:, 0]
    roots = np.asarray(eqx.filter_jit(memory.information_roots)(policy, o, c))
    choices = jnp.array(CHOICES[kind], jnp.int32)

    @jax.jit
    def expectation(t):
        others = jax.vmap(lambda choice: c.at[t].set(choice))(choices)
        p = jax.vmap(lambda c: jnp.exp(memory.log_probs(policy, o, c)[t]))(others)
        U = jax.vmap(lambda c: memory.step_scores(policy, o, c)[t])(others)
        return p.sum(), jnp.einsum("c,ci,cj->ij", p, U, U)

    for t in range(3):
        total, expected = expectation(t)
        assert abs(total - 1) < 1e-12
        np.testing.assert_allclose(roots[t].T @ roots[t], expected, atol=1e-12)


def exact_return(policy, choices):
    """eta by enumeration of every sequence of choices, for either cue."""
    S, T = choices.shape[:2]

    def of_cue(cue):
        states = jnp.stack([jnp.full(S, cue), jnp.zeros(S, int)], 1)
        memories = jax.tree.map(lambda m: jnp.broadcast_to(m, (S, *m.shape)), policy.start())
        R, running, seen = jnp.zeros(S), jnp.ones(S, bool), []
        for t in range(T):
            seen.append(MAZE.observe(states))
            _, memories = jax.vmap(policy)(memories, seen[-1])
            actions, memories = jax.vmap(policy.settle)(memories, choices[:, t])
            states, rewards, ends = MAZE.step(jax.random.key(0), states, actions)
            R, running = R + running * rewards, running & ~ends
        along = jax.vmap(lambda o, c: memory.log_probs(policy, o, c))
        return jnp.exp(along(jnp.stack(seen, 1), choices).sum(1)) @ R

    return (of_cue(0) + of_cue(1)) / 2


@pytest.mark.slow
def test_gradient_and_information_of_paths_drawn_are_those_of_enumeration(kind, policy):
    """40,000 paths in 40 batches; 4.5 standard errors."""
    every = jnp.array(list(itertools.product(CHOICES[kind], repeat=3)), jnp.int32)
    theta, rebuild = flatten(policy)
    exact = jax.jit(jax.grad(lambda t: exact_return(rebuild(t), every)))(theta)

    @jax.jit
    def batch(key):
        many = draw(MAZE, policy, key, 1_000)
        U, R = many.scores, many.returns
        difference = fisher.actions_integrated_out(policy, many.paths).matrix() - U.T @ U / 1_000
        return U.mean(0), (R[:, None] * U).mean(0), difference

    found = jax.lax.map(batch, jax.random.split(fast_key(6), 40))
    for samples, truth in zip(found, (0.0, exact, 0.0), strict=True):
        error = np.std(samples, 0, ddof=1) / np.sqrt(40)
        assert np.all(np.abs(np.mean(samples, 0) - truth) < 4.5 * error + 1e-9)


@pytest.mark.parametrize("estimator", [BAC, FittedValues])
def test_a_critic_refuses_a_policy_with_memory(estimator, sample):
    with pytest.raises(ValueError, match="has a memory, so its observations are not Markov"):
        estimator(kernels.Gaussian(1.0))(sample)


@pytest.mark.slow
def test_bpg_teaches_the_t_maze_beyond_every_memoryless_policy(kind):
    make, rate = {
        "finite-state controller": (lambda k: FiniteStateController.random(k, 4, 3, 3), 10.0),
        "recurrent": (lambda k: Recurrent.random(k, 4, 3, 4), 1.0),
    }[kind]
    start = jax.vmap(make)(jax.random.split(fast_key(0), 2))
    result = train(
        MAZE, start, OURS,
        updates.conventional(rate), key=fast_key(1), updates=150, paths=40, runs=2,
    )  # fmt: skip
    returns = result.history.sample_return
    assert np.all(returns[:, -10:].mean(1) > 0.7)
    assert np.all(returns[:, :5].mean(1) < 0.6)


@pytest.mark.slow
def test_a_recurrent_policy_of_real_actions_sees_windows_of_noise():
    policy = Recurrent.random(jax.random.key(0), 2, 2, 3, memory.normal)
    sample = jax.jit(lambda key: draw(History(Noisy(LQR(), 0.3), 2), policy, key, 10))(fast_key(0))
    assert sample.paths.actions.shape == (20, 10)
    assert np.isfinite(sample.scores).all()
