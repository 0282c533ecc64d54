"""Samples survive the disk, parts survive an interruption, and claims are judged from samples."""

import threading

import numpy as np
import pytest

from bayespg.reproduce import EXPERIMENTS, bandit, parts, report
from bayespg.reproduce.claims import Claim, Effect, shares
from bayespg.reproduce.report import Report, Settings
from bayespg.reproduce.samples import BITS, Samples, grouped
from bayespg.runs import plots


def test_samples_come_back_as_they_were_judged(tmp_path):
    rng = np.random.default_rng(0)
    kept = Samples(
        {
            ("final", "MCPG", 5): rng.normal(size=(7, 2)),
            ("held", "κ ~ U(-1, 1)", 40): np.array([9433, 10_000]),
            ("endless", "BAC", 1): np.zeros(3, bool),
        }
    )
    kept.save(tmp_path / "samples.npz")
    back = Samples.load(tmp_path / "samples.npz")
    assert list(back) == list(kept)
    for key, values in kept.items():
        np.testing.assert_array_equal(back[key], values)
    np.testing.assert_array_equal(back["held", "κ ~ U(-1, 1)", 40], [9433, 10_000])
    assert (back.sizes(), back.sizes("final"), back.names("final")) == ((1, 5, 40), (5,), ("MCPG",))


def test_rounding_keeps_the_stated_bits():
    x = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(-20, 20).repeat(25)
    kept = Samples({("x", "", 0): x})["x", "", 0]
    np.testing.assert_allclose(kept, x, rtol=2.0**-BITS)


@pytest.mark.parametrize("runs", [3, 100, 4_000])
def test_groups_have_the_mean_and_the_standard_error_of_runs(runs):
    x = np.random.default_rng(1).normal(size=runs)
    groups = grouped(x)
    assert groups.mean() == pytest.approx(x.mean())
    ratio = groups.std(ddof=1) / len(groups) ** 0.5 / (x.std(ddof=1) / runs**0.5)
    assert 0.7 < ratio < 1.4


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "samples.npz"
    path.write_bytes(b"not a file of samples")
    with pytest.raises(ValueError, match=r"samples\.npz: not a file of samples"):
        Samples.load(path)


def test_an_interrupted_experiment_resumes(tmp_path):
    made = []

    def work(label, fails=False):
        def one():
            if fails:
                raise KeyboardInterrupt
            made.append(label)
            return {"x": np.arange(3.0)}

        return one

    with pytest.raises(KeyboardInterrupt):
        list(parts.done({"a": work("a"), "b": work("b", fails=True)}, tmp_path))
    found = dict(parts.done({"a": work("a"), "b": work("b")}, tmp_path))
    assert made == ["a", "b"]
    np.testing.assert_array_equal(found["a"]["x"], np.arange(3.0))


def test_a_damaged_part_is_named(tmp_path):
    work = {"a": lambda: {"x": np.arange(3.0)}}
    list(parts.done(work, tmp_path))
    (path,) = tmp_path.glob("*.npz")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match=rf"{path.name}: damaged .* delete it"):
        list(parts.done(work, tmp_path))


def test_processes_share_parts(tmp_path):
    """Two at once: each part is computed once, and both see all of them."""
    made, found = [], [{}, {}]
    both = threading.Barrier(2, timeout=20)

    def work(label):
        def one():
            made.append(label)
            both.wait()  # the other is at work on another part
            return {"x": np.zeros(1)}

        return one

    def run(i):
        found[i].update(parts.done({label: work(label) for label in "ab"}, tmp_path))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(made) == ["a", "b"]
    assert all(set(each) == {"a", "b"} for each in found)


def test_claims_are_judged_again_from_disk(tmp_path):
    values = {
        (reward, name, M): bandit.TRUTHS[reward] + np.random.default_rng(M).normal(size=(200, 2))
        for reward, name, M in bandit.PRINTED
    }
    kept = Samples(bandit.cells_of(values))
    outcome = Report([], [], [], lambda: plots.sheet(1, 1)[0], kept)
    first = report.write(EXPERIMENTS["bandit"], Settings(200), outcome, tmp_path, 1.0)
    again = report.judge_again(EXPERIMENTS["bandit"], tmp_path)
    assert again == first
    (tmp_path / "bandit.npz").unlink()
    with pytest.raises(ValueError, match="does not hold both"):
        report.judge_again(EXPERIMENTS["bandit"], tmp_path)


def test_a_claim_that_nothing_could_confirm_says_so():
    def claim(*effects, **bounds):
        return Claim("id", "", "says", "effect", effects, **bounds)

    wide, narrow = Effect("", 1.0, 0.5, 2.0), Effect("", 1.3, 1.2, 1.4)
    assert not claim(wide, above=0.8, below=1.25).confirmable
    assert claim(narrow, above=0.8, below=1.25).confirmable
    assert claim(wide, above=1.5).confirmable
    never = {"above": -np.inf, "below": 0.001}
    assert not claim(*shares({"": (0, 100)}, rare=True), **never).confirmable
    assert claim(*shares({"": (5, 10_000)}, rare=True), **never).confirmable
