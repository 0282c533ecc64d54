"""Settings by seeds in one program."""

import json
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bayespg
from bayespg import policies, training, updates
from bayespg.agents import sweep as module
from bayespg.environments import LQR
from bayespg.environments.classic import CartPole
from bayespg.learning.estimators import Reinforce
from bayespg.policies import BoundedLinearGaussian

RATES, SCALES, SEEDS = [0.001, 0.01, 0.03], [1.0, 2.0], [4, 0, 9]
FEW = {"seeds": SEEDS, "updates": 3, "paths": 5}


def start(key):
    return BoundedLinearGaussian(0.1 * jax.random.normal(key, (2,), jnp.float32))


def learner(rate, scale=1.0):
    return Reinforce("mean"), updates.conventional(rate * scale)


def swept(settings, make=learner, policy=start, **kwargs):
    return bayespg.sweep(LQR(), policy, make, settings, **FEW | kwargs)


@pytest.fixture(scope="module")
def found():
    return swept({"rate": RATES, "scale": SCALES})


def test_every_setting_and_seed_has_its_place(found):
    assert found.returns.shape == found.steps.shape == (3, 2, 3, 3)
    assert found.policy.kappa.shape == (3, 2, 3, 2)
    assert found.programs == 1
    assert found.seeds == SEEDS
    assert repr(found).startswith("Sweep(3 rate x 2 scale x 3 seeds, 3 updates, mean return -")


@pytest.mark.slow("0-0-0", "1-0-2")
@pytest.mark.parametrize(("i", "j", "k"), [(0, 0, 0), (2, 1, 1), (1, 0, 2)])
def test_a_run_of_a_sweep_is_the_run_alone(found, i, j, k):
    key, key_policy = jax.random.split(jax.random.key(SEEDS[k]))
    alone = training.train(
        LQR(), start(key_policy), *learner(RATES[i], SCALES[j]), key=key, updates=3, paths=5
    )
    np.testing.assert_allclose(found.policy.kappa[i, j, k], alone.policy.kappa, rtol=1e-4)
    np.testing.assert_allclose(found.returns[i, j, k], alone.history.total_reward, rtol=1e-4)
    np.testing.assert_array_equal(found.steps[i, j, k], alone.history.steps)


def test_the_precision_is_that_of_the_policy(found):
    assert found.returns.dtype == np.float32
    double = swept({"rate": [0.01]}, policy=BoundedLinearGaussian(np.zeros(2)), seeds=1)
    assert double.policy.kappa.dtype == np.float64
    assert not jax.config.read("jax_enable_x64")
    with pytest.raises(ValueError, match="seeds: an interval needs at least 2"):
        double.interval()


def test_the_policies_can_act():
    """Also if they hold functions, as networks of other libraries do."""
    policy = policies.network(eqx.nn.MLP(4, 2, 4, 1, key=jax.random.key(0)), 2)
    found = bayespg.sweep(
        CartPole(horizon=5), policy, learner, {"rate": RATES[:2]}, normalise=True, **FEW
    )
    last = jax.tree.map(lambda x: x[1, 2] if eqx.is_array(x) else x, found.policy)
    assert np.isfinite(last.step((), jnp.ones(4))[0].log_prob(1))


@pytest.mark.slow("1", "7")
@pytest.mark.parametrize("most", [1, 4, 7])
def test_chunks_of_any_size_give_the_same(found, most, monkeypatch):
    """Also where the last chunk is not full."""
    monkeypatch.setattr(module, "MOST", most)
    calls = []
    again = swept({"rate": RATES, "scale": SCALES}, progress=lambda *now: calls.append(now))
    np.testing.assert_allclose(again.returns, found.returns, rtol=1e-4)
    np.testing.assert_allclose(again.policy.kappa, found.policy.kappa, rtol=1e-4, atol=1e-6)
    assert calls[-1] == (18, 18)
    assert len(calls) == -(-18 // most)


def test_a_program_that_does_not_fit_into_memory_is_divided(found, monkeypatch):
    sizes = []
    fitting = module._fitting

    def watched(program, size, devices):
        monkeypatch.setattr(module, "free_memory", lambda device: needed(program) / 2)
        sizes.append(fitting(program, size, devices))
        return sizes[-1]

    def needed(program):
        memory = program.memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    monkeypatch.setattr(module, "_fitting", watched)
    again = swept({"rate": RATES, "scale": SCALES})
    assert sizes == [18 // 4]
    assert again.programs == 2
    np.testing.assert_allclose(again.returns, found.returns, rtol=1e-4)


DEVICES = """
import sys
sys.path.insert(0, TESTS)
import jax, test_sweep
found = test_sweep.swept({"rate": test_sweep.RATES, "scale": test_sweep.SCALES}, seeds=[4, 0, 9])
print(jax.device_count(), found.policy.kappa.tolist())
"""


@pytest.mark.slow
def test_two_devices_give_the_same(found):
    """In a process of its own, because the number of devices is fixed when JAX starts."""
    done = subprocess.run(
        [sys.executable, "-c", DEVICES.replace("TESTS", repr(os.path.dirname(__file__)))],
        text=True, capture_output=True, check=True,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
    )  # fmt: skip
    count, numbers = done.stdout.split(" ", 1)
    assert int(count) == 2
    np.testing.assert_allclose(json.loads(numbers), found.policy.kappa, rtol=1e-4, atol=1e-6)


def test_a_field_that_decides_the_program_is_compiled_once_for_each_value(found):
    def make(baseline, rate, scale):
        return Reinforce(baseline), updates.conventional(rate * scale)

    both = swept({"rate": RATES, "baseline": ["none", "mean"], "scale": [2.0]}, make)
    assert both.programs == 2
    assert both.returns.shape == (3, 2, 1, 3, 3)
    np.testing.assert_allclose(both.returns[:, 1, 0], found.returns[:, 1], rtol=1e-4)
    assert not np.allclose(both.returns[:, 0], both.returns[:, 1], rtol=1e-4)


def test_evaluations_have_the_axes_of_settings_and_seeds():
    found = swept({"rate": RATES}, evaluate=lambda policy, key: policy.kappa[0], every=3)
    assert found.evaluations is not None
    assert found.evaluations.updates.tolist() == [0, 3]
    np.testing.assert_allclose(found.evaluations.values[..., -1], found.policy.kappa[..., 0])


def test_intervals_and_a_picture(found, tmp_path):
    low, high = found.interval(0.8)
    assert low.shape == high.shape == (3, 2, 3)
    assert (low <= found.mean()).all()
    assert (found.mean() <= high).all()
    wide = found.interval(0.99)
    assert (wide[0] <= low).all()
    assert (high <= wide[1]).all()
    last, (below, above) = found.final()
    assert last.shape == below.shape == above.shape == (3, 2)
    found.plot(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("settings", "more", "says"),
    [
        ({"rate": 0.1}, {}, "settings: expected a list of values of rate, found 0.1"),
        ({"rate": []}, {}, "settings: rate has no values"),
        ({"rate": [float("nan")]}, {}, "settings: rate has a value that is NaN"),
        ({"speed": [0.1]}, {}, "settings: they are not the arguments of learner"),
        ({"rate": [0.1]}, {"seeds": []}, "seeds: expected a number or a list"),
        ({"rate": [0.1]}, {"seeds": 0}, "seeds"),
        ({"rate": [0.1]}, {"make": lambda rate: rate}, "learner: expected a function"),
    ],
)
def test_wrong_arguments_are_named(settings, more, says):
    with pytest.raises(ValueError, match=says):
        swept(settings, **more)
