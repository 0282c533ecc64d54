"""Masks: forbidden choices are never taken, and everything is that of the allowed ones."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import bayespg
from bayespg._support.random import fast_key
from bayespg.agents import film
from bayespg.environments import masks
from bayespg.environments.host import EnvironmentFailure, Host
from bayespg.policies.distributions import Categorical, Categoricals
from bayespg.policies.masked import FORBIDDEN, Masked
from bayespg.policies.named import make

ALLOWED = np.array([False, True, True, False])


class Gates(gymnasium.Env):
    """Of four gates two are open, at random; the higher of them is worth one. To go through a
    closed gate is an error."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(4)
    broken, length = None, 10

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._next(), {}

    def _next(self):
        self.open = np.zeros(4, bool)
        self.open[self.np_random.choice(4, 2, replace=False)] = True
        return self.np_random.normal(size=2).astype(np.float32)

    def step(self, action):
        assert self.open[action]
        reward = float(action == np.flatnonzero(self.open)[-1])
        self.time += 1
        return self._next(), reward, False, self.time >= self.length, {}

    def action_masks(self):
        return self.open if self.broken is None else self.broken


class Info(gymnasium.Wrapper):
    """Hides the method and puts its mask into `info`."""

    def has_wrapper_attr(self, name):
        return name != "action_masks" and super().has_wrapper_attr(name)

    def reset(self, **options):
        return self.env.reset(**options)[0], {"action_mask": self.unwrapped.open.astype(np.int8)}

    def step(self, action):
        *rest, _ = self.env.step(action)
        return *rest, {"action_mask": self.unwrapped.open.astype(np.int8)}


def limited(logits):
    return Categorical(jnp.where(ALLOWED, logits, FORBIDDEN))


def test_the_distribution_is_that_of_the_allowed_choices(x64):
    one, other = np.random.default_rng(0).normal(size=(2, 4))
    few = [Categorical(jnp.asarray(logits[ALLOWED])) for logits in (one, other)]
    many = [limited(logits) for logits in (one, other)]
    for action, among in ((1, 0), (2, 1)):
        np.testing.assert_allclose(
            many[0].log_prob(np.array(action)), few[0].log_prob(np.array(among))
        )
    np.testing.assert_allclose(many[0].divergence(many[1]), few[0].divergence(few[1]))
    root = np.asarray(many[0].fisher_root())
    G, small = root.T @ root, np.asarray(few[0].fisher_root())
    np.testing.assert_allclose(G[np.ix_(ALLOWED, ALLOWED)], small.T @ small, atol=1e-12)
    assert not G[~ALLOWED].any()


@pytest.mark.slow("False")
@pytest.mark.parametrize("several", [False, True])
def test_forbidden_choices_are_never_drawn(several):
    logits = jnp.where(ALLOWED, 0.0, FORBIDDEN)
    at = Categoricals(jnp.tile(logits, 2), (4, 4)) if several else Categorical(logits)
    drawn = jax.jit(jax.vmap(at.sample))(jax.random.split(fast_key(0), 500))
    assert set(np.ravel(drawn)) == {1, 2}
    rounded = Categorical(jnp.array([30.0, FORBIDDEN]))
    assert int(rounded.mode()) == 0


def test_scores_of_forbidden_choices_are_zero(x64):
    inner = make("linear", 2, Host(Gates()).actions, fast_key(0))
    policy, state = Masked(inner, 4), jnp.array([0.3, -0.2, 0, 1, 1, 0])
    scores = jax.grad(lambda p: p(state).log_prob(np.array(1)))(policy).policy.head.weights
    assert np.abs(scores[ALLOWED]).min() > 0
    assert not np.asarray(scores)[~ALLOWED].any()


@pytest.mark.slow
def test_an_agent_learns_with_masks():
    agent = bayespg.BAC(Gates(), "linear", episodes=4, seed=0)
    assert agent.config["masks"] is True
    before = agent.evaluate(30).mean
    for _ in range(12):
        assert agent.update()["sound"] == 1
    assert agent.evaluate(30).mean > before + 1
    np.testing.assert_array_equal(
        agent.predict(np.zeros((2, 2)), action_masks=np.eye(4)[[0, 3]]), [0, 3]
    )
    assert agent.predict(np.zeros(2), action_masks=[0, 0, 1, 0]) == 2
    for wrong, says in (
        (None, "expected one mask for each of 1 observations, found 0"),
        ([0, 1], "expected 4 numbers"),
        (np.zeros(4), "the mask allows no choice"),
    ):
        with pytest.raises(ValueError, match=rf"^action_masks: .*{says}"):
            agent.predict(np.zeros(2), action_masks=wrong)


