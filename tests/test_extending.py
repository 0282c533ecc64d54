"""An estimator, a policy and an environment of one's own: each is one class in one file, and is
passed as an object. "How to add something" in CONTRIBUTING.md refers to this test."""

import importlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from bayespg import estimators, policies, training, updates
from bayespg.agents.agent import Agent
from bayespg.environments import RandomWalk
from bayespg.policies import Tabular

FILES = {
    "an estimator": '''
from typing import ClassVar

from bayespg import estimators, monte_carlo


class Centred(estimators.Estimator):
    """Scores of paths times their returns, less the mean return."""

    needs: ClassVar[estimators.Needs] = estimators.Needs(path_scores=True)

    def __call__(self, batch):
        away = batch.returns - batch.returns.mean()
        G = estimators.actions_integrated_out(batch)
        return monte_carlo.average(batch.scores * away[:, None], G)


made = Centred()
''',
    "a policy": '''
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayespg import policies


class Slope(policies.Policy):
    """Right with a probability that is a logistic function of the place."""

    weights: Float[Array, "*runs 2"]

    def __call__(self, state):
        place = jnp.stack([jnp.ones(()), state / 9.0])
        return policies.Bernoulli(self.weights @ place.astype(self.weights.dtype))


made = Slope(jnp.zeros(2))
''',
    "an environment": '''
import equinox as eqx
import jax.numpy as jnp

from bayespg import environments


class Stairs(environments.Environment):
    """Nine steps up; each move costs 1, and the way up is action 1."""

    horizon: int = eqx.field(static=True, default=12)
    discount: float = eqx.field(static=True, default=0.95)

    def reset(self, key, paths):
        return jnp.zeros(paths, int)

    def step(self, key, states, actions):
        states = jnp.clip(states + jnp.where(actions == 1, 1, -1), 0, 9)
        return states, -jnp.ones(states.shape), states == 9


made = Stairs()
''',
}
"""One file each; none imports another, and nothing is registered anywhere."""
PLACE = {"an environment": 0, "a policy": 1, "an estimator": 2}
UPDATE = updates.trust_region(0.05)


def built_in():
    return [RandomWalk(horizon=12), Tabular(np.zeros(9)), estimators.Model2()]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Own objects, each from a file of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = {}
    for what, code in FILES.items():
        name = f"own_{what.split()[1]}"
        (tmp_path / f"{name}.py").write_text(code)
        made[what] = importlib.import_module(name).made
    return made


@pytest.mark.slow("an estimator", "a policy", "an environment")
@pytest.mark.parametrize("what", [*FILES, "all three"])
def test_what_is_written_in_one_file_is_trained_by_train_and_by_an_agent(own, what):
    parts = built_in()
    for each in FILES if what == "all three" else [what]:
        parts[PLACE[each]] = own[each]
    result = training.train(*parts, UPDATE, key=jax.random.key(0), updates=3, paths=6)
    agent = Agent(*parts, UPDATE, episodes=6, seed=0)
    rows = [agent.update() for _ in range(3)]
    for trained in (result.policy, agent.policy):
        before, after = (np.ravel(policies.flatten(policy)[0]) for policy in (parts[1], trained))
        assert np.isfinite(after).all()
        assert np.any(before != after)
    assert all(row["sound"] == 1 for row in rows)
    assert np.isfinite(agent.evaluate(3).mean)


def test_contributing_says_how():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    rows = [re.split(r" *\| *", line) for line in text.splitlines() if line.startswith("| ")]
    assert {"an estimator", "a policy", "an environment in JAX"} <= {row[1] for row in rows}
    assert f"tests/{Path(__file__).name}" in text
