"""A batch: everything that an estimator of the gradient may use."""

import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, PRNGKeyArray

from bayespg._support.types import Array
from bayespg.algebra.sparse import Matrix
from bayespg.environments import Environment
from bayespg.environments.trajectories import Trajectories, returns
from bayespg.learning.values import Values
from bayespg.paths import scores
from bayespg.paths.observations import Normaliser, Recent, as_input
from bayespg.paths.rollout import walk
from bayespg.policies import (
    AnyPolicy,
    Policy,
    SparsePolicy,
    as_dtype,
    count,
    flatten,
    remembers,
    score,
)

Lambda = float | Literal["auto"]
"""A number, or chosen by the number of episodes."""
MOST_DENSE = 256
"""Parameters beyond which the scores of single steps are not written out."""


class Batch(eqx.Module):
    """Paths drawn with a policy, and what else an estimator may use."""

    policy: AnyPolicy
    """In the precision of the algebra."""
    paths: Trajectories
    """As the policy saw them."""
    discount: float | Float[Array, ""]
    horizon: int = eqx.field(static=True)
    environment: Environment | None = None
    """The environment of the paths, if it is one in JAX: some have closed forms."""
    critic: Values | None = None
    """Values fitted to earlier batches."""
    recent: Recent | None = None
    """States of this batch and of earlier ones, as the policy sees them."""
    summed: "Sums | None" = None
    """Returns and scores of the paths, if they were summed while the paths were drawn."""

    @property
    def acting(self) -> AnyPolicy:
        """The policy in the precision of the paths."""
        return as_dtype(self.policy, self.paths.rewards.dtype)

    @property
    def dtype(self) -> DTypeLike:
        """The precision of the algebra."""
        return flatten(self.policy)[0].dtype

    @property
    def returns(self) -> Float[Array, " M"]:
        """R(xi)."""
        if self.summed is not None:
            return self.summed[0]
        return returns(self.paths, self.discount).astype(self.dtype)

    @property
    def scores(self) -> Float[Array, "M n"]:
        """u(xi), Eq. 5."""
        if self.summed is not None and self.summed[1] is not None:
            return self.summed[1]
        return scores.of_paths(self.acting, self.paths).astype(self.dtype)

    def lambda_of(self, asked: Lambda) -> float:
        """The lambda asked for or, for "auto", that of the number of paths."""
        return lambda_by_episodes(self.paths.mask.shape[1]) if isinstance(asked, str) else asked

    @property
    def steps(self) -> Trajectories:
        """The paths with rewards, and so weights of steps, in the precision of the algebra."""
        rewards = self.paths.rewards.astype(self.dtype)
        return eqx.tree_at(lambda p: p.rewards, self.paths, rewards)

    def curious(self, where: Bool[Array, ""]) -> "Batch":
        """This batch or, `where` its rewards say nothing, one that rewards unfamiliar states and
        has no values yet."""
        if self.recent is None:
            return self
        rewards, mask = self.paths.rewards, self.paths.mask
        away = jnp.where(mask, self.recent.distances(self.paths.states), 0).astype(rewards.dtype)
        return eqx.tree_at(
            lambda b: (b.paths.rewards, b.critic), self,
            (jnp.where(where, away, rewards), self.critic and self.critic.unless(where)),
            is_leaf=lambda x: x is None,
        )  # fmt: skip

    @property
    def by_products(self) -> bool:
        """Whether scores of steps are used only through products with a Jacobian."""
        return by_products(self.policy)

    def step_scores(self) -> Matrix:
        """u(z_t), Eq. 39, path after path: (M T, n), zero where no step was taken. In the precision
        of the policy: a singular G needs the scores to lie in its range."""
        paths = self.paths
        if self.by_products:
            weights = flat(paths.mask).astype(self.dtype)
            policy: Policy = self.policy  # pyright: ignore[reportAssignmentType]
            return scores.Jacobian(policy, flat(paths.states), flat(paths.actions), weights)
        return jax.tree.map(flat, scores.of_steps(self.policy, paths))


def flat(x: Array) -> Array:
    """From axes of time and paths to one axis of steps, path after path."""
    T, M = x.shape[:2]
    return jnp.swapaxes(x, 0, 1).reshape(M * T, *x.shape[2:])


