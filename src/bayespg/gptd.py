"""The critic: Gaussian process temporal difference learning (Section 5.1, sparse in 7.3).

    r(z_i) = Q(z_i) - gamma Q(z_{i+1}) + N(z_i, z_{i+1}),    Cov[N] = s^2 H H'      (Eqs. 29 to 32)

The noise is H times white noise, so the posterior of Eqs. 33 and 34 is that of a plain regression,

    y_i = Q(z_i) + v_i b + noise of variance s^2,

of the rewards-to-go y, with one unknown tail b of flat prior for each truncated episode: v, with
v_i = gamma^(steps to the last pair), spans the null space of its H. No H is ever formed.

`posterior` takes all steps at once, `Online` one transition at a time. Both end in a `Critic`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Bool, Float, Int, PyTree, Shaped

from bayespg import checks, conditioning, kernels, sparsification
from bayespg.conditioning import LOG_2PI, Groups, Span, Tails
from bayespg.kernels import Kernel
from bayespg.precision import in_float64, to_float64, traced
from bayespg.quadrature import SINGULAR
from bayespg.sparsification import Sparsify
from bayespg.types import Array

Points = PyTree[Shaped[Array, "N ..."]]
"""Points in rows: an array, or for kernels on several arrays, such as states and scores, a tuple of
them."""


class Targets(NamedTuple):
    """Steps of episodes, one after the other, as the regression sees them."""

    y: Float[Array, " N"]
    """Rewards-to-go, y_i = r_i + gamma y_{i+1}; zero at the last pair of a truncated episode."""
    tail: Float[Array, " N"]
    """v: gamma^(steps to the last pair) in a truncated episode, zero in a terminated one."""
    episode: Int[Array, " N"]
    """Which episode a step belongs to, counted from 0."""
    observed: Bool[Array, " N"]
    """Whether a step has anything to say: not so the pair of a truncated episode of one pair."""


def targets(
    rewards: Float[Array, " N"],
    last: Bool[Array, " N"],
    terminated: Bool[Array, " N"],
    discount: float | Float[Array, ""],
) -> Targets:
    """Rewards-to-go, and the direction in which each truncated episode leaves them open.

    `last` marks the steps that end an episode, `terminated` those that end it in an absorbing
    state. The last reward of a truncated episode is not used. An episode still running at the end
    of the data counts as truncated there.
    """
    if traced(rewards, last, terminated, discount):
        return _targets(rewards, last, terminated, discount)
    return in_float64(_targets)(*checked_steps(rewards, last, terminated, discount))


def _targets(rewards, last, terminated, discount) -> Targets:
    r = jnp.asarray(rewards)
    ends = jnp.asarray(last).at[-1].set(True)
    terminal = ends & terminated
    first = jnp.roll(ends, 1)  # a step after an end; the last step is one, so step 0 is first

    def back(following, step):
        y, v = following
        r, ends, terminal = step
        y = jnp.where(ends, jnp.where(terminal, r, 0.0), r + discount * y)
        v = jnp.where(ends, jnp.where(terminal, 0.0, 1.0), discount * v)
        return (y, v), (y, v)

    zero = jnp.zeros((), jnp.result_type(r, discount, float))
    _, (y, v) = jax.lax.scan(back, (zero, zero), (r, ends, terminal), reverse=True)
    return Targets(y, v, jnp.cumsum(first) - 1, ~(first & ends & ~terminal))


class Critic(eqx.Module):
    """The posterior of Q, a Gaussian process (Eq. 33; sparse, with Eq. 43).

        mean(z) = zeta(z)' e,   covariance(z, z') = k(z, z') - zeta(z)' D zeta(z')

    with zeta(z) = L^-1 k(z), k(z) the kernel between z and the critic's points.
    """

    kernel: Kernel
    points: PyTree[Shaped[Array, "m ..."]]
    """The pairs seen, or the dictionary."""
    factor: Float[Array, "m m"]
    """L."""
    weights: Float[Array, " m"]
    """e."""
    reduction: Float[Array, "m m"]
    """D."""
    log_evidence: Float[Array, ""]
    """log N(r; 0, H K H' + Sigma) of the rewards used."""
    info: dict[str, Any]
    """How it went: number of observations, condition, dictionary size."""

    def mean(self, points: Points) -> Float[Array, " K"]:
        return self._ask(_mean, points)

    def variance(self, points: Points) -> Float[Array, " K"]:
        """The diagonal of `covariance`."""
        return self._ask(_variance, points)

    def covariance(self, points: Points, others: Points | None = None) -> Float[Array, "K J"]:
        """Between the values at `points` and at `others`, or among those at `points`."""
        return self._ask(_covariance, points, points if others is None else others)

    def _ask(self, function, *queries):
        if traced(self, queries):
            return function(self, *queries)
        names = ("points", "others")
        queries = [
            _like(name, query, self.points, 1) for name, query in zip(names, queries, strict=False)
        ]
        return in_float64(function)(to_float64(self), *queries)


def _zeta(critic: Critic, points) -> Float[Array, "m K"]:
    return solve_triangular(
        critic.factor, kernels.gram(critic.kernel, critic.points, points), lower=True
    )


def _mean(critic: Critic, points):
    alpha = solve_triangular(critic.factor.T, critic.weights, lower=False)  # cheaper than zeta
    return alpha @ kernels.gram(critic.kernel, critic.points, points)


def _variance(critic: Critic, points):
    zeta = _zeta(critic, points)
    explained = jnp.sum(zeta * (critic.reduction @ zeta), 0)
    return jnp.maximum(kernels.diagonal(critic.kernel, points) - explained, 0.0)


def _covariance(critic: Critic, points, others):
    explained = _zeta(critic, points).T @ critic.reduction @ _zeta(critic, others)
    return kernels.gram(critic.kernel, points, others) - explained


# All steps at once.


def posterior(
    kernel: Kernel,
    points: Points,
    rewards: Float[Array, " N"],
    *,
    last: Bool[Array, " N"],
    terminated: Bool[Array, " N"],
    discount: float | Float[Array, ""],
    noise: float | Float[Array, ""] = 1.0,
    sparsify: Sparsify | None = None,
) -> Critic:
    """The posterior of Q given the steps of some episodes, one after the other (Eqs. 33, 34, 43).

    Step i has the pair ``points[i]`` and the reward ``rewards[i]``; `last` and `terminated` say
    where an episode ends and whether in an absorbing state, see `targets`. `noise` is s^2. A
    terminated episode of T pairs is T observations, a truncated one T - 1 (none for a single pair);
    ``info["observations"]`` is their number. Without any the critic is the prior. The cost is N^3,
    or N m^2 with a dictionary of capacity m.
    """
    if traced(kernel, points, rewards, last, terminated, discount, noise):
        N = jnp.shape(rewards)[0]
        return _posterior(kernel, points, rewards, last, terminated, discount, noise, sparsify, N)
    kernel = _checked_kernel(kernel)
    r, last, terminated, gamma = checked_steps(rewards, last, terminated, discount)
    Z = _checked_points("points", points, r.size)
    _accepts("points", kernel, jax.tree.map(lambda leaf: leaf[0], Z))
    s2 = checks.positive("noise", noise, ())
    _checked_sparsify(sparsify)
    tails = 0
    if sparsify is None:
        truncated = int(np.sum(last & ~terminated)) + (not last[-1])
        tails = min(1 << max(truncated - 1, 0).bit_length(), r.size)  # few sizes to compile for
    found = in_float64(_posterior)(kernel, Z, r, last, terminated, gamma, s2, sparsify, tails)
    if not np.all(np.isfinite(found.weights)) or not found.info["condition"] < SINGULAR:
        raise ValueError(
            "noise: the kernel matrix plus noise is singular; give a larger noise variance"
        )
    return found


def _posterior(
    kernel, points, rewards, last, terminated, discount, noise, sparsify, tails
) -> Critic:
    """`tails` is the most truncated episodes there can be."""
    points = jax.tree.map(jnp.asarray, points)
    steps = _targets(rewards, last, terminated, discount)
    noise = jnp.asarray(noise, steps.y.dtype)
    if sparsify is None:
        return _dense(kernel, points, steps, noise, tails)
    return _sparse(kernel, points, steps, noise, sparsify)


def _dense(kernel, points, steps: Targets, noise, tails: int) -> Critic:
    """A = K + s^2 I = L L', and C = L^-T D L^-1 with D the projection off L^-1 V.

    The columns of V are the tails. det(H A H') = det(A) det(V'A^-1 V), as det(H H') = det(V'V).
    """
    N = steps.y.size
    K = kernels.gram(kernel, points)
    I = jnp.eye(N, dtype=K.dtype)
    L = jnp.linalg.cholesky(K + noise * I)
    unknown = Span(solve_triangular(L, _columns(steps, tails), lower=True), jnp.ones(N, bool))
    e = unknown.remove(solve_triangular(L, steps.y, lower=True)[:, None])[:, 0]
    pivots, count = jnp.diagonal(L), unknown.observations(N)
    log_det = 2 * jnp.sum(jnp.log(pivots)) + unknown.log_determinant()
    return Critic(
        kernel=kernel,
        points=points,
        factor=L,
        weights=e,
        reduction=unknown.remove(I),
        log_evidence=-0.5 * (e @ e + log_det + count * LOG_2PI),
        info={"observations": count, "condition": (pivots.max() / pivots.min()) ** 2},
    )


def _columns(steps: Targets, tails: int) -> Float[Array, "N E"]:
    """V: one column for each truncated episode, then zeros."""
    truncated = jax.ops.segment_max(steps.tail, steps.episode, steps.tail.size) > 0
    which = (jnp.cumsum(truncated) - 1)[steps.episode]
    return steps.tail[:, None] * jax.nn.one_hot(which, tails, dtype=steps.tail.dtype)


def _sparse(kernel, points, steps: Targets, noise, sparsify: Sparsify) -> Critic:
    """y = Psi w + tails + noise with w ~ N(0, I) and Psi = A L~ (Eq. 43): D = I - Cov[w | y]."""

    def at(i):
        return jax.tree.map(lambda leaf: leaf[i], points)

    N = steps.y.size
    dictionary = sparsification.build(
        lambda i, members: kernels.gram(kernel, at(members), at(i[None]))[:, 0],
        kernels.diagonal(kernel, points),
        sparsify.threshold,
        min(sparsify.capacity or N, N),
    )
    unknown = Tails(steps.tail, Groups(N, steps.episode), jnp.ones(N, bool))
    found = conditioning.regress(dictionary.features, steps.y[:, None], noise, unknown)
    I = jnp.eye(dictionary.features.shape[1], dtype=found.factor.dtype)
    return Critic(
        kernel=kernel,
        points=at(dictionary.members),
        factor=dictionary.factor,
        weights=found.weights[:, 0],
        reduction=I - cho_solve((found.factor, True), I),
        log_evidence=found.log_evidence[0],
        info={
            "observations": N - jnp.sum(unknown.groups.sum(steps.tail) > 0),
            "condition": found.condition,
            **dictionary.info(),
        },
    )


# One transition at a time.


class Members(NamedTuple):
    """The dictionary: m slots, the first `size` of them used."""

    points: PyTree[Shaped[Array, "m ..."]]
    factor: Float[Array, "m m"]
    """L~, with ones on the diagonal of unused slots."""
    size: Int[Array, ""]
    refused: Int[Array, ""]
    """Points beyond the threshold that found the dictionary full: they are projected onto it."""
    residual: Float[Array, ""]
    """The largest squared distance that was dropped."""


class Belief(NamedTuple):
    """The weights of the features, w ~ N(e, S)."""

    weights: Float[Array, " m"]
    """e."""
    covariance: Float[Array, "m m"]
    """S."""
    observations: Int[Array, ""]
    log_evidence: Float[Array, ""]


class Episode(NamedTuple):
    """The running episode as sums over its pairs, v_i = gamma^(steps to the newest pair)."""

    running: Bool[Array, ""]
    a: Float[Array, " m"]
    """sum v_i psi_i / nu."""
    d: Float[Array, ""]
    """sum v_i y_i / nu, with y = 0 at the newest pair."""
    nu: Float[Array, ""]
    """sum v_i^2."""


class Online(eqx.Module):
    """A critic that learns one transition at a time at cost m^2, m the dictionary's capacity.

        >>> critic = gptd.online(kernel, z, discount=0.99, sparsify=Sparsify(0.1, 100))
        >>> critic = critic.begin(z).observe(reward, next_z).terminate(reward)
        >>> critic.critic().mean(points)

    Its answer is that of `posterior` on the same steps. Every method gives a new `Online` of the
    same shapes, so all of them work inside jit and scan; there a transition outside an episode
    changes nothing, where plain arrays get a ValueError.
    """

    kernel: Kernel
    threshold: Float[Array, ""]
    noise: Float[Array, ""]
    discount: Float[Array, ""]
    members: Members
    belief: Belief
    episode: Episode

    def begin(self, point: Any) -> "Online":
        """An episode starts with this pair."""
        return _advance(self, "begin", _begin, (), (point,))

    def observe(self, reward: float | Float[Array, ""], point: Any) -> "Online":
        """The newest pair earned `reward` and led to this pair."""
        return _advance(self, "observe", _observe, (reward,), (point,))

    def terminate(self, reward: float | Float[Array, ""]) -> "Online":
        """The newest pair earned `reward` and led to an absorbing state."""
        return _advance(self, "terminate", _terminate, (reward,), ())

    def truncate(self) -> "Online":
        """The episode is cut off; the reward of its newest pair is not used."""
        return _advance(self, "truncate", _truncate, (), ())

    def critic(self) -> Critic:
        """What is known so far."""
        return _critic(self) if traced(self) else in_float64(_critic)(to_float64(self))


def online(
    kernel: Kernel,
    example_point: Any,
    *,
    discount: float | Float[Array, ""],
    noise: float | Float[Array, ""] = 1.0,
    sparsify: Sparsify,
) -> Online:
    """An `Online` critic that has seen nothing; `example_point` is any point, for its shape."""
    if not isinstance(sparsify, Sparsify) or sparsify.capacity is None:
        raise ValueError(
            f"sparsify: expected Sparsify(threshold, capacity) with a capacity, found {sparsify!r}"
        )
    tau, m = sparsify.threshold, sparsify.capacity
    if traced(kernel, example_point, discount, noise):
        return _online(kernel, example_point, tau, noise, discount, m)
    kernel, point = _checked_kernel(kernel), _as_arrays("example_point", example_point)
    _accepts("example_point", kernel, point)
    s2, gamma = checks.positive("noise", noise, ()), np.asarray(checks.discount(discount))
    return in_float64(_online)(kernel, point, np.asarray(tau), s2, gamma, m)


def _online(kernel, point, threshold, noise, discount, m: int) -> Online:
    zero, none, I = jnp.zeros(()), jnp.zeros((), int), jnp.eye(m)
    slots = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], m, 0), point)
    return Online(
        kernel=kernel,
        threshold=jnp.asarray(threshold, float),
        noise=jnp.asarray(noise, float),
        discount=jnp.asarray(discount, float),
        members=Members(slots, I, none, none, zero),
        belief=Belief(jnp.zeros(m), I, none, zero),
        episode=Episode(jnp.zeros((), bool), jnp.zeros(m), zero, jnp.ones(())),
    )


