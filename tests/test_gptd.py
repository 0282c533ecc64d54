from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayespg import gptd, kernels
from bayespg.algebra.sparsification import Sparsify
from bayespg.fisher import Dense

INF, NAN = float("inf"), float("nan")
N, NOISE, THRESHOLD = 8, 0.3, 0.3
rng = np.random.default_rng(0)
Z, QUERY, REWARDS = rng.normal(size=(N, 2)), rng.normal(size=(5, 2)), rng.normal(size=N)
KERNEL = kernels.Scaled(kernels.Gaussian(1.0), 2.0)


def printed_kernel(X, Y):
    return 2 * np.exp(-0.5 * np.sum((X[:, None] - Y[None]) ** 2, -1))


MATRICES = printed_kernel(Z, Z), printed_kernel(Z, QUERY), printed_kernel(QUERY, QUERY)


def ends(pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """last and terminated; T ends an episode in an absorbing state, | cuts it off."""
    steps = np.array(list(pattern))
    return np.isin(steps, ["T", "|"]), steps == "T"


PATTERNS = {
    "one terminated episode": ".......T",
    "one truncated episode": ".......|",
    "an episode still running": "........",
    "several terminated": "..T...TT",
    "several truncated": "..|...||",
    "a mix, the last one running": "..T||.T.",
    "steps all alone": "T|TT||T|",
}
DISCOUNTS = [0.0, 0.9, 1.0]
structures = st.tuples(
    st.text("..T|", min_size=N, max_size=N).map(ends), st.sampled_from((0.0, 0.5, 1.0))
)


def critic(last, terminated, discount, **kwargs) -> gptd.Critic:
    given = {"noise": NOISE, "last": last, "terminated": terminated, "discount": discount}
    return gptd.posterior(KERNEL, Z, REWARDS, **given | kwargs)


def assert_same(found: gptd.Critic, expected: oracle.Moments) -> None:
    np.testing.assert_allclose(found.mean(QUERY), expected.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.covariance(QUERY), expected.covariance, rtol=1e-8, atol=1e-10)
    assert found.log_evidence == pytest.approx(expected.log_evidence, rel=1e-9, abs=1e-9)


# Rewards-to-go.


def test_targets_are_rewards_to_go_and_tails_are_left_open():
    last, terminated = ends(".T..||..")
    found = gptd.targets([1, 2, 3, 4, 5, 6, 7, 8], last, terminated, 0.5)
    np.testing.assert_allclose(found.y, [2, 2, 5, 4, 0, 0, 7, 0])
    np.testing.assert_allclose(found.tail, [0, 0, 0.25, 0.5, 1, 1, 0.5, 1])
    np.testing.assert_array_equal(found.episode, [0, 0, 1, 1, 1, 2, 3, 3])
    np.testing.assert_array_equal(found.observed, [1, 1, 1, 1, 1, 0, 1, 1])


@given(structures)
def test_differences_of_targets_are_the_rewards_and_those_of_tails_vanish(structure):
    (last, terminated), discount = structure
    found = gptd.targets(REWARDS, last, terminated, discount)
    H, used = oracle.temporal_differences(last, terminated, discount)
    np.testing.assert_allclose(H @ found.y, REWARDS[used], atol=1e-12)
    np.testing.assert_allclose(H @ found.tail, 0, atol=1e-12)


def test_a_running_episode_counts_as_truncated():
    running = gptd.targets(REWARDS, *ends("..T....."), 0.9)
    oracle.assert_equal_trees(running, gptd.targets(REWARDS, *ends("..T....|"), 0.9))


# All steps at once.


@pytest.mark.parametrize("discount", DISCOUNTS)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_the_posterior_and_its_evidence_are_the_printed_ones(pattern, discount):
    structure = (*ends(pattern), discount)
    found = critic(*structure)
    assert_same(found, oracle.gptd(*MATRICES, REWARDS, structure, NOISE))
    assert found.info["observations"] == len(oracle.temporal_differences(*structure)[1])


@pytest.mark.parametrize("discount", DISCOUNTS)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("capacity", [None, 3])
def test_the_sparse_posterior_and_its_evidence_are_the_printed_ones(pattern, discount, capacity):
    structure = (*ends(pattern), discount)
    found = critic(*structure, sparsify=Sparsify(THRESHOLD, capacity))
    expected = oracle.sparse_gptd(*MATRICES, REWARDS, structure, NOISE, THRESHOLD, capacity)
    assert_same(found, expected)
    members = oracle.dictionary(MATRICES[0], THRESHOLD, capacity)[0]
    assert found.info["dictionary_size"] == len(members) < N
    assert found.info["observations"] == len(oracle.temporal_differences(*structure)[1])


@given(structures)
def test_dense_and_printed_agree_on_any_episodes(structure):
    (last, terminated), discount = structure
    found = critic(last, terminated, discount)
    assert_same(found, oracle.gptd(*MATRICES, REWARDS, (last, terminated, discount), NOISE))


@given(structures)
def test_a_threshold_of_zero_is_the_dense_answer(structure):
    (last, terminated), discount = structure
    dense = critic(last, terminated, discount)
    sparse = critic(last, terminated, discount, sparsify=Sparsify(0.0))
    np.testing.assert_allclose(sparse.mean(QUERY), dense.mean(QUERY), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(sparse.covariance(QUERY), dense.covariance(QUERY), atol=1e-9)
    assert sparse.log_evidence == pytest.approx(dense.log_evidence)
    assert sparse.info["observations"] == dense.info["observations"]


@given(structures, st.sampled_from((None, Sparsify(THRESHOLD))))
def test_the_variance_is_never_negative_and_never_above_the_prior(structure, sparsify):
    (last, terminated), discount = structure
    found = critic(last, terminated, discount, sparsify=sparsify, noise=1e-6)
    variance = found.variance(np.concatenate([Z, QUERY]))
    assert np.all((variance >= 0) & (variance <= 2 + 1e-9))
    diagonal = np.diag(found.covariance(np.concatenate([Z, QUERY])))
    np.testing.assert_allclose(variance, diagonal, atol=1e-9)


def test_more_steps_leave_less_variance():
    """Three episodes, then those and more; and a shorter tail is known better than a longer one."""
    less = gptd.posterior(
        KERNEL, Z[:6], REWARDS[:6], last=ends("..T..T")[0], terminated=ends("..T..T")[1],
        discount=0.9, noise=NOISE,
    )  # fmt: skip
    more = critic(*ends("..T..T.T"), 0.9)
    assert np.all(more.variance(QUERY) < less.variance(QUERY))
    assert np.all(less.variance(QUERY) < 2)
    assert np.all(
        critic(*ends(".......T"), 0.9).variance(Z) < critic(*ends("........"), 0.9).variance(Z)
    )


@pytest.mark.parametrize("sparsify", [None, Sparsify(THRESHOLD)])
def test_nothing_observed_leaves_the_prior(sparsify):
    found = critic(*ends("||||||||"), 0.9, sparsify=sparsify)
    np.testing.assert_allclose(found.mean(QUERY), 0, atol=1e-9)
    np.testing.assert_allclose(found.covariance(QUERY), MATRICES[2], atol=1e-9)
    assert found.info["observations"] == 0
    assert found.log_evidence == pytest.approx(0, abs=1e-9)


def test_the_last_reward_of_a_truncated_episode_is_not_used():
    changed = REWARDS.copy()
    changed[-1] = 1e6
    found = gptd.posterior(
        KERNEL, Z, changed, last=ends("....T..|")[0], terminated=ends("....T..|")[1],
        discount=0.9, noise=NOISE,
    )  # fmt: skip
    oracle.assert_equal_trees(found, critic(*ends("....T..|"), 0.9))


def test_covariance_between_two_sets_is_a_block_of_the_whole():
    found = critic(*ends("..T...||"), 0.9)
    whole = found.covariance(np.concatenate([QUERY, Z]))
    np.testing.assert_allclose(found.covariance(QUERY, Z), whole[:5, 5:], atol=1e-12)


def test_plain_arrays_get_float64_numpy_answers():
    found = critic(*ends("..T...||"), 0.9)
    for leaf in (found.weights, found.mean(QUERY), found.variance(QUERY), found.covariance(QUERY)):
        assert isinstance(leaf, np.ndarray)
        assert leaf.dtype == np.float64


def test_lists_and_jax_arrays_are_taken():
    last, terminated = ends("..T...||")
    found = gptd.posterior(
        KERNEL, Z.tolist(), REWARDS.tolist(), last=last.tolist(),
        terminated=jnp.asarray(terminated), discount=0.9, noise=NOISE,
    )  # fmt: skip
    oracle.assert_equal_trees(found, critic(last, terminated, 0.9))
    np.testing.assert_allclose(found.mean(QUERY.tolist()), found.mean(QUERY))


@pytest.mark.parametrize("sparsify", [Sparsify(THRESHOLD, 5)])
def test_episodes_may_be_traced(x64, sparsify):
    structures = [ends(pattern) for pattern in PATTERNS.values()]
    last, terminated = (np.stack(flags) for flags in zip(*structures, strict=True))

    @jax.jit
    @jax.vmap
    def ask(last, terminated):
        found = critic(last, terminated, 0.9, sparsify=sparsify)
        return (
            found.mean(QUERY), found.covariance(QUERY), found.variance(QUERY), found.log_evidence,
            found.info["observations"],
        )  # fmt: skip

    for i, (mean, covariance, variance, evidence, count) in enumerate(
        zip(*ask(last, terminated), strict=True)
    ):
        eager = critic(last[i], terminated[i], 0.9, sparsify=sparsify)
        np.testing.assert_allclose(mean, eager.mean(QUERY), atol=1e-9)
        np.testing.assert_allclose(covariance, eager.covariance(QUERY), atol=1e-9)
        np.testing.assert_allclose(variance, eager.variance(QUERY), atol=1e-9)
        assert evidence == pytest.approx(eager.log_evidence)
        assert count == eager.info["observations"]


@pytest.mark.slow("sparsify1")
@pytest.mark.parametrize("sparsify", [None, Sparsify(0.0)])
def test_the_evidence_can_be_climbed(x64, sparsify):
    last, terminated = ends("..T||.T.")

    def evidence(length, noise, discount):
        return gptd.posterior(
            kernels.Gaussian(length), Z, REWARDS, last=last, terminated=terminated,
            discount=discount, noise=noise, sparsify=sparsify,
        ).log_evidence  # fmt: skip

    at, step = (1.0, 0.5, 0.9), 1e-5
    slopes = jax.jit(jax.grad(evidence, argnums=(0, 1, 2)))(*at)
    for i in range(3):
        up, down = (tuple(x + s * (i == j) for j, x in enumerate(at)) for s in (step, -step))
        expected = (evidence(*up) - evidence(*down)) / (2 * step)
        assert slopes[i] == pytest.approx(expected, rel=1e-5)


# One transition at a time.


def walk(state: gptd.Online, pattern: str):
    """Every step of the data: how much of it has been seen, and the state then."""
    fresh = True
    for i, mark in enumerate(pattern):
        state = state.begin(Z[i]) if fresh else state.observe(REWARDS[i - 1], Z[i])
        yield pattern[:i] + ".", state
        if mark != ".":
            state = state.terminate(REWARDS[i]) if mark == "T" else state.truncate()
            yield pattern[: i + 1], state
        fresh = mark != "."


def empty(discount: float = 0.9, capacity: int = N, threshold: float = THRESHOLD) -> gptd.Online:
    sparsify = Sparsify(threshold, capacity)
    return gptd.online(KERNEL, Z[0], discount=discount, noise=NOISE, sparsify=sparsify)


@pytest.mark.parametrize("discount", [0.9])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_online_is_the_printed_sparse_answer_after_every_transition(pattern, discount):
    K, k, k0 = MATRICES
    for seen, state in walk(empty(discount), pattern):
        t, structure = len(seen), (*ends(seen), discount)
        expected = oracle.sparse_gptd(
            K[:t, :t], k[:t], k0, REWARDS[:t], structure, NOISE, THRESHOLD
        )
        assert_same(state.critic(), expected)
        used = oracle.temporal_differences(*structure)[1]
        assert state.critic().info["observations"] == len(used)


@pytest.mark.slow("8", "1")
@pytest.mark.parametrize("capacity", [N, 3, 1])
def test_online_reports_what_the_batch_reports(capacity):
    *_, (pattern, state) = walk(empty(capacity=capacity), "..T||.T.")
    found = state.critic()
    batch = critic(*ends(pattern), 0.9, sparsify=Sparsify(THRESHOLD, capacity))
    for name in ("size", "refused", "residual"):
        name = f"dictionary_{name}"
        assert found.info[name] == pytest.approx(batch.info[name])
    assert (found.info["dictionary_refused"] > 0) == (capacity < N)
    np.testing.assert_allclose(found.mean(QUERY), batch.mean(QUERY), rtol=1e-9)
    np.testing.assert_allclose(found.variance(QUERY), batch.variance(QUERY), rtol=1e-9)
    assert found.log_evidence == pytest.approx(batch.log_evidence)


@jax.jit
def scan(state: gptd.Online, steps) -> gptd.Online:
    """Over transitions (z, r, z', last, terminated)."""

    def advance(state, step):
        z, r, following, last, terminated = step
        state = jax.lax.cond(state.episode.running, lambda s: s, lambda s: s.begin(z), state)
        state = jax.lax.cond(last, lambda s: s, lambda s: s.observe(r, following), state)
        state = jax.lax.cond(terminated, lambda s: s.terminate(r), lambda s: s, state)
        return jax.lax.cond(last, lambda s: s.truncate(), lambda s: s, state), None

    return jax.lax.scan(advance, state, steps)[0]


TRANSITIONS = (Z, REWARDS, np.roll(Z, -1, 0), *ends("..T||..T"))


def test_online_runs_inside_a_scan(x64):
    found = scan(empty(), TRANSITIONS)
    *_, (_, expected) = walk(empty(), "..T||..T")
    assert found.belief.observations == expected.belief.observations
    np.testing.assert_allclose(found.critic().mean(QUERY), expected.critic().mean(QUERY))
    np.testing.assert_allclose(found.critic().variance(QUERY), expected.critic().variance(QUERY))
    inside = jax.jit(lambda state: state.critic().mean(QUERY))(found)
    np.testing.assert_allclose(inside, expected.critic().mean(QUERY))


def test_a_scan_keeps_the_precision_of_the_caller():
    found = scan(empty(), TRANSITIONS)
    assert found.belief.weights.dtype == jnp.float32
    *_, (_, expected) = walk(empty(), "..T||..T")
    np.testing.assert_allclose(found.belief.weights, expected.belief.weights, rtol=1e-4, atol=1e-5)
    later = found.begin(Z[0])  # and plain arrays are back in float64
    assert later.belief.weights.dtype == np.float64


def test_an_empty_online_critic_can_be_made_inside_a_transformation(x64):
    def learn(z):
        state = gptd.online(KERNEL, z, discount=0.9, noise=NOISE, sparsify=Sparsify(THRESHOLD, N))
        return state.begin(z).terminate(1.0).critic().mean(z[None])[0]

    expected = empty().begin(Z[0]).terminate(1.0).critic().mean(Z[:1])[0]
    assert jax.jit(learn)(Z[0]) == pytest.approx(expected)
    assert expected == pytest.approx(2 / (2 + NOISE))


def test_a_traced_transition_outside_an_episode_changes_nothing(x64):
    state = empty().begin(Z[0]).observe(1.0, Z[1]).truncate()
    astray = jax.jit(lambda s: s.observe(5.0, Z[2]).terminate(7.0))(state)
    oracle.assert_equal_trees(astray, state)


def test_an_online_critic_that_has_seen_nothing_is_the_prior():
    for state in (empty(), empty().begin(Z[0]), empty().begin(Z[0]).truncate()):
        found = state.critic()
        np.testing.assert_allclose(found.mean(QUERY), 0)
        np.testing.assert_allclose(found.covariance(QUERY), MATRICES[2], atol=1e-12)
        assert found.log_evidence == 0
        assert found.info["observations"] == 0


def test_a_step_changes_a_copy():
    state = empty().begin(Z[0])
    state.observe(1.0, Z[1])
    assert state.belief.observations == 0
    assert np.all(state.belief.weights == 0)


class Warped(kernels.Kernel):
    """A kernel that holds a function."""

    warp: Callable
    of: kernels.Kernel

    def __call__(self, x, y):
        return self.of(self.warp(x), self.warp(y))


@pytest.mark.slow
def test_a_kernel_may_hold_a_function():
    kernel, sparsify = Warped(jnp.tanh, KERNEL), Sparsify(0.0, 4)
    state = gptd.online(kernel, Z[0], discount=0.9, noise=NOISE, sparsify=sparsify)
    state = state.begin(Z[0]).observe(REWARDS[0], Z[1]).terminate(REWARDS[1])
    batch = gptd.posterior(
        kernel, Z[:2], REWARDS[:2], last=[False, True], terminated=[False, True],
        discount=0.9, noise=NOISE,
    )  # fmt: skip
    np.testing.assert_allclose(state.critic().mean(QUERY), batch.mean(QUERY))


# States and scores.

U, _, G = oracle.problem(N, 3)
with jax.enable_x64(True):
    PAIR_KERNEL = kernels.StateAction(kernels.Gaussian(1.0), Dense(jnp.asarray(G)), 0.5)
PAIR_MATRIX = printed_kernel(Z, Z) / 2 + 0.5 * oracle.fisher_kernel(U, G)


@pytest.mark.slow
def test_the_kernel_of_pairs_is_the_state_kernel_plus_the_fisher_kernel(x64):
    kernel, pairs = PAIR_KERNEL, (jnp.asarray(Z), jnp.asarray(U))
    np.testing.assert_allclose(kernels.gram(kernel, pairs), PAIR_MATRIX, rtol=1e-9)
    few = jax.tree.map(lambda leaf: leaf[:3], pairs)
    np.testing.assert_allclose(kernels.gram(kernel, few, pairs), PAIR_MATRIX[:3], rtol=1e-9)
    np.testing.assert_allclose(kernels.diagonal(kernel, pairs), np.diag(PAIR_MATRIX), rtol=1e-9)
    single = kernel((pairs[0][0], pairs[1][0]), (pairs[0][1], pairs[1][1]))
    assert single == pytest.approx(PAIR_MATRIX[0, 1])


def test_sums_and_multiples_of_kernels_of_pairs_are_formed_at_once(x64):
    both = kernels.Sum(kernels.Scaled(PAIR_KERNEL, 3.0), kernels.Constant(2.0))
    pairs = jnp.asarray(Z), jnp.asarray(U)
    np.testing.assert_allclose(kernels.gram(both, pairs), 3 * PAIR_MATRIX + 2, rtol=1e-9)
    np.testing.assert_allclose(
        kernels.diagonal(both, pairs), 3 * np.diag(PAIR_MATRIX) + 2, rtol=1e-9
    )
    np.testing.assert_allclose(kernels.diagonal(kernels.Gaussian(1.0), pairs[0]), 1)


@pytest.mark.parametrize("sparsify", [None, Sparsify(THRESHOLD)])
def test_a_critic_of_pairs_is_the_printed_one(sparsify):
    last, terminated = ends("..T||.T.")
    found = gptd.posterior(
        PAIR_KERNEL, (Z, U), REWARDS, last=last, terminated=terminated, discount=0.9, noise=NOISE,
        sparsify=sparsify,
    )  # fmt: skip
    given = (PAIR_MATRIX,) * 3, REWARDS, (last, terminated, 0.9), NOISE
    expected = (
        oracle.gptd(*given[0], *given[1:])
        if sparsify is None
        else oracle.sparse_gptd(*given[0], *given[1:], THRESHOLD)
    )
    np.testing.assert_allclose(found.mean((Z, U)), expected.mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.covariance((Z, U)), expected.covariance, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_pairs_are_learned_online():
    sparsify = Sparsify(THRESHOLD, N)
    state = gptd.online(PAIR_KERNEL, (Z[0], U[0]), discount=0.9, noise=NOISE, sparsify=sparsify)
    state = state.begin((Z[0], U[0]))
    for i in range(1, N):
        state = state.observe(REWARDS[i - 1], (Z[i], U[i]))
    last, terminated = ends(".......T")
    batch = gptd.posterior(
        PAIR_KERNEL, (Z, U), REWARDS, last=last, terminated=terminated, discount=0.9, noise=NOISE,
        sparsify=sparsify,
    )  # fmt: skip
    found = state.terminate(REWARDS[-1]).critic()
    np.testing.assert_allclose(found.mean((Z, U)), batch.mean((Z, U)), rtol=1e-8)


# Mistakes are named.


def broken(array, at, value):
    copy = array.copy()
    copy[at] = value
    return copy


LAST, TERMINATED = ends("..T...||")
GOOD = {
    "kernel": KERNEL, "points": Z, "rewards": REWARDS, "last": LAST, "terminated": TERMINATED,
    "discount": 0.9, "noise": NOISE, "sparsify": None,
}  # fmt: skip
BAD = {
    "rewards": [broken(REWARDS, 2, NAN), REWARDS[:, None], np.zeros(0), ["high"] * N, None, 1.0],
    "points": [
        broken(Z, (1, 0), INF), Z[:-1], np.zeros(()), (Z, U[:-1]), "here", None, (Z, None),
    ],
    "last": [LAST[:-1], LAST.astype(int), LAST.astype(float), True, None, "no"],
    "terminated": [TERMINATED[:-1], TERMINATED.astype(int), None, ~LAST],
    "discount": [-0.1, 1.1, NAN, None, np.full(N, 0.9)],
    "noise": [0.0, -1.0, NAN, INF, np.ones(N), None],
    "sparsify": [0.1, (0.1, 3), "yes"],
    "kernel": [None, 1.0, lambda x, y: x @ y, kernels.Gaussian(NAN)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_a_bad_argument_is_named(name, value):
    with pytest.raises(ValueError, match=rf"^{name}(\[\d\])?: "):
        gptd.posterior(**GOOD | {name: value})


def test_a_terminated_step_that_is_not_last_is_named():
    terminated = broken(TERMINATED, 4, True)
    with pytest.raises(ValueError, match="terminated: step 4 is terminated but not last"):
        gptd.posterior(**GOOD | {"terminated": terminated})
    with pytest.raises(ValueError, match="terminated: step 4 is terminated but not last"):
        gptd.targets(REWARDS, LAST, terminated, 0.9)


def test_points_that_do_not_go_with_the_kernel_are_named():
    with pytest.raises(ValueError, match=r"^points: the kernel does not take"):
        gptd.posterior(**GOOD | {"kernel": PAIR_KERNEL, "points": (Z, U[:, :2])})


@pytest.mark.parametrize("query", [QUERY[0], QUERY[:, :1], (QUERY, QUERY), None, QUERY * NAN])
def test_a_bad_query_is_named(query):
    found = critic(*ends("..T...||"), 0.9)
    for ask in (found.mean, found.variance, found.covariance):
        with pytest.raises(ValueError, match=r"^points(\[\d\])?: "):
            ask(query)
    if query is not None:
        with pytest.raises(ValueError, match=r"^others(\[\d\])?: "):
            found.covariance(QUERY, query)


def test_noise_too_small_for_repeated_points_is_named():
    with pytest.raises(ValueError, match=r"^noise: the kernel matrix plus noise is singular"):
        gptd.posterior(**GOOD | {"points": np.zeros((N, 2)), "noise": 1e-30})


@pytest.mark.parametrize("sparsify", [None, 0.1, Sparsify(0.1)])
def test_online_needs_a_capacity(sparsify):
    with pytest.raises(ValueError, match=r"^sparsify: .*capacity"):
        gptd.online(KERNEL, Z[0], discount=0.9, sparsify=sparsify)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kernel", None),
        ("example_point", None),
        ("example_point", Z[0] * NAN),
        ("noise", 0),
        ("discount", 2),
    ],
)
def test_a_bad_argument_of_online_is_named(name, value):
    good = {"kernel": KERNEL, "example_point": Z[0], "discount": 0.9, "sparsify": Sparsify(0.1, 3)}
    with pytest.raises(ValueError, match=rf"^{name}: "):
        gptd.online(**good | {name: value})


def test_transitions_need_an_episode():
    state = empty()
    for name, advance in {
        "observe": lambda s: s.observe(1.0, Z[0]),
        "terminate": lambda s: s.terminate(1.0),
        "truncate": lambda s: s.truncate(),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: no episode is running"):
            advance(state)
    with pytest.raises(ValueError, match=r"^begin: an episode is running"):
        state.begin(Z[0]).begin(Z[1])


def test_a_bad_transition_is_named():
    state = empty().begin(Z[0])
    for reward in (NAN, None, [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"^reward: "):
            state.observe(reward, Z[1])
    for point in (Z, Z[0, 0], (Z[0], Z[0]), Z[0] * NAN, None):
        with pytest.raises(ValueError, match=r"^point(\[\d\])?: "):
            state.observe(1.0, point)