def by_products(policy: AnyPolicy) -> bool:
    """Whether the scores of single steps are used only through products: for large networks."""
    large = count(policy) > MOST_DENSE
    return large and isinstance(policy, Policy) and not isinstance(policy, SparsePolicy)


SHORT, LONG = 200, 1000
"""Mean lengths of episodes beyond which their length no longer changes the discount."""


def discount_by_length(length: Float[Array, ""]) -> Float[Array, ""]:
    """gamma = 1 - 2 / L: rewards count over half an episode of mean length L, between 0.99 for
    `SHORT` episodes and 0.998 for `LONG` ones. A discount far below the length of episodes hides
    what an action is worth where rewards come late, and one far above it adds noise."""
    return 1 - 2 / jnp.clip(length, SHORT, LONG)


OF_TWO = 0.9
"""lambda for two episodes."""


def lambda_by_episodes(episodes: int) -> float:
    """1 - lambda = (1 - `OF_TWO`) / sqrt(M / 2). A lambda nearer to one relies less on fitted
    values, and has more noise, which more episodes average away: what is given up in bias falls
    with their number as the standard error does."""
    return 1 - (1 - OF_TWO) / math.sqrt(episodes / 2)


Sums = tuple[Float[Array, " M"], Float[Array, "M n"] | None]
"""Returns and scores of paths."""


def of_paths(
    policy: AnyPolicy,
    raw: Trajectories,
    environment: Environment | None = None,
    *,
    discount: float | Float[Array, ""],
    horizon: int,
    normaliser: Normaliser | None = None,
    critic: Values | None = None,
    recent: Recent | None = None,
    summed: Sums | None = None,
) -> Batch:
    """The batch of these paths, with observations as the policy receives them, in its precision;
    the one place where a batch is made. `recent` holds raw observations, those of this batch
    included."""
    dtype = flatten(policy)[0].dtype
    paths = Trajectories(
        as_input(raw.states, normaliser, dtype), as_input(jnp.asarray(raw.actions), None, dtype),
        raw.rewards.astype(dtype), raw.mask, raw.terminated, as_input(raw.final, normaliser, dtype),
    )  # fmt: skip
    if recent is not None:
        recent = Recent(as_input(recent.states, normaliser, dtype), recent.weights)
    return Batch(policy, paths, discount, horizon, environment, critic, recent, summed)


@eqx.filter_jit
def draw(
    environment: Environment,
    policy: AnyPolicy,
    key: PRNGKeyArray,
    paths: int,
    dtype: DTypeLike | None = None,
    scores: bool = True,
    persistence: Float[Array, ""] | None = None,
) -> Batch:
    """A batch of `paths` paths, drawn and summed in `dtype` (None: the policy's own precision).

    With `scores` False, scores of paths are computed when they are used; those of a policy with
    memory always are, because they need whole paths. `persistence` is that of exploration.
    """
    raw, summed = drawn(environment, policy, key, paths, dtype, scores, persistence)
    return of_paths(
        policy, raw, environment, discount=environment.discount, horizon=environment.horizon,
        summed=summed,
    )  # fmt: skip


def drawn(
    environment: Environment,
    policy: AnyPolicy,
    key: PRNGKeyArray,
    paths: int,
    dtype: DTypeLike | None = None,
    scores: bool = True,
    persistence: Float[Array, ""] | None = None,
) -> tuple[Trajectories, Sums]:
    """The paths of `draw`, with their returns and scores in the precision of the policy."""
    theta = flatten(policy)[0]
    dtype = theta.dtype if dtype is None else dtype
    acting = as_dtype(policy, dtype)
    discount = jnp.asarray(environment.discount, dtype)
    scores = scores and not remembers(policy)

    def add(sums, t, states, actions, rewards, running):
        R, U = sums
        weight = discount**t if environment.discount != 1 else 1.0
        R = R + jnp.where(running, weight * rewards, 0)
        if U is not None:
            u = jax.vmap(lambda x, a: score(acting, x, a))(states, actions)  # pyright: ignore
            U = U + jnp.where(running[:, None], u, 0)
        return R, U

    sums = jnp.zeros((paths, theta.size), dtype) if scores else None
    start = (jnp.zeros(paths, dtype), sums)
    raw, (R, U) = walk(environment, acting, key, paths, start, add, persistence)
    return raw, (R.astype(theta.dtype), None if U is None else U.astype(theta.dtype))
