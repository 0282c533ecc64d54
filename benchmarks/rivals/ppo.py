"""PPO of PureJaxRL and of rejax in plain JAX, with their published settings.

Both are restated here, because they need Flax and gymnax: the networks, initial weights, losses,
optimisers and settings are those of

    https://github.com/luchris429/purejaxrl    purejaxrl/ppo.py at 31756b1
    https://github.com/keraJLi/rejax           src/rejax/algos/ppo.py, configs/gymnax at d751095

and environments are those of `bayespg.environments.classic`, whose dynamics, rewards and time
limits are gymnax's. As in both, an environment is reset where its episode ends, and a time limit
counts as an end. PureJaxRL publishes one set of settings for small tasks, with choices; it has none
for Pendulum.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bayespg.environments import observe


class Settings(NamedTuple):
    environments: int
    steps: int
    epochs: int
    minibatches: int
    rate: float
    total: int
    """Environment steps of a training, over which PureJaxRL's rate falls to zero."""
    clip_gradient: float = 0.5
    discount: float = 0.99
    lambda_: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    activation: Any = jnp.tanh
    normalise: bool = False
    rejax: bool = True
    """Separate optimisers that clip every number of a gradient, a constant rate, and LeCun's
    initial weights; otherwise one optimiser that clips the norm, a falling rate and orthogonal
    weights."""

    @property
    def batch(self) -> int:
        return self.environments * self.steps


PUREJAXRL = Settings(4, 128, 4, 4, 2.5e-4, 500_000, rejax=False)
REJAX = Settings(5, 100, 5, 5, 7.5e-4, 100_000)
SETTINGS = {
    ("PureJaxRL", "CartPole-v1"): PUREJAXRL,
    ("PureJaxRL", "Acrobot-v1"): PUREJAXRL,
    ("rejax", "CartPole-v1"): REJAX,
    ("rejax", "Acrobot-v1"): REJAX._replace(normalise=True),
    ("rejax", "Pendulum-v1"): Settings(
        100, 100, 10, 10, 1e-3, 150_000, clip_gradient=10.0, discount=0.995, entropy=0.0,
        activation=jax.nn.swish, normalise=True,
    ),
}  # fmt: skip
HIDDEN = (64, 64)


