"""Environments of other JAX libraries, told by the shape of what they take and return (`SHAPES`),
so that none of them need be installed.

Paths are whole episodes. The last observation of one is therefore never that of the reset after it,
which is what goes wrong where environments reset by themselves (google-deepmind/mujoco_playground,
issue 305): such a wrapper is taken off, and gymnax is stepped without its reset.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

from bayespg._support import checks
from bayespg._support.types import Array
from bayespg.environments import spaces
from bayespg.environments.base import Environment, PartiallyObserved
from bayespg.environments.spaces import Actions, Bounded

SHAPES = (
    "gymnax: reset(key, params) -> obs, state and step(key, state, action, params) -> obs, state, "
    "reward, done, info (or terminated, truncated for done); "
    "brax and MuJoCo Playground: reset(key) -> State and step(State, action) -> State with obs, "
    "reward and done; "
    "jumanji: reset(key) -> state, TimeStep and step(state, action) -> state, TimeStep; "
    "navix: reset(key) -> Timestep and step(Timestep, action) -> Timestep; "
    "or a pair of functions (reset, step): reset(key) -> obs, state and step(key, state, action) "
    "-> obs, state, reward, done"
)
"""What an environment of each library looks like."""
DISCOUNT = 0.99
LONGEST = 1000
"""Steps of an episode where an environment of brax or jumanji has no limit of its own; brax trains
with it."""


class Outcome(NamedTuple):
    """What a step leads to."""

    state: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    """Cut off by a time limit."""


class Library(NamedTuple):
    """An environment of another library as two functions of one path."""

    reset: Callable[[PRNGKeyArray, Any], tuple[Any, Any]]
    """(key, params) -> observation, state."""
    step: Callable[[PRNGKeyArray, Any, Any, Any], Outcome]
    """(key, state, action, params)."""
    horizon: int | None
    """Its own limit of the steps of an episode."""
    actions: Any
    params: Any = None
    usual: int | None = None
    """The limit unless another is given, where it has none of its own."""
    tells: bool = True
    """Whether it tells the end of an episode from its time limit. If not, what ends at the limit
    counts as cut off."""


class Now(NamedTuple):
    """A path of an adapted environment: its own state, the observation, and the steps taken."""

    inner: Any
    seen: Shaped[Array, " *observation"]
    time: Any


class Adapted(PartiallyObserved):
    """An environment of another library; see `adapt`. It computes in single precision, for which
    these libraries are written, whatever the precision of the policy."""

    params: Any
    """Those of the library; they may differ between runs under `vmap`."""
    library: Library = eqx.field(static=True)
    actions: Actions | None = eqx.field(static=True)
    """The action space, for policies by name; None if it is not known."""
    name: str = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    discount: float = eqx.field(static=True)

    def reset(self, key: PRNGKeyArray, paths: int) -> Now:
        def one(key):
            observation, inner = self.library.reset(_words(key), self.params)
            return Now(inner, _seen(observation), jnp.zeros((), jnp.int32))

        with jax.enable_x64(False):
            return jax.vmap(one)(jax.random.split(key, paths))

    def step(
        self, key: PRNGKeyArray, states: Now, actions: Shaped[Array, "M *action"]
    ) -> tuple[Now, Float[Array, " M"], Bool[Array, " M"]]:
        def one(key, now, action):
            to = self.library.step(_words(key), _single(now.inner), action, self.params)
            time = now.time + 1
            ends = _flag(to.terminated) | (_flag(to.truncated) & (time < self.horizon))
            if not self.library.tells:
                ends &= time < self.horizon
            reward = jnp.asarray(to.reward).astype(_real(to.reward)).reshape(())
            return Now(to.state, _seen(to.observation), time), reward, ends

        with jax.enable_x64(False):
            keys = jax.random.split(key, len(actions))
            return jax.vmap(one)(keys, states, self.within(_single(actions)))

    def observe(self, states: Now) -> Shaped[Array, "M *observation"]:
        return states.seen

    def within(self, actions: Shaped[Array, "M *action"]) -> Shaped[Array, "M *action"]:
        """The actions that the environment gets: those of a Gaussian policy are clipped to the
        bounds, as on Gymnasium."""
        if not isinstance(self.actions, Bounded):
            return actions
        drawn = jnp.asarray(actions)
        return self.actions.within(drawn, jnp).astype(drawn.dtype)


def adapt(
    env: Any,
    params: Any = None,
    *,
    horizon: int | None = None,
    discount: float = DISCOUNT,
    actions: int | gymnasium.Space | None = None,
) -> Environment:
    """An environment of another JAX library, for `training.train` and for agents.

    `env` has one of the `SHAPES`; `params` are those of gymnax, by default its own. `horizon` is
    the number of steps after which an episode is cut off, by default the environment's own limit,
    or 1000 if one of brax or jumanji has none. `actions` is the number of choices or the action
    space, for policies by name; libraries have one.

    An observation that is a tree becomes one vector of all its numbers, of Playground's
    dictionaries only the part "state"; a single array keeps its shape. Actions in bounds are
    draws of a Gaussian: a becomes mid + half clip(a, -1, 1).
    """
    if isinstance(env, Environment):
        return env
    library = _recognised(env, params)
    name = "functions" if isinstance(env, tuple | list) else type(env).__name__
    own = library.horizon
    if horizon is not None:
        steps = checks.whole("horizon", horizon, 1)
    else:
        steps = library.usual if own is None else own
    if steps is None:
        raise ValueError(
            f"horizon: {name} does not say after how many steps an episode is cut off; give "
            "horizon="
        )
    if own is not None and steps > own:
        raise ValueError(
            f"horizon: {steps} would have no effect: {name} ends episodes after {own} steps"
        )
    space = actions_of(library.actions if actions is None else actions)
    discount = checks.real("discount", discount, least=0, most=1)
    adapted = Adapted(
        params=library.params, library=library._replace(actions=None, params=None), actions=space,
        name=name, horizon=steps, discount=discount,
    )  # fmt: skip
    _check(adapted)
    return adapted


def _recognised(env: Any, params: Any) -> Library:
    """The environment as two functions; ValueError that lists the shapes where it has none."""
    if isinstance(env, tuple | list) and len(env) == 2 and all(map(callable, env)):
        return _functions(env[0], env[1], params)
    if not all(callable(getattr(env, name, None)) for name in ("reset", "step")):
        raise _unknown(env, "it has no methods reset and step")
    env = _without_reset(env)
    if hasattr(env, "default_params"):
        return _gymnax(env, env.default_params if params is None else params)
    first = _traced(env, "reset", env.reset, _words(jax.random.key(0)))
    if params is not None:
        reason = "environments of gymnax and functions have parameters"
        raise ValueError(f"params: would have no effect on {type(env).__name__}; only {reason}")
    if all(hasattr(first, name) for name in ("obs", "reward", "done")):
        return _brax(env)
    if hasattr(first, "observation") and hasattr(first, "is_termination"):
        return _navix(env)
    if isinstance(first, tuple) and len(first) == 2:
        if hasattr(first[1], "step_type") and hasattr(first[1], "observation"):
            return _jumanji(env)
        return _functions(env.reset, env.step, None, getattr(env, "action_space", None))
    raise _unknown(env, f"its reset returns {_described(first)}")


def _unknown(env: Any, reason: str) -> ValueError:
    return ValueError(
        f"environment: {type(env).__name__} has none of the shapes that are known: {reason}. "
        f"Expected one of {SHAPES}"
    )


def _described(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return f"an object of type {type(value).__name__}"


def _without_reset(env: Any) -> Any:
    """The environment without a wrapper that resets it at the end of an episode."""
    while "AutoReset" in type(env).__name__:
        inner = getattr(env, "env", None) or getattr(env, "_env", None)
        if inner is None:
            break
        env = inner
    wrapped = env
    while wrapped is not None:
        if "Vmap" in type(wrapped).__name__ or "Randomization" in type(wrapped).__name__:
            raise ValueError(
                f"environment: it is wrapped in {type(wrapped).__name__} for many paths at once; "
                "give the environment itself, paths are drawn side by side anyway"
            )
        parts = vars(wrapped) if hasattr(wrapped, "__dict__") else {}
        wrapped = parts.get("env", parts.get("_env"))
    return env


def _functions(reset: Any, step: Any, params: Any, actions: Any = None) -> Library:
    """gymnax without an object: what follows the state is a reward, one flag or two, and perhaps a
    dictionary."""
    own = slice(0 if params is None else 1)  # of the arguments after those that all have

    def begin(key, *params):
        given = reset(key, *params[own])
        if not isinstance(given, tuple) or len(given) != 2:
            raise ValueError(
                f"environment: reset returned {_described(given)}, expected observation, state"
            )
        return given

    def advance(key, state, action, *params):
        to = _parsed(step(key, state, action, *params[own]), None)
        for name in ("reward", "terminated", "truncated"):
            if isinstance(value := getattr(to, name), bool | int | float):
                raise ValueError(
                    f"environment: step returned the Python {type(value).__name__} {value!r} as "
                    f"{name}, which is the same in every step; return an array, such as "
                    "jnp.asarray(...)"
                )
        return to

    return Library(begin, advance, None, actions, params)


def _parsed(given: Any, truncated: Callable[[Any], Any] | None) -> Outcome:
    values: tuple[Any, ...] = tuple(given) if isinstance(given, tuple | list) else (given,)
    info = values[-1] if isinstance(values[-1], dict) else {}
    rest = values[:-1] if isinstance(values[-1], dict) else values
    if len(rest) not in (4, 5):
        raise ValueError(
            f"environment: step returned {len(values)} values, expected observation, state, "
            "reward, done, or terminated and truncated in place of done, and perhaps a dictionary"
        )
    observation, state, reward, terminated, *cut = rest
    late = cut[0] if cut else truncated(state) if truncated else jnp.asarray(False)
    final = info.get("final_observation")
    if _shapes(final) == _shapes(observation):
        observation = final  # that before the reset
    return Outcome(state, observation, reward, terminated, late)


def _gymnax(env: Any, params: Any) -> Library:
    """`step_env` does not reset at the end of an episode; a wrapper may not have it. Before 1.0 the
    flag includes the time limit."""
    late: Any = getattr(env, "is_truncated", None)

    def advance(key, state, action, params):
        if not hasattr(type(env), "step_env"):
            return _parsed(env.step(key, state, action, params), None)
        given = env.step_env(key, state, action, params)
        return _parsed(given, None if late is None else lambda s: late(s, params))

    limit = _limit(params, "max_steps_in_episode")
    space = env.action_space(params)
    return Library(env.reset, advance, limit, space, params, tells=late is not None)


def _brax(env: Any) -> Library:
    def seen(state):
        obs = state.obs
        return obs["state"] if isinstance(obs, dict) and "state" in obs else obs

    def begin(key, _):
        state = env.reset(key)
        return seen(state), state

    def advance(key, state, action, _):
        to = env.step(state, action)
        late = to.info.get("truncation", jnp.zeros_like(to.done)) > 0
        return Outcome(to, seen(to), to.reward, (to.done > 0) & ~late, late)

    limit = _limit(env, "episode_length")
    limit = limit or _limit(getattr(env, "_config", None), "episode_length")
    box = gymnasium.spaces.Box(-1.0, 1.0, (int(env.action_size),))
    return Library(begin, advance, limit, box, usual=LONGEST)


def _jumanji(env: Any) -> Library:
    last = 2

    def begin(key, _):
        state, first = env.reset(key)
        return first.observation, state

    def advance(key, state, action, _):
        state, to = env.step(state, action)
        ends, ended = to.step_type == last, to.discount == 0
        return Outcome(state, to.observation, to.reward, ends & ended, ends & ~ended)

    spec = getattr(env, "action_spec", None)
    spec = spec() if callable(spec) else spec
    return Library(begin, advance, _limit(env, "time_limit"), spec, usual=LONGEST)


def _navix(env: Any) -> Library:
    def begin(key, _):
        first = env.reset(key)
        return first.observation, first

    def advance(key, state, action, _):
        to = env.step(state, action)
        return Outcome(to, to.observation, to.reward, to.is_termination(), to.is_truncation())

    return Library(begin, advance, _limit(env, "max_steps"), getattr(env, "action_space", None))


def _limit(of: Any, name: str) -> int | None:
    limit = getattr(of, name, None)
    return None if limit is None else int(limit)


def actions_of(space: Any) -> Actions | None:
    """An action space of any library, told by its attributes: a number of choices, or bounds."""
    if space is None:
        return None
    if isinstance(space, gymnasium.Space):
        return spaces.actions(space)
    if isinstance(space, int | np.integer):
        return spaces.actions(gymnasium.spaces.Discrete(checks.whole("actions", space, 1)))
    for name in ("n", "num_values", "n_elements"):
        if (count := getattr(space, name, None)) is not None:
            if np.ndim(count) == 0:
                return spaces.actions(gymnasium.spaces.Discrete(int(count)))
            return spaces.actions(gymnasium.spaces.MultiDiscrete(np.asarray(count)))
    for low, high in (("low", "high"), ("minimum", "maximum")):
        if hasattr(space, low) and hasattr(space, high):
            return _box(getattr(space, low), getattr(space, high), space)
    return None


def _box(low: Any, high: Any, space: Any) -> Actions:
    shape, dtype = tuple(getattr(space, "shape", np.shape(low))), getattr(space, "dtype", "f4")
    if shape == () and np.issubdtype(np.dtype(dtype), np.integer) and np.all(np.asarray(low) == 0):
        return spaces.actions(gymnasium.spaces.Discrete(int(high) + 1))
    low, high = (np.broadcast_to(np.asarray(x, np.float32), shape) for x in (low, high))
    return spaces.actions(gymnasium.spaces.Box(low, high, dtype=np.float32))


def _words(key: PRNGKeyArray) -> Any:
    """A key as two words, which every library takes."""
    return jax.random.bits(key, (2,), jnp.uint32)


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    return [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]


def _single(tree: Any) -> Any:
    """Arrays of a tree in single precision."""
    narrow = {"float64": jnp.float32, "int64": jnp.int32}
    return jax.tree.map(
        lambda x: x.astype(narrow[x.dtype.name]) if x.dtype.name in narrow else x, tree
    )


def _seen(observation: Any) -> Shaped[Array, " *observation"]:
    """One array of the numbers of an observation."""
    leaves = jax.tree.leaves(observation)
    if len(leaves) == 1 and jnp.ndim(leaves[0]) > 0:
        return leaves[0].astype(_real(leaves[0]))
    return ravel_pytree([jnp.asarray(x).astype(_real(x)) for x in leaves])[0]


def _real(x: Any) -> Any:
    dtype = jnp.result_type(x)
    return dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.float32


def _flag(x: Any) -> Bool[Array, ""]:
    return jnp.asarray(x, bool).reshape(())


def _traced(env: Any, name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Shapes and types of what a function returns; ValueError if it cannot be traced."""
    known = isinstance(env, Adapted)
    called = f"{name} of {env.name if known else type(env).__name__}"
    try:
        return jax.eval_shape(function, *args)
    except jax.errors.ConcretizationTypeError as problem:
        raise ValueError(
            f"environment: {called} computes with Python numbers (float(), int(), "
            f"if, or NumPy) and cannot be compiled: {_line(problem)}"
        ) from problem
    except TypeError as problem:
        if known:
            raise ValueError(f"environment: {called} failed: {_line(problem)}") from problem
        raise _unknown(env, f"{name} failed: {_line(problem)}") from problem


