"""Scores and Fisher information by differentiation, against the paper's closed forms."""

import pickle
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayespg
from bayespg import policies, updates
from bayespg._support.random import fast_key
from bayespg.agents.agent import Agent
from bayespg.environments import LQR, classic
from bayespg.learning.estimators import GPOMDP
from bayespg.learning.training import train
from bayespg.policies import (
    BoundedLinearGaussian,
    Categorical,
    Gaussian,
    LinearGaussian,
    Normal,
    Policy,
    VectorGaussian,
    flatten,
    information_root,
    score,
)
from bayespg.policies.distributions import Gaussians

POLICIES = {
    "gaussian": Gaussian(0.2, 0.7),
    "linear": LinearGaussian(-0.4, 0.6),
    "bounded": BoundedLinearGaussian(np.array([0.4, -0.3])),
}


@pytest.fixture(params=POLICIES)
def policy(request):
    with jax.enable_x64(True):
        yield jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), POLICIES[request.param])


def test_the_bandit_policy_has_the_paper_s_score_and_information():
    with jax.enable_x64(True):
        policy = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), Gaussian(0.0, 1.0))
        u = score(policy, jnp.zeros(()), jnp.asarray(1.7))
        A = information_root(policy, jnp.zeros(()))
    np.testing.assert_allclose(u, [1.7, 1.7**2 - 1], rtol=1e-12)
    np.testing.assert_allclose(A.T @ A, np.diag([1.0, 2.0]), atol=1e-12)


def test_the_linear_policy_s_score_is_that_of_the_paper():
    with jax.enable_x64(True):
        gain, scale, x, a = -0.4, 0.6, 0.9, 0.1
        policy = LinearGaussian(jnp.asarray(gain), jnp.asarray(scale))
        u = score(policy, jnp.asarray(x), jnp.asarray(a))
    e = (a - gain * x) / scale
    np.testing.assert_allclose(u, [x * e / scale, (e**2 - 1) / scale], rtol=1e-12)


def test_kappa_reaches_the_paper_s_optimum():
    policy = BoundedLinearGaussian(np.array([-0.16, 60.0]))
    assert abs(float(policy.gain) + 0.92) < 1e-3
    assert abs(float(policy.scale) - 0.001) < 1e-6


def test_information_is_the_expectation_of_squared_scores(policy):
    x = jnp.asarray(0.7)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    at = policy(x)
    U = jax.jit(jax.vmap(lambda a: score(policy, x, a)))(at.mean + at.scale * nodes)
    expected = jnp.einsum("q,qi,qj->ij", weights / weights.sum(), U, U)
    A = information_root(policy, x)
    np.testing.assert_allclose(A.T @ A, expected, rtol=1e-9, atol=1e-12)


def test_scores_have_mean_zero(policy):
    x = jnp.asarray(-0.3)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    at = policy(x)
    U = jax.jit(jax.vmap(lambda a: score(policy, x, a)))(at.mean + at.scale * nodes)
    np.testing.assert_allclose(weights @ U / weights.sum(), 0.0, atol=1e-12)


def test_flatten_and_rebuild_are_inverse(policy):
    theta, rebuild = flatten(policy)
    again, _ = flatten(rebuild(theta))
    np.testing.assert_array_equal(theta, again)


def test_normal_samples_have_its_moments():
    with jax.enable_x64(True):
        at = Normal(jnp.full(40_000, 0.5), jnp.full(40_000, 2.0))
        a = at.sample(jax.random.key(0))
    assert abs(a.mean() - 0.5) < 4 * 2.0 / 200
    assert abs(a.std() - 2.0) < 4 * 2.0 / np.sqrt(2 * 40_000)


# Policies of other modules, and whether a policy fits.


class Net(Policy):
    """A network as equinox gives it, with its activations among the leaves."""

    net: eqx.nn.MLP

    def __call__(self, state):
        return Categorical(self.net(state))


