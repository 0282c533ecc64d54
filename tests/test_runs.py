"""A run survives what happens to processes, disks and files."""

import csv
import errno
import fcntl
import gc
import io
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bayespg._support.files import write_whole
from bayespg.runs import checkpoints
from bayespg.runs.checkpoints import Damaged, load, save
from bayespg.runs.store import BEST, CHECKPOINT, METRICS, PREVIOUS, Run

KILLS = 50
TREE = {"update": np.int64(0), "x": np.zeros(500, np.float32)}


def state(update):
    return {"update": np.int64(update), "x": np.full(500, update, np.float32)}


def same(found, expected):
    """Equal in structure, dtypes and every bit."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if hasattr(b, "dtype") and jnp.issubdtype(b.dtype, jax.dtypes.prng_key):
            assert a.dtype == b.dtype
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        if isinstance(b, jax.Array | np.ndarray):
            assert isinstance(a, np.ndarray | jax.Array)
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        else:
            assert type(a) is type(b)
            assert a == b


# Checkpoints


def a_state(seed):
    key = jax.random.key(seed)
    policy = eqx.nn.MLP(3, 2, 8, 2, key=key)
    params = eqx.filter(policy, eqx.is_array)
    optimiser = optax.adam(optax.linear_schedule(1e-2, 1e-3, 100)).init(params)
    return {
        "policy": policy,
        "optimiser": jax.tree.map(lambda x: np.asarray(x) + np.asarray(seed, x.dtype), optimiser),
        "key": key,
        "rbg": jax.random.key(seed, impl="rbg"),
        "keys": jax.random.split(key, (2, 3)),
        "raw": jax.random.PRNGKey(seed),
        "float64": np.random.default_rng(seed).normal(size=(4, 2)),
        "fortran": np.asfortranarray(np.random.default_rng(seed).normal(size=(4, 2))),
        "special": np.array([np.nan, -0.0, np.inf, 5e-324]),
        "flags": (np.array([True, False]), jnp.arange(3, dtype=jnp.int8), np.zeros((0, 3))),
        "numbers": [seed, seed / 3, seed > 0, None, "name", jnp.tanh],
    }


def test_everything_comes_back_as_it_was(tmp_path):
    assert not jax.config.read("jax_enable_x64")
    tree = a_state(1)
    save(tmp_path / "x.npz", tree, {"update": np.int64(3), "seen": [1.5, None]})
    found, meta = load(tmp_path / "x.npz", a_state(0))
    same(found, tree)
    assert meta == {"update": 3, "seen": [1.5, None]}
    assert found["float64"].dtype == np.float64
    assert isinstance(found["policy"].layers[0].weight, np.ndarray)
    np.testing.assert_array_equal(found["policy"](np.ones(3)), tree["policy"](np.ones(3)))


def test_shapes_alone_are_a_template(tmp_path):
    tree = {"w": jnp.arange(3.0), "key": jax.random.key(3)}
    save(tmp_path / "x", tree)
    same(load(tmp_path / "x", jax.eval_shape(lambda: tree))[0], tree)


def test_a_tree_may_be_a_single_array_or_hold_none(tmp_path):
    for tree in (np.arange(3.0), {}, [None]):
        save(tmp_path / "x", tree)
        same(load(tmp_path / "x", tree)[0], tree)


def test_the_file_is_an_ordinary_npz_with_readable_names(tmp_path):
    save(tmp_path / "x.npz", {"policy": eqx.nn.Linear(2, 1, key=jax.random.key(0))})
    with np.load(tmp_path / "x.npz", allow_pickle=False) as file:
        assert file["['policy'].weight"].shape == (1, 2)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ({"a": np.zeros(2)}, r"has extra leaves, 1 \(\['b'\]\)"),
        ({"a": np.zeros(2), "b": 1, "c": 2}, r"lacks leaves, 1 \(\['c'\]\)"),
        ({"a": np.zeros(3), "b": 1}, r"\['a'\] is float64 of shape \(2,\), expected .* \(3,\)"),
        ({"a": np.zeros(2, np.float32), "b": 1}, r"is float64 .* expected float32"),
        ({"a": np.zeros(2), "b": 1.0}, r"\['b'\] is int64 .* expected float64"),
        ({"a": jax.random.key(0), "b": 1}, r"is float64 .* expected key<fry>"),
    ],
)
def test_another_template_is_told_what_differs(tmp_path, template, says):
    save(tmp_path / "x.npz", {"a": np.ones(2), "b": 1})
    with pytest.raises(ValueError, match=rf"x\.npz.*{says}.*another configuration") as caught:
        load(tmp_path / "x.npz", template)
    assert not isinstance(caught.value, Damaged)


@pytest.mark.parametrize("leaf", [np.array(["a"]), np.array([None]), 2**70])
def test_what_cannot_be_saved_is_named(tmp_path, leaf):
    with pytest.raises(ValueError, match=r"leaf \['a'\] of type .* cannot be saved"):
        save(tmp_path / "x.npz", {"a": leaf})
    with pytest.raises(ValueError, match="meta: must be plain JSON"):
        save(tmp_path / "x.npz", {}, {"a": np.array(["a", "b"])})
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_checkpoint_is_refused_wherever_it_ends(tmp_path):
    save(tmp_path / "x.npz", state(3))
    content = (tmp_path / "x.npz").read_bytes()
    for size in range(0, len(content), 61):
        (tmp_path / "x.npz").write_bytes(content[:size])
        with pytest.raises(Damaged, match=rf"x\.npz: found {size:,} bytes that are not a whole"):
            load(tmp_path / "x.npz", TREE)


def test_a_changed_byte_is_found_or_does_not_matter(tmp_path):
    save(tmp_path / "x.npz", state(3), {"update": 3})
    content = (tmp_path / "x.npz").read_bytes()
    found = 0
    for at in range(0, len(content), 7):
        (tmp_path / "x.npz").write_bytes(
            content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
        )
        try:
            tree, meta = load(tmp_path / "x.npz", TREE)
            same(tree, state(3))
            assert meta == {"update": 3}
        except Damaged:
            found += 1
    assert found > 200


def test_a_changed_array_in_a_sound_archive_is_found(tmp_path):
    save(tmp_path / "x.npz", state(3))
    with np.load(tmp_path / "x.npz") as file:
        arrays = dict(file)
    arrays["['x']"][0] += 1
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(Damaged, match=r"x\.npz: wrong checksum"):
        load(tmp_path / "x.npz", TREE)


def test_files_of_other_programs_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    np.save(tmp_path / "b.npy", np.ones(3))
    np.save(tmp_path / "c.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "d").write_text("update,return\n")
    for path in tmp_path.iterdir():
        with pytest.raises(Damaged, match=f"{path.name}: found .* not a whole bayespg checkpoint"):
            load(path, TREE)


def test_a_newer_format_asks_for_an_upgrade(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "VERSION", checkpoints.VERSION + 1)
        save(tmp_path / "x.npz", state(1))
    with pytest.raises(ValueError, match=r"in format 3, known here is format 2; upgrade") as caught:
        load(tmp_path / "x.npz", TREE)
    assert not isinstance(caught.value, Damaged)


def archive(path, arrays, present=("keys", "meta"), **header):
    """A checkpoint with a right checksum, whatever its header says."""
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    sound = {"format": checkpoints.FORMAT, "version": checkpoints.VERSION, "bayespg": "x"} | {
        name: {} for name in present
    }
    content = json.dumps(sound | header).encode()
    arrays[checkpoints.FORMAT] = np.frombuffer(content, np.uint8)
    np.savez(path, **arrays, sha256=checkpoints._digest(arrays))


def test_what_the_tests_forge_is_sound(tmp_path):
    archive(tmp_path / "x.npz", {"['x']": np.ones(3)}, meta={"update": 1})
    same(load(tmp_path / "x.npz", {"x": np.zeros(3)}), ({"x": np.ones(3)}, {"update": 1}))


@pytest.mark.parametrize(
    ("present", "header"),
    [
        (("meta",), {}),
        (("keys",), {}),
        ((), {"keys": [], "meta": {}}),
        ((), {"keys": {}, "meta": None}),
        (("keys", "meta"), {"version": "1"}),
        (("keys", "meta"), {"version": None}),
    ],
)
def test_a_header_without_its_keys_is_damaged(tmp_path, present, header):
    archive(tmp_path / "x.npz", {"['x']": np.ones(3)}, present, **header)
    with pytest.raises(Damaged, match=r"x\.npz: found .* not a whole bayespg checkpoint"):
        load(tmp_path / "x.npz", {"x": np.zeros(3)})


@pytest.mark.parametrize("content", [b"[]", b"5", b"{", b"[" * 100_000, b"\xff", b""])
def test_a_header_of_other_json_is_damaged(tmp_path, content):
    arrays = {checkpoints.FORMAT: np.frombuffer(content, np.uint8)}
    np.savez(tmp_path / "x.npz", **arrays, sha256=checkpoints._digest(arrays))
    with pytest.raises(Damaged, match=r"x\.npz: found .* not a whole bayespg checkpoint"):
        load(tmp_path / "x.npz", {})


@pytest.mark.parametrize("kind", ["no such kind", ["fry"], "fry"])
def test_a_key_that_is_none_is_damaged(tmp_path, kind):
    archive(tmp_path / "x.npz", {"['x']": np.ones(3)}, keys={"['x']": kind}, meta={})
    with pytest.raises(Damaged, match=r"leaf \['x'\] is no PRNG key of kind"):
        load(tmp_path / "x.npz", {"x": jax.random.key(0)})


def npy(claims, content=b""):
    """An array whose header claims what it likes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, claims)
    return file.getvalue() + content


