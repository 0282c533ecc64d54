"""What the paper leaves to future work (Section 10), against NumPy: sequence kernels and quadrature
with any kernel, active sampling, other partitions of the integrand, a non-parametric actor, and
GPSARSA."""

import itertools
import json
import re
from pathlib import Path

import future_work
import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from numpy.linalg import inv

from bayespg import Sparsify, estimators, evidence, gptd, kernels, partitions, policies, quadrature
from bayespg._support.random import fast_key
from bayespg.environments import LQR, Bandit, RandomWalk
from bayespg.fisher import Dense
from bayespg.policies import Gaussian, LinearGaussian, Tabular

rng = np.random.default_rng(0)
U, R, G = oracle.problem(12, 2)


def squared(X, Y, length=1.0):
    return np.exp(-0.5 * np.sum((X[:, None] - Y[None]) ** 2, -1) / length**2)


# Sequence kernels


def iterated_sums(x, level):
    """sum over i_1 < ... < i_m of the outer products of the increments, as one vector."""
    steps = np.diff(x, axis=0)
    total = np.zeros(x.shape[1] ** level)
    for some in itertools.combinations(steps, level):
        product = np.ones(1)
        for step in some:
            product = np.outer(product, step).ravel()
        total += product
    return total


class Product(kernels.Kernel):
    """x'y."""

    def __call__(self, x, y):
        return x @ y


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_the_signature_kernel_is_the_inner_product_of_iterated_sums(x64, levels):
    x, y = rng.normal(size=(6, 2)), rng.normal(size=(4, 2))
    found = kernels.Signature(Product(), levels)(x, y)
    expected = 1 + sum(iterated_sums(x, m) @ iterated_sums(y, m) for m in range(1, levels + 1))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_sequence_that_stays_at_its_end_is_the_shorter_one(x64):
    kernel = kernels.Signature(kernels.Gaussian(0.7))
    x, y = rng.normal(size=(5, 2)), rng.normal(size=(6, 2))
    longer = np.concatenate([x, np.repeat(x[-1:], 3, 0)])
    np.testing.assert_allclose(kernel(longer, y), kernel(x, y), rtol=1e-10)


def test_the_kernel_of_pairs_is_the_product_of_two():
    X = rng.normal(size=(4, 2)), rng.normal(size=(4, 1))
    kernel = kernels.Product(kernels.Gaussian(0.8), kernels.Gaussian(0.5))
    expected = squared(X[0], X[0], 0.8) * squared(X[1], X[1], 0.5)
    np.testing.assert_allclose(kernels.gram(kernel, X), expected, rtol=1e-5)
    np.testing.assert_allclose(kernels.diagonal(kernel, X), 1.0)


# Quadrature with any kernel

X, Z, W = rng.normal(size=(12, 2)), rng.normal(size=(30, 2)), rng.normal(size=(30, 3))


@pytest.mark.parametrize("baseline", [0.0, np.inf])
def test_sampled_quadrature_conditions_the_weighted_sum_over_the_nodes(baseline):
    found = quadrature.sampled(
        kernels.Gaussian(1.0), X, R, Z, W, noise=0.2, baseline=baseline, fisher=np.eye(3)
    )
    expected = oracle.condition(
        squared(X, X), W.T @ squared(Z, X), W.T @ squared(Z, Z) @ W, R, 0.2 * np.eye(12), baseline
    )
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-8)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-8)
    np.testing.assert_allclose(found.info["evidence"], expected.log_evidence, rtol=1e-9)
    np.testing.assert_allclose(found.natural, found.mean)
    without = quadrature.sampled(
        kernels.Gaussian(1.0), X[1:], R[1:], Z, W, noise=0.2, baseline=baseline
    )
    np.testing.assert_allclose(found.influence[0], found.mean - without.mean, rtol=1e-7)


def test_finitely_many_features_give_the_same_answer():
    kernel = kernels.Nystrom(kernels.Gaussian(1.0), rng.normal(size=(6, 2)))
    found = quadrature.sampled(kernel, X, R, Z, W, noise=0.2)
    K, k, k0 = (np.asarray(kernels.gram(kernel, a, b), float) for a, b in ((X, X), (Z, X), (Z, Z)))
    expected = oracle.condition(K, W.T @ k, W.T @ k0 @ W, R, 0.2 * np.eye(12))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-3)


def test_at_the_paths_themselves_and_without_noise_it_is_monte_carlo():
    found = quadrature.sampled(kernels.Gaussian(0.5), X, R, X, U / 12, noise=1e-10)
    np.testing.assert_allclose(found.mean, U.T @ R / 12, rtol=1e-5)