class Held(Policy):
    """Parameters in a dictionary, beside a setting."""

    held: dict

    def __call__(self, state):
        return Categorical(self.held["scale"] * (self.held["weights"] @ state))


def net(inputs=4, outputs=2):
    return Net(eqx.nn.MLP(inputs, outputs, 4, 1, key=jax.random.key(0)))


OTHERS = {"mlp": net(), "dictionary": Held({"weights": np.zeros((2, 4), np.float32), "scale": 2})}


@pytest.mark.slow("mlp")
@pytest.mark.parametrize("name", OTHERS)
def test_an_agent_takes_a_policy_of_any_modules(name, tmp_path):
    agent = Agent("CartPole-v1", OTHERS[name], "gpomdp", seed=0)
    before = agent.parameters
    agent.update()
    assert not all(np.array_equal(before[k], x) for k, x in agent.parameters.items())
    agent.save(tmp_path / "saved")
    again = bayespg.load(tmp_path / "saved", policy=OTHERS[name])
    again = pickle.loads(pickle.dumps(again))
    assert all(np.array_equal(again.parameters[k], x) for k, x in agent.parameters.items())


@pytest.mark.slow
@pytest.mark.parametrize("runs", [None, 2])
def test_training_takes_a_policy_of_any_modules(runs):
    def several(x):
        return np.stack([x] * runs) if runs and eqx.is_inexact_array(x) else x

    policy = jax.tree.map(several, OTHERS["mlp"])
    result = train(
        classic.CartPole(horizon=10), policy, GPOMDP(), updates.conventional(0.1), key=fast_key(0),
        updates=2, paths=3, runs=runs,
    )  # fmt: skip
    assert result.policy.net.activation is not None
    assert np.isfinite(result.history.sample_return).all()


@pytest.mark.parametrize(
    ("environment", "policy", "says"),
    [
        ("CartPole-v1", net(outputs=3), "expected a choice of 2, found a choice of 3 from Net"),
        ("jax/CartPole-v1", net(outputs=3), "expected a choice of 2, found a choice of 3 from Net"),
        ("CartPole-v1", net(5), r"Net does not take an observation of shape \(4,\)"),
        ("CartPole-v1", VectorGaussian(np.zeros(4), 1.0), "expected a choice of 2, found float"),
        (
            "Pendulum-v1",
            VectorGaussian(np.zeros(2), 1.0),
            "VectorGaussian does not take an observation",
        ),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_when_the_agent_is_made(environment, policy, says):
    with pytest.raises(ValueError, match=f"^policy: {says}"):
        Agent(environment, policy, "gpomdp")


def test_a_policy_that_does_not_fit_is_refused_in_training():
    def ask(environment, policy):
        train(
            environment, policy, GPOMDP(), updates.conventional(0.1), key=fast_key(0), updates=1,
            paths=2,
        )  # fmt: skip

    with pytest.raises(ValueError, match=r"^policy: expected a choice of 2, found a choice of 3"):
        ask(classic.CartPole(), net(outputs=3))
    with pytest.raises(ValueError, match=r"^policy: LQR does not take an action of Wide"):
        ask(LQR(), Wide(np.zeros(2)))


class Wide(Policy):
    """Two numbers where one is expected."""

    mean: np.ndarray

    def __call__(self, state):
        return Gaussians(self.mean + 0 * state, jnp.zeros(2))


class FlaxLike:
    """The signature of `flax.linen.Module`."""

    def apply(self, variables, *args, rngs=None, mutable=False):
        return args[0] @ variables["params"]["kernel"]


class HaikuLike(NamedTuple):
    """The signature of `haiku.Transformed`."""

    init: Any
    apply: Any


KERNEL = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
LINEAR = eqx.tree_at(
    lambda m: m.weight, eqx.nn.Linear(4, 2, use_bias=False, key=jax.random.key(0)), KERNEL.T
)
NETWORKS = {
    "equinox": LINEAR,
    "equinox, activations": eqx.nn.Sequential([LINEAR, eqx.nn.Lambda(lambda x: x)]),
    "flax": (FlaxLike(), {"params": {"kernel": KERNEL}}),
    "haiku": (HaikuLike(None, lambda params, rng, *args: args[0] @ params["w"]), {"w": KERNEL}),
    "function": (lambda kernel, x: x @ kernel, KERNEL),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_any_library_is_a_policy(name):
    x = jnp.array([1.0, -2.0, 0.5, 3.0])
    policy = policies.network(NETWORKS[name], 2)
    np.testing.assert_allclose(policy(x).logits, x @ KERNEL, rtol=1e-5)
    assert policies.count(policy) == 8
    agent = Agent(classic.CartPole(horizon=10), NETWORKS[name], "mcpg", episodes=3)
    np.testing.assert_allclose(agent.policy(x).logits, x @ KERNEL, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["equinox, activations", "flax"])
def test_a_network_of_one_s_own_trains_and_one_file_of_it_is_loaded_elsewhere(name, tmp_path):
    agent = Agent("CartPole-v1", NETWORKS[name], "gpomdp", horizon=20, seed=0)
    agent.learn(100, progress=False)
    x = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    learned = jax.vmap(agent.policy)(x).logits
    assert np.abs(learned - x @ KERNEL).max() > 1e-3
    agent.save(tmp_path / "network.bayespg")
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / "network.bayespg").rename(tmp_path / "elsewhere" / "other.bayespg")
    with pytest.raises(ValueError, match="policy was an object when this was saved; give it again"):
        Agent.load(moved)
    again = Agent.load(moved, policy=NETWORKS[name])
    np.testing.assert_allclose(jax.vmap(again.policy)(x).logits, learned, rtol=1e-5)


def test_a_network_comes_out_of_jit():
    policy = policies.network(eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0)), 2)
    assert jax.jit(lambda p: p)(policy)(jnp.ones(4)).logits.shape == (2,)