def _advance(state: Online, name: str, function, rewards: tuple, points: tuple) -> Online:
    if traced(state, rewards, points):
        return function(state, *rewards, *points)
    running = bool(state.episode.running)
    if running == (name == "begin"):
        found = "an episode is running" if running else "no episode is running"
        raise ValueError(f"{name}: {found}; see begin, terminate and truncate")
    rewards = tuple(checks.shaped("reward", value, ((),)) for value in rewards)
    points = tuple(_like("point", value, state.members.points, 0) for value in points)
    return _quickly(function, state, *rewards, *points)


def _quickly(function, state: Online, *args) -> Online:
    """`in_float64` with less overhead, since an Online has the structure of the one before."""
    leaves, structure = jax.tree.flatten(state)
    if not all(eqx.is_array(leaf) for leaf in leaves):  # a kernel may hold functions
        return in_float64(function)(to_float64(state), *args)
    leaves = to_float64(leaves)
    with jax.enable_x64(True):
        found = _on_leaves(function, structure)(leaves, *args)
    return jax.tree.unflatten(structure, [np.asarray(leaf) for leaf in found])


@functools.cache
def _on_leaves(function, structure):
    def run(leaves, *args):
        return jax.tree.leaves(function(jax.tree.unflatten(structure, leaves), *args))

    return jax.jit(run)