def _line(problem: Exception) -> str:
    return str(problem).strip().split("\n")[0]


def _check(env: Adapted) -> None:
    """ValueError unless a step returns arrays: one real number, flags, and an observation like that
    of the reset. Nothing is computed, and without an action space nothing is known."""
    space = env.actions
    if space is None:
        return
    if isinstance(space, Bounded):
        drawn = jnp.zeros((1, space.size), jnp.float32)
    else:
        drawn = jnp.zeros((1,) if space.scalar else (1, len(space.sizes)), jnp.int32)

    def stepped(key):
        observation, state = env.library.reset(_words(key), env.params)
        to = env.library.step(_words(key), state, env.within(drawn)[0], env.params)
        return observation, to._replace(state=None)

    first, to = _traced(env, "step", stepped, jax.random.key(0))
    for name in ("reward", "terminated", "truncated"):
        value = getattr(to, name)
        dtype, shape = value.dtype, value.shape
        if name == "reward":
            fits = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
        else:
            fits = dtype == jnp.bool_
        if not fits or math.prod(shape) != 1:
            expected = "one real number" if name == "reward" else "one boolean"
            raise ValueError(
                f"environment: step of {env.name} returned {dtype} of shape {shape} as {name}, "
                f"expected {expected}"
            )
    before, after = _shapes(first), _shapes(to.observation)
    if before != after:
        raise ValueError(
            f"environment: step of {env.name} returned an observation of shape {after}, and "
            f"reset one of shape {before}"
        )
