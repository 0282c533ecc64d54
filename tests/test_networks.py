"""Estimators for networks against the same posteriors in dense matrices and float64."""

import dataclasses
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle import standard_errors

from bayespg import kernels
from bayespg.algebra.conditioning import Groups
from bayespg.environments.trajectories import Trajectories
from bayespg.fisher.networks import SUBSET, TOLERANCE
from bayespg.learning import batch as batches
from bayespg.learning import values
from bayespg.learning.batch import Batch
from bayespg.learning.estimators import (
    BAC,
    Metric,
    MonteCarlo,
    stationary_integrated_out,
)
from bayespg.learning.metric import SHARE
from bayespg.paths.observations import Recent
from bayespg.policies import as_dtype, flatten, information_root, score
from bayespg.policies.features import MLP, Fourier, of_values
from bayespg.policies.heads import Choice, Composed, Normals
from bayespg.posterior import influences

D, M, T = 2, 8, 12
LENGTHS = np.array([12, 12, 9, 7, 5, 12, 1, 3])
TAKEN = np.arange(T) < LENGTHS[:, None]
N = TAKEN.sum()
FEATURES = Fourier(D, 6)
KEY = jax.random.key(0)
STATES = kernels.OfFeatures(FEATURES)
JOINT = BAC(
    STATES, metric=Metric(1.0), tolerance=0.0, lambda_=1.0, limit_ends=False, value_scale=1.0,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def by_products():
    """These networks are small enough to be written out; here they are not."""
    before, batches.MOST_DENSE = batches.MOST_DENSE, 0
    yield
    batches.MOST_DENSE = before


def policy_of(kind: str):
    """A network of a few parameters, none of them zero."""
    features = MLP(D, (4,), key=KEY)
    head = Choice(5, (3,), True) if kind == "choice" else Normals(5, 2, 0.5)
    theta, rebuild = flatten(Composed(features, head))
    return rebuild(theta + 0.5 * jax.random.normal(KEY, theta.shape))


@eqx.filter_jit
def draw(policy, states, key):
    return jax.vmap(jax.vmap(policy))(states).sample(key)


@functools.cache
def batch_of(kind: str, padding: float = 0.0) -> Batch:
    """Without discount the rewards are what is regressed: y."""
    rng = np.random.default_rng(1)
    states = rng.normal(size=(M, T, D))
    actions = np.asarray(draw(policy_of(kind), jnp.asarray(states, jnp.float32), KEY))
    effect = (actions if kind == "choice" else actions[..., 0]) * states[..., 0]
    y = 5 + states[..., 1] + 0.5 * effect + rng.normal(size=(M, T))
    states, y = np.where(TAKEN[..., None], states, padding), np.where(TAKEN, y, padding)
    actions = np.where(TAKEN.reshape(TAKEN.shape + (1,) * (actions.ndim - 2)), actions, 1)
    columns = (jnp.asarray(states, jnp.float32), jnp.asarray(actions), jnp.asarray(y, jnp.float32))
    paths = Trajectories(
        *(jnp.swapaxes(x, 0, 1) for x in columns), jnp.asarray(TAKEN.T), jnp.ones(M, bool),
        columns[0][:, -1],
    )  # fmt: skip
    return Batch(policy_of(kind), paths, 0.0, T)


def with_targets(batch: Batch, y) -> Batch:
    return eqx.tree_at(lambda b: b.paths.rewards, batch, y)


class Dense(NamedTuple):
    """All of the batch, steps taken only, in float64."""

    U: np.ndarray
    G: np.ndarray
    Psi: np.ndarray
    y: np.ndarray
    """Standardised."""
    scale: float
    episode: np.ndarray


@functools.cache
def dense(kind: str) -> Dense:
    paths, policy = batch_of(kind).paths, policy_of(kind)
    with jax.enable_x64(True):
        policy = as_dtype(policy, jnp.float64)
        states = jnp.asarray(np.asarray(paths.states, float).swapaxes(0, 1)[TAKEN])
        actions = jnp.asarray(np.asarray(paths.actions).swapaxes(0, 1)[TAKEN])
        actions = actions if kind == "choice" else actions.astype(jnp.float64)

        @jax.jit
        def ask(policy):
            U = jax.vmap(lambda x, a: score(policy, x, a))(states, actions)
            R = jax.vmap(lambda x: information_root(policy, x))(states)
            return U, jnp.einsum("nri,nrj->ij", R, R) / N, values.basis(FEATURES, states)

        U, G, Psi = (np.asarray(x) for x in ask(policy))
    y = np.asarray(paths.rewards, float).T[TAKEN]
    return Dense(U, G, Psi, (y - y.mean()) / y.std(), y.std(), np.nonzero(TAKEN)[0])


@eqx.filter_jit
def estimate(estimator, batch):
    return estimator(batch)


@eqx.filter_jit
def rows(posterior):
    return influences(posterior)


@eqx.filter_jit
def written_out(posterior, V):
    G = posterior.fisher
    covariance = posterior.covariance.multiply(jnp.eye(G.size))
    exactly = dataclasses.replace(G, tolerance=0.0)
    return {
        "solve": exactly.solve(V), "nearly": G.solve(V), "matrix": G.matrix(),
        "covariance": covariance,
    }  # fmt: skip


class Case(NamedTuple):
    kind: str
    exact: Dense
    estimator: BAC
    posterior: object
    products: dict
    V: np.ndarray

    @property
    def damped(self):
        return self.exact.G + float(self.posterior.fisher.damping) * np.eye(len(self.exact.G))

    @property
    def prior(self) -> float:
        """c."""
        G = self.posterior.fisher
        return self.estimator.advantage / float(G.subset.effective(G.damping))

    def again(self, batch=None, policy=None):
        """The same compiled program on other numbers."""
        batch = batch_of(self.kind) if batch is None else batch
        if policy is not None:
            batch = eqx.tree_at(lambda b: b.policy, batch, policy)
        return estimate(self.estimator, batch)


@functools.cache
def case_of(kind: str) -> Case:
    estimator, exact = JOINT, dense(kind)
    V = np.random.default_rng(2).normal(size=(2, 3, len(exact.G))).astype(np.float32)
    posterior = estimate(estimator, batch_of(kind))
    return Case(kind, exact, estimator, posterior, written_out(posterior, jnp.asarray(V)), V)


@pytest.fixture(params=["choice", pytest.param("normals", marks=pytest.mark.slow)])
def case(request):
    return case_of(request.param)


def close(found, expected, rtol=1e-4):
    """Relative to the largest entry."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * np.abs(expected).max())


def function_space(case):
    """y ~ N(0, c U (G + delta I)^-1 U' + Psi Psi' + I), gradient G w: mean and covariance, no
    precision matrix in sight."""
    U, G, Psi, y, scale, _ = case.exact
    B = case.prior * G @ np.linalg.solve(case.damped, U.T)
    K = case.prior * U @ np.linalg.solve(case.damped, U.T) + Psi @ Psi.T + np.eye(N)
    gain = B @ np.linalg.inv(K)
    return scale * gain @ y, scale**2 * (
        case.prior * G @ np.linalg.solve(case.damped, G) - gain @ B.T
    )


def weight_space(case):
    """P w = U' A^-1 y."""
    U, _, Psi, y, *_ = case.exact
    A = np.eye(N) + Psi @ Psi.T
    P = case.damped / case.prior + U.T @ np.linalg.solve(A, U)
    w = np.linalg.solve(P, U.T @ np.linalg.solve(A, y))
    return A, P, w


@pytest.mark.slow("normals")
def test_the_joint_mean_is_that_of_the_dense_posterior(case):
    _, _, w = weight_space(case)
    close(case.posterior.mean, case.exact.scale * case.exact.G @ w)
    close(case.posterior.mean, function_space(case)[0])


def test_the_joint_covariance_is_that_of_the_dense_posterior(case):
    _, P, _ = weight_space(case)
    G, scale = case.exact.G, case.exact.scale
    close(case.products["covariance"], scale**2 * G @ np.linalg.solve(P, G))
    close(case.products["covariance"], function_space(case)[1])


@pytest.mark.slow
def test_draws_from_the_joint_posterior_have_its_covariance():
    """Within 4.5 standard errors, of some 300 entries."""
    case = case_of("normals")
    drawn = jax.jit(lambda S: S.sample(KEY, 500))(case.posterior.covariance)
    drawn = np.asarray(drawn, float)
    S = function_space(case)[1]
    informed = np.diag(S) > 1e-6 * S.max()
    expected = S[np.ix_(informed, informed)]
    assert standard_errors(drawn[:, informed], np.zeros(informed.sum()), expected) < 4.5


@pytest.mark.slow("normals")
def test_the_influence_of_an_episode_is_that_of_leaving_it_out_to_first_order(case):
    A, P, w = weight_space(case)
    U, G, _, y, scale, episode = case.exact
    alpha = np.linalg.solve(A, y - U @ w)
    alone = np.where(episode == np.arange(M)[:, None], alpha, 0.0)
    prior = np.trace(case.damped) / case.prior
    data = N * float(case.posterior.fisher.subset.trace)
    factor = 1 / (1 - data / (data + prior) / M)
    expected = factor * scale * np.linalg.solve(A, alone.T).T @ U @ np.linalg.solve(P, G)
    close(rows(case.posterior), expected, 2e-3)
    v = case.V.reshape(-1, len(G))[0]
    along = eqx.filter_jit(lambda p, v: p.influence.along(v))(case.posterior, jnp.asarray(v))
    close(along, expected @ v, 2e-3)


def test_the_curvature_is_the_damped_fisher_matrix(case):
    close(case.products["matrix"], case.damped)
    assert case.posterior.fisher.size == len(case.damped)


def test_the_natural_gradient_solves_the_dense_system(case):
    inverse = np.linalg.inv(case.damped)
    close(case.products["solve"], case.V @ inverse, 1e-3)


def test_solutions_end_at_the_tolerance(case):
    left = case.products["nearly"] @ case.damped - case.V
    most = 1.01 * TOLERANCE * np.linalg.norm(case.V, axis=-1)
    assert np.all(np.linalg.norm(left, axis=-1) <= most)


@pytest.mark.slow
def test_draws_of_the_curvature_have_it_for_covariance():
    """Within 4.5 standard errors, of some 300 entries."""
    case = case_of("normals")
    drawn = jax.jit(lambda G: G.sample(KEY, (20, 50)))(case.posterior.fisher)
    n = len(case.damped)
    assert drawn.shape == (20, 50, n)
    drawn = np.asarray(drawn, float).reshape(-1, n)
    assert standard_errors(drawn, np.zeros(n), case.damped) < 4.5


def test_the_mean_and_its_error_bars_have_the_units_of_the_targets(case):
    batch = batch_of(case.kind)
    for factor in (1e8, 1e-8):
        posterior = case.again(with_targets(batch, factor * batch.paths.rewards))
        products = written_out(posterior, jnp.asarray(case.V))
        close(posterior.mean, factor * case.posterior.mean)
        close(rows(posterior), factor * rows(case.posterior))
        close(products["covariance"], factor**2 * case.products["covariance"])


def test_a_constant_added_to_the_targets_changes_nothing(case):
    batch = batch_of(case.kind)
    shifted = with_targets(batch, batch.paths.rewards + 100.0)
    close(case.again(shifted).mean, case.posterior.mean, 1e-3)


@pytest.mark.parametrize("y", [0.0, 0.1, -1e8, 1 / 3])
def test_targets_that_are_all_the_same_give_no_gradient(case, y):
    same = with_targets(batch_of(case.kind), jnp.full((T, M), y, jnp.float32))
    posterior = case.again(same)
    np.testing.assert_array_equal(posterior.mean, 0)
    np.testing.assert_array_equal(rows(posterior), 0)


def test_what_the_padding_holds_does_not_matter(case):
    posterior = case.again(batch_of(case.kind, padding=37.0))
    close(posterior.mean, case.posterior.mean, 1e-5)
    close(rows(posterior), rows(case.posterior), 1e-5)
    close(posterior.fisher.subset.Z, case.posterior.fisher.subset.Z, 1e-5)


def test_a_single_step_is_enough_for_an_answer(case):
    taken = jnp.zeros((T, M), bool).at[0, 2].set(True)
    one = eqx.tree_at(lambda b: b.paths.mask, batch_of(case.kind), taken)
    posterior = case.again(one)
    products = written_out(posterior, jnp.asarray(case.V))
    np.testing.assert_array_equal(posterior.mean, 0)  # its target is its mean
    assert np.isfinite(rows(posterior)).all()
    assert all(np.isfinite(x).all() for x in products.values())


@pytest.mark.parametrize("size", [30.0, 300.0, 1e6])
def test_a_policy_that_hardly_explores_gives_numbers(case, size):
    """Logits, or the logarithm of one over the scales, of this size."""
    policy = policy_of(case.kind)
    if case.kind == "choice":
        policy = eqx.tree_at(lambda p: p.head.weights, policy, size * policy.head.weights)
    else:
        scale = jnp.full(2, -min(size, 10.0), jnp.float32)
        policy = eqx.tree_at(lambda p: p.head.log_scale, policy, scale)
    posterior = case.again(policy=policy)
    products = written_out(posterior, jnp.asarray(case.V))
    assert np.isfinite(posterior.mean).all()
    assert np.isfinite(rows(posterior)).all()
    assert np.any(posterior.mean != 0) == (case.kind == "normals" or size < 1e6)
    assert all(np.isfinite(x).all() for x in products.values())


# The metric of recent states.


@functools.cache
def with_recent(kind: str, dtype=jnp.float32):
    """A batch that remembers `SUBSET` states other than its own, and two empty places."""
    states = np.random.default_rng(3).normal(size=(SUBSET + 2, D)) + 0.5
    weights = (np.arange(SUBSET + 2) < SUBSET).astype(np.float32)
    recent = Recent(jnp.asarray(states, dtype), jnp.asarray(weights))
    batch = batch_of(kind)
    batch = eqx.tree_at(lambda b: b.policy, batch, as_dtype(batch.policy, dtype))
    return eqx.tree_at(lambda b: b.recent, batch, recent, is_leaf=lambda x: x is None)


@functools.cache
def recent_case(kind: str) -> tuple[object, object]:
    """Its posterior by products, and written out in float64."""
    exact = dataclasses.replace(JOINT, iterations=60)
    found = estimate(exact, with_recent(kind))
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(batches, "MOST_DENSE", 1000)
        return found, estimate(exact, with_recent(kind, jnp.float64))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["choice", "normals"])