HUGE = {"descr": "|u1", "fortran_order": False, "shape": (10**12,)}
BOMBS = {
    "compressed": lambda file: file.writestr(
        "a.npy", npy(HUGE | {"shape": (10**8,)}, bytes(10**8)), zipfile.ZIP_DEFLATED
    ),
    "a shape that is not there": lambda file: file.writestr("a.npy", npy(HUGE)),
    "a negative shape": lambda file: file.writestr("a.npy", npy(HUGE | {"shape": (-1, -1)}, b"x")),
    "objects": lambda file: file.writestr(
        "a.npy", npy(HUGE | {"descr": "|O", "shape": (1,)}, bytes(8))
    ),
    "a name that climbs": lambda file: file.writestr(
        "../../a.npy", npy(HUGE | {"shape": ()}, b"x")
    ),
    "the same name twice": lambda file: [
        file.writestr("a.npy", npy(HUGE | {"shape": ()}, b"x")) for _ in range(2)
    ],
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_what_claims_to_be_larger_than_it_is_costs_no_memory(tmp_path, bomb):
    save(tmp_path / "x.npz", state(3))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as file:
        bomb(file)
    before = sorted(tmp_path.iterdir())
    tracemalloc.start()
    with pytest.raises(Damaged, match=r"x\.npz: (found .* not a whole|wrong checksum)"):
        load(tmp_path / "x.npz", TREE)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10**7
    assert sorted(tmp_path.iterdir()) == before


def test_members_that_overlap_are_not_read(tmp_path):
    save(tmp_path / "x.npz", state(3))
    with zipfile.ZipFile(tmp_path / "x.npz", "a") as file:
        largest = max(file.infolist(), key=lambda member: member.file_size)
        file.filelist += [largest] * 100
        file._didModify = True
    with pytest.raises(Damaged) as caught:
        load(tmp_path / "x.npz", TREE)
    assert "claim more than the file holds" in str(caught.value.__cause__)


def test_a_file_far_larger_than_the_state_is_not_read(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        file.truncate(10**11)
    with pytest.raises(ValueError, match=r"x\.npz: has 100,000,000,000 bytes, expected at most"):
        load(tmp_path / "x.npz", TREE)
    with pytest.raises(ValueError, match=r"meta: has .* bytes as JSON, at most"):
        save(tmp_path / "y.npz", {}, {"a": "x" * 2 * 10**6})


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ValueError, match=f"{name}: expected a file, found a directory, pipe"):
            load(tmp_path / name, TREE)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def room():
    """Limits the size of files: writes beyond it end halfway, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("call", ["write", "fsync", "unlink"])
def test_an_error_of_the_disk_names_the_file_that_was_to_be_written(tmp_path, monkeypatch, call):
    """A read-only disk refuses to remove the temporary file too, even where there is none."""

    def refused(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with Run.create(tmp_path / "run", {}) as run:
        run.log({"update": 1})
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", refused)
            patch.setattr(os, call, refused)
            for name, write in {
                METRICS: lambda: run.checkpoint(state(1)),
                "page.html": lambda: write_whole(tmp_path / "page.html", b"x"),
            }.items():
                with pytest.raises(OSError, match="not written") as caught:
                    write()
                assert os.path.basename(caught.value.filename) == name


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch, room):
    with Run.create(tmp_path, {}) as run:
        run.checkpoint(state(1), {"update": 1})
        files = sorted(tmp_path.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match=r"not written \(No space left .*make room") as caught:
                run.checkpoint(state(2), {"update": 2})
        assert caught.value.errno == errno.ENOSPC
        assert str(caught.value.filename).endswith(CHECKPOINT)
        room(1000)
        with pytest.raises(OSError, match="not written"):
            run.checkpoint(state(2), {"update": 2})
        room(resource.RLIM_INFINITY)
        assert sorted(tmp_path.iterdir()) == files
        same(run.restore(TREE), (state(1), {"update": 1}))


# Runs


def test_a_run_is_created_once_and_opened_again(tmp_path):
    run = Run.create(tmp_path / "a" / "b", {"seed": np.int64(3), "sizes": (1, 2)})
    assert run.config == Run.open(run.path).config == {"seed": 3, "sizes": [1, 2]}
    assert run.restore(TREE) is None
    assert run.metrics() == {}
    with pytest.raises(ValueError, match=r"already holds a run \(config.json\); resume it or"):
        Run.create(run.path, {})


def test_what_is_no_run_is_not_opened(tmp_path):
    with pytest.raises(ValueError, match="nowhere: not a run, no such directory"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"not a run, no config\.json in it"):
        Run.open(tmp_path)
    (tmp_path / "share.zip").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"share\.zip: is a file; a run or a saved agent is a folder"
    ):
        Run.open(tmp_path / "share.zip")
    for content, says in (
        (b'{"seed": ', "damaged"),
        (b"\xff\x00", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"[1]", r"\[1\]"),
        (b" " * 2_000_000, "has 2,000,000 bytes, expected at most"),
    ):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ValueError, match=rf"config\.json: .*{says}"):
            Run.open(tmp_path)
    with pytest.raises(ValueError, match="config: must be plain JSON"):
        Run.create(tmp_path / "other", {"f": print})
    assert not (tmp_path / "other").exists()


def test_writing_needs_the_lock_and_reading_does_not(tmp_path):
    run = Run.create(tmp_path, {})
    with run:
        run.log({"update": 1})
        run.checkpoint(state(1), {"update": 1})
        reader = Run.open(tmp_path)
        assert reader.metrics()["update"] == [1]
        assert reader.restore(TREE)[1] == {"update": 1}
        with pytest.raises(ValueError, match="in use by this process already; wait"):
            reader.__enter__()
    for write in (
        lambda: run.log({"update": 2}),
        lambda: run.checkpoint(state(2)),
        lambda: run.truncate(0),
    ):
        with pytest.raises(ValueError, match=r"not locked; write .* inside `with run:`"):
            write()


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    with Run.create(tmp_path, {}) as run:
        for update in (1, 2):
            run.checkpoint(state(update), {"update": update})
        (tmp_path / CHECKPOINT).write_bytes(b"PK")
        with pytest.warns(RuntimeWarning, match=f"{CHECKPOINT}: .*Resuming from {PREVIOUS}"):
            same(Run.open(tmp_path).restore(TREE), (state(1), {"update": 1}))
        with pytest.warns(RuntimeWarning, match="Resuming from"):
            run.restore(TREE)
        run.checkpoint(state(2), {"update": 2})
        same(load(tmp_path / PREVIOUS, TREE)[0], state(1))
        same(load(tmp_path / CHECKPOINT, TREE)[0], state(2))
        (tmp_path / CHECKPOINT).write_bytes(b"")
        (tmp_path / PREVIOUS).write_bytes(b"")
        with pytest.raises(Damaged, match=PREVIOUS):
            run.restore(TREE)
        os.remove(tmp_path / PREVIOUS)
        with pytest.raises(Damaged, match=CHECKPOINT):
            run.restore(TREE)


def test_another_template_does_not_fall_back(tmp_path):
    with Run.create(tmp_path, {}) as run:
        run.checkpoint([1])
        run.checkpoint([1, 2])
        with pytest.raises(ValueError, match="has extra leaves"):
            run.restore([1])
        assert (tmp_path / CHECKPOINT).exists()


def test_nothing_is_written_through_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "run"
    with Run.create(path, {}) as run:
        run.log({"update": 1})
        run.checkpoint(state(1))
        for name in ("config.json", METRICS, CHECKPOINT):
            (path / f".{name}.partial").symlink_to(victim)
        run.checkpoint(state(2))
        run.truncate(1)
        run.replace({"a": 1}, state(3))
        (path / CHECKPOINT).unlink()
        (path / CHECKPOINT).symlink_to(victim)
        run.checkpoint(state(4))
        (path / METRICS).unlink()
        for link in (os.symlink, os.link):
            link(victim, path / METRICS)
            for write in (lambda: run.log({"update": 2}), lambda: run.checkpoint(state(5))):
                with pytest.raises(ValueError, match=r"metrics\.csv: .*delete it|line 1 must name"):
                    write()
            (path / METRICS).unlink()
    for link in (os.symlink, os.link):
        (path / "lock").unlink(missing_ok=True)
        link(victim, path / "lock")
        with pytest.raises(ValueError, match=r"lock: is a (symbolic|hard) link.*delete it"):
            Run.open(path).__enter__()
    assert victim.read_text() == "precious"


def test_a_directory_of_a_run_is_not_written_through_a_link(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.mkdir()
    folder.mkdir()
    (folder / "seed-0").symlink_to(victim)
    (folder / "seed-1").symlink_to(tmp_path / "nowhere")
    for name in ("seed-0", "seed-1"):
        with pytest.raises(ValueError, match=f"{name}: is a symbolic link.*delete it"):
            Run.create(folder / name, {})
    assert not list(victim.iterdir())
    Run.create(victim, {})
    with pytest.raises(ValueError, match="seed-0: is a symbolic link"):
        Run.open(folder / "seed-0").__enter__()
    (tmp_path / "mine").symlink_to(victim)
    with Run.open(tmp_path / "mine") as run:  # which the user gave
        run.checkpoint(state(1))


def test_events_are_not_written_through_a_link(tmp_path):
    pytest.importorskip("tensorboardX")
    (tmp_path / "victim").mkdir()
    with Run.create(tmp_path / "run", {}, tensorboard=True) as run:
        (run.path / "tensorboard").symlink_to(tmp_path / "victim")
        with pytest.raises(ValueError, match="tensorboard: is a symbolic link"):
            run.log({"update": 1})
    assert not list((tmp_path / "victim").iterdir())


def test_half_a_row_is_not_cut_off_behind_a_link(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("update,return\n1,2\nprecious")
    with Run.create(tmp_path / "run", {}) as run:
        (run.path / METRICS).symlink_to(victim)
        for write in (lambda: run.truncate(1), lambda: run.log({"update": 2, "return": 1.0})):
            with pytest.raises(ValueError, match=r"metrics\.csv: is a symbolic link"):
                write()
    assert victim.read_text().endswith("precious")


def bests(path):
    """A run whose second and third updates are the best of three and of four."""
    with Run.create(path, {"seed": 3, "steps": 9}) as run:
        for update, best in (1, True), (2, True), (3, False):
            run.log({"update": update, "value": update / 7})
            run.checkpoint(state(update), {"update": update}, best=best)
    return path


def test_the_best_is_the_one_that_the_checkpoint_names(tmp_path):
    path = bests(tmp_path / "run")
    same(Run.open(path).best(TREE), (state(2), {"update": 2}))
    with Run.open(path) as run:
        run.restore(TREE)
        run.checkpoint(state(4), {"update": 4}, best=True)
    (path / CHECKPOINT).write_bytes(b"PK")
    with pytest.warns(RuntimeWarning, match="Resuming from"):
        same(Run.open(path).best(TREE)[0], state(2))  # the best of update 3
    with Run.open(path) as run, pytest.warns(RuntimeWarning, match="Resuming from"):
        run.restore(TREE)
    same(load(path / BEST, TREE)[0], state(2))
    (path / BEST).unlink()
    with pytest.raises(ValueError, match=r"best\.npz: is not the best policy that .* names"):
        Run.open(path).best(TREE)
    with Run.open(path) as run, pytest.warns(RuntimeWarning, match="train on until"):
        run.restore(TREE)


def test_a_checkpoint_of_another_seed_is_refused(tmp_path):
    path = bests(tmp_path / "run")
    (path / "config.json").write_text('{"seed": 4, "steps": 9}')
    with pytest.raises(ValueError, match=r"checkpoint\.npz: is of a run with seed 3, .* says 4"):
        Run.open(path).restore(TREE)


def test_every_flipped_bit_of_the_metrics_is_found(tmp_path):
    path = bests(tmp_path / "run")
    content = (path / METRICS).read_bytes()
    with Run.open(path) as run:
        run.restore(TREE)
        run.verify(3)
        with (path / METRICS).open("a") as file:
            file.write("4,0.5\n5,")  # killed before the next checkpoint
        run.verify(3)
        for at in range(8 * len(content)):
            changed = bytearray(content)
            changed[at // 8] ^= 1 << at % 8
            (path / METRICS).write_bytes(changed)
            with pytest.raises(
                ValueError, match=r"metrics\.csv: (wrong checksum|rows are missing)"
            ):
                run.verify(3)
        for left in (content[:-9], b""):
            (path / METRICS).write_bytes(left)
            with pytest.raises(ValueError, match=r"metrics\.csv: rows are missing, .* a copy"):
                run.verify(3)


def test_rows_without_a_checkpoint_are_not_lost(tmp_path):
    path = bests(tmp_path / "run")
    for name in (CHECKPOINT, PREVIOUS):
        (path / name).unlink()
    with Run.open(path) as run:
        assert run.restore(TREE) is None
        with pytest.raises(ValueError, match=r"rows of 3 updates, and there is no checkpoint"):
            run.verify(0)


def test_the_lock_is_gone_when_training_ends(tmp_path):
    with Run.create(tmp_path, {}) as run:
        assert (tmp_path / "lock").exists()
        run.checkpoint(state(1))
    assert not (tmp_path / "lock").exists()


def test_a_lock_that_another_process_has_just_removed_is_taken_again(tmp_path, monkeypatch):
    run, flock = Run.create(tmp_path, {}), fcntl.flock

    def removed(*arguments):
        flock(*arguments)
        (tmp_path / "lock").unlink()
        monkeypatch.setattr(fcntl, "flock", flock)

    monkeypatch.setattr(fcntl, "flock", removed)
    with run:
        run.checkpoint(state(1))


def test_what_killed_processes_left_is_forgotten(tmp_path):
    run = Run.create(tmp_path, {})
    with run:
        before = sorted(tmp_path.iterdir())
    for name in (
        ".config.json.0a1b.partial",
        ".checkpoint.npz.partial",
        f"checkpoint.{'a' * 16}.npz",
    ):
        (tmp_path / name).write_text("half")
    (tmp_path / "checkpoint.best.npz").write_text("mine")
    with run:
        assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "checkpoint.best.npz"])


@pytest.mark.parametrize("kept", [{"a": 1}, {"a": 2}], ids=["other settings", "the same settings"])
def test_a_replacement_is_whole_wherever_it_is_killed(tmp_path, monkeypatch, kept):
    """The old configuration with the old state, or the new one with the new."""

    class Killed(BaseException):
        pass

    seen = set()
    for last in range(8):
        path = tmp_path / str(last)
        with Run.create(path, kept) as run:
            run.checkpoint(state(0))
            run.checkpoint(state(1))
        calls = iter(range(100))

        def mortal(function, calls=calls, last=last):
            def call(*arguments):
                if next(calls) == last:
                    raise Killed
                return function(*arguments)

            return call

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "unlink"):
                patch.setattr(os, name, mortal(getattr(os, name)))
            try:
                with run:
                    run.replace({"a": 2}, state(2))
            except Killed:
                pass
        for _ in range(2):  # for a reader, and after a writer has tidied up
            again = Run.open(path)
            found = int(again.restore(TREE)[0]["update"])
            assert (again.config["a"], found) in [(kept["a"], 1), (2, 2)]
            seen.add(found)
            with again:
                pass
    assert seen == {1, 2}


def test_a_reader_does_not_mix_two_saves(tmp_path):
    with Run.create(tmp_path, {"a": 1}) as run:
        run.checkpoint(state(1))
        reader = Run.open(tmp_path)
        run.replace({"a": 2}, state(2))
    with pytest.raises(ValueError, match="was saved again while it was being read; load it again"):
        reader.restore(TREE)


def test_runs_leave_nothing_behind(tmp_path):
    def held():
        gc.collect()
        alive = sum(type(thing) is Run for thing in gc.get_objects())
        return alive, len(os.listdir("/dev/fd"))

    gc.freeze()  # what other tests left is not looked at
    before = held()
    for k in range(5):
        with Run.create(tmp_path / str(k), {}) as run:
            run.log({"update": 1})
            run.checkpoint(state(1))
        with pytest.raises(ValueError, match="already holds a run"):
            Run.create(tmp_path / str(k), {})
        with run, pytest.raises(ValueError, match="in use"):
            Run.open(tmp_path / str(k)).__enter__()
    Run.open(tmp_path / "0").__enter__()  # forgotten inside
    del run
    assert held() == before
    with Run.open(tmp_path / "0"):
        pass


def test_a_directory_that_was_removed_is_not_written_to(tmp_path):
    path = tmp_path / "run"
    with Run.create(path, {}) as run:
        run.log({"update": 1})
        path.rename(tmp_path / "away")
        for _ in range(2):
            for write in (lambda: run.log({"update": 2}), lambda: run.checkpoint(state(2))):
                with pytest.raises(ValueError, match="removed or replaced during training"):
                    write()
            if not path.exists():
                Run.create(path, {})  # another process begins there
    assert list(Run.open(tmp_path / "away").metrics()["update"]) == [1]
    assert not (path / METRICS).exists()


def test_a_run_stays_where_it_is_when_the_working_directory_changes(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with Run.create("run", {}) as run:
        monkeypatch.chdir("other")
        run.log({"update": 1})
        run.checkpoint(state(1), {"update": 1})
        assert run.restore(TREE)[1] == {"update": 1}
    assert list(Run.open(tmp_path / "run").metrics()["update"]) == [1]


def test_a_lock_of_nonsense_is_no_trouble(tmp_path):
    with Run.create(tmp_path, {}):
        (tmp_path / "lock").write_bytes(b"\xff\xfe" * 50)
        with pytest.raises(ValueError, match=r"in use by another process \(pid unknown\)"):
            Run.open(tmp_path).__enter__()


# Metrics


def test_metrics_read_back_exactly(tmp_path):
    values = [1 / 3, np.float32(0.1), jnp.float32(1e-30), np.nan, -np.inf, 1e308, None]
    with Run.create(tmp_path, {}) as run:
        for update, value in enumerate(values, start=1):
            run.log({"update": update, "value": value, "done": np.bool_(update % 2), "n": 10**17})
    found = run.metrics()
    assert list(found) == ["update", "value", "done", "n"]
    np.testing.assert_array_equal(found["update"], np.arange(1, 8))
    expected = [float(v) if v is not None else np.nan for v in values]
    np.testing.assert_array_equal(found["value"], expected)
    np.testing.assert_array_equal(found["done"], [1, 0, 1, 0, 1, 0, 1])
    assert found["n"].dtype == np.int64
    with (tmp_path / METRICS).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["value"]) == 1 / 3
    assert rows[3]["value"] == "nan"


def test_rows_that_do_not_fit_are_refused(tmp_path):
    with Run.create(tmp_path, {}) as run:
        with pytest.raises(ValueError, match="a row needs its 'update', found return"):
            run.log({"return": 1.0})
        with pytest.raises(ValueError, match="cannot be the name of a column"):
            run.log({"update": 1, "a,b": 1.0})
        run.log({"update": 1, "return": 1.0})
        for row in ({"update": 2}, {"update": 2, "return": 1.0, "loss": 2.0}):
            with pytest.raises(ValueError, match="expected columns update, return, found update"):
                run.log(row)
        for value in ("text", [1.0, 2.0], np.ones(1), 1j):
            with pytest.raises(ValueError, match="log: return must be one number, found"):
                run.log({"update": 2, "return": value})
        run.log({"return": 2.0, "update": 2})
    np.testing.assert_array_equal(run.metrics()["return"], [1.0, 2.0])


def test_a_resumed_run_continues_in_the_same_table(tmp_path):
    with Run.create(tmp_path, {}) as run:
        for update in range(1, 6):
            run.log({"update": update, "return": update / 7})
    with (tmp_path / METRICS).open("a") as file:
        file.write("6,0.85714")  # killed halfway
    np.testing.assert_array_equal(Run.open(tmp_path).metrics()["update"], [1, 2, 3, 4, 5])
    with Run.open(tmp_path) as run:
        run.truncate(3)
        with pytest.raises(ValueError, match="expected columns update, return"):
            run.log({"update": 4, "loss": 0.0})
        run.log({"update": 4, "return": 0.5})
    np.testing.assert_array_equal(run.metrics()["update"], [1, 2, 3, 4])
    np.testing.assert_array_equal(run.metrics()["return"], [1 / 7, 2 / 7, 3 / 7, 0.5])


@pytest.mark.parametrize("left", ["", "upd", "update,return\n", "update,return\n1,0.", "absent"])
def test_the_first_row_may_be_lost_too(tmp_path, left):
    for truncates in (True, False):
        path = tmp_path / str(truncates)
        Run.create(path, {})
        if left != "absent":
            (path / METRICS).write_text(left)
        with Run.open(path) as run:
            assert all(column.size == 0 for column in run.metrics().values())
            if truncates:
                run.truncate(0)
            run.log({"update": 1, "return": 0.5})
        assert (path / METRICS).read_text() == "update,return\n1,0.5\n"


def test_a_damaged_table_names_the_line(tmp_path):
    run = Run.create(tmp_path, {})
    (tmp_path / METRICS).write_text("update,return\n1,2\n2\n")
    with pytest.raises(ValueError, match=r"metrics\.csv: line 3 has 1 cells, expected 2"):
        run.metrics()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"update,return\n1,abc\n", "column return must hold numbers .*abc"),
        (b"update,return\nx,1\n", "column update must hold numbers"),
        (b"update,return\n1,\xff\n", "is not text"),
        (b"return,length\n1,2\n", "line 1 must name the columns"),
        (b"update,a,a\n1,2,3\n", "line 1 must name the columns"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, content, says):
    with Run.create(tmp_path, {}) as run:
        (tmp_path / METRICS).write_bytes(content)
        with pytest.raises(ValueError, match=rf"metrics\.csv: {says}"):
            run.metrics()
        if "column return" not in says:
            with pytest.raises(ValueError, match=rf"metrics\.csv: {says}"):
                run.truncate(1)


def test_a_full_disk_leaves_no_half_row(tmp_path, room):
    with Run.create(tmp_path, {}) as run:
        run.log({"update": 1, "return": 1 / 3})
        before = (tmp_path / METRICS).read_bytes()
        room(len(before) + 5)
        with pytest.raises(OSError, match=r"not written .*metrics\.csv"):
            run.log({"update": 2, "return": 1 / 3})
        room(resource.RLIM_INFINITY)
        assert (tmp_path / METRICS).read_bytes() == before
        run.log({"update": 2, "return": 1 / 3})
    assert list(run.metrics()["update"]) == [1, 2]


def test_tensorboard_mirrors_the_metrics(tmp_path):
    pytest.importorskip("tensorboardX")
    with Run.create(tmp_path, {}, tensorboard=True) as run:
        run.log({"update": 1, "return": 0.5})
    with Run.open(tmp_path, tensorboard=True) as run:
        run.log({"update": 2, "return": 0.7})
    files = list((tmp_path / "tensorboard").iterdir())
    assert sum(path.read_bytes().count(b"rollout/return") for path in files) == 2


def test_tensorboard_gets_no_value_that_is_not_finite(tmp_path, caplog):
    """Such as a column that an estimator does not have; the file of metrics holds it."""
    pytest.importorskip("tensorboardX")
    with Run.create(tmp_path, {}, tensorboard=True) as run:
        run.log({"update": 1, "return": 0.5, "known": math.nan, "slope": math.inf})
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert [name in file.read_bytes() for name in (b"return", b"known", b"slope")] == [1, 0, 0]
    assert caplog.messages == []
    assert math.isnan(run.metrics()["known"][0])


def test_without_tensorboardx_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"pip install 'bayespg\[tensorboard\]'"):
        Run.create(tmp_path / "run", {}, tensorboard=True)
    assert not (tmp_path / "run").exists()


# Killed processes

NURSERY = """
import itertools, os, signal, sys
import numpy as np
from bayespg.runs.store import Run

def state(update):
    return {"update": np.int64(update), "x": np.full(500, update, np.float32)}

def train(path):
    progress = os.open(path + "/progress", os.O_WRONLY | os.O_CREAT)
    with Run.open(path) as run:
        found = run.restore(state(0))
        update = found[1]["update"] if found else 0
        run.truncate(update)
        while True:
            update += 1
            os.pwrite(progress, b"%9d" % update, 0)
            run.log({"update": update, "value": update / 7})
            run.checkpoint(state(update), {"update": update})

def hold(path):
    with Run.open(path):
        worker = os.fork()
        if worker:
            with open(path + "/worker", "w") as file:
                file.write(f"{worker} ")
        signal.pause()

def die_at(last):
    calls = itertools.count(1)
    def mortal(function):
        def call(*args):
            if next(calls) == last:
                os._exit(9)
            return function(*args)
        return call
    for name in ("fsync", "replace", "ftruncate"):
        setattr(os, name, mortal(getattr(os, name)))

for line in sys.stdin:  # one child a line; this process, which has imported JAX, never starts it
    what, path, last = line.split()
    child = os.fork()
    if child == 0:
        die_at(int(last))
        try:
            {"train": train, "hold": hold}[what](path)
        finally:
            os._exit(1)
    print(child, flush=True)
    print(os.WEXITSTATUS(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def nursery():
    """Starts processes quickly: (what, path, last) -> pid; then a line with the exit status."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def start(what, path, last=0):
        process.stdin.write(f"{what} {path} {last}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    start.status = lambda: int(process.stdout.readline())
    yield start
    process.stdin.close()
    assert process.wait() == 0


def started(path):
    """The last update that a child began."""
    progress = path / "progress"
    return int(progress.read_text() or 0) if progress.exists() else 0


def survives(path, before):
    """Opens, restores and agrees with itself; at most the update in progress is lost."""
    began = started(path)
    with Run.open(path) as run:
        found = run.restore(TREE)
        update = found[1]["update"] if found else 0
        if found:
            same(found[0], state(update))
        assert max(before, began - 1) <= update <= max(before, began)
        run.truncate(update)
        metrics = run.metrics()
    if update:
        np.testing.assert_array_equal(metrics["update"], np.arange(1, update + 1))
        np.testing.assert_array_equal(metrics["value"], np.arange(1, update + 1) / 7)
    return update


@pytest.mark.filterwarnings("error")
def test_killed_at_any_moment_a_run_continues(tmp_path, nursery):
    Run.create(tmp_path, {})
    moments = random.Random(0)
    update = 0
    for kill in range(KILLS):
        child = nursery("train", tmp_path)
        at = update + moments.randint(2, 5) if kill % 2 else 0  # 0: while it is starting, perhaps
        while started(tmp_path) < at:
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        nursery.status()
        update = survives(tmp_path, update)
    assert update >= KILLS // 2


@pytest.mark.filterwarnings("error")
def test_killed_before_any_call_that_changes_the_disk_a_run_continues(tmp_path, nursery):
    Run.create(tmp_path, {})
    update = 0
    for last in range(1, 15):
        nursery("train", tmp_path, last)
        assert nursery.status() == 9
        update = survives(tmp_path, update)
    assert update > 10


def test_the_lock_keeps_a_second_process_out_until_the_first_is_killed(tmp_path, nursery):
    Run.create(tmp_path, {})
    child = nursery("hold", tmp_path)
    worker = tmp_path / "worker"
    while not (worker.exists() and worker.read_text().endswith(" ")):
        time.sleep(0.01)
    try:
        with pytest.raises(ValueError, match=rf"in use by another process \(pid {child}\); wait"):
            Run.open(tmp_path).__enter__()
        os.kill(child, signal.SIGKILL)
        nursery.status()
        os.kill(int(worker.read_text()), 0)  # its worker lives on
        with Run.open(tmp_path) as run:
            run.log({"update": 1})
    finally:
        os.kill(int(worker.read_text()), signal.SIGKILL)
