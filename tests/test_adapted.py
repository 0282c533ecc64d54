"""Environments of other libraries, by stand-ins with the signatures of the real ones: a walk on a
line that starts at 0, earns where it is, and ends at 3."""

import dataclasses
import functools
import sys
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayespg
from bayespg import environments, policies, rollout, training, updates
from bayespg.agents import names
from bayespg.agents.agent import Agent
from bayespg.environments import adapt
from bayespg.environments.host import EnvironmentFailure
from bayespg.learning.estimators import Reinforce

GOAL, LIMIT = 3, 5


def record(kind):
    """A dataclass that JAX takes apart, as those of the libraries."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(kind))


@record
class Place:
    x: Any
    time: Any


class Params(NamedTuple):
    max_steps_in_episode: int = LIMIT


class Choices(NamedTuple):
    n: int = 2


def moved(x, action):
    return x + 2.0 * action - 1.0


def shown(x):
    return jnp.stack([x, 1.0])


class Gymnax:
    """Since 1.0: six values, and a reset at the end of an episode."""

    default_params = Params()

    def action_space(self, params):
        return Choices()

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key, params):
        return shown(jnp.zeros(())), Place(jnp.zeros(()), 0)

    def step_env(self, key, state, action, params):
        x = moved(state.x, action)
        return shown(x), Place(x, state.time + 1), x, x >= GOAL, {}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def step(self, key, state, action, params):
        obs, after, reward, ended, info = self.step_env(key, state, action, params)
        cut = self.is_truncated(after, params)
        first, begun = self.reset(key, params)
        seen = jnp.where(ended | cut, first, obs)
        state = jax.tree.map(lambda a, b: jnp.where(ended | cut, a, b), begun, after)
        return seen, state, reward, ended, cut, info | {"final_observation": obs}


class OldGymnax(Gymnax):
    """Before 1.0: five values, and `done` at the time limit too."""

    is_truncated = None  # pyright: ignore[reportAssignmentType]

    def __getattribute__(self, name):
        if name == "is_truncated":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def step_env(self, key, state, action, params):
        obs, after, reward, ended, info = super().step_env(key, state, action, params)
        return obs, after, reward, ended | (after.time >= params.max_steps_in_episode), info

    def step(self, key, state, action, params):
        obs, after, reward, done, info = self.step_env(key, state, action, params)
        first, begun = self.reset(key, params)
        state = jax.tree.map(lambda a, b: jnp.where(done, a, b), begun, after)
        return jnp.where(done, first, obs), state, reward, done, info


class Wrapped:
    """A wrapper of gymnax, which has `step` alone and everything else by delegation."""

    def __init__(self, env):
        self._wrapped = env

    def __getattr__(self, name):
        return getattr(self._wrapped, name)

    def reset(self, key, params):
        return self._wrapped.reset(key, params)

    def step(self, key, state, action, params):
        return self._wrapped.step(key, state, action, params)


@record
class State:
    pipeline_state: Any
    obs: Any
    reward: Any
    done: Any
    info: Any


class Brax:
    action_size, episode_length = 1, LIMIT
    tree = False

    def seen(self, x):
        return {"state": shown(x), "privileged_state": jnp.zeros(7)} if self.tree else shown(x)

    def reset(self, rng):
        assert rng.shape == (2,), "two words, from which old code takes shapes"
        x = jnp.zeros(())
        return State(Place(x, jnp.zeros(())), self.seen(x), x, x, {"truncation": x})

    def step(self, state, action):
        x, time = state.pipeline_state.x + action[0], state.pipeline_state.time + 1
        done = jnp.where(x >= GOAL, 1.0, 0.0)
        late = jnp.where(time >= LIMIT, 1 - done, 0.0)
        return State(Place(x, time), self.seen(x), x, jnp.maximum(done, late), {"truncation": late})


class Playground(Brax):
    tree = True


class AutoResetWrapper:
    """Replaces the last observation of an episode by the first of the next."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.__dict__["env"], name)

    def reset(self, rng):
        return self.env.reset(rng)

    def step(self, state, action):
        after = self.env.step(state, action)
        obs = jnp.where(after.done > 0, shown(jnp.zeros(())), after.obs)
        return dataclasses.replace(after, obs=obs)