def test_with_a_metric_of_recent_states_mean_and_covariance_are_those_of_dense_algebra(kind):
    found, whole = recent_case(kind)
    U, G, Psi, y, scale, _ = dense(kind)
    D = np.asarray(whole.fisher.matrix())
    n, kappa = len(D), JOINT.metric.damping
    exact = kappa * (np.trace(D) - n * 1e-8) / (1 + kappa) / n + 1e-8  # tr G from tr D
    assert found.fisher.damping == pytest.approx(exact, rel=0.05)
    D = D + (float(found.fisher.damping) - exact) * np.eye(n)
    close(found.fisher.multiply(jnp.eye(n)), D)
    prior = JOINT.advantage / float(found.info["directions"])
    A = np.eye(N) + Psi @ Psi.T
    P = D / prior + U.T @ np.linalg.solve(A, U)
    close(found.mean, scale * G @ np.linalg.solve(P, U.T @ np.linalg.solve(A, y)), 1e-3)
    covariance = eqx.filter_jit(lambda p: p.covariance.multiply(jnp.eye(len(D))))(found)
    close(covariance, scale**2 * G @ np.linalg.solve(P, G), 1e-3)
    close(found.mean, whole.mean, 0.1)  # products know the number of directions from a few states
    drawn = jax.jit(lambda G: G.sample(KEY, (2,)))(found.fisher)
    assert drawn.shape == (2, len(D))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["choice", "normals"])