class Doors(Gates):
    """Of two pairs of doors one of each is open."""

    action_space = spaces.MultiDiscrete([2, 3])

    def _next(self):
        self.open = np.array([True, False, False, True, True])
        return self.np_random.normal(size=2).astype(np.float32)

    def step(self, action):
        assert self.open[action[0]]
        assert self.open[2 + action[1]]
        self.time += 1
        return self._next(), float(action[1] == 2), False, self.time >= self.length, {}


@pytest.mark.slow("Gates-mlp", "Gates-linear")
@pytest.mark.parametrize(("make", "policy"), [(Gates, "linear"), (Gates, "mlp"), (Doors, "linear")])
def test_a_search_takes_allowed_choices_only(make, policy):
    """Both raise where a choice is not allowed."""
    agent = bayespg.PGPE(make, policy, seed=0)
    assert agent.config["masks"]
    for _ in range(2):
        agent.update()
    assert agent.state.policy.units.shape == (2,)
    agent.evaluate(3)
    state = agent.state.policy
    closed = bayespg.PGPE(make, policy, seed=0, masks=False)
    assert closed.parameter_count == agent.parameter_count
    mask = np.array([True, False, True, False, False]) if make is Doors else ALLOWED
    action = agent.predict(np.ones(2, np.float32), action_masks=mask)
    assert list(action) == [0, 0] if make is Doors else ALLOWED[action]
    assert state.masks


def test_masks_in_info_are_used_where_they_are_asked_for():
    assert Host(Info(Gates())).masks == 0
    agent = bayespg.BAC(Info(Gates()), "linear", masks=True)
    paths = agent.draw()
    chosen = np.take_along_axis(paths.states[..., 2:], paths.actions[..., None], -1)[..., 0]
    assert (chosen[paths.mask] == 1).all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("made", [Gates, lambda: Info(Gates())])
def test_lanes_of_a_vector_environment_have_masks(mode, made):
    """Also those whose episode is over: going through a closed gate is an error."""
    lanes = SyncVectorEnv([made] * 3, autoreset_mode=mode)
    for k, one in enumerate(lanes.envs):
        one.unwrapped.length = 4 + 3 * k
    agent = bayespg.BAC(lanes, "linear", masks=None if made is Gates else True, episodes=5)
    assert agent.config["masks"] is True
    paths = agent.draw()
    assert len(set(np.asarray(paths.mask).sum(0))) == 3
    chosen = np.take_along_axis(paths.states[..., 2:], paths.actions[..., None], -1)[..., 0]
    assert (chosen[paths.mask] == 1).all()


def test_a_film_is_played_with_masks(tmp_path):
    class Drawn(Gates):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

        def __init__(self, render_mode=None):
            self.render_mode = render_mode

        def render(self):
            return np.zeros((8, 8, 3), np.uint8)

    gymnasium.register("test/Drawn-v0", entry_point=Drawn)
    (found,) = film.record(bayespg.BAC("test/Drawn-v0", "linear"), tmp_path / "watch.gif")
    gymnasium.registry.pop("test/Drawn-v0")
    assert 0 <= found <= 10


def test_what_is_no_mask_is_refused():
    broken = Gates()
    broken.broken = np.zeros(4)
    with pytest.raises(EnvironmentFailure, match="the mask allows no choice"):
        bayespg.BAC(broken, "linear").draw()
    with pytest.raises(EnvironmentFailure, match=r"no method action_masks\(\), and info no entry"):
        bayespg.BAC("CartPole-v1", "linear", masks=True).draw()
    with pytest.raises(ValueError, match="masks: are for choices"):
        bayespg.BAC("Pendulum-v1", masks=True)
    with pytest.raises(ValueError, match=r"masks: True would have no effect"):
        bayespg.BAC("jax/CartPole-v1", masks=True)
    with pytest.raises(ValueError, match=r"masks: are for policies .* give masks=False"):
        bayespg.BAC(Gates(), "tiles")
    with pytest.raises(ValueError, match=r"action_masks: .* would have no effect"):
        bayespg.BAC("CartPole-v1", "linear").predict(np.zeros(4), action_masks=[1, 1])
    assert masks.checked([1, 0, 1], (2, 1)).dtype == np.float32
