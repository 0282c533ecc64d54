import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from bayespg import conditioning
from bayespg.precision import in_float64

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
    constant = conditioning.Constant(o, jnp.asarray(variance))
    Q2 = constant.remove(constant.remove(jnp.eye(M)))
    flat = jnp.eye(M) - jnp.outer(o, o) / (o @ o)
    expected = (
        flat if np.isinf(variance) else jnp.linalg.inv(jnp.eye(M) + variance * jnp.outer(o, o))
    )
    np.testing.assert_allclose(Q2, expected, atol=1e-12)
    np.testing.assert_allclose(constant.diagonal(), jnp.diagonal(expected), atol=1e-12)