def test_inner_products_of_contributions_are_close_to_what_is_written_out(kind):
    """Products take the preconditioner for D^-1."""
    found, whole = recent_case(kind)
    U, _, Psi, y, _, episode = dense(kind)
    left = np.linalg.solve(np.eye(N) + Psi @ Psi.T, y)
    h = np.stack([U[episode == i].T @ left[episode == i] for i in range(M)])
    expected = h @ np.asarray(found.fisher.solve_roughly(jnp.asarray(h, jnp.float32)), float).T
    close(found.info["products"], expected, 1e-2)
    close(found.info["products"], whole.info["products"], 0.15)


def test_states_alone_have_no_scores():
    U = batch_of("choice").step_scores()
    with pytest.raises(ValueError, match="actions: none are given"):
        dataclasses.replace(U, actions=None).products()


@pytest.mark.slow
def test_sums_of_scores_over_groups_are_those_of_dense_scores():
    batch = batch_of("choice")
    U, a = batch.step_scores(), np.random.default_rng(4).normal(size=M * T).astype(np.float32)
    expected = np.asarray(U.dense()).reshape(M, T, -1) * a.reshape(M, T, 1)
    close(U.sums(jnp.asarray(a), Groups(M, length=T)), expected.sum(1))


# Monte Carlo.


