"""G with the actions integrated out, from plain arrays: that of the same policy as an object."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from foreign import OnlyArray

from bayespg import fisher
from bayespg._support.precision import to_float64
from bayespg.environments.trajectories import Trajectories
from bayespg.policies import Policy
from bayespg.policies.base import flatten, score
from bayespg.policies.distributions import Categorical, Gaussians

T, M, D, K, GAMMA = 4, 3, 2, 3, 0.9
LENGTHS = np.array([4, 1, 3])
TAKEN = np.arange(T)[:, None] < LENGTHS
LAST = (np.arange(T)[:, None] == LENGTHS - 1).T[TAKEN.T]
rng = np.random.default_rng(0)
STATES = rng.normal(size=(T, M, D))
ROWS = STATES.swapaxes(0, 1)[TAKEN.T]
"""The states in a row."""
N = len(ROWS)


class Softmax(Policy):
    weights: jax.Array

    def __call__(self, state):
        return Categorical(self.weights @ state)


class Network(Policy):
    """Softmax of a small network."""

    first: jax.Array
    second: jax.Array

    def __call__(self, state):
        return Categorical(self.second @ jnp.tanh(self.first @ state))


class Gaussian(Policy):
    weights: jax.Array
    log_scale: jax.Array

    def __call__(self, state):
        return Gaussians(self.weights @ state, self.log_scale)


class Fixed(Policy):
    weights: jax.Array

    def __call__(self, state):
        return Gaussians(self.weights @ state, jnp.log(jnp.asarray(DEVIATIONS)))


class Everywhere(Policy):
    """Means and deviations that both depend on the state."""

    weights: jax.Array

    def __call__(self, state):
        return Gaussians(*jnp.split(jnp.tanh(self.weights @ state), 2))


W, V, DEVIATIONS = rng.normal(size=(K, D)), rng.normal(size=(K, 5)), np.array([0.3, 1.0, 2.0])
POLICIES = {
    "softmax": Softmax(W),
    "network": Network(rng.normal(size=(5, D)), V),
    "gaussian": Gaussian(W, np.log(DEVIATIONS)),
    "fixed": Fixed(W),
    "everywhere": Everywhere(rng.normal(size=(2 * K, D))),
}


@functools.cache
def of_objects():
    """Per policy: G, its share of every episode, the parameters of the distributions and their
    Jacobian at every step, and a score."""

    def answers(policy):
        some = jnp.zeros((T, M))
        paths = Trajectories(STATES, some, some, TAKEN, TAKEN[0], STATES[-1])
        G = fisher.actions_integrated_out(policy, paths, GAMMA)
        shares = jnp.einsum("irn,irm->inm", G.factors, G.factors)
        theta, rebuild = flatten(policy)

        def parameters(theta, x):
            return jnp.concatenate(jax.tree.leaves(rebuild(theta)(x)))

        z = jax.vmap(lambda x: parameters(theta, x))(ROWS)
        J = jax.vmap(lambda x: jax.jacobian(parameters)(theta, x))(ROWS)
        action = jnp.array(1) if isinstance(policy(ROWS[0]), Categorical) else jnp.ones(K)
        return G.matrix(), shares, z, J, score(policy, ROWS[0], action)

    with jax.enable_x64(True):
        policies = jax.tree.map(jnp.asarray, POLICIES)
        return jax.tree.map(np.asarray, jax.jit(lambda p: jax.tree.map(
            answers, p, is_leaf=lambda x: isinstance(x, Policy)))(policies))  # fmt: skip


def from_arrays(name: str) -> dict[str, fisher.Dense]:
    """By each way that there is for the policy."""
    _, _, z, J, _ = of_objects()[name]
    rest = {"last": LAST, "discount": GAMMA}
    softmax, gaussian = (
        functools.partial(f, **rest) for f in (fisher.of_softmax, fisher.of_gaussian)
    )
    ways = {
        "softmax": lambda: {
            "Jacobian": softmax(z, jacobian=J),
            "features": softmax(z, features=ROWS),
            "not NumPy": softmax(OnlyArray(z), features=ROWS.tolist(), last=LAST.tolist()),
        },
        "network": lambda: {"Jacobian": softmax(z, jacobian=J)},
        "gaussian": lambda: {
            "Jacobian": gaussian(DEVIATIONS, jacobian=J),
            "features": gaussian(DEVIATIONS, features=ROWS),
        },
        "fixed": lambda: {
            "Jacobian": gaussian(DEVIATIONS, jacobian=J[:, :K], fixed=True),
            "features": gaussian(DEVIATIONS, features=ROWS, fixed=True),
        },
        "everywhere": lambda: {"Jacobian": gaussian(np.exp(z[:, K:]), jacobian=J)},
    }
    return ways[name]()


@pytest.mark.slow("gaussian", "fixed", "everywhere")
@pytest.mark.parametrize("name", POLICIES)
def test_arrays_have_the_matrix_of_the_policy_as_an_object(name):
    G, shares, _, _, u = of_objects()[name]
    for found in from_arrays(name).values():
        np.testing.assert_allclose(found.matrix(), G, rtol=1e-9, atol=1e-12)
        own = np.einsum("irn,irm->inm", found.factors, found.factors)
        np.testing.assert_allclose(own, shares, rtol=1e-9, atol=1e-12)
        fisher.checked(to_float64(found), u[None])  # the score lies in its range


def test_one_action_may_have_one_number_as_deviation():
    J = np.ones((N, 1, 1))
    found = fisher.of_gaussian(0.5, jacobian=J, fixed=True, last=LAST, discount=1.0)
    np.testing.assert_allclose(found.matrix(), [[4 * N / M]])


Z, J = np.zeros((N, K)), np.ones((N, K, 2))
SOFTMAX = {"logits": Z, "jacobian": J, "last": LAST, "discount": GAMMA}
GAUSSIAN = {"deviations": DEVIATIONS, "jacobian": J, "fixed": True, "last": LAST, "discount": GAMMA}
MISTAKES = {
    "logits of one step": ("logits", fisher.of_softmax, {"logits": Z[0]}),
    "no logits": ("logits", fisher.of_softmax, {"logits": Z[:0]}),
    "NaN logits": ("logits", fisher.of_softmax, {"logits": Z * np.nan}),
    "a Jacobian of paths": ("jacobian", fisher.of_softmax, {"jacobian": J[0]}),
    "a NaN Jacobian": ("jacobian", fisher.of_softmax, {"jacobian": J * np.nan}),
    "too few steps": ("jacobian", fisher.of_softmax, {"jacobian": J[1:]}),
    "too few logits": ("jacobian", fisher.of_softmax, {"jacobian": J[:, 1:]}),
    "no parameters": ("jacobian", fisher.of_softmax, {"jacobian": J[:, :, :0]}),
    "neither": ("jacobian, features", fisher.of_softmax, {"jacobian": None}),
    "both": ("jacobian, features", fisher.of_softmax, {"features": ROWS}),
    "too few features": (
        "features", fisher.of_softmax, {"jacobian": None, "features": ROWS[1:]},
    ),
    "last of another length": ("last", fisher.of_softmax, {"last": LAST[1:]}),
    "discount above 1": ("discount", fisher.of_softmax, {"discount": 1.1}),
    "numbers beyond float64": ("jacobian, features", fisher.of_softmax, {"jacobian": J * 1e200}),
    "a deviation of zero": ("deviations", fisher.of_gaussian, {"deviations": [1.0, 1.0, 0.0]}),
    "a NaN deviation": ("deviations", fisher.of_gaussian, {"deviations": np.nan}),
    "deviations of too few steps": ("deviations", fisher.of_gaussian, {"deviations": Z[1:] + 1}),
    "no rows of deviations": ("jacobian", fisher.of_gaussian, {"fixed": False}),
    "fixed in numbers": ("fixed", fisher.of_gaussian, {"fixed": 1}),
    "last in numbers": ("last", fisher.of_gaussian, {"last": LAST.astype(int)}),
    "last of no shape": ("last", fisher.of_gaussian, {"last": [[True], [True, False]]}),
    "no steps": ("last", fisher.of_gaussian, {"last": LAST[:0], "jacobian": J[:0]}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "function", "change"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(name, function, change):
    given = SOFTMAX if function is fisher.of_softmax else GAUSSIAN
    with pytest.raises(ValueError, match=rf"^{name}: "):
        function(**given | change)


def test_inside_a_transformation_there_is_another_function():
    with pytest.raises(TypeError, match="actions_integrated_out"):
        jax.jit(lambda z: fisher.of_softmax(**SOFTMAX | {"logits": z}).G)(Z)
