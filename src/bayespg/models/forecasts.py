"""What a model says about many steps, and how often real episodes agree.

A draw of the posterior is followed from a state with the actions that were taken there. The spread
of many draws, each with its own noise, is what the model does not know after that many steps.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from bayespg._support import checks
from bayespg._support.types import Array
from bayespg.models.data import Transitions
from bayespg.models.environment import Knowledge
from bayespg.models.model import Model, compiled, environment_of

DRAWS = 64
STARTS = 16
"""States per episode from which predictions are tested."""
REACH = 1.96


class Forecast(NamedTuple):
    """States that follow, one row for each step."""

    mean: Float[np.ndarray, "T d"]
    deviation: Float[np.ndarray, "T d"]
    """Standard deviation over draws of the model and of its noise."""


def forecast(
    model: Model, start: Any, encoded: Any, *, key: PRNGKeyArray | None = None, draws: int = DRAWS
) -> Forecast:
    """The states that follow `start` under these actions, encoded as `Transitions` hold them, one
    row each. That an episode might end is left out."""
    draws = checks.whole("draws", draws, 2)
    x, a = checks.array("start", start), checks.array("encoded", encoded)
    if x.shape != model.observed.low.shape:
        raise ValueError(f"start: expected shape {model.observed.low.shape}, found {x.shape}")
    if a.ndim != 2 or a.shape[1] != model.inputs.size:
        raise ValueError(f"encoded: expected shape (T, {model.inputs.size}), found {a.shape}")
    states = _followed(model, x[None], a[:, None], key, draws)[:, :, 0]
    return Forecast(states.mean(0), states.std(0, ddof=1))


def inside(
    model: Model, episodes: Transitions, steps: int, *, key: PRNGKeyArray | None = None
) -> float:
    """The share of the numbers of real states, `steps` steps after others of the same episode, that
    lie in the 95 % intervals of the model: 0.95 if it is calibrated. NaN if no episode has that
    many steps. The model should not have learned from these episodes."""
    steps = checks.whole("steps", steps, 1)
    begun = _starts(episodes, steps)
    if not len(begun):
        return np.nan
    at = begun[np.arange(STARTS) * len(begun) // STARTS]
    rows = at + np.arange(steps)[:, None]
    states = _followed(model, episodes.states[at], episodes.actions[rows], key, DRAWS)[:, -1]
    apart = np.abs(episodes.following[rows[-1]] - states.mean(0))
    # A number that never varies is predicted without error up to rounding.
    allowed = REACH * np.sqrt(1 + 1 / DRAWS) * states.std(0, ddof=1)
    rounding = 1e-5 * np.asarray(model.observed.high - model.observed.low)
    return float(np.mean(apart <= allowed + rounding))


def _starts(episodes: Transitions, steps: int) -> Int[np.ndarray, " N"]:
    """Rows that begin `steps` rows of one episode."""
    n = episodes.count
    number = np.cumsum(episodes.first[:n])
    at = np.arange(max(n - steps + 1, 0))
    return at[number[at] == number[at + steps - 1]]


def _followed(model: Model, starts: Any, encoded: Any, key: Any, draws: int) -> np.ndarray:
    with jax.enable_x64(True):
        key = jax.random.key(0) if key is None else key
        x, a = (jnp.asarray(np.asarray(z, np.float32)) for z in (starts, encoded))
        return np.asarray(compiled(_follow)(model, x, a, key, draws)).astype(float)


def _follow(
    model: Model, starts: Float[Array, "B d"], encoded: Float[Array, "T B k"], key: Any, draws: int
) -> Float[Array, "D T B d"]:
    actions = jax.vmap(model.inputs.decoded)(encoded)

    def drawn(key: PRNGKeyArray) -> Any:
        key_model, key_steps = jax.random.split(key)
        one = environment_of(model, key_model, jnp.zeros(()), len(encoded), 1.0, Knowledge())

        def step(states: Any, made: Any) -> Any:
            following = one.transition(made[0], states, made[1])[0]
            return following, following

        return jax.lax.scan(step, starts, (jax.random.split(key_steps, len(encoded)), actions))[1]

    return jax.vmap(drawn)(jax.random.split(key, draws))
