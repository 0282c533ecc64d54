"""The actor-critic's gradient: the printed equations in every form, and what it says of itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params
from oracle import assert_equal_trees

from bayespg import actor_critic, kernels
from bayespg._support.precision import in_float64, to_numpy
from bayespg._support.random import fast_key
from bayespg.actor_critic import gradient_posterior
from bayespg.algebra.conditioning import Groups
from bayespg.algebra.sparse import Rows
from bayespg.algebra.sparsification import Sparsify
from bayespg.environments import RandomWalk, ShipSteering, exact_gradient
from bayespg.fisher import Dense, LowRank, Sparse
from bayespg.fisher import actions_integrated_out as integrate
from bayespg.paths.rollout import rollout
from bayespg.paths.scores import of_steps
from bayespg.policies import Tabular, ship_steering_cmac
from bayespg.posterior import GradientPosterior, influences

INF, NAN = float("inf"), float("nan")
rows = in_float64(influences)
N, n, E, NOISE, SCALE = 12, 3, 5, 0.4, 0.3
rng = np.random.default_rng(0)
X, REWARDS = rng.normal(size=(N, 2)), rng.normal(size=N)
U, _, G = oracle.problem(N, n)
KERNEL, KX = kernels.Gaussian(1.0), np.exp(-0.5 * np.sum((X[:, None] - X[None]) ** 2, -1))
DROPS = Sparsify(0.4)
FORMS = {
    "dual": {"form": "dual"},
    "weight": {"form": "weight"},
    "matrix-free": {"form": "matrix-free"},
    "dictionary": {"sparsify": DROPS},
}
EXACT = [form for form in FORMS if form != "dictionary"]
multiply = in_float64(lambda covariance, V: covariance.multiply(V))


def ends(pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """last and terminated; T ends an episode in an absorbing state, | cuts it off."""
    steps = np.array(list(pattern))
    return np.isin(steps, ["T", "|"]), steps == "T"


PATTERNS = ["..T|T...|...", "T..T...T..TT", "|..|....|.||"]
"""A mix, the last one running; terminated; truncated. Five episodes each: few programs compile."""
MIX = ends(PATTERNS[0])
structures = st.tuples(
    st.permutations(range(N - 1)).map(lambda order: sorted(order[: E - 1])),
    st.lists(st.booleans(), min_size=E, max_size=E),
)


def structure(cuts, kinds) -> tuple[np.ndarray, np.ndarray]:
    at = [*cuts, N - 1]
    last, terminated = np.zeros(N, bool), np.zeros(N, bool)
    last[at], terminated[at] = True, kinds
    return last, terminated


def broken(array, at, value):
    copy = array.copy()
    copy[at] = value
    return copy


def posterior(last, terminated, *, states=X, scores=U, rewards=REWARDS, G=G, **kwargs):
    given = {"noise": NOISE, "fisher_scale": SCALE, "state_kernel": KERNEL, "discount": 0.9}
    given |= {"last": last, "terminated": terminated}
    return gradient_posterior(states, scores, rewards, G, **given | kwargs)


def written_out(found: GradientPosterior) -> np.ndarray:
    S = found.covariance
    return S if isinstance(S, np.ndarray) else multiply(S, np.eye(found.mean.size))


def assert_moments(found, expected: oracle.Moments, covariance=None, rtol=1e-7) -> None:
    S = written_out(found) if covariance is None else covariance
    np.testing.assert_allclose(found.mean, expected.mean, rtol=rtol, atol=1e-9)
    np.testing.assert_allclose(S, expected.covariance, rtol=rtol, atol=1e-9)
    if "evidence" in found.info:
        np.testing.assert_allclose(found.info["evidence"], expected.log_evidence, rtol=1e-9)


def printed(form, *ends, noise=NOISE, scale=SCALE, scores=U, fisher=G) -> oracle.Moments:
    given = KX, scores, fisher, REWARDS, ends, noise, scale
    if form == "dictionary":
        return oracle.sparse_actor_critic(*given, DROPS.threshold)
    return oracle.actor_critic(*given)


# Propositions 6 and 7.


@functools.cache
def eager(form: str) -> GradientPosterior:
    return posterior(*MIX, **FORMS[form])


@pytest.mark.slow("weight", "matrix-free")
@pytest.mark.parametrize("form", FORMS)
def test_the_posterior_and_its_evidence_are_the_printed_ones(form):
    assert_moments(eager(form), printed(form, *MIX, 0.9))


CASES = [(*ends(pattern), c) for pattern in PATTERNS for c in (SCALE, 0.01)]
DISCOUNTS = [0.0, 0.9, 1.0]


@functools.cache
def every_answer():
    """Of every form at every discount on every case, jitted and vmapped: one program."""

    def run(discount, last, terminated, c):
        given = {"fisher_scale": c, "discount": discount, "episodes": E}
        found = {f: posterior(last, terminated, **given, **kw) for f, kw in FORMS.items()}
        return found, found["matrix-free"].covariance.multiply(jnp.eye(n))

    over_cases = jax.vmap(run, in_axes=(None, 0, 0, 0))
    over_all = jax.vmap(over_cases, in_axes=(0, None, None, None))
    cases = map(np.array, zip(*CASES, strict=True))
    with jax.enable_x64(True):
        return to_numpy(jax.jit(over_all)(np.array(DISCOUNTS), *cases))


def every_form(discount: float):
    """On every case."""
    i = DISCOUNTS.index(discount)
    return jax.tree.map(lambda leaf: leaf[i], every_answer())


@pytest.mark.slow
@pytest.mark.parametrize("discount", DISCOUNTS)
@pytest.mark.parametrize("form", FORMS)
def test_vmapped_they_are_the_printed_ones_for_all_episodes_scales_and_discounts(form, discount):
    found, products = every_form(discount)
    for i, (last, terminated, c) in enumerate(CASES):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], found[form])
        expected = printed(form, last, terminated, discount, scale=c)
        assert_moments(one, expected, products[i] if form == "matrix-free" else None)


def test_the_dictionary_of_these_tests_really_drops_pairs():
    for c in (0.01, SCALE):
        members, _ = oracle.dictionary(KX + c * oracle.fisher_kernel(U, G), DROPS.threshold)
        assert 1 < len(members) < N
    assert eager("dictionary").info["dictionary_size"] < N


def test_a_threshold_of_zero_is_the_exact_answer():
    found, exact = posterior(*MIX, sparsify=Sparsify(0.0)), eager("dual")
    assert_moments(found, printed("dual", *MIX, 0.9))
    for field in ("influence", "explained", "freedom"):
        np.testing.assert_allclose(getattr(found, field), getattr(exact, field), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_jit_and_vmap_equal_the_eager_answer(form):
    found = jax.tree.map(lambda leaf: leaf[0], every_form(0.9)[0][form])
    assert_equal_trees(found, eager(form), rtol=1e-6)


def test_forms_agree_on_what_is_explained_and_left():
    dual, weight = eager("dual"), eager("weight")
    assert weight.explained == pytest.approx(float(dual.explained))
    assert weight.freedom == pytest.approx(float(dual.freedom))
    C = np.linalg.solve(SCALE * G, SCALE * G - dual.covariance)
    assert dual.explained == pytest.approx(np.trace(C) / n)
    for found in (dual, weight):
        assert float(found.info["known"]) == pytest.approx(np.trace(C))


def test_the_natural_gradient_is_the_inverse_fisher_matrix_times_the_mean():
    for form in FORMS:
        np.testing.assert_allclose(G @ eager(form).natural, eager(form).mean, rtol=1e-8)


def test_the_scale_of_the_fisher_kernel_is_not_another_noise():
    """B = c U: as c vanishes so does the gradient, whatever the noise."""
    small = posterior(*MIX, form="dual", fisher_scale=0.01)
    for noise in (NOISE, NOISE / 0.01):
        assert not np.allclose(small.mean, posterior(*MIX, form="dual", noise=noise).mean, rtol=0.1)
    vanishing = posterior(*MIX, form="dual", fisher_scale=1e-9)
    np.testing.assert_allclose(vanishing.mean, 0, atol=1e-7)
    np.testing.assert_allclose(vanishing.covariance, 1e-9 * G, rtol=1e-6)


def test_more_episodes_than_there_are_change_nothing_inside_jit():
    with jax.enable_x64(True):
        found = jax.jit(lambda *ends: posterior(*ends, form="weight", episodes=E + 2))(*MIX)
    exact = eager("weight")
    np.testing.assert_allclose(found.mean, exact.mean, rtol=1e-9)
    np.testing.assert_allclose(found.influence[:E], exact.influence, atol=1e-12)
    np.testing.assert_array_equal(found.influence[E:], 0)
    assert found.freedom == pytest.approx(float(exact.freedom))


def test_inside_jit_the_number_of_episodes_must_be_given():
    with pytest.raises(ValueError, match=r"^episodes: "):
        jax.jit(lambda *ends: posterior(*ends))(*MIX)


# Leaving one episode out.


def refits(K, B, B0):
    """Row e: the mean less that without episode e."""
    last, terminated = MIX
    last = last.copy()
    last[-1] = True

    def mean(kept):
        given = REWARDS[kept], (last[kept], terminated[kept], 0.9), NOISE
        return oracle.gptd(K[np.ix_(kept, kept)], B[kept], B0, *given).mean

    whole = mean(np.arange(N))
    episode = oracle.episodes(last)
    return np.array([whole - mean(np.flatnonzero(episode != e)) for e in range(E)])


@pytest.mark.parametrize("form", ["dual", "weight"])
def test_influence_equals_refitting_without_each_episode(form):
    expected = refits(KX + SCALE * oracle.fisher_kernel(U, G), SCALE * U, SCALE * G)
    np.testing.assert_allclose(eager(form).influence, expected, atol=1e-9)
    np.testing.assert_allclose(expected[1], 0, atol=1e-12)  # one truncated pair says nothing


def test_a_sparse_influence_equals_refitting_with_the_same_dictionary():
    K = KX + SCALE * oracle.fisher_kernel(U, G)
    members, A = oracle.dictionary(K, DROPS.threshold)
    expected = refits(A @ K[np.ix_(members, members)] @ A.T, SCALE * A @ U[members], SCALE * G)
    np.testing.assert_allclose(eager("dictionary").influence, expected, atol=1e-9)


def test_the_matrix_free_influence_is_that_of_an_episode_that_matters_little():
    matrix_free, exact = (posterior(*MIX, form=f, noise=1e4) for f in ("matrix-free", "dual"))
    size = np.abs(exact.influence).max()
    np.testing.assert_allclose(rows(matrix_free), rows(exact), atol=1e-3 * size)


def test_a_fisher_matrix_averaged_over_the_same_episodes_loses_the_episode_too():
    """The gradient is G w: without episode e, w of the refit and G averaged over the others."""
    episode = oracle.episodes(MIX[0])
    factors = np.zeros((E, N, n))
    factors[episode, np.arange(N)] = U
    average = U.T @ U / E
    with jax.enable_x64(True):
        found = posterior(*MIX, form="weight", G=Dense(jnp.asarray(average), jnp.asarray(factors)))
    plain = posterior(*MIX, form="weight", G=average)
    for e in range(E):
        w = np.linalg.solve(average, plain.mean - plain.influence[e])
        without = (E * average - factors[e].T @ factors[e]) / (E - 1)
        np.testing.assert_allclose(found.influence[e], found.mean - without @ w, atol=1e-8)


# Between noise on the returns and noise on the rewards.

LAMBDAS = [0.0, 0.3, 0.8, 1.0]


def literal(lambda_, *ends, discount=0.9) -> oracle.Moments:
    given = KX, U, G, REWARDS, (*ends, discount), NOISE, SCALE
    return oracle.traced_actor_critic(*given, lambda_)


def test_the_literal_model_is_the_papers_at_one_and_has_white_noise_on_rewards_at_zero():
    for pattern in PATTERNS:
        one, printed_ = literal(1.0, *ends(pattern)), printed("dual", *ends(pattern), 0.9)
        for a, b in zip(one, printed_, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)
        H, used = oracle.temporal_differences(*ends(pattern), 0.9)
        K = H @ KX @ H.T + SCALE * oracle.fisher_kernel(U[used], G)
        given = SCALE * U[used].T, SCALE * G, REWARDS[used], NOISE * np.eye(len(used))
        for a, b in zip(literal(0.0, *ends(pattern)), oracle.condition(K, *given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


def test_the_literal_model_is_a_regression_of_discounted_sums_where_episodes_terminate():
    """Rewards and residuals of V summed with weights (gamma lambda)^l, and white noise."""
    last, terminated = ends(PATTERNS[1])
    episode, discount, lambda_ = oracle.episodes(last), 0.9, 0.7
    y, D = np.zeros(N), np.zeros((N, N))
    for t in range(N):
        for k in range(t, N):
            if episode[k] == episode[t]:
                weight = (discount * lambda_) ** (k - t)
                y[t] += weight * REWARDS[k]
                D[t, k] += weight
                if not last[k]:
                    D[t, k + 1] -= discount * weight
    K = D @ KX @ D.T + SCALE * oracle.fisher_kernel(U, G)
    summed = oracle.condition(K, SCALE * U.T, SCALE * G, y, NOISE * np.eye(N))
    for a, b in zip(summed, literal(lambda_, last, terminated), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@functools.cache
def at_every_lambda():
    """Of every exact form at every lambda, a lambdad number, on every pattern: one program."""

    def run(lambda_, last, terminated):
        given = {"lambda_": lambda_, "episodes": E}
        found = {f: posterior(last, terminated, **given, **FORMS[f]) for f in EXACT}
        return found, found["matrix-free"].covariance.multiply(jnp.eye(n))

    over_patterns = jax.vmap(run, in_axes=(None, 0, 0))
    with jax.enable_x64(True):
        found = jax.jit(jax.vmap(over_patterns, in_axes=(0, None, None)))(
            np.array(LAMBDAS), *map(np.array, zip(*map(ends, PATTERNS), strict=True))
        )
        return to_numpy(found)


@pytest.mark.parametrize("lambda_", LAMBDAS)
@pytest.mark.parametrize("form", EXACT)
def test_every_lambda_is_the_model_written_out(form, lambda_):
    found, products = at_every_lambda()
    for j, pattern in enumerate(PATTERNS):
        at = LAMBDAS.index(lambda_), j
        one = jax.tree.map(lambda leaf, at=at: leaf[at], found[form])
        S = products[at] if form == "matrix-free" else None
        assert_moments(one, literal(lambda_, *ends(pattern)), S)
        used = oracle.temporal_differences(*ends(pattern), 0.9)[1]
        assert one.info["observations"] == len(used)


@functools.cache
def with_lambda(form: str, lambda_: float) -> GradientPosterior:
    return posterior(*MIX, form=form, lambda_=lambda_)


@pytest.mark.slow("dual-0.0", "dual-0.8", "weight-0.0")
@pytest.mark.parametrize("lambda_", [0.0, 0.8])
@pytest.mark.parametrize("form", ["dual", "weight"])
def test_a_lambda_on_plain_arrays_is_the_traced_one(form, lambda_):
    traced = jax.tree.map(lambda leaf: leaf[LAMBDAS.index(lambda_), 0], at_every_lambda()[0][form])
    assert_equal_trees(traced, with_lambda(form, lambda_), rtol=1e-6)


@pytest.mark.parametrize("form", ["dual", "weight"])
def test_at_a_trace_of_one_a_number_and_an_array_have_the_same_answer(form):
    traced = jax.tree.map(lambda leaf: leaf[LAMBDAS.index(1.0), 0], at_every_lambda()[0][form])
    for field in ("mean", "covariance", "influence", "explained", "freedom"):
        found, expected = getattr(traced, field), getattr(eager(form), field)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


def test_episodes_side_by_side_are_those_one_after_the_other():
    """With padding after the end, and whatever stands there."""
    lengths, longest = [3, 5, 1, 4], 5
    taken = np.arange(longest) < np.array(lengths)[:, None]
    last = np.arange(longest) == np.array(lengths)[:, None] - 1
    terminated = last & np.array([True, False, True, False])[:, None]
    Psi, rewards = rng.normal(size=(4, longest, 2)), rng.normal(size=(4, longest))

    def see(lambda_, kept, groups, taken):
        arrays = (x[kept] for x in (Psi, Psi, rewards, last, terminated))
        found = actor_critic.layout(*arrays, taken, 0.9, groups, lambda_)
        return found.y, found.see(Psi[kept])

    every, alone = np.ones_like(taken), np.ones(taken.sum(), bool)
    ids = jnp.asarray(np.repeat(np.arange(4), lengths))
    with jax.enable_x64(True):
        both = jax.jit(
            lambda lambda_: (
                see(lambda_, every, Groups(4, length=longest), taken.reshape(-1)),
                see(lambda_, taken, Groups(4, ids), alone),
            )
        )
        (y, S), (y_alone, S_alone) = both(0.7)
    np.testing.assert_allclose(y[taken.reshape(-1)], y_alone)
    np.testing.assert_allclose(S[taken.reshape(-1)], S_alone)
    np.testing.assert_array_equal(S[~taken.reshape(-1)], 0)


@pytest.mark.slow("dual-0.0", "dual-0.8", "weight-0.0")
@pytest.mark.parametrize("lambda_", [0.0, 0.8])
@pytest.mark.parametrize("form", ["dual", "weight"])
def test_with_any_lambda_influence_equals_refitting(form, lambda_):
    episode, found = oracle.episodes(MIX[0]), with_lambda(form, lambda_)
    last = broken(MIX[0], -1, True)
    for e in range(E):
        kept = np.flatnonzero(episode != e)
        given = KX[np.ix_(kept, kept)], U[kept], G, REWARDS[kept]
        ends = last[kept], MIX[1][kept], 0.9
        refit = oracle.traced_actor_critic(*given, ends, NOISE, SCALE, lambda_)
        np.testing.assert_allclose(found.influence[e], found.mean - refit.mean, atol=1e-9)


@pytest.mark.slow
def test_one_episode_and_episodes_of_one_step_are_answered():
    one, single, never = np.arange(N) == N - 1, np.ones(N, bool), np.zeros(N, bool)
    for ends in ((one, one), (one, never), (single, single)):
        found, expected = posterior(*ends, lambda_=0.8, form="dual"), literal(0.8, *ends)
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-9)
        np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-9)
    nothing = posterior(single, never, lambda_=0.8, form="dual")
    np.testing.assert_allclose(nothing.mean, 0, atol=1e-12)
    np.testing.assert_allclose(nothing.covariance, SCALE * G, rtol=1e-9)


def walk(M: int = 20):
    """Steps of a walk without noise on rewards, one after the other."""
    environment, policy = RandomWalk(reward_noise=0.0, horizon=60), Tabular(np.linspace(-0.3, 1, 9))

    @jax.jit
    def draw(key):
        paths = rollout(environment, policy, key, M)
        exact = environment.step_fisher(policy), exact_gradient(environment, policy)
        return paths, of_steps(policy, paths), *exact

    with jax.enable_x64(True):
        paths, scores, G, truth = draw(fast_key(0))
    taken = np.asarray(paths.mask).T
    last = np.arange(taken.shape[1]) == np.asarray(paths.lengths)[:, None] - 1

    def flat(x):
        return np.swapaxes(np.asarray(x), 0, 1)[taken]

    given = {
        "states": flat(paths.states),
        "scores": flat(scores),
        "rewards": flat(paths.rewards),
        "last": last[taken],
        "terminated": (last & np.asarray(paths.terminated)[:, None])[taken],
        "discount": 0.99,
    }
    return given, np.asarray(G), np.asarray(truth)


@pytest.mark.slow
def test_where_transitions_are_deterministic_noise_on_the_rewards_finds_the_exact_gradient():
    """Tables of V and of advantages hold the truth, and nothing but the prior stands in the way."""
    given, G, truth = walk()
    assert not given["terminated"].all()
    table = kernels.Scaled(kernels.Gaussian(0.1), 1e6)
    options = {"state_kernel": table, "noise": 1e-4, "fisher_scale": 1e6}
    found = gradient_posterior(fisher=G, **given, **options, lambda_=0.0)
    np.testing.assert_allclose(found.mean, truth, rtol=1e-3, atol=1e-3)


# Sparse scores.

SIZE, DAMPING = 7, 0.2
INDICES = np.array([rng.choice(SIZE, 2, replace=False) for _ in range(N)])
ROWS = Rows(INDICES, rng.normal(size=(N, 2)), SIZE)
SPARSE_FISHER = Sparse(Rows(INDICES, rng.normal(size=(N, 2)), SIZE), DAMPING)


def dense_rows(rows: Rows) -> np.ndarray:
    found = np.zeros((N, SIZE))
    for i in range(N):
        found[i, rows.indices[i]] = rows.values[i]
    return found


def of_rows(form: str, **kwargs) -> GradientPosterior:
    options = {} if form == "auto" else FORMS[form]
    return posterior(*MIX, scores=ROWS, G=SPARSE_FISHER, **options | kwargs)


@pytest.mark.slow("dual", "dictionary")
@pytest.mark.parametrize("form", ["auto", "dual", "dictionary"])
def test_sparse_scores_give_the_dense_answer(form):
    R = dense_rows(SPARSE_FISHER.rows)
    fisher = R.T @ R + DAMPING * np.eye(SIZE)
    expected = printed(form, *MIX, 0.9, scores=dense_rows(ROWS), fisher=fisher)
    assert_moments(of_rows(form), expected, rtol=1e-6)


def test_sparse_scores_are_left_out_as_dense_ones_are():
    matrix_free, exact = (of_rows(form, noise=1e4) for form in ("auto", "dual"))
    size = np.abs(exact.influence).max()
    np.testing.assert_allclose(rows(matrix_free), rows(exact), atol=1e-3 * size)


@pytest.mark.slow
def test_draws_of_the_matrix_free_posterior_have_its_covariance():
    found = of_rows("auto")
    draw = in_float64(lambda S: (S.sample(jax.random.key(1), 2000), S.diagonal()))
    samples, diagonal = draw(found.covariance)
    assert oracle.standard_errors(samples, np.zeros(SIZE), written_out(found)) < 4.5
    variances = np.diag(written_out(found))
    assert np.all(np.abs(diagonal - variances) < 5 * variances * np.sqrt(2 / 64))


def sizes(program) -> list[int]:
    """Of all arrays that a program makes, loops included."""
    found = [int(np.prod(v.aval.shape)) for equation in program.eqns for v in equation.outvars]
    for equation in program.eqns:
        for inner in jaxprs_in_params(equation.params):
            found += sizes(inner)
    return found


@functools.cache
def ship(M: int = 2, T: int = 40):
    """Two short voyages with rewards made up."""
    policy = ship_steering_cmac()
    environment = ShipSteering(horizon=T)

    @jax.jit
    def draw(key):
        paths = rollout(environment, policy, key, M)
        states = environment.unit(paths.states)
        return paths.mask, states, of_steps(policy, paths), integrate(policy, paths, 0.99)

    mask, states, scores, fisher = to_numpy(draw(fast_key(0)))
    assert mask.all()

    def flat(x):
        return np.swapaxes(x, 0, 1).reshape(M * T, *x.shape[2:])

    last = np.arange(M * T) % T == T - 1
    ends = {"last": last, "terminated": last & (np.arange(M * T) < T), "discount": 0.99}
    rewards = np.random.default_rng(1).normal(size=M * T)
    return flat(states), jax.tree.map(flat, scores), rewards, fisher, ends


@pytest.mark.slow
def test_40500_parameters_have_a_posterior():
    *arrays, given = ship()
    found = gradient_posterior(*arrays, **given, state_kernel=KERNEL)
    assert found.mean.shape == (40_500,)
    assert np.isfinite(found.mean).all()
    assert np.abs(found.mean).max() > 0
    assert np.isfinite(rows(found)).all()

    def ask(covariance):
        draw = covariance.sample(jax.random.key(0), 1)[0]
        return draw, covariance.multiply(draw)

    draw, product = in_float64(ask)(found.covariance)
    assert np.isfinite(draw).all()
    assert draw @ product > 0


def test_40500_parameters_make_no_array_of_steps_times_parameters():
    *arrays, given = ship()
    ends = given["last"], given["terminated"]

    def mean(states, scores, rewards, fisher, last, terminated):
        given = {"discount": 0.99, "state_kernel": KERNEL, "episodes": 2}
        return gradient_posterior(
            states, scores, rewards, fisher, last=last, terminated=terminated, **given
        ).mean

    program = jax.make_jaxpr(mean)(*arrays, *ends)
    assert len(sizes(program.jaxpr)) > 100
    assert max(sizes(program.jaxpr)) <= 2 * 40_500  # the influence of two episodes


@pytest.mark.slow
def test_a_dictionary_with_many_parameters_leaves_the_covariance_an_operator(monkeypatch):
    for module in (actor_critic, actor_critic.forms):
        monkeypatch.setattr(module, "LARGE", 100)
    size = actor_critic.LARGE + 2
    low, scores = rng.normal(size=(2, size)), rng.normal(size=(N, size))
    with jax.enable_x64(True):
        fisher = LowRank(low, np.ones(size))
    found = posterior(*MIX, scores=scores, G=fisher, sparsify=Sparsify(0.0))
    matrix = low.T @ low + np.eye(size)
    expected = printed("dual", *MIX, 0.9, scores=scores, fisher=matrix)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6, atol=1e-9)
    V = rng.normal(size=(2, size))
    products, diagonal = in_float64(lambda S: (S.multiply(V), S.diagonal()))(found.covariance)
    np.testing.assert_allclose(products, V @ expected.covariance, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(diagonal, np.diag(expected.covariance), rtol=1e-6, atol=1e-7)
    draws = found.sample(jax.random.key(0), 4_000) - found.mean
    seen = np.concatenate([V, scores])
    L = np.linalg.cholesky(seen @ expected.covariance @ seen.T)
    white = np.linalg.solve(L, seen @ draws.T)
    np.testing.assert_allclose(white @ white.T / 4_000, np.eye(2 + N), atol=0.1)


# Invariants.

seeds = st.integers(0, 10_000)


@given(structures, seeds, st.floats(1e-3, 10), st.floats(1e-2, 10))
def test_dual_is_the_printed_answer_whatever_the_episodes(structured, seed, noise, c):
    ends = structure(*structured)
    scores, _, fisher = oracle.problem(N, n, seed)
    given = {"noise": noise, "scale": c, "scores": scores, "fisher": fisher}
    found = posterior(
        *ends, scores=scores, G=fisher, noise=noise, fisher_scale=c, discount=0.9, form="dual"
    )
    expected = printed("dual", *ends, 0.9, **given)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-6, atol=1e-8)


@given(structures, st.sampled_from(("dual", "weight", "dictionary")), st.floats(1e-3, 10))
def test_the_covariance_is_positive_and_at_most_the_prior(structured, form, noise):
    found = posterior(*structure(*structured), noise=noise, **FORMS[form])
    tolerance = 1e-9 * np.trace(G)
    assert np.linalg.eigvalsh(found.covariance)[0] >= -tolerance
    assert np.linalg.eigvalsh(SCALE * G - found.covariance)[0] >= -tolerance
    assert -1e-9 <= found.explained <= 1


@given(structures, st.lists(st.floats(-3, 3), min_size=n * n, max_size=n * n))
def test_reparameterisation_transforms_the_gradient_as_it_should(structured, entries):
    A = np.reshape(entries, (n, n))
    assume(abs(np.linalg.det(A)) > 0.1)
    ends = structure(*structured)
    plain = posterior(*ends, form="dual")
    turned = posterior(*ends, form="dual", scores=U @ A, G=A.T @ G @ A)
    scale = max(np.abs(plain.mean).max(), 1e-3)
    np.testing.assert_allclose(turned.mean, A.T @ plain.mean, atol=1e-6 * scale)
    np.testing.assert_allclose(turned.covariance, A.T @ plain.covariance @ A, atol=1e-7)


@given(seeds, st.floats(-100, 100), st.sampled_from(EXACT))
def test_the_mean_is_linear_in_the_rewards(seed, factor, form):
    rewards = np.random.default_rng(seed).normal(size=N)
    found, unit = (posterior(*MIX, rewards=r, form=form) for r in (factor * rewards, rewards))
    np.testing.assert_allclose(found.mean, factor * unit.mean, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_rewards_of_zero_have_no_gradient(form):
    found = posterior(*MIX, rewards=np.zeros(N), **FORMS[form])
    np.testing.assert_array_equal(found.mean, 0)
    np.testing.assert_array_equal(rows(found), 0)


@pytest.mark.parametrize("form", FORMS)
def test_a_fisher_matrix_without_full_rank_is_answered(form):
    """Scores of a softmax over three actions: their sum is zero."""
    p = np.array([0.2, 0.3, 0.5])
    scores = np.eye(3)[rng.integers(0, 3, N)] - p
    singular = np.diag(p) - np.outer(p, p)
    found = posterior(*MIX, scores=scores, G=singular, **FORMS[form])
    basis = np.linalg.svd(np.ones((1, 3)))[2][1:]  # two coordinates in which G has full rank
    reduced = printed(form, *MIX, 0.9, scores=scores @ basis.T, fisher=basis @ singular @ basis.T)
    np.testing.assert_allclose(found.mean, basis.T @ reduced.mean, rtol=1e-6, atol=1e-9)
    expected = basis.T @ reduced.covariance @ basis
    np.testing.assert_allclose(written_out(found), expected, atol=1e-8)
    assert np.isfinite(found.natural).all()
    np.testing.assert_allclose(found.mean.sum(), 0, atol=1e-8)


def test_all_episodes_of_one_truncated_pair_leave_the_prior():
    alone = np.ones(N, bool), np.zeros(N, bool)
    found = posterior(*alone, form="dual")
    np.testing.assert_allclose(found.mean, 0, atol=1e-12)
    np.testing.assert_allclose(found.covariance, SCALE * G, rtol=1e-9)
    assert found.info["observations"] == 0


# What it says of itself.


@pytest.mark.parametrize("form", FORMS)
def test_observations_are_the_rewards_used(form):
    for pattern in PATTERNS:
        used = oracle.temporal_differences(*ends(pattern), 0.9)[1]
        assert posterior(*ends(pattern), **FORMS[form]).info["observations"] == len(used)


def test_features_of_the_state_kernel_are_reported():
    for form in ("weight", "matrix-free"):
        info = eager(form).info
        assert info["state_rank"] <= N
        assert info["state_residual"] <= actor_critic.EXACT
    assert "state_rank" not in eager("dual").info


def test_a_dictionary_says_what_it_dropped():
    info = eager("dictionary").info
    assert info["dictionary_refused"] == 0
    assert 0 < info["dictionary_residual"] <= DROPS.threshold


def test_a_full_dictionary_says_so():
    small = Sparsify(DROPS.threshold, capacity=3)
    found = posterior(*MIX, sparsify=small)
    assert found.info["dictionary_size"] == 3
    assert found.info["dictionary_refused"] > 0
    assert found.info["dictionary_residual"] > small.threshold
    given = KX, U, G, REWARDS, (*MIX, 0.9), NOISE, SCALE, small.threshold, small.capacity
    assert_moments(found, oracle.sparse_actor_critic(*given))


# Mistakes.


ALONE = broken(np.zeros(N, bool), 1, True)
MISTAKES = {
    "NaN reward": ("rewards", {"rewards": broken(REWARDS, 2, NAN)}),
    "NaN score": ("scores", {"scores": broken(U, (2, 1), NAN)}),
    "NaN state": ("states", {"states": broken(X, (2, 1), INF)}),
    "too few rewards": ("last", {"rewards": REWARDS[:-1]}),
    "no rewards": ("rewards", {"rewards": REWARDS[:0]}),
    "too few scores": ("scores", {"scores": U[:-1]}),
    "scores without a parameter": ("scores", {"scores": U[:, :0]}),
    "too few states": ("states", {"states": X[:-1]}),
    "last of another length": ("last", {"last": MIX[0][:-1]}),
    "last in numbers": ("last", {"last": MIX[0].astype(int)}),
    "terminated of another length": ("terminated", {"terminated": MIX[1][:-1]}),
    "terminated without last": ("terminated", {"terminated": ALONE}),
    "discount above 1": ("discount", {"discount": 1.1}),
    "discount below 0": ("discount", {"discount": -0.1}),
    "discount NaN": ("discount", {"discount": NAN}),
    "no noise": ("noise", {"noise": 0.0}),
    "negative noise": ("noise", {"noise": -1.0}),
    "noise of each step": ("noise", {"noise": np.ones(N)}),
    "no scale": ("fisher_scale", {"fisher_scale": 0.0}),
    "negative scale": ("fisher_scale", {"fisher_scale": -1.0}),
    "unknown form": ("form", {"form": "primal"}),
    "lambda above 1": ("lambda_", {"lambda_": 1.1}),
    "lambda below 0": ("lambda_", {"lambda_": -0.1}),
    "lambda NaN": ("lambda_", {"lambda_": NAN}),
    "a lambda for each step": ("lambda_", {"lambda_": np.full(N, 0.9)}),
    "a function for a kernel": ("state_kernel", {"state_kernel": lambda x, y: 1.0}),
    "a number for a dictionary": ("sparsify", {"sparsify": 0.1}),
    "a dictionary and a lambda of 0": ("sparsify", {"sparsify": DROPS, "lambda_": 0.0}),
    "a dictionary and a lambda below 1": ("sparsify", {"sparsify": DROPS, "lambda_": 0.9}),
    "fisher of another size": ("fisher", {"G": np.eye(n + 1)}),
    "a fisher object of another size": ("fisher", {"G": Dense(jnp.eye(n + 1))}),
    "fisher without information on the scores": ("fisher", {"G": np.diag([1.0, 1.0, 0.0])}),
    "an index beyond the parameters": (
        "scores",
        {"scores": Rows(INDICES, ROWS.values, int(INDICES.max())), "G": SPARSE_FISHER},
    ),
    "a negative index": (
        "scores",
        {"scores": Rows(broken(INDICES, (0, 0), -1), ROWS.values, SIZE), "G": SPARSE_FISHER},
    ),
    "NaN in a sparse row": (
        "scores",
        {"scores": Rows(INDICES, broken(ROWS.values, (1, 1), NAN), SIZE), "G": SPARSE_FISHER},
    ),
    "too few sparse rows": (
        "scores",
        {"scores": Rows(INDICES[1:], ROWS.values[1:], SIZE), "G": SPARSE_FISHER},
    ),
    "fisher of another size for sparse rows": (
        "fisher",
        {"scores": Rows(INDICES, ROWS.values, SIZE + 1), "G": SPARSE_FISHER},
    ),
}


@pytest.mark.parametrize("former", ["trace", "smoothing"])
def test_a_former_name_of_lambda_is_refused_with_the_new_one(former):
    with pytest.raises(ValueError, match=rf"^`{former}` was renamed; use lambda_=\.\.\.$"):
        posterior(*MIX, **{former: 0.9})


@pytest.mark.parametrize(("name", "given"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named(name, given):
    ends = {"last": MIX[0], "terminated": MIX[1]}
    with pytest.raises(ValueError, match=rf"^{name}: "):
        posterior(**ends | given)


def test_a_state_kernel_without_low_rank_asks_for_a_dictionary(monkeypatch):
    monkeypatch.setattr(actor_critic, "MOST", 64)
    many = 3000
    given = {
        "states": rng.normal(size=(many, 5)),
        "scores": rng.normal(size=(many, n)),
        "rewards": rng.normal(size=many),
        "state_kernel": kernels.Gaussian(1e-3),
    }
    last = np.arange(many) % 10 == 9
    with pytest.raises(ValueError, match=r"^state_kernel: .* no low rank .* sparsify"):
        posterior(last, last, **given)


def test_lists_are_accepted():
    last, terminated = (list(map(bool, flag)) for flag in MIX)
    found = posterior(
        last,
        terminated,
        states=X.tolist(),
        scores=U.tolist(),
        rewards=REWARDS.tolist(),
        form="dual",
    )
    np.testing.assert_allclose(found.mean, eager("dual").mean, rtol=1e-12)


def test_below_trace_1_returns_judge_the_mean():
    """With so much noise that no values are fitted, what remains are the returns-to-go."""
    last, terminated = ends(PATTERNS[1])
    found = posterior(last, terminated, lambda_=0.5, noise=1e12)
    assert posterior(last, terminated, lambda_=1.0, noise=1e12).unbiased is None
    expected = []
    for rows in np.split(np.arange(N), np.flatnonzero(last)[:-1] + 1):
        r, u = REWARDS[rows], U[rows]
        togo = [sum(0.9**k * r[t + k] for k in range(len(r) - t)) for t in range(len(r))]
        expected.append(sum(0.9**t * u[t] * togo[t] for t in range(len(r))))
    np.testing.assert_allclose(1e12 * found.unbiased, expected, rtol=1e-6)
    sparse_scores = gradient_posterior(
        X, ROWS, REWARDS, SPARSE_FISHER, last=last, terminated=terminated, discount=0.9,
        state_kernel=KERNEL, lambda_=0.5,
    )  # fmt: skip
    assert sparse_scores.unbiased.shape == (len(expected), SIZE)


@pytest.mark.slow("dual")
@pytest.mark.parametrize("form", ["dual", "weight"])
def test_a_prior_of_the_gradient_is_updated_by_bayes_rule(form):
    """Against a joint Gaussian of the gradient and of the returns-to-go of terminated episodes."""
    last, terminated = ends("T..T...T..TT")
    A = rng.normal(size=(n, n))
    m, S, discount = np.arange(n) - 1.0, A @ A.T + 0.5 * np.eye(n), 0.9
    found = gradient_posterior(
        X, U, REWARDS, G, last=last, terminated=terminated, discount=discount,
        state_kernel=KERNEL, noise=NOISE, form=form, prior_mean=m, prior_covariance=S,
    )  # fmt: skip
    y = np.zeros(N)
    for t in reversed(range(N)):
        y[t] = REWARDS[t] + (0.0 if last[t] else discount * y[t + 1])
    W = np.linalg.inv(G)
    cross = S @ W @ U.T
    gain = np.linalg.solve(KX + NOISE * np.eye(N) + U @ W @ cross, cross.T).T
    np.testing.assert_allclose(found.mean, m + gain @ (y - U @ W @ m), rtol=1e-6)
    np.testing.assert_allclose(found.covariance, S - gain @ cross.T, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.natural, W @ found.mean, rtol=1e-6)


def test_a_prior_of_the_gradient_needs_a_given_noise():
    last, terminated = MIX
    with pytest.raises(ValueError, match=r"^prior_mean, prior_covariance: are for plain arrays"):
        gradient_posterior(
            X, U, REWARDS, G, last=last, terminated=terminated, discount=0.9,
            state_kernel=KERNEL, noise=None, prior_mean=np.zeros(n),
        )  # fmt: skip