def _begin(state: Online, point) -> Online:
    members, psi = _visit(state, point, True)
    zero, one = jnp.zeros_like(state.noise), jnp.ones_like(state.noise)
    episode = Episode(jnp.ones((), bool), psi, zero, one)
    return dataclasses.replace(state, members=members, episode=episode)


def _observe(state: Online, reward, point) -> Online:
    """d + r = (a - gamma psi')'w + noise of variance s^2 (1/nu + gamma^2), independent of all
    before."""
    gamma, (running, a, d, nu) = state.discount, state.episode
    members, psi = _visit(state, point, running)
    belief = _condition(state, a - gamma * psi, d + reward, 1 / nu + gamma**2)
    total = gamma**2 * nu + 1
    moved = ((gamma * nu * a + psi) / total, gamma * nu * (d + reward) / total, total)
    kept = (jnp.where(running, new, old) for new, old in zip(moved, (a, d, nu), strict=True))
    return dataclasses.replace(
        state, members=members, belief=belief, episode=Episode(running, *kept)
    )


def _terminate(state: Online, reward) -> Online:
    """d + r = a'w + noise of variance s^2 / nu."""
    _, a, d, nu = state.episode
    return _truncate(dataclasses.replace(state, belief=_condition(state, a, d + reward, 1 / nu)))