class PPO:
    """PPO on an environment of this package; `choices` is the number of actions, or None for one
    action in [-limit, limit]."""

    def __init__(self, environment: Any, settings: Settings, choices: int | None, limit: float):
        self.environment, self.settings, self.choices, self.limit = (
            environment, settings, choices, limit,
        )  # fmt: skip
        seen = jax.eval_shape(lambda k: observe(environment, environment.reset(k, 1)), _key())
        self.inputs = seen.shape[1]
        s = settings
        if s.rejax:
            one = optax.chain(optax.clip(s.clip_gradient), optax.adam(s.rate))
        else:
            one = optax.chain(
                optax.clip_by_global_norm(s.clip_gradient),
                optax.adam(self._rate, eps=1e-5),
            )
        self.optimiser = one

    def _rate(self, count: Any) -> Any:
        """PureJaxRL's rate after this many minibatches."""
        s = self.settings
        return s.rate * (1 - count // (s.epochs * s.minibatches) / (s.total // s.batch))

    def init(self, key: Any) -> dict[str, Any]:
        keys = jax.random.split(key, 4)
        outputs, rejax = self.choices or 1, self.settings.rejax
        weights = {
            "actor": _network(keys[0], (self.inputs, *HIDDEN, outputs), 0.01, rejax),
            "critic": _network(keys[1], (self.inputs, *HIDDEN, 1), 1.0, rejax),
        }
        if self.choices is None:
            weights["actor"] = (*weights["actor"], jnp.zeros(1))
        states = self.environment.reset(keys[2], self.settings.environments)
        return {
            "weights": weights, "states": states, "seen": observe(self.environment, states),
            "time": jnp.zeros(self.settings.environments, jnp.int32), "key": keys[3],
            "units": (jnp.zeros(self.inputs), jnp.ones(self.inputs), jnp.asarray(1e-4)),
            "optimiser": self._start(weights), "steps": jnp.zeros((), jnp.int32),
        }  # fmt: skip

    def _start(self, weights: Any) -> Any:
        if self.settings.rejax:
            return {name: self.optimiser.init(part) for name, part in weights.items()}
        return self.optimiser.init(weights)

    def act(self, now: dict[str, Any], seen: Any, key: Any) -> Any:
        """Actions of the policy for raw observations."""
        return self._in_bounds(self._choose(now["weights"], self._units(now["units"], seen), key))

    def iterate(self, now: dict[str, Any]) -> dict[str, Any]:
        """One batch of steps, and the updates from it."""
        s = self.settings
        now, paths = jax.lax.scan(lambda n, _: self._step(n), now, None, s.steps)
        last = self._value(now["weights"], now["seen"])

        def back(carry, x):
            advantage, following = carry
            on = 1 - x["done"]
            delta = x["reward"] + s.discount * following * on - x["value"]
            advantage = delta + s.discount * s.lambda_ * on * advantage
            return (advantage, x["value"]), advantage

        _, gains = jax.lax.scan(back, (jnp.zeros_like(last), last), paths, reverse=True)
        paths = paths | {"gain": gains, "target": gains + paths["value"]}
        flat = jax.tree.map(lambda x: x.reshape(s.batch, *x.shape[2:]), paths)

        def epoch(carry, key):
            order = jax.random.permutation(key, s.batch)
            parts = jax.tree.map(lambda x: x[order].reshape(s.minibatches, -1, *x.shape[1:]), flat)
            return jax.lax.scan(
                lambda c, part: (self._update(c[0], c[1], part), None), carry, parts
            )

        key, other = jax.random.split(now["key"])
        carry = now["weights"], now["optimiser"]
        (weights, optimiser), _ = jax.lax.scan(epoch, carry, jax.random.split(other, s.epochs))
        steps = now["steps"] + s.batch
        return now | {"weights": weights, "optimiser": optimiser, "key": key, "steps": steps}

    def _step(self, now: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        key, key_act, key_step, key_reset = jax.random.split(now["key"], 4)
        environment, weights, seen = self.environment, now["weights"], now["seen"]
        action = self._choose(weights, seen, key_act)
        following, reward, ends = environment.step(key_step, now["states"], self._in_bounds(action))
        done = ends | (now["time"] + 1 >= environment.horizon)
        fresh = environment.reset(key_reset, len(done))
        states = jnp.where(done[:, None], fresh, following)
        next_seen, units = observe(environment, states), now["units"]
        if self.settings.normalise:
            units = _observed(units, next_seen)
            next_seen = self._units(units, next_seen)
        step = {
            "seen": seen, "action": action, "reward": reward, "done": done.astype(reward.dtype),
            "log": self._log(weights, seen, action)[0], "value": self._value(weights, seen),
        }  # fmt: skip
        time = jnp.where(done, 0, now["time"] + 1)
        return now | {
            "states": states, "seen": next_seen, "time": time, "key": key, "units": units,
        }, step  # fmt: skip

    def _update(self, weights: Any, optimiser: Any, part: dict[str, Any]) -> tuple[Any, Any]:
        s = self.settings

        def actor(weights):
            log, entropy = self._log(weights, part["seen"], part["action"])
            ratio = jnp.exp(log - part["log"])
            gain = (part["gain"] - part["gain"].mean()) / (part["gain"].std() + 1e-8)
            least = jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - s.clip, 1 + s.clip) * gain)
            return -least.mean() - s.entropy * entropy.mean()

        def critic(weights):
            value = self._value(weights, part["seen"])
            near = part["value"] + jnp.clip(value - part["value"], -s.clip, s.clip)
            worse = jnp.maximum((value - part["target"]) ** 2, (near - part["target"]) ** 2)
            return s.value * 0.5 * worse.mean()

        # The two networks share no weights, so that one gradient is both.
        g = jax.grad(lambda w: actor(w) + critic(w))(weights)
        if not s.rejax:
            change, optimiser = self.optimiser.update(g, optimiser, weights)
            return optax.apply_updates(weights, change), optimiser
        new, states = {}, {}
        for name in weights:
            change, states[name] = self.optimiser.update(g[name], optimiser[name], weights[name])
            new[name] = optax.apply_updates(weights[name], change)
        return new, states

    def _units(self, units: Any, seen: Any) -> Any:
        if not self.settings.normalise:
            return seen
        return (seen - units[0]) / jnp.sqrt(units[1] + 1e-8)

    def _in_bounds(self, action: Any) -> Any:
        return action if self.choices else jnp.clip(action, -self.limit, self.limit)

    def _outputs(self, weights: Any, seen: Any) -> Any:
        actor = weights["actor"] if self.choices else weights["actor"][:-1]
        return _forward(actor, seen, self.settings.activation)

    def _value(self, weights: Any, seen: Any) -> Any:
        return _forward(weights["critic"], seen, self.settings.activation)[..., 0]

    def _choose(self, weights: Any, seen: Any, key: Any) -> Any:
        out = self._outputs(weights, seen)
        if self.choices:
            return jax.random.categorical(key, out)
        return out + jnp.exp(weights["actor"][-1]) * jax.random.normal(key, out.shape)

    def _log(self, weights: Any, seen: Any, action: Any) -> tuple[Any, Any]:
        out = self._outputs(weights, seen)
        if self.choices:
            log = jax.nn.log_softmax(out)
            taken = jnp.take_along_axis(log, action[..., None], -1)[..., 0]
            return taken, -jnp.sum(jnp.exp(log) * log, -1)
        scale = weights["actor"][-1]
        each = -0.5 * ((action - out) / jnp.exp(scale)) ** 2 - scale - 0.5 * jnp.log(2 * jnp.pi)
        return each.sum(-1), (scale + 0.5 * jnp.log(2 * jnp.pi * jnp.e)).sum()


def _key() -> Any:
    return jax.random.key(0)


def _network(key: Any, sizes: tuple[int, ...], last: float, rejax: bool) -> Any:
    layers = []
    for k, (a, b) in enumerate(itertools.pairwise(sizes)):
        scale = last if k == len(sizes) - 2 else 2**0.5
        make = (
            jax.nn.initializers.lecun_normal() if rejax else jax.nn.initializers.orthogonal(scale)
        )
        layers.append((make(jax.random.fold_in(key, k), (a, b)), jnp.zeros(b)))
    return tuple(layers)


def _forward(layers: Any, x: Any, activation: Any) -> Any:
    for W, b in layers[:-1]:
        x = activation(x @ W + b)
    return x @ layers[-1][0] + layers[-1][1]


def _observed(units: Any, x: Any) -> Any:
    """Running mean and variance, rejax's `update_rms`."""
    mean, variance, count = units
    total, apart = count + len(x), x.mean(0) - mean
    squares = variance * count + x.var(0) * len(x) + apart**2 * count * len(x) / total
    return mean + apart * len(x) / total, squares / total, total
