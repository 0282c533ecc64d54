"""What is published: the archives, their description, and a wheel that works where nothing else of
this checkout is."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from bayespg._support.version import __version__
from bayespg.agents.settings import RENAMED

ROOT = Path(__file__).parent.parent


def run(*words, **options):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=280, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_place_names_the_same_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    changed = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert project["version"] == __version__ == cited[1]
    assert changed[1] == __version__


def test_every_setting_that_has_another_name_is_in_the_table():
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    table = changes[changes.index("### Names of version 0.2, and") : changes.index("## 0.2.0")]
    assert [name for name in RENAMED if f"`{name}`" not in table] == []


def test_all_extras_are_in_one_and_the_classifiers_are_the_versions_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    (every,) = extras["all"]
    named = every.removeprefix("bayespg[").removesuffix("]").split(",")
    assert set(named) == extras.keys() - {"all", "docs", "dev"}
    tests = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    tested = re.findall(r"3\.\d+", re.search(r"python: \[(.*)\]", tests)[1])
    kinds = [kind.rpartition(" ")[2] for kind in project["classifiers"] if ":: Python ::" in kind]
    assert kinds == ["3", *tested]


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("build") is None or find_spec("hatchling") is None,
    reason="pip install build hatchling twine",
)
def test_the_wheel_works_in_a_clean_environment(tmp_path):
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT)
    (wheel,), (source,) = (list((tmp_path / "dist").glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    if find_spec("twine") is not None:
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    names = zipfile.ZipFile(wheel).namelist()
    assert "bayespg/runs/page/style.css" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]
    with tarfile.open(source) as archive:
        assert any(name.endswith("README.md") for name in archive.getnames())
    # The dependencies are those of this environment; bayespg itself comes from the wheel.
    run(sys.executable, "-m", "venv", tmp_path / "clean")
    (here,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    there = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    run(tmp_path / "clean" / "bin" / "pip", "install", "--no-deps", "--no-index", wheel)
    (here / "dependencies.pth").write_text(f"{there}\n")
    plain = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    script = tmp_path / "clean" / "bin" / "bayespg"
    assert __version__ in run(script, "--version", cwd=tmp_path, env=plain)
    told = run(script, "environments", "jax/", cwd=tmp_path, env=plain)
    assert "jax/CartPole-v1" in told
    where = run(
        tmp_path / "clean" / "bin" / "python", "-c", "import bayespg; print(bayespg.__file__)",
        cwd=tmp_path, env=plain,
    )  # fmt: skip
    assert str(here) in where