def _truncate(state: Online) -> Online:
    return dataclasses.replace(state, episode=state.episode._replace(running=jnp.zeros((), bool)))


def _visit(state: Online, point, counts) -> tuple[Members, Float[Array, " m"]]:
    """Features of a point, which joins the dictionary if far from its span, as in
    `sparsification`."""
    points, L, size, refused, residual = state.members
    m = L.shape[0]
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], point)
    k = kernels.gram(state.kernel, points, one)[:, 0]
    psi = solve_triangular(L, jnp.where(jnp.arange(m) < size, k, 0.0), lower=True)
    delta = kernels.diagonal(state.kernel, one)[0] - psi @ psi
    novel = (delta > state.threshold) & counts
    joins = novel & (size < m)
    slot = jnp.minimum(size, m - 1)

    def put(buffer, value):
        return buffer.at[slot].set(jnp.where(joins, value, buffer[slot]))

    psi = put(psi, jnp.sqrt(jnp.maximum(delta, 0.0)))
    members = Members(
        points=jax.tree.map(put, points, point),
        factor=put(L, psi),
        size=size + joins,
        refused=refused + (novel & ~joins),
        residual=jnp.where(counts & ~joins, jnp.maximum(residual, delta), residual),
    )
    return members, psi


def _condition(state: Online, x, target, scale) -> Belief:
    """Given target = x'w + noise of variance s^2 scale, if an episode is running."""
    counts, (e, S, observations, log_evidence) = state.episode.running, state.belief
    Sx = S @ x
    variance = state.noise * scale + x @ Sx
    error = target - x @ e
    root = jnp.where(counts, Sx / jnp.sqrt(variance), 0.0)
    log_density = -0.5 * (error**2 / variance + jnp.log(variance) + LOG_2PI)
    return Belief(
        weights=e + root * error / jnp.sqrt(variance),
        covariance=S - jnp.outer(root, root),
        observations=observations + counts,
        log_evidence=log_evidence + jnp.where(counts, log_density, 0.0),
    )


