"""Algorithm 2: whole runs, many at once, stopping, and runs that go wrong."""

import json
import os
import subprocess
import sys
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Float

from bayespg import fisher, kernels, policies, training, updates
from bayespg._support.random import fast_key
from bayespg.agents.agent import Agent
from bayespg.environments import (
    LQR,
    MountainCar,
    RandomWalk,
    check_solved,
    classic,
    exact_gradient,
)
from bayespg.learning import estimators
from bayespg.learning.batch import draw
from bayespg.learning.estimators import BACPaper, Model2, Reinforce
from bayespg.learning.training import train
from bayespg.policies import BoundedLinearGaussian, Tabular

OURS = Model2(baseline=float("inf"))
RATE = updates.conventional(updates.hyperbolic(np.array([0.1, 0.3])))


def learn(estimator=OURS, update=RATE, runs=8, **kwargs):
    kappa = np.random.default_rng(0).normal(size=(runs, 2))
    settings = {"key": fast_key(0), "updates": 30, "paths": 20, "runs": runs, **kwargs}
    return train(LQR(), BoundedLinearGaussian(kappa), estimator, update, **settings)


@pytest.fixture(scope="module")
def learned():
    return learn()


def test_bpg_learns_lqr(learned):
    cost = -learned.history.expected_return
    assert cost[:, -1].mean() < 0.45 < cost[:, 0].mean()


def test_the_final_policy_follows_the_last_recorded_one(learned):
    assert learned.policy.kappa.shape == (8, 2)
    assert not np.array_equal(learned.policy.kappa, learned.history.parameters[:, -1])


def test_the_answer_is_float64_and_jax_s_setting_is_untouched(learned):
    assert learned.history.expected_return.dtype == np.float64
    assert not jax.config.jax_enable_x64


SHARED = """
import jax, numpy as np
from bayespg import training, updates
from bayespg._support.random import fast_key
from bayespg.environments import LQR
from bayespg.learning.estimators import Model2
from bayespg.policies import BoundedLinearGaussian

kappa = np.random.default_rng(0).normal(size=(RUNS, 2))
rate = updates.conventional(updates.hyperbolic(np.array([0.1, 0.3])))
found = training.train(
    LQR(), BoundedLinearGaussian(kappa), Model2(baseline=float("inf")), rate,
    key=fast_key(0), updates=3, paths=5, runs=RUNS,
)
print(jax.device_count(), found.policy.kappa.tolist())
"""


@pytest.mark.slow
def test_runs_on_eight_devices_are_those_of_one():
    """In processes of their own, because the number of devices is fixed when JAX starts. Twelve
    runs have equal shares on six of eight devices."""
    answers = []
    for devices in (1, 8):
        flags = f"--xla_force_host_platform_device_count={devices}"
        done = subprocess.run(
            [sys.executable, "-c", SHARED.replace("RUNS", "12")], text=True, capture_output=True,
            env=os.environ | {"XLA_FLAGS": flags}, check=True,
        )  # fmt: skip
        count, numbers = done.stdout.split(" ", 1)
        assert int(count) == devices
        answers.append(np.array(json.loads(numbers)))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5)  # paths are of float32


TRACED = []


class Watched(Reinforce):
    """Counts how often it is traced: once per program that is compiled."""

    def __call__(self, sample):
        TRACED.append(sample)
        return super().__call__(sample)


def test_progress_and_evaluations_change_nothing_because_the_same_program_runs():
    calls, few = [], {"estimator": Watched("mean"), "runs": 2, "paths": 5}
    plain = learn(**few)
    compiled = len(TRACED)
    shown = learn(progress=lambda *at: calls.append(at), **few)
    asked = learn(evaluate=lambda policy, key: policy.kappa, every=6, **few)
    assert len(TRACED) == compiled > 0
    assert calls == [(done, 30) for done in range(1, 31)]
    for other in (shown, asked):
        for one, same in zip(plain.history, other.history, strict=True):
            np.testing.assert_array_equal(one, same)
        np.testing.assert_array_equal(plain.policy.kappa, other.policy.kappa)


@pytest.mark.parametrize(
    ("total", "every", "progress", "stops"),
    [
        (7, None, False, [7]),
        (6, 2, False, [2, 4, 6]),
        (3, None, True, [1, 2, 3]),
        (300, 150, True, list(range(6, 301, 6))),
        (101, None, True, [*range(2, 101, 2), 101]),
        (120, 15, True, sorted({*range(2, 121, 2), *range(15, 121, 15)})),
    ],
)
def test_the_loop_comes_back_where_somebody_asks(total, every, progress, stops):
    assert training._stops(total, every, progress) == stops


@pytest.mark.slow
def test_a_step_that_is_too_short_is_taken_and_is_the_last():
    """Algorithm 4, lines 7 and 8."""
    stopped = learn(stop=1e6, updates=4)
    np.testing.assert_array_equal(stopped.history.running, [[True, False, False, False]] * 8)
    start, after = stopped.history.parameters[:, 0], stopped.history.parameters[:, 1:]
    assert np.all(np.linalg.norm(after[:, 0] - start, axis=-1) > 0)
    np.testing.assert_array_equal(after, stopped.policy.kappa[:, None].repeat(3, 1))


