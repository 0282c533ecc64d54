"""What is imported is declared in pyproject.toml: nothing comes by way of another package."""

import ast
import functools
import graphlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEVER = {"brax", "cma", "gpytorch", "torch", "stable_baselines3", "sb3_contrib"}
"""Imported by scripts that say how to install it, beside the library."""


def declared(requirements):
    """Canonical names of distributions; `bayespg[extra]` stands for what the extra declares."""
    found = set()
    for requirement in requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w, -]+)\])?", requirement).groups()
        found.add(canonical(name))
        for extra in (extras or "").split(",") if name == PROJECT["name"] else ():
            found |= declared(EXTRAS[extra.strip()])
    return found


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def nodes(file):
    """All of the syntax tree."""
    return list(ast.walk(ast.parse(file.read_text("utf-8"))))


@functools.cache
def imported(file):
    """(top-level module, whether it is imported inside a function) of every import of a file."""
    found = []
    inside = {
        id(node)
        for function in nodes(file)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in nodes(file):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            found.append((name.split(".")[0], id(node) in inside))
    return found


def foreign(folder):
    """Imports that are neither Python's nor the repository's."""
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    own = {PROJECT["name"]}
    if folder != "src":  # scripts import their neighbours by name
        own |= {path.stem for path in files} | {path.parent.name for path in files}
        own |= {path.stem for path in (ROOT / "benchmarks").glob("*.py")}  # tests run some of them
    for file in files:
        for module, inside in imported(file):
            if module not in own | NEVER | sys.stdlib_module_names:
                yield file.relative_to(ROOT), module, inside


distributions_of = functools.cache(importlib.metadata.packages_distributions)


def undeclared(folder, always, sometimes=frozenset()):
    distributions = distributions_of()
    for file, module, inside in foreign(folder):
        names = {canonical(name) for name in distributions.get(module, [module])}
        if not names & (always | (sometimes if inside else frozenset())):
            yield f"{file}: {module}"


def test_the_library_declares_what_it_imports():
    """What an extra brings is imported where it is used, inside a function."""
    optional = [one for name in EXTRAS if name not in ("dev", "docs") for one in EXTRAS[name]]
    always = declared(PROJECT["dependencies"])
    assert sorted(set(undeclared("src", always, declared(optional)))) == []


@pytest.mark.parametrize(
    ("folder", "extra"),
    [("tests", "dev"), ("benchmarks", "dev"), ("docs", "docs"), ("examples", None)],
)
def test_tests_and_scripts_declare_what_they_import(folder, extra):
    names = declared(PROJECT["dependencies"] + (EXTRAS[extra] if extra else []))
    assert sorted(set(undeclared(folder, names))) == []


def test_a_missing_declaration_is_found():
    found = set(undeclared("src", declared(PROJECT["dependencies"]) - {"numpy", "pillow"}))
    assert {line.split(": ")[1] for line in found} >= {"numpy", "PIL"}


PACKAGE = ROOT / "src" / "bayespg"


@pytest.mark.parametrize(
    "package", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
)
def test_files_of_a_package_do_not_import_one_another_in_a_circle(package):
    """Imports inside functions and for type checkers count too: they hide a circle, and do not
    break it."""
    files = {}
    for path in (PACKAGE / package).rglob("*.py"):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    imports = {}
    for name, path in files.items():
        made = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
        targets = [(node.module, f"{node.module}.{a.name}") for node in made for a in node.names]
        own = {whole if whole in files else module for module, whole in targets}
        imports[name] = own & files.keys()
    assert len(list(graphlib.TopologicalSorter(imports).static_order())) == len(files)


@pytest.mark.slow
def test_the_mark_slow_is_for_the_cases_that_it_names(tmp_path):
    """And one that names a case that does not exist, such as after a renaming, is an error."""
    for name in ("conftest.py", "oracle.py", "typecheck.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow(*ids): as in pyproject.toml\n")
    test = "@pytest.mark.slow{}\n@pytest.mark.parametrize('x', 'abc')\ndef test_{}(x): pass\n"
    right, wrong = (
        test.format('("b")', "some") + test.format("", "all"),
        test.format('("d")', "none"),
    )
    (tmp_path / "test_right.py").write_text("import pytest\n" + right)
    (tmp_path / "test_wrong.py").write_text("import pytest\n" + wrong)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "not slow", "."],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    collected = re.findall(r"^test_right\.py::(\S+)$", done.stdout, re.MULTILINE)
    assert collected == ["test_some[a]", "test_some[c]"], done.stdout
    assert "test_none: slow names cases that do not exist: {'d'}" in done.stdout


def test_no_function_is_longer_than_eighty_lines():
    for file in PACKAGE.rglob("*.py"):
        for node in nodes(file):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 80, (file.name, node.name)