BASELINES = ("none", "mean", "states")


@pytest.fixture(scope="module")
def averages():
    estimators = {b: MonteCarlo(b, weights="uniform", state_kernel=None) for b in BASELINES}

    @eqx.filter_jit
    def ask(batch):
        found = [e(batch) for e in estimators.values()]
        return {b: (p.mean, p.influence, p.covariance) for b, p in zip(estimators, found)}  # noqa: B905

    return ask, batch_of("choice"), dense("choice")


@pytest.mark.parametrize("baseline", BASELINES)
def test_monte_carlo_is_the_average_of_scores_times_what_the_baseline_leaves(averages, baseline):
    ask, batch, exact = averages
    y = np.asarray(batch.paths.rewards, float).T[TAKEN]
    if baseline == "mean":
        y = y - y.mean()
    if baseline == "states":
        states = np.asarray(batch.paths.states).swapaxes(0, 1)[TAKEN]
        Psi = np.asarray(values.basis(of_values(D), jnp.asarray(states)), float)
        y = exact.scale * np.linalg.solve(np.eye(N) + Psi @ Psi.T, exact.y)
    terms = exact.U * y[:, None]
    mean, influence, covariance = ask(batch)[baseline]
    close(mean, terms.sum(0) / N)
    each = np.array([terms[exact.episode == i].sum(0) for i in range(M)]) * M / N
    away = each - each.mean(0)
    close(influence, away / (M - 1))
    close(covariance, away.T @ away / (M * (M - 1)))


