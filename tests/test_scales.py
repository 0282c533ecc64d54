"""Scales and noise of the actor-critic on plain arrays, chosen by their evidence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from bayespg import kernels
from bayespg.actor_critic import gradient_posterior
from bayespg.algebra.sparse import Rows

N, n = 24, 3
rng = np.random.default_rng(3)
X = rng.normal(size=(N, 2))
U, _, G = oracle.problem(N, n)
WIDE = rng.normal(size=(N, 2 * N))
"""Scores of more parameters than steps."""
KERNEL, KX = kernels.Gaussian(1.0), np.exp(-0.5 * np.sum((X[:, None] - X[None]) ** 2, -1))
LAST = np.arange(N) % 6 == 5
REWARDS = U @ [8.0, 0.0, -8.0] + 3 * X[:, 0] + 0.5 * rng.normal(size=N)
NEVER = np.zeros(N, bool)


def posterior(scores=U, rewards=REWARDS, G=G, **kwargs):
    given = {"last": LAST, "terminated": LAST, "discount": 0.9, "state_kernel": KERNEL}
    given |= {"noise": None, "lambda_": 0.5}
    return gradient_posterior(X, scores, rewards, G, **given | kwargs)


@functools.cache
def chosen(wide: bool = False):
    return posterior(WIDE, G=np.eye(2 * N)) if wide else posterior()


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
def test_the_answer_is_that_of_the_variances_chosen_and_no_others_nearby_have_more_evidence(wide):
    scores, fisher = (WIDE, np.eye(2 * N)) if wide else (U, G)
    found = chosen(wide)
    names = "state_scale", "noise", "fisher_scale"
    variances = np.array([found.info[name] for name in names])

    def literal(a, s2, c):
        given = a * KX, scores, fisher, REWARDS, (LAST, LAST, 0.9)
        return oracle.traced_actor_critic(*given, s2, c, 0.5)

    expected = literal(*variances)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.info["evidence"], expected.log_evidence, rtol=1e-8)
    if wide:  # the noise stands at its lower limit
        return
    for factors in (*(1 + 0.1 * np.eye(3)), *(1 - 0.1 * np.eye(3))):
        assert literal(*variances * factors).log_evidence < expected.log_evidence


@pytest.mark.slow
def test_inside_jit_they_are_the_same():
    with jax.enable_x64(True):
        run = jax.jit(lambda r: posterior(rewards=r, episodes=4, form="dual"))
        inside = run(jnp.asarray(REWARDS))
    np.testing.assert_allclose(inside.mean, posterior(form="dual").mean, rtol=1e-6)


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_units_of_the_rewards_are_those_of_the_answer(unit):
    found = posterior(rewards=unit * REWARDS)
    np.testing.assert_allclose(found.mean / unit, chosen().mean, rtol=1e-6)
    np.testing.assert_allclose(found.info["noise"] / unit**2, chosen().info["noise"], rtol=1e-6)


def test_rewards_of_zero_have_no_gradient_and_equal_ones_an_answer():
    np.testing.assert_array_equal(posterior(rewards=np.zeros(N)).mean, 0)
    assert np.isfinite(posterior(rewards=np.ones(N)).mean).all()


ROWS = Rows(np.tile(np.arange(n), (N, 1)), U, n)
MISTAKES = {
    "a scale that would be chosen": ("fisher_scale", {"fisher_scale": 1.0}),
    "sparse scores": ("noise", {"scores": ROWS}),
    "nothing to choose by": ("noise", {"last": ~NEVER, "terminated": NEVER}),
    "rewards whose squares vanish": ("rewards", {"rewards": 1e-160 * REWARDS}),
    "rewards whose squares are infinite": ("rewards", {"rewards": 1e160 * REWARDS}),
}


@pytest.mark.parametrize(("name", "given"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(name, given):
    with pytest.raises(ValueError, match=rf"^{name}: "):
        posterior(**given)