def _critic(state: Online) -> Critic:
    members, belief = state.members, state.belief
    return Critic(
        kernel=state.kernel,
        points=members.points,
        factor=members.factor,
        weights=belief.weights,
        reduction=jnp.eye(members.factor.shape[0], dtype=members.factor.dtype) - belief.covariance,
        log_evidence=belief.log_evidence,
        info={
            "observations": belief.observations,
            "dictionary_size": members.size,
            "dictionary_refused": members.refused,
            "dictionary_residual": members.residual,
        },
    )


# What a caller may pass.


def checked_steps(rewards: Any, last: Any, terminated: Any, discount: Any):
    """Rewards, ends of episodes and discount as a caller gave them, in NumPy and sound."""
    r = checks.array("rewards", rewards)
    if r.ndim != 1 or r.size == 0:
        raise ValueError(f"rewards: expected shape (N,) with at least one step, found {r.shape}")
    last = checks.flags("last", last, r.size)
    terminated = checks.flags("terminated", terminated, r.size)
    astray = terminated & ~last
    if astray.any():
        raise ValueError(
            f"terminated: step {int(astray.argmax())} is terminated but not last; an absorbing "
            "state ends its episode"
        )
    return r, last, terminated, np.asarray(checks.discount(discount))


def _as_arrays(name: str, points: Any) -> Any:
    """Arrays of a tree of points in float64; lists are arrays."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: checks.array(name + jax.tree_util.keystr(path), leaf),
        points,
        is_leaf=lambda value: value is None or isinstance(value, list),
    )


def _checked_points(name: str, points: Any, size: int) -> Any:
    """Points in rows, one for each reward."""
    found = _as_arrays(name, points)
    shapes = [leaf.shape for leaf in jax.tree.leaves(found)]
    if not shapes or any(shape[:1] != (size,) for shape in shapes):
        raise ValueError(f"{name}: expected {size} rows, one a reward, found shapes {shapes}")
    return found


def _like(name: str, points: Any, known: Any, axes: int) -> Any:
    """Points of the same kind as those a critic holds in rows, with `axes` leading axes."""
    found = _as_arrays(name, points)
    leaves, structure = jax.tree.flatten(found)
    expected, known_structure = jax.tree.flatten(known)
    shapes, inner = [leaf.shape for leaf in leaves], [leaf.shape[1:] for leaf in expected]
    rows = {shape[:axes] for shape in shapes}
    if structure != known_structure or len(rows) != 1 or [s[axes:] for s in shapes] != inner:
        kind = "points in rows, each" if axes else "a point"
        raise ValueError(f"{name}: expected {kind} of shape {inner}, found {shapes}")
    return found


def _accepts(name: str, kernel: Kernel, point: Any) -> None:
    try:
        shape = jax.eval_shape(kernel, point, point).shape
    except (TypeError, ValueError, IndexError) as problem:
        raise ValueError(f"{name}: the kernel does not take such points ({problem})") from None
    if shape != ():
        raise ValueError(f"{name}: the kernel gives shape {shape} for two points, not one number")


def _checked_kernel(kernel: Any) -> Kernel:
    """The kernel in float64, its numbers as arrays so that their values compile nothing anew."""
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel: expected a kernel of bayespg.kernels, found {kernel!r}")
    for leaf in jax.tree.leaves(kernel):
        if isinstance(leaf, float) or eqx.is_inexact_array(leaf):
            checks.array("kernel", leaf)
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, float) else leaf, to_float64(kernel)
    )


def _checked_sparsify(sparsify: Any) -> None:
    if sparsify is not None and not isinstance(sparsify, Sparsify):
        raise ValueError(
            f"sparsify: expected None or Sparsify(threshold, capacity), found {sparsify!r}"
        )