def test_monte_carlo_has_the_units_of_the_targets_and_no_gradient_of_a_constant(averages):
    ask, batch, _ = averages
    scaled, same = (
        ask(with_targets(batch, y))
        for y in (1e8 * batch.paths.rewards, jnp.full((T, M), 0.1, jnp.float32))
    )
    for baseline, (mean, influence, _) in ask(batch).items():
        close(scaled[baseline][0], 1e8 * mean)
        close(scaled[baseline][1], 1e8 * influence)
        if baseline != "none":
            np.testing.assert_array_equal(same[baseline][0], 0)


# Parts.


def test_the_preconditioner_solves_with_the_matrix_of_its_rows(case):
    subset = case.posterior.fisher.subset
    Z = np.asarray(subset.Z, float)
    assert len(Z) == SUBSET
    n, v = Z.shape[1], case.V[0, 0]
    for a, b in ((1.0, 0.1), (30.0, 2.0)):
        expected = np.linalg.solve(a * Z.T @ Z + b * np.eye(n), v)
        close(subset.solve(jnp.asarray(v), a, b), expected, 1e-3)
    damping = jnp.asarray(0.1, jnp.float32)
    expected = np.trace(np.linalg.solve(Z.T @ Z + 0.1 * np.eye(n), Z.T @ Z))
    assert subset.effective(damping) == pytest.approx(expected, rel=1e-3)
    assert subset.trace == pytest.approx(np.trace(Z.T @ Z), rel=1e-4)


@pytest.mark.slow
def test_the_damping_of_a_metric_is_a_share_of_the_trace(case):
    batch = batch_of(case.kind)
    G = stationary_integrated_out(batch)
    trace = float(G.subset.trace)
    for metric, share in ((Metric(), SHARE), (Metric(0.3), 0.3 / G.size)):
        assert metric(batch, G).damping == pytest.approx(share * trace, rel=1e-4)


@pytest.mark.slow("normals")
def test_written_out_and_by_products_the_posterior_is_the_same(case):
    """Up to the trace of G, and so the damping, which products know from a few states."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "MOST_DENSE", 1000)
        with jax.enable_x64(True):
            batch = batch_of(case.kind)
            policy = as_dtype(batch.policy, jnp.float64)
            whole = eqx.filter_jit(lambda b: JOINT(b))(
                eqx.tree_at(lambda b: b.policy, batch, policy)
            )
    assert not hasattr(whole.covariance, "multiply")
    close(case.posterior.mean, whole.mean, 0.02)
    close(case.products["covariance"], whole.covariance, 0.03)