def test_with_the_fisher_kernel_and_exact_nodes_it_is_model_2():
    """The bandit N(0, 1), u = (a, a^2 - 1): Gauss-Hermite nodes integrate the kernel exactly."""
    a, w = np.polynomial.hermite_e.hermegauss(10)
    drawn = rng.normal(size=8)
    nodes, scores = (np.stack([x, x**2 - 1], 1) for x in (a, drawn))
    G = np.diag([1.0, 2.0])
    weights = (w / w.sum())[:, None] * nodes
    kernel = kernels.Linear(Dense(G))
    found = quadrature.sampled(kernel, scores, drawn**3, nodes, weights, noise=0.1)
    expected = oracle.model2(scores, drawn**3, G, 0.1)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-7)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-6)


def test_the_evidence_of_any_kernel_matrix_is_that_of_model_2():
    expected = evidence.choose_model2(U, R, G)
    found = evidence.choose(oracle.fisher_kernel(U, G), R)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


# Active sampling


def test_each_candidate_of_a_design_shrinks_the_covariance_most():
    kernel = kernels.Linear(Dense(G))
    observed = [3, 7]
    found = quadrature.design(kernel, kernel.cross, U, 4, noise=0.3, observed=observed)

    def trace(rows):
        C = inv(oracle.fisher_kernel(U[rows], G) + 0.3 * np.eye(len(rows)))
        return np.trace(G - U[rows].T @ C @ U[rows])

    for chosen, reduction in zip(found.chosen, found.reductions, strict=True):
        reductions = [trace(observed) - trace([*observed, c]) for c in range(len(U))]
        assert chosen == np.argmax(reductions)
        np.testing.assert_allclose(reduction, np.max(reductions), rtol=1e-8)
        observed = [*observed, int(chosen)]


def test_the_first_candidate_of_a_design_is_chosen_by_the_prior():
    kernel = kernels.Linear(Dense(G))
    found = quadrature.design(kernel, kernel.cross, U, 1, noise=0.3)
    gains = np.sum(U**2, 1) / (np.diag(oracle.fisher_kernel(U, G)) + 0.3)
    assert found.chosen[0] == np.argmax(gains)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("kernel", lambda: quadrature.sampled("rbf", X, R, Z, W)),
        ("values", lambda: quadrature.sampled(kernels.Gaussian(1.0), X, R[:, None], Z, W)),
        ("weights", lambda: quadrature.sampled(kernels.Gaussian(1.0), X, R, Z, W[:, 0])),
        ("points", lambda: quadrature.sampled(kernels.Gaussian(1.0), X[:3], R, Z, W)),
        ("nodes", lambda: quadrature.sampled(kernels.Gaussian(1.0), X, R, Z[:3], W)),
        ("noise", lambda: quadrature.design(kernels.Gaussian(1.0), len, X, 2, noise=-1)),
        ("observed", lambda: quadrature.design(kernels.Gaussian(1.0), len, X, 2, observed=[12])),
        ("baseline", lambda: evidence.choose(np.eye(12), R, baseline=3.0)),
        ("y", lambda: evidence.choose(np.eye(1), R[:1])),
        ("epsilon", lambda: gptd.sarsa(None, RandomWalk(), 2, fast_key(0), 1, epsilon=2.0)),
        ("choices", lambda: gptd.sarsa(None, RandomWalk(), 1, fast_key(0), 1)),
        ("states", lambda: policies.expansion(kernels.Gaussian(1.0), [1.0], None, None)),
        ("policy", lambda: policies.expanded(Tabular(jnp.zeros(9)), X, Sparsify(0.1))),
    ],
)
def test_bad_arguments_are_named(name, call):
    with pytest.raises(ValueError, match=f"^{name}: "):
        call()


# Other partitions


def lqr_batch():
    policy = LinearGaussian(jnp.asarray(-0.3), jnp.asarray(0.7))
    return estimators.draw(LQR(horizon=4, discount=0.9), policy, fast_key(1), 6)


def steps_of(batch):
    """States, actions, returns-to-go with variance 1 and their units, path after path; gamma^t."""
    x, a, r = (
        np.asarray(v, float).T.ravel()
        for v in (batch.paths.states, batch.paths.actions, batch.paths.rewards)
    )
    t = np.tile(np.arange(4), 6)
    y = np.array([sum(0.9 ** (j - i) * r[j] for j in range(i, i + 4 - t[i])) for i in range(24)])
    y = y - y.mean()
    return x, a, y / y.std(), y.std(), 0.9**t


def scores_of(x, a, gain=-0.3, scale=0.7):
    z = (a - gain * x) / scale
    return np.stack([z * x / scale, (z**2 - 1) / scale], -1)