@pytest.mark.slow
def test_a_run_whose_step_is_not_finite_keeps_its_parameters():
    wild = learn(estimator=Reinforce(), update=updates.conventional(float("inf")), updates=5)
    assert np.isfinite(wild.policy.kappa).all()
    assert not wild.history.running[:, -1].any()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"updates": 2.5}, "updates: expected a whole number from 1, found 2.5"),
        ({"paths": True}, "paths: expected a whole number"),
        ({"runs": "4"}, "runs: expected a whole number"),
        ({"stop": -1.0}, "stop: expected a number from 0"),
        ({"every": 10}, "every: 10 would have no effect without evaluate"),
        ({"every": 7, "evaluate": lambda policy, key: 0.0}, "every: expected a divisor"),
    ],
)
def test_wrong_or_idle_arguments_are_named(wrong, says):
    settings = {"key": fast_key(0), "updates": 30, "paths": 20} | wrong
    with pytest.raises(ValueError, match=says):
        train(LQR(), BoundedLinearGaussian(np.zeros(2)), OURS, RATE, **settings)


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="updates"):
        learn(updates=0)
    with pytest.raises(ValueError, match="paths"):
        learn(paths=0)
    with pytest.raises(ValueError, match="runs"):
        train(
            LQR(), BoundedLinearGaussian(np.zeros((3, 2))), OURS, RATE,
            key=fast_key(0), updates=1, paths=5, runs=4,
        )  # fmt: skip


# The actor-critic on the random walk.

STOP = 0.175


def walk(policy, key, runs=None):
    values = kernels.Nystrom(kernels.Gaussian(3.0), np.arange(9.0)[:, None])
    return train(
        RandomWalk(horizon=60), policy, BACPaper(values, 0.1, 0.01), updates.conventional(0.5),
        key=key, updates=40, paths=10, runs=runs, stop=STOP,
    )  # fmt: skip


@pytest.fixture(scope="module")
def walked():
    return walk(Tabular(np.full((4, 9), np.log(41 / 9))), fast_key(0), 4)


@pytest.mark.slow
def test_bac_learns_the_random_walk(walked):
    returns = walked.history.expected_return
    assert np.all(returns[:, -1] > returns[:, 0])
    assert returns[:, -1].mean() > returns[:, 0].mean() + 0.5


def test_bac_s_parameters_are_frozen_once_it_has_stopped(walked):
    running, parameters = walked.history.running, walked.history.parameters
    assert np.all(running[:, 1:] <= running[:, :-1])
    stopped = ~running[:, -1]
    assert stopped.any()
    steps = np.linalg.norm(np.diff(parameters, axis=1), axis=-1)
    for i in np.flatnonzero(stopped):
        at = running[i].argmin()
        assert steps[i, at - 1] < STOP <= steps[i, : at - 1].min()
        np.testing.assert_array_equal(parameters[i, at:], parameters[i, at:][:1].repeat(40 - at, 0))
        np.testing.assert_array_equal(walked.policy.logits[i], parameters[i, at])


@pytest.mark.slow
def test_a_run_among_many_is_the_run_alone_with_its_key(walked):
    key = jax.random.split(fast_key(0), 4)[1]
    alone = walk(Tabular(np.full(9, np.log(41 / 9))), key)
    np.testing.assert_allclose(
        alone.history.parameters, walked.history.parameters[1], rtol=1e-6, atol=1e-9
    )


class Affine(policies.Policy):
    weights: Float[Array, " 2"]

    def __call__(self, state):
        return policies.Normal(self.weights[0] + self.weights[1] * state, jnp.asarray(0.5))


@pytest.mark.slow
def test_a_policy_of_one_s_own_trains_where_only_others_have_exact_answers():
    policy = Affine(jnp.array([0.0, -0.2]))
    update = updates.conventional(1e-3)
    result = train(LQR(), policy, OURS, update, key=fast_key(0), updates=2, paths=5)
    assert np.isnan(result.history.expected_return).all()
    assert np.isfinite(result.history.sample_return).all()
    with pytest.raises(TypeError, match="with gain and scale, which Affine does not have"):
        exact_gradient(LQR(), policy)
    with pytest.raises(TypeError, match="which Affine does not have"):
        fisher.exact(LQR(), policy)
    with pytest.raises(TypeError, match="MountainCar has no closed form"):
        check_solved(MountainCar(), policy)