class VmapWrapper(AutoResetWrapper):
    pass


@record
class TimeStep:
    step_type: Any
    reward: Any
    discount: Any
    observation: Any


class Observation(NamedTuple):
    """A tree, as most of jumanji's."""

    place: Any
    mask: Any


class Jumanji:
    time_limit = LIMIT

    class Spec(NamedTuple):
        num_values: Any = np.array(2)

    action_spec = Spec()

    def reset(self, key):
        x = jnp.zeros(())
        seen = Observation(shown(x), jnp.ones(2, bool))
        return Place(x, jnp.zeros((), int)), TimeStep(jnp.int8(0), x, jnp.ones(()), seen)

    def step(self, state, action):
        x, time = moved(state.x, action), state.time + 1
        ended, cut = x >= GOAL, time >= LIMIT
        kind = jnp.where(ended | cut, 2, 1).astype(jnp.int8)
        seen = Observation(shown(x), jnp.ones(2, bool))
        return Place(x, time), TimeStep(kind, x, jnp.where(ended, 0.0, 1.0), seen)


@record
class Timestep:
    t: Any
    observation: Any
    reward: Any
    step_type: Any
    state: Any

    def is_termination(self):
        return self.step_type == 2

    def is_truncation(self):
        return self.step_type == 1


class Navix:
    max_steps = LIMIT

    class Space(NamedTuple):
        minimum: int = 0
        maximum: int = 1
        shape: tuple[int, ...] = ()
        dtype: Any = np.dtype("int32")

    action_space = Space()

    def reset(self, key):
        x = jnp.zeros(())
        return Timestep(jnp.asarray(0), shown(x), x, jnp.asarray(0), x)

    def step(self, timestep, action):
        x, t = moved(timestep.state, action), timestep.t + 1
        kind = jnp.where(x >= GOAL, 2, jnp.where(t >= LIMIT, 1, 0))
        return Timestep(t, shown(x), x, kind, x)


def reset(key):
    return shown(jnp.zeros(())), Place(jnp.zeros(()), 0)


def step(key, state, action):
    x = moved(state.x, action)
    return shown(x), Place(x, state.time + 1), x, x >= GOAL


ENVIRONMENTS = {
    "gymnax": lambda **k: adapt(Gymnax(), **k),
    "gymnax before 1.0": lambda **k: adapt(OldGymnax(), Params(), **k),
    "gymnax, wrapped": lambda **k: adapt(Wrapped(Gymnax()), Params(), **k),
    "gymnax before 1.0, wrapped": lambda **k: adapt(Wrapped(OldGymnax()), Params(), **k),
    "brax": lambda **k: adapt(Brax(), **k),
    "brax, with its own reset": lambda **k: adapt(AutoResetWrapper(Brax()), **k),
    "playground": lambda **k: adapt(Playground(), **k),
    "jumanji": lambda **k: adapt(Jumanji(), **k),
    "navix": lambda **k: adapt(Navix(), **k),
    "functions": lambda **k: adapt((reset, step), actions=2, **{"horizon": LIMIT} | k),
}


class Right(policies.Policy):
    """Almost surely to the right."""

    logits: Any

    def __call__(self, state):
        return policies.Categorical(self.logits)


class Far(policies.Policy):
    """Far beyond the bounds to the right."""

    mean: Any

    def __call__(self, state):
        return policies.distributions.Gaussians(self.mean, jnp.zeros(1))