def test_scored_steps_are_model_1_under_the_occupancy(x64):
    batch = lqr_batch()
    x, a, y, units, weights = steps_of(batch)
    mass = weights.sum() / 6
    G = np.diag([weights @ x**2, 2 * weights.sum()]) / 0.7**2 / weights.sum()
    expected = oracle.model1(scores_of(x, a), y, G, noise=0.5)
    found = partitions.ScoredSteps(noise=0.5)(batch)
    np.testing.assert_allclose(found.mean, mass * units * expected.mean, rtol=1e-4)
    np.testing.assert_allclose(
        found.covariance, (mass * units) ** 2 * expected.covariance, rtol=1e-4, atol=1e-6
    )
    assert found.influence.shape == (6, 2)


def test_values_of_observations_are_integrated_over_the_actions(x64):
    batch = lqr_batch()
    x, a, y, units, weights = steps_of(batch)
    kernel = kernels.Product(kernels.Gaussian(0.5), kernels.Gaussian(0.9))

    def k(x, a, s, b):
        return squared(x[:, None], s[:, None], 0.5) * squared(a[:, None], b[:, None], 0.9)

    z, w = np.polynomial.hermite_e.hermegauss(8)
    nodes = (-0.3 * x[:, None] + 0.7 * z).ravel()
    states = np.repeat(x, 8)
    V = scores_of(states, nodes) * (np.repeat(weights, 8) * np.tile(w / w.sum(), 24))[:, None] / 6
    expected = oracle.condition(
        k(x, a, x, a), V.T @ k(states, nodes, x, a), V.T @ k(states, nodes, states, nodes) @ V,
        y, 0.2 * np.eye(24),
    )  # fmt: skip
    found = partitions.Observed(kernel, noise=0.2)(batch)
    np.testing.assert_allclose(found.mean, units * expected.mean, rtol=1e-3)
    np.testing.assert_allclose(found.covariance, units**2 * expected.covariance, rtol=1e-3)


@pytest.mark.slow("observed")
@pytest.mark.parametrize("name", ["observed", "scored"])
def test_both_partitions_find_the_gradient_of_the_random_walk(x64, name):
    """In the mean of a few batches, and at steps of episodes of different lengths."""
    environment, policy = RandomWalk(size=5, horizon=40), Tabular(jnp.full(4, 0.8))
    pairs = np.arange(8.0)[:, None] // 2, np.arange(8.0)[:, None] % 2
    product = kernels.Product(kernels.Gaussian(1.0), kernels.Gaussian(0.1))
    kernel = kernels.Scaled(kernels.Nystrom(product, pairs), 10.0)
    made = {"observed": partitions.Observed(kernel), "scored": partitions.ScoredSteps()}[name]
    batch = estimators.draw(environment, policy, fast_key(0), 100)
    exact = jax.grad(lambda t: environment.expected_return(Tabular(t)))(policy.logits)
    found = made(batch)
    assert np.linalg.norm(found.mean - exact) < 0.35 * np.linalg.norm(exact)


def test_a_policy_whose_actions_cannot_be_integrated_out_is_refused():
    policy = policies.VectorGaussian(jnp.zeros(1), 1.0)
    assert partitions._actions(policy(jnp.zeros(1)), 4)[0].shape == (4,)
    with pytest.raises(ValueError, match=r"^policy: actions are integrated out"):
        partitions._actions(policies.UnitNormal(jnp.zeros(())), 4)


# A non-parametric actor

KERNEL = kernels.Gaussian(0.7)


def test_the_features_of_an_expansion_carry_its_kernel():
    states = rng.uniform(-1, 1, size=(40, 2))
    policy = policies.expansion(KERNEL, states, 2, Sparsify(0.05), scales=[1.0, 0.5])
    scaled = states * [1.0, 0.5]
    members, _ = oracle.dictionary(squared(scaled, scaled, 0.7), 0.05)
    C = scaled[members]
    np.testing.assert_allclose(policy.features.centres, C)
    psi = np.array([policy.features(jnp.asarray(x)) for x in states])
    k = squared(scaled, C, 0.7)
    np.testing.assert_allclose(psi[:, :-1] @ psi[:, :-1].T, k @ inv(squared(C, C, 0.7)) @ k.T,
                               atol=1e-4)  # fmt: skip
    np.testing.assert_allclose(psi[:, -1], 1.0)


def test_the_gradient_of_its_weights_is_the_functional_gradient(x64):
    """grad log mu = (1_a - p) k(x, .): its value at x' is the kernel of the dictionary's span."""
    states = rng.uniform(-1, 1, size=(20, 2))
    policy = policies.expansion(KERNEL, states, 2, Sparsify(0.05))
    x, other = jnp.asarray(states[3]), jnp.asarray(rng.uniform(-1, 1, 2))
    u = policies.score(policies.as_arrays(policy), x, jnp.asarray(1)).reshape(2, -1)
    C = np.array(policy.features.centres)
    k = [squared(np.asarray(v)[None], C, 0.7)[0] for v in (x, other)]
    along = k[0] @ inv(squared(C, C, 0.7)) @ k[1] + 1  # and the constant
    np.testing.assert_allclose(u @ policy.features(other), np.array([-0.5, 0.5]) * along, rtol=1e-5)


