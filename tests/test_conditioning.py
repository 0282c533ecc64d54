import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from bayespg import gptd
from bayespg._support.precision import in_float64
from bayespg.algebra import conditioning
from bayespg.algebra.conditioning import Groups, Tails

M, p, k = 8, 3, 2
rng = np.random.default_rng(0)
PSI = rng.normal(size=(M, p))
V = rng.normal(size=(k, p))
Y = 2 + rng.normal(size=(M, 1))
REMAINDER = np.diag([0.5, 2.0])
NOISE = {"one": np.array(0.3), "each": np.linspace(0.1, 1, M)}
BASELINES = [0.0, np.array(2.5), np.array(np.inf)]

dual = in_float64(conditioning.dual)
weight_space = in_float64(conditioning.weight_space)


def both(noise, baseline, y=Y):
    B, B0 = V @ PSI.T, V @ V.T + REMAINDER
    return (
        dual(PSI @ PSI.T, B, B0, y, noise, baseline),
        weight_space(PSI, V, REMAINDER, y, noise, baseline),
    )


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("noise", NOISE.values(), ids=NOISE)
def test_both_forms_are_the_printed_conditioning(noise, baseline):
    K, Sigma = PSI @ PSI.T, oracle.covariance(noise, M)
    B, B0 = V @ PSI.T, V @ V.T + REMAINDER
    C = oracle.inverse(K + Sigma, float(baseline))
    expected = oracle.condition(K, B, B0, Y[:, 0], Sigma, float(baseline))
    for at in both(noise, baseline):
        np.testing.assert_allclose(at.gain @ Y[:, 0], expected.mean, rtol=1e-9)
        np.testing.assert_allclose(at.covariance, expected.covariance, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(at.gain, B @ C, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(at.alpha, C @ Y, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(at.diagonal, np.diag(C), rtol=1e-9)
        np.testing.assert_allclose(at.freedom, np.trace(Sigma @ C), rtol=1e-9)
        np.testing.assert_allclose(at.log_evidence, [expected.log_evidence], rtol=1e-9)


def test_a_large_baseline_approaches_the_flat_one():
    for large, flat in zip(
        both(0.3 * np.ones(()), np.array(1e9)),
        both(0.3 * np.ones(()), np.array(np.inf)),
        strict=True,
    ):
        np.testing.assert_allclose(large.gain, flat.gain, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(large.covariance, flat.covariance, rtol=1e-6)
        np.testing.assert_allclose(
            large.log_evidence + np.log(2 * np.pi * 1e9) / 2, flat.log_evidence, rtol=1e-6
        )


def test_a_flat_constant_makes_the_gain_blind_to_shifts():
    for at in both(NOISE["each"], np.array(np.inf)):
        np.testing.assert_allclose(at.gain.sum(1), 0, atol=1e-12)


def test_several_sets_of_observations_are_conditioned_on_one_by_one():
    many = np.concatenate([Y, Y**2, -Y], 1)
    for together, *alone in zip(
        both(NOISE["one"], 0.0, many),
        *(both(NOISE["one"], 0.0, many[:, [j]]) for j in range(3)),
        strict=True,
    ):
        np.testing.assert_allclose(
            together.log_evidence, [a.log_evidence[0] for a in alone], rtol=1e-9
        )
        np.testing.assert_allclose(together.alpha, np.concatenate([a.alpha for a in alone], 1))


def test_the_root_holds_what_the_samples_explain():
    B, K = V @ PSI.T, PSI @ PSI.T
    expected = B @ oracle.inverse(K + 0.3 * np.eye(M), np.inf) @ B.T
    for at in (
        dual(K, B, None, Y, np.array(0.3), np.array(np.inf)),
        weight_space(PSI, V, None, Y, np.array(0.3), np.array(np.inf)),
    ):
        assert at.covariance is None
        np.testing.assert_allclose(at.root.T @ at.root, expected, rtol=1e-9)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.usefixtures("x64")
def test_leaving_one_out_equals_refitting(baseline):
    K, B, B0 = PSI @ PSI.T, V @ PSI.T, V @ V.T + REMAINDER
    Sigma = np.diag(NOISE["each"])
    for at in both(NOISE["each"], baseline):
        mean = at.gain @ Y[:, 0]
        for i, influence in enumerate(at.leave_one_out()):
            K_, Sigma_, y = oracle.without(i, K, Sigma, Y[:, 0])
            refit = oracle.condition(K_, np.delete(B, i, 1), B0, y, Sigma_, float(baseline))
            np.testing.assert_allclose(influence, mean - refit.mean, rtol=1e-8, atol=1e-10)


def test_noise_may_be_correlated_between_samples():
    A = rng.normal(size=(M, M))
    Sigma, K, B, B0 = A @ A.T + np.eye(M), PSI @ PSI.T, V @ PSI.T, V @ V.T
    at = dual(K, B, B0, Y, Sigma, np.array(2.5))
    expected = oracle.condition(K, B, B0, Y[:, 0], Sigma, 2.5)
    np.testing.assert_allclose(at.gain @ Y[:, 0], expected.mean, rtol=1e-9)
    np.testing.assert_allclose(at.covariance, expected.covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(at.log_evidence, [expected.log_evidence], rtol=1e-9)


@pytest.mark.parametrize("variance", [0.7, np.inf])
@pytest.mark.usefixtures("x64")
def test_removing_the_constant_twice_is_the_inverse_of_adding_it(variance):
    o = jnp.linspace(0.5, 2, M)
    constant = conditioning.constant(variance, o).weighted(o)
    Q2 = constant.remove(constant.remove(jnp.eye(M)))
    flat = jnp.eye(M) - jnp.outer(o, o) / (o @ o)
    expected = (
        flat if np.isinf(variance) else jnp.linalg.inv(jnp.eye(M) + variance * jnp.outer(o, o))
    )
    np.testing.assert_allclose(Q2, expected, atol=1e-12)
    np.testing.assert_allclose(constant.diagonal(), jnp.diagonal(expected), atol=1e-12)


# Groups, and one unknown for each.

COUNT, LENGTH = 4, 20
BOTH = {
    "runs of one length": Groups(COUNT, length=LENGTH),
    "ids": Groups(COUNT, np.repeat(np.arange(COUNT), LENGTH)),
}


@pytest.mark.parametrize("groups", BOTH.values(), ids=BOTH)
@pytest.mark.usefixtures("x64")
def test_both_layouts_of_groups_sum_spread_and_square_alike(groups):
    X = rng.normal(size=(COUNT * LENGTH, p))  # more rows than are squared at once
    parts = X.reshape(COUNT, LENGTH, p)
    np.testing.assert_allclose(groups.sum(X), parts.sum(1), atol=1e-12)
    np.testing.assert_allclose(groups.sum(X[:, 0]), parts[..., 0].sum(1), atol=1e-12)
    S = rng.normal(size=(COUNT, 2))
    np.testing.assert_array_equal(groups.spread(S), np.repeat(S, LENGTH, 0))
    np.testing.assert_allclose(groups.grams(X), [x.T @ x for x in parts], atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_groups_of_uneven_size_sum_and_square_their_own_rows():
    ids = np.array([0] * 3 + [2] * 60 + [3] * 10)  # nothing in group 1
    groups, X = Groups(COUNT, ids), rng.normal(size=(len(ids), p))
    parts = [X[ids == e] for e in range(COUNT)]
    np.testing.assert_allclose(groups.sum(X), [x.sum(0) for x in parts], atol=1e-12)
    np.testing.assert_allclose(groups.grams(X), [x.T @ x for x in parts], atol=1e-12)


STEPS = np.array(list("..T.|.||"))
LAST, TERMINATED = np.isin(STEPS, ["T", "|"]), STEPS == "T"
REWARDS, S2 = Y[:, 0], np.array(0.3)
regress = in_float64(conditioning.regress)


def tails(padded: bool):
    """Rewards-to-go, what is unknown of them, and where the M steps went."""
    found = gptd.targets(REWARDS, LAST, TERMINATED, 0.9)
    if not padded:
        return found.y, Tails(found.tail, Groups(4, found.episode), np.ones(M, bool)), np.arange(M)
    lengths = np.bincount(found.episode)
    at = np.concatenate([5 * e + np.arange(length) for e, length in enumerate(lengths)])
    y, tail, taken = np.zeros(20), np.zeros(20), np.zeros(20, bool)
    y[at], tail[at], taken[at] = found.y, found.tail, True
    return y, Tails(tail, Groups(4, length=5), taken), at


@pytest.mark.parametrize("padded", [False, True], ids=["in a row", "padded"])
def test_regression_with_tails_is_the_literal_temporal_difference_model(padded):
    y, unknown, at = tails(padded)
    Psi = np.zeros((len(y), p))
    Psi[at] = PSI
    found = regress(Psi, y[:, None], S2, unknown)
    ends = LAST, TERMINATED, 0.9
    expected = oracle.gptd(PSI @ PSI.T, PSI @ V.T, V @ V.T, REWARDS, ends, float(S2))
    np.testing.assert_allclose((V @ found.weights)[:, 0], expected.mean, rtol=1e-9)
    P = found.factor @ found.factor.T
    covariance = V @ np.linalg.solve(P, V.T)
    np.testing.assert_allclose(covariance, expected.covariance, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.log_evidence, [expected.log_evidence], rtol=1e-9)


def test_both_forms_with_tails_are_the_literal_temporal_difference_model():
    y, unknown, _ = tails(padded=False)
    K, B, B0 = PSI @ PSI.T, V @ PSI.T, V @ V.T + REMAINDER
    H, _ = oracle.temporal_differences(LAST, TERMINATED, 0.9)
    C = H.T @ np.linalg.inv(H @ (K + S2 * np.eye(M)) @ H.T) @ H
    expected = oracle.gptd(K, B.T, B0, REWARDS, (LAST, TERMINATED, 0.9), float(S2))
    for at in (
        dual(K, B, B0, y[:, None], S2, unknown),
        weight_space(PSI, V, REMAINDER, y[:, None], S2, unknown),
    ):
        np.testing.assert_allclose(at.gain, B @ C, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(at.gain @ y, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(at.covariance, expected.covariance, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(at.alpha[:, 0], C @ y, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(at.diagonal, np.diag(C), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(at.freedom, S2 * np.trace(C), rtol=1e-9)
        np.testing.assert_allclose(at.log_evidence, [expected.log_evidence], rtol=1e-9)


def test_a_sum_that_rounding_made_indefinite_has_a_factor():
    """Features of states that lie close together, as of a pole that stands still."""
    rng = np.random.default_rng(0)
    X = 160 * (1 + 1e-4 * rng.normal(size=(2000, 30))).astype(np.float32)
    A = jnp.eye(30, dtype=jnp.float32) + jnp.asarray(X.T @ X)
    assert not np.isfinite(conditioning.cholesky(A)).all()
    L = np.asarray(conditioning.cholesky_of_sum(A), float)
    np.testing.assert_allclose(L @ L.T, A, rtol=1e-4)