def walker(environment, dtype=jnp.float32):
    if isinstance(environment.actions, environments.spaces.Bounded):
        return Far(jnp.full(1, 50.0, dtype))
    return Right(jnp.array([-50.0, 50.0], dtype))


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.parametrize("x64", [pytest.param(False, marks=pytest.mark.slow), True])
def test_episodes_are_those_of_the_other_library(name, x64):
    environment = ENVIRONMENTS[name]()
    with jax.enable_x64(x64):
        policy = walker(environment, jnp.float64 if x64 else jnp.float32)
        paths = rollout(environment, policy, jax.random.key(0), 4)
    assert environment.horizon == LIMIT
    np.testing.assert_array_equal(paths.rewards[:GOAL, 1], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(paths.lengths, GOAL)
    assert np.all(paths.terminated)
    kept = name != "gymnax before 1.0, wrapped"  # which has lost what came before its reset
    np.testing.assert_array_equal(paths.final[:, 0], GOAL if kept else 0)


@pytest.mark.slow(
    "gymnax before 1.0",
    "gymnax, wrapped",
    "gymnax before 1.0, wrapped",
    "brax, with its own reset",
    "playground",
    "jumanji",
    "navix",
)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_what_the_time_limit_cuts_off_has_not_ended(name):
    environment = ENVIRONMENTS[name](horizon=2)
    paths = rollout(environment, walker(environment), jax.random.key(0), 2)
    assert not np.any(paths.terminated)
    np.testing.assert_array_equal(paths.final[:, 0], 2.0)


@pytest.mark.slow("gymnax before 1.0", "gymnax, wrapped", "navix")
@pytest.mark.parametrize(
    "name", ["gymnax", "gymnax before 1.0", "gymnax, wrapped", "jumanji", "navix"]
)
def test_the_environment_s_own_limit_cuts_off_too(name):
    left = Right(jnp.array([50.0, -50.0]))
    paths = rollout(ENVIRONMENTS[name](), left, jax.random.key(0), 2)
    np.testing.assert_array_equal(paths.lengths, LIMIT)
    assert not np.any(paths.terminated)
    np.testing.assert_array_equal(paths.final[:, 0], -LIMIT)


def test_where_a_library_has_no_limit_there_is_a_usual_one():
    class Endless(Brax):
        episode_length = None

    assert [adapt(Endless()).horizon, adapt(Endless(), horizon=2000).horizon] == [1000, 2000]


def test_parameters_may_differ_between_runs():
    def until(key, state, action, goal):
        seen, after, reward, _ = step(key, state, action)
        return seen, after, reward, after.x >= goal

    environment = adapt((lambda key, _: reset(key), until), 1.0, actions=2, horizon=LIMIT)

    def length(goal):
        changed = eqx.tree_at(lambda e: e.params, environment, goal)
        return rollout(changed, walker(changed), jax.random.key(0), 1).lengths[0]

    np.testing.assert_array_equal(jax.vmap(length)(jnp.array([1.0, 2.0, 4.0])), [1, 2, 4])


@pytest.mark.slow("jumanji-gpomdp", "gymnax-bac", "brax-gpomdp")
@pytest.mark.parametrize(
    ("name", "estimator"),
    [("gymnax", "gpomdp"), ("brax", "gpomdp"), ("jumanji", "gpomdp"), ("gymnax", "bac")],
)
def test_agents_take_policies_by_name(name, estimator):
    environment = ENVIRONMENTS[name]()
    agent = Agent(environment, "linear", estimator, episodes=2, update="adam", rate=0.01)
    assert agent.config["normalise"] is True
    assert np.isfinite(agent.update()["step_norm"])
    observation = environments.observation(agent.world.environment)
    action = agent.predict(np.zeros(observation.shape, np.float32))
    assert np.shape(action) == (() if name != "brax" else (1,))


def test_training_and_transformations_take_an_adapted_environment():
    environment = ENVIRONMENTS["gymnax"]()

    def run(key):
        start = Right(jnp.zeros(2))
        return training.train(
            environment, start, Reinforce("mean"), updates.conventional(0.1), key=key, updates=2,
            paths=4,
        ).history.total_reward  # fmt: skip

    assert jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 3)).shape == (3, 2)
    assert run(jax.random.key(0)).dtype == np.float64


