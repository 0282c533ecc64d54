"""Steps of earlier policies as data for the critic; settings chosen by what episodes certify."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_learner import Drift

import bayespg
from bayespg import actor_critic, estimators, kernels, updates
from bayespg.environments import LQR
from bayespg.learning import choosing, older, training
from bayespg.learning.agents import Agent
from bayespg.learning.batch import draw, flat
from bayespg.policies import LinearGaussian
from bayespg.policies.base import score
from bayespg.posterior import GradientPosterior

KERNEL = kernels.Gaussian(1.0)
TASK = LQR(horizon=5)


def policy(gain):
    return LinearGaussian(jnp.asarray(gain), jnp.asarray(0.7))


def nothing(paths, *counts):
    return older.nothing(policy(0.0), jax.eval_shape(lambda: paths.states[0, 0]), *counts)


def batches(gains, paths=3):
    """A batch of the first policy, with those of the others as older ones."""
    found = [draw(TASK, policy(gain), jax.random.key(i), paths) for i, gain in enumerate(gains)]
    kept = nothing(found[0].paths, TASK.horizon, paths, len(gains) - 1)
    for one in reversed(found[1:]):
        kept = older.seen(kept, one.paths)
    return eqx.tree_at(lambda b: b.older, found[0], kept, is_leaf=lambda x: x is None), found


@pytest.mark.slow
@pytest.mark.parametrize("trace", [0.0, 0.7])
def test_older_steps_are_further_rows_with_scores_of_the_policy_of_now(x64, trace):
    """The answer is that of the array function for all steps, one after the other."""
    batch, found = batches([-0.3, -0.2, -0.1])
    estimator = estimators.BAC(KERNEL, 0.5, trace=trace, reuse=2)
    got = eqx.filter_jit(estimator)(batch)
    states, actions, rewards = (
        np.concatenate([flat(getattr(one.paths, name)) for one in found])
        for name in ("states", "actions", "rewards")
    )
    now = jax.vmap(lambda x, a: score(policy(-0.3), x, a))(states, actions)
    last = np.tile(np.arange(TASK.horizon) == TASK.horizon - 1, 9)
    expected = actor_critic.gradient_posterior(
        states, now, rewards, estimator.fisher(batch), last=last, terminated=np.zeros(45, bool),
        discount=TASK.discount, state_kernel=KERNEL, noise=0.5, trace=trace, form="weight",
    )  # fmt: skip
    np.testing.assert_allclose(got.mean, expected.mean, rtol=1e-4)  # rewards are kept in float32
    np.testing.assert_allclose(got.covariance, expected.covariance, rtol=1e-4)
    assert got.influence.shape == (3, 2)  # the i-th episodes of all batches together
    assert got.info["reused"] == 2


def test_leaving_out_takes_the_same_place_of_every_batch(x64):
    batch, _ = batches([-0.3, -0.2])
    G = estimators.steps_integrated_out(batch).matrix()
    estimator = estimators.BAC(
        KERNEL, 0.5, trace=0.5, reuse=1, fisher=lambda _: bayespg.fisher.Dense(G)
    )

    def without_the_last(paths):
        return eqx.tree_at(lambda p: p.mask, paths, paths.mask.at[:, -1].set(False))

    fewer = eqx.tree_at(
        lambda b: (b.paths, b.older), batch,
        (without_the_last(batch.paths), without_the_last(batch.older)),
    )  # fmt: skip
    answer = eqx.filter_jit(estimator)
    whole = answer(batch)
    left = whole.mean - answer(fewer).mean
    np.testing.assert_allclose(whole.influence[-1], left, rtol=1e-6)


def test_the_newest_batch_comes_first_and_the_oldest_leaves():
    _, found = batches([-0.3, -0.2, -0.1], paths=2)
    a, b, c = (one.paths for one in found)
    kept = nothing(a, TASK.horizon, 2, 2)
    assert not kept.mask.any()
    kept = older.seen(older.seen(older.seen(kept, a), b), c)
    np.testing.assert_array_equal(kept.rewards, jnp.concatenate([c.rewards, b.rewards], 1))


def test_an_episode_longer_than_what_is_kept_counts_as_cut_off():
    _, found = batches([-0.3], paths=2)
    paths = eqx.tree_at(lambda p: p.terminated, found[0].paths, jnp.ones(2, bool))
    kept = older.seen(nothing(paths, 3, 2, 1), paths)
    assert kept.mask.all()
    assert not kept.terminated.any()
    assert older.kept(10_000, 8) == 512


def test_older_paths_must_fit():
    batch, _ = batches([-0.3, -0.2])
    wide = eqx.tree_at(lambda p: p.states, batch.older, jnp.zeros((5, 3, 2)))
    with pytest.raises(ValueError, match="older: expected states of shape"):
        older.joined(batch.paths, wide)
    with pytest.raises(ValueError, match=r"older: expected states .* at most 4 steps"):
        older.joined(jax.tree.map(lambda x: x[:4] if x.ndim > 1 else x, batch.paths), batch.older)


def test_short_batches_are_padded_to_what_is_kept_of_older_ones():
    batch, _ = batches([-0.3, -0.2])
    short = jax.tree.map(lambda x: x[:2] if x.ndim > 1 else x, batch.paths)
    T, M = len(batch.older.mask), short.mask.shape[1]
    both = older.joined(older.as_long(short, batch.older), batch.older)
    assert both.mask.shape[0] == T
    np.testing.assert_array_equal(both.mask[:, :M].sum(0), short.mask.sum(0))
    kept = older.seen(batch.older, short)
    assert kept.rewards.shape == batch.older.rewards.shape
    np.testing.assert_array_equal(kept.rewards[:2, :M], short.rewards)
    assert older.as_long(short, None) is short


def test_bad_counts_are_named():
    with pytest.raises(ValueError, match="reuse: expected a whole number from 0, found -1"):
        estimators.adaptive(reuse=-1)
    with pytest.raises(ValueError, match="form: dual"):
        estimators.BAC(KERNEL, reuse=1, form="dual")


# Choosing.


def test_a_candidate_that_is_steadily_better_is_followed_and_noise_is_not():
    certified = choosing.nothing(2, jnp.float32)
    assert certified.chosen() == 0
    rng = np.random.default_rng(0)
    for _ in range(10):
        certified = certified.seen(jnp.array([1.0, 1.5 + 0.1 * rng.normal()]))
    assert certified.chosen() == 1
    for _ in range(60):
        certified = certified.seen(jnp.array([1.0, 0.5]))
    assert certified.chosen() == 0
    np.testing.assert_allclose(choosing.nothing(2, float).seen(jnp.array([1.0, 9.0])).chosen(), 0)


def test_a_direction_is_judged_by_the_episode_that_had_no_part_in_it(x64):
    """Two episodes whose gradients are g_1 and g_2: each is judged along the other."""
    g = np.array([[2.0, 0.0], [1.0, 1.0]])
    mean, metric = g.mean(0), bayespg.fisher.Dense(jnp.diag(jnp.array([4.0, 1.0])))
    without = g[::-1]
    posterior = GradientPosterior(
        jnp.asarray(mean), jnp.eye(2), metric, jnp.asarray(mean - without), jnp.ones(()),
        jnp.ones(()), {},
    )  # fmt: skip
    D = np.diag([4.0, 1.0])
    expected = sum(
        h @ np.linalg.solve(D, d) / np.sqrt(d @ np.linalg.solve(D, d))
        for h, d in zip(g, without, strict=True)
    )
    np.testing.assert_allclose(choosing.certified(posterior, jnp.asarray(g)), expected)
    # In a metric without damping, the same direction is that much longer or shorter.
    G = np.diag([3.0, 0.5])
    steps = [np.linalg.solve(D, d) for d in without]
    expected = sum(h @ d / np.sqrt(d @ G @ d) for h, d in zip(g, steps, strict=True))
    found = choosing.certified(posterior, jnp.asarray(g), bayespg.fisher.Dense(jnp.asarray(G)))
    np.testing.assert_allclose(found, expected)


def agent(**given):
    return Agent(functools.partial(Drift), horizon=6, lanes=1, seed=1, **{"episodes": 3} | given)


@pytest.mark.slow("given1")
@pytest.mark.parametrize("given", [{"reuse": 2}, {"estimator": "bac-chosen"}])
def test_a_run_with_older_batches_resumes_bit_for_bit(tmp_path, given):
    one = agent(policy="linear", **given)
    for _ in range(3):
        one.update()
    one.save(tmp_path / "saved")
    other = bayespg.load(tmp_path / "saved", environment=functools.partial(Drift))
    rows = [[each.update() for _ in range(2)] for each in (one, other)]
    for mine, theirs in zip(*rows, strict=True):
        assert {k: v for k, v in mine.items() if "seconds" not in k} == pytest.approx(
            {k: v for k, v in theirs.items() if "seconds" not in k}, rel=0, abs=0, nan_ok=True
        )
    kept = one.state.older.mask
    assert kept.shape == (6, 9 if "estimator" in given else 6)
    assert kept.any(0).all()


def test_the_columns_say_which_settings_were_chosen():
    changes = {"trace": 0.8, "kappa": 2.0, "advantage": 0.2, "reuse": 2}
    candidates = choosing.among(*({name: value} for name, value in changes.items()))
    one = agent(policy="linear", estimator=candidates)
    defaults = {"trace": 0.9, "kappa": 0.3, "advantage": 0.05, "reused": 0}
    for j, (name, value) in enumerate([("trace", 0.9), *changes.items()]):
        best = jnp.zeros(5).at[j].set(1.0)
        better = choosing.Certified(best, best, jnp.ones(()))
        one.state = eqx.tree_at(lambda s: s.certified, one.state, better)
        row = one.update()
        expected = defaults | {{"reuse": "reused"}.get(name, name): value}
        assert {column: row[column] for column in defaults} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"reuse": -1}, "reuse: expected a whole number from 0"),
        ({"reuse": 1.5}, "reuse: expected a whole number"),
        ({"reuse": 2, "policy": "mlp"}, "estimator: .* at most 256 parameters"),
        ({"estimator": "bac-chosen", "policy": "mlp"}, "estimator: .* at most 256 parameters"),
        ({"reuse": 1, "episodes": 1}, "estimator: .* two episodes per update"),
        ({"reuse": 1, "episodes": "auto"}, "episodes: 'auto' needs"),
        ({"reuse": 2, "estimator": "gae"}, "reuse: 2 would have no effect: gae"),
        ({"reuse": 2, "estimator": "bac-chosen"}, "reuse: 2 would have no effect: bac-chosen"),
    ],
)
def test_a_count_without_effect_is_refused(given, says):
    with pytest.raises(ValueError, match=says):
        agent(**given)


@pytest.mark.slow
def test_a_network_learns_from_older_batches_by_products():
    one = agent(policy="mlp", estimator=estimators.adaptive(reuse=1))
    rows = [one.update() for _ in range(2)]
    assert all(row["sound"] == 1 and row["reused"] == 1 for row in rows)


@pytest.mark.slow
def test_runs_side_by_side_keep_their_own_older_batches():
    gains = jnp.array([-0.3, -0.1])
    found = training.train(
        TASK, LinearGaussian(gains, jnp.array([0.7, 0.7])), choosing.among({"reuse": 2}),
        updates.trust_region(0.05), key=jax.random.key(0), updates=3, paths=2, runs=2,
    )  # fmt: skip
    assert found.state.older.mask.shape == (2, 5, 4)
    assert found.state.older.mask.all()
    assert not np.array_equal(found.state.older.rewards[0], found.state.older.rewards[1])
    assert np.isfinite(found.policy.gain).all()