def test_new_states_join_the_dictionary_and_the_function_stays():
    states = rng.uniform(-1, 1, size=(30, 2))
    policy = policies.as_arrays(policies.expansion(KERNEL, states[:10], 2, Sparsify(0.05)))
    theta, rebuild = policies.flatten(policy)
    policy = rebuild(jnp.asarray(rng.normal(size=theta.size), theta.dtype))
    larger = policies.expanded(policy, states, Sparsify(0.05))
    assert larger.features.size > policy.features.size
    for x in jnp.asarray(states, jnp.float32):
        np.testing.assert_allclose(larger(x).logits, policy(x).logits, atol=1e-4)
    with pytest.raises(ValueError, match=r"^sparsify: not all members"):
        policies.expanded(policy, states, Sparsify(0.5))


# GPSARSA


def played(episodes, kernel, noise, size, gamma):
    """GPSARSA without exploration on a deterministic walk, Eqs. 33 and 34 at every choice."""

    def best(x):
        """The newest pair is the end of what is known of the running episode."""
        if not points:
            return 0
        at, Z = np.array([[x, 0.0], [x, 1.0]]), np.array(points)
        ends = np.array([*last[:-1], True]), np.array(ended), gamma
        K, k, k0 = kernel(Z, Z), kernel(Z, at), kernel(at, at)
        return int(np.argmax(oracle.gptd(K, k, k0, -np.ones(len(Z)), ends, noise).mean))

    points, last, ended, lengths = [], [], [], []
    for _ in range(episodes):
        x, steps = 0.0, 0
        while x < size - 1:
            a = best(x)
            points.append([x, a])
            last.append(False)
            ended.append(False)
            x, steps = np.clip(x + 2 * a - 1, 0, size - 1), steps + 1
        last[-1] = ended[-1] = True
        lengths.append(steps)
    return lengths


def test_gpsarsa_plays_as_eqs_33_and_34_say(x64):
    size, noise, gamma = 5, 0.1, 0.95
    kernel = kernels.Product(kernels.Gaussian(1.0), kernels.Gaussian(0.5))
    online = gptd.online(
        kernels.Scaled(kernel, 10.0), (np.zeros(1), np.zeros(1)),
        discount=gamma, noise=noise, sparsify=Sparsify(1e-9, 10),
    )  # fmt: skip

    def printed(X, Y):
        return 10 * squared(X[:, :1], Y[:, :1]) * squared(X[:, 1:], Y[:, 1:], 0.5)

    environment = RandomWalk(size=size, reward_noise=0.0, horizon=100, discount=gamma)
    critic, lengths = gptd.sarsa(online, environment, 2, fast_key(0), 4, epsilon=0.0)
    np.testing.assert_array_equal(lengths, played(4, printed, noise, size, gamma))
    choices, Q = gptd.greedy(critic.critic(), jnp.arange(4.0)[:, None], 2)
    assert Q.shape == (4, 2)
    assert choices.shape == (4,)


@pytest.mark.slow
def test_a_bandit_is_known_from_few_chosen_actions():
    """Quadrature in closed form: the gradient of int k(a, a_i) N(a; m, s^2) da."""
    kernel, candidates = kernels.Gaussian(1.0), np.linspace(-4, 4, 41)[:, None]

    def cross(X):
        def integral(theta):
            return kernel.integral(X, theta[:1], theta[1:].reshape(1, 1) ** 2)

        return jax.jacobian(integral)(jnp.array([0.0, 1.0], X.dtype)).T

    chosen = candidates[quadrature.design(kernel, cross, candidates, 8, noise=1e-6).chosen]
    assert len(np.unique(chosen)) == 8
    K = squared(chosen, chosen) + 1e-6 * np.eye(8)
    with jax.enable_x64(True):
        B = np.asarray(cross(jnp.asarray(chosen)))
    estimate = B @ inv(K) @ np.sin(chosen[:, 0])
    exact = jax.grad(lambda t: Bandit(jnp.sin).expected_return(Gaussian(t[0], t[1])))(
        jnp.array([0.0, 1.0])
    )
    np.testing.assert_allclose(estimate, exact, atol=0.02)


def test_the_tables_of_the_page_are_those_of_the_stored_results():
    root = Path(__file__).parents[1]
    stored = (root / "docs/results/future-work.jsonl").read_text("utf-8")
    printed = future_work.table([json.loads(line) for line in stored.splitlines()])
    page = (root / "docs" / "future-work.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| .* \| .*±|\| .* \| [\d.]+, ", line)]
    assert len(rows) > 30
    assert set(rows) <= set(printed.splitlines())