class NoStep:
    def reset(self, key):
        return jnp.zeros(2)


class OneValue(NoStep):
    def step(self, state, action):
        return state


class Vector(Gymnax):
    def step_env(self, key, state, action, params):
        obs, after, reward, ended, info = super().step_env(key, state, action, params)
        return obs, after, jnp.stack([reward, reward]), ended, info


def returning(**values):
    """A step whose outcome has these values in place of its own."""

    def changed(key, state, action):
        order = ("observation", "state", "reward", "done")
        given = dict(zip(order, step(key, state, action), strict=True))
        return tuple((given | {k: v(given) for k, v in values.items()}).values())

    return reset, changed


BAD = {
    "no step": (lambda: adapt(NoStep()), "NoStep has none of the shapes .* gymnax: .* jumanji: "),
    "unknown": (lambda: adapt(OneValue()), "its reset returns an object .* Expected one of gymnax"),
    "number": (lambda: adapt(3), "int has none of the shapes"),
    "parameters": (lambda: adapt(Brax(), 3), "params: would have no effect on Brax"),
    "no limit": (lambda: adapt((reset, step)), "horizon: functions does not say"),
    "too long": (lambda: adapt(Gymnax(), horizon=9), "horizon: 9 would have no effect.* after 5"),
    "vmapped": (lambda: adapt(VmapWrapper(Brax())), "wrapped in VmapWrapper"),
    "python reward": (
        lambda: adapt(returning(reward=lambda _: 1.0), horizon=5, actions=2),
        "step returned the Python float 1.0 as reward",
    ),
    "python flag": (
        lambda: adapt(returning(done=lambda _: False), horizon=5, actions=2),
        "step returned the Python bool False as terminated",
    ),
    "float()": (
        lambda: adapt(returning(reward=lambda g: float(g["reward"])), horizon=5, actions=2),
        "step of functions computes with Python numbers",
    ),
    "flag of another type": (
        lambda: adapt(returning(done=lambda g: g["reward"]), horizon=5, actions=2),
        "step of functions returned float32 .* as terminated, expected one boolean",
    ),
    "reward of another type": (
        lambda: adapt(returning(reward=lambda g: g["done"]), horizon=5, actions=2),
        "step of functions returned bool .* as reward, expected one real number",
    ),
    "two rewards": (lambda: adapt(Vector()), r"float32 of shape \(2,\) as reward"),
    "another observation": (
        lambda: adapt(returning(observation=lambda _: jnp.zeros(3)), horizon=5, actions=2),
        r"returned an observation of shape \[\(3,\)\], and reset one of shape \[\(2,\)\]",
    ),
    "too few values": (
        lambda: adapt((reset, lambda *a: step(*a)[:3]), horizon=5, actions=2),
        "step returned 3 values, expected observation, state, reward, done",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_an_environment_is_named(name):
    make, says = BAD[name]
    with pytest.raises(ValueError, match=says):
        make()


def test_a_reward_that_is_not_finite_is_named():
    bad = adapt(returning(reward=lambda g: g["reward"] * jnp.nan), horizon=5, actions=2)
    with pytest.raises(EnvironmentFailure, match=r"functions, episode 1 .* the reward is nan"):
        Agent(bad, "linear", "gpomdp", episodes=2, update="adam", rate=0.01).update()


def test_names_of_other_libraries(monkeypatch):
    module = types.ModuleType("gymnax")
    module.make = lambda name: (Gymnax(), Params())  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "gymnax", module)
    names._made.cache_clear()
    agent = bayespg.BAC("gymnax/Walk-v0", "linear", episodes=2)
    assert agent.config["environment"] == "gymnax/Walk-v0"
    assert agent.world.horizon == LIMIT
    names._made.cache_clear()
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ValueError, match="gymnax/Walk-v0 needs gymnax, which is not installed"):
        bayespg.BAC("gymnax/Walk-v0")