def test_a_gaussian_network_learns_its_scale():
    box = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    policy = policies.network(eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0)), box)
    assert policy(jnp.ones(4)).sample(jax.random.key(0)).shape == (3,)
    assert policies.count(policy) == 4 * 8 + 8 + 8 * 3 + 3 + 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(0)), r"2 outputs, a logit .* shape \(3,\)"),
        (eqx.nn.MLP(5, 2, 8, 1, key=jax.random.key(0)), r"not take an observation of shape \(4,\)"),
        ((lambda p, x: (x[:2], p), jnp.ones(())), "2 outputs, .* found 2 arrays"),
        (jnp.tanh, "expected a name, a Policy.* or a network"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_when_the_agent_is_made(given, says):
    with pytest.raises(ValueError, match=f"^policy: .*{says}"):
        Agent(classic.CartPole(), given)


def test_a_network_without_its_parameters_is_named():
    with pytest.raises(ValueError, match="parameters are missing, give a pair"):
        policies.network(FlaxLike(), 2)


@pytest.mark.slow("shape0", "shape1", "shape3")
@pytest.mark.parametrize("shape", [(10, 10, 4), (84, 84), (4, 84, 84), (3, 3)])
def test_a_convolutional_policy_takes_images_and_flat_ones(shape):
    policy = policies.convolutional(shape, 6, key=jax.random.key(0))
    theta, rebuild = flatten(policy)
    x = np.random.default_rng(1).uniform(size=shape).astype(np.float32)
    pixels = (255 * x).astype(np.uint8)

    @eqx.filter_jit
    def ask(policy, *images):
        return [policy(image).logits for image in images]

    images = x, x.ravel(), pixels, pixels.astype(np.float32) / 255
    logits, flat, whole, expected = ask(rebuild(theta + 0.01), *images)
    assert logits.shape == (6,)
    np.testing.assert_allclose(flat, logits, rtol=1e-5)
    np.testing.assert_allclose(whole, expected, rtol=1e-4)


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"shape: expected an image .* found \(2, 9\)"):
        policies.convolutional((2, 9), 6, key=jax.random.key(0))