def test_an_agent_and_train_make_the_same_step_from_the_same_batches():
    """A trust region measures the divergence over recent states in both, here of two batches. Only
    the precision of the sums over paths differs."""
    environment, update = classic.CartPole(horizon=80), updates.trust_region(0.05)
    estimator = estimators.GPOMDP(estimators.steps_integrated_out)
    agent = Agent(environment, "linear", estimator, update, episodes=4, seed=0, persistence=0.0)
    result = train(
        environment, agent.policy, estimator, update, key=fast_key(3), updates=2, paths=4
    )
    with jax.enable_x64(True):
        key = fast_key(3)
        for _ in range(2):
            key, drawn = jax.random.split(key)
            batch = draw(environment, agent.policy, drawn, 4, jnp.float32)
            agent.state, record = agent._learn(batch.paths)
            assert record.step_norm > 0
        assert agent.state.recent.weights.sum() > 48
        expected, found = (policies.flatten(p)[0] for p in (agent.policy, result.policy))
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("update", "kept"),
    [
        (updates.trust_region(0.05), True),
        (updates.conventional(0.1), False),
    ],
)
def test_recent_states_are_kept_where_the_update_measures_the_divergence(update, kept):
    policy = BoundedLinearGaussian(np.zeros(2))
    state = training.start(LQR(), policy, OURS, update, fast_key(0))
    assert (state.recent is not None) == kept


CHEAP = Reinforce("mean")
KEYS = jax.random.split(jax.random.key(3), 3)


def cheaply(key, update=None, estimator=CHEAP, **kwargs):
    """Three updates in a program that is quick to compile."""
    update, policy = update or updates.conventional(0.01), BoundedLinearGaussian(jnp.zeros(2))
    return train(LQR(), policy, estimator, update, key=key, updates=3, paths=5, **kwargs)


def test_train_inside_jit_and_vmap_is_train():
    with jax.enable_x64(True):
        together = jax.jit(jax.vmap(cheaply))(KEYS)
    for i, key in enumerate(KEYS):
        alone = cheaply(key)
        np.testing.assert_allclose(together.policy.kappa[i], alone.policy.kappa, rtol=1e-5)
        for found, expected in zip(together.history, alone.history, strict=True):
            np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("traced", ["estimator", "update"])
def test_fields_of_estimators_and_updates_may_differ_between_runs(traced):
    noise, limits = jnp.array([1e-3, 10.0]), jnp.array([0.001, 0.01])
    given = {
        "estimator": lambda: (jax.vmap(lambda n: Model2(noise=n))(noise), 0, None),
        "update": lambda: (jax.vmap(updates.trust_region)(limits), None, 0),
    }[traced]()
    made, *axes = given

    def run(estimator, update):
        return cheaply(KEYS[0], update, estimator).policy.kappa

    others = OURS, updates.trust_region(0.01)
    arguments = (made, others[1]) if traced == "estimator" else (others[0], made)
    a, b = jax.jit(jax.vmap(run, axes))(*arguments)
    assert not np.allclose(a, b, rtol=1e-3)


def test_an_optimiser_of_optax_may_have_a_rate_that_is_traced():
    rates = jnp.array([0.001, 0.01])
    a, b = jax.jit(
        jax.vmap(lambda r: cheaply(KEYS[0], updates.ascending(optax.sgd(r))).policy.kappa)
    )(rates)
    expected = cheaply(KEYS[0]).policy.kappa
    np.testing.assert_allclose(b, expected, rtol=1e-3)
    assert not np.allclose(a, b, rtol=1e-3)


def test_evaluations_inside_jit_are_those_outside():
    def evaluate(policy, key):
        return policy.kappa[0] + jax.random.uniform(key, dtype=jnp.float32)

    def asked(key):
        return cheaply(key, evaluate=evaluate, every=1).evaluations

    found, expected = jax.jit(asked)(KEYS[0]), asked(KEYS[0])
    np.testing.assert_array_equal(found.updates, expected.updates)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-3)
    with pytest.raises(ValueError, match="progress: cannot be called inside jit"):
        jax.jit(lambda key: cheaply(key, progress=print))(KEYS[0])


class Counted(Reinforce):
    """Counts how often it is traced."""

    traced: ClassVar[list[int]] = []

    def __call__(self, batch):
        self.traced.append(1)
        return super().__call__(batch)


def test_what_is_rebuilt_alike_is_not_compiled_again():
    def run():
        update = updates.natural(updates.hyperbolic(0.01, 10.0))
        cheaply(KEYS[0], update, Counted("mean", estimators.actions_integrated_out))
        return len(Counted.traced)

    assert run() == run()


class Generous(LQR):
    """A reward of one in each of twenty steps."""

    discount: float = 0.5

    def step(self, key, states, actions):
        following, rewards, ends = super().step(key, states, actions)
        return following, jnp.ones_like(rewards), ends


def test_the_history_has_returns_with_and_without_the_discount():
    history = train(
        Generous(), BoundedLinearGaussian(jnp.zeros(2)), CHEAP, updates.conventional(0.01),
        key=KEYS[0], updates=1, paths=2,
    ).history  # fmt: skip
    np.testing.assert_allclose(history.total_reward, Generous().horizon)
    np.testing.assert_allclose(history.sample_return, 2.0, rtol=1e-5)
