"""A T-maze: a cue at the start tells which way to turn at the end.

After B. Bakker, Reinforcement Learning with Long Short-Term Memory (2002). It is not in the paper:
the smallest task that asks for the memory of Section 5.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.environments.base import PartiallyObserved

FORWARD, LEFT, RIGHT = range(3)
"""Actions."""


class TMaze(PartiallyObserved):
    """A corridor of `length` steps to a junction, where a turn ends the path.

    The start shows a cue, left or right with equal probability; a turn at the junction to the side
    of the cue earns 1, the other one nothing. Elsewhere turns bump into a wall and the policy stays
    where it is. States are (cue, position); an observation is one of four, as a unit vector: cue on
    the left, cue on the right, corridor, junction.

    Without memory nothing at the junction depends on the cue, so a turn is right with probability
    1/2: no memoryless policy earns more than that. With memory the best earns 1.
    """

    length: int = eqx.field(static=True, default=3)
    horizon: int = eqx.field(static=True, default=10)
    discount: float = eqx.field(static=True, default=1.0)

    def reset(self, key: PRNGKeyArray, paths: int) -> Int[Array, "M 2"]:
        cue = jax.random.bernoulli(key, 0.5, (paths,)).astype(jnp.int32)
        return jnp.stack([cue, jnp.zeros_like(cue)], 1)

    def step(
        self, key: PRNGKeyArray, states: Int[Array, "M 2"], actions: Int[Array, " M"]
    ) -> tuple[Int[Array, "M 2"], Float[Array, " M"], Bool[Array, " M"]]:
        cue, position = states[:, 0], states[:, 1]
        turns = (position == self.length) & (actions != FORWARD)
        rewards = (turns & (actions == LEFT + cue)).astype(jnp.float32)
        position = jnp.minimum(position + (actions == FORWARD), self.length)
        return jnp.stack([cue, position], 1), rewards, turns

    def observe(self, states: Int[Array, "M 2"]) -> Float[Array, "M 4"]:
        cue, position = states[:, 0], states[:, 1]
        seen = jnp.where(position == 0, cue, jnp.where(position < self.length, 2, 3))
        return jax.nn.one_hot(seen, 4)

    def memoryless_return(self, actions: Float[Array, "4 3"]) -> Float[Array, ""]:
        """eta of a policy that does action a with probability actions[o, a], whatever came before,
        from p(cue, position) of each step."""
        o = jnp.full((2, self.length + 1), 2).at[:, -1].set(3).at[:, 0].set(jnp.arange(2))
        forward = jnp.asarray(actions)[o, FORWARD]
        right = jnp.asarray(actions)[3, LEFT:]
        weights = jnp.asarray(self.discount, right.dtype) ** jnp.arange(self.horizon)

        def advance(p: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
            moves = p * forward
            bumps = (p - moves)[:, :-1]
            following = jnp.pad(bumps, ((0, 0), (0, 1))) + jnp.pad(moves[:, :-1], ((0, 0), (1, 0)))
            following = following.at[:, -1].add(moves[:, -1])
            return following, weight * jnp.sum(p[:, -1] * right)

        p = jnp.zeros((2, self.length + 1), right.dtype).at[:, 0].set(0.5)
        return jnp.sum(jax.lax.scan(advance, p, weights)[1])
