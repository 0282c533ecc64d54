"""The types that a user's editor shows, by pyright on a file of user code."""

import json
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import bayespg
from bayespg.agents import mbac, pgpe
from bayespg.agents.settings import FIELDS, Given, GivenToMBAC, GivenToPGPE

HERE = Path(__file__).parent
PROGRAM = HERE / "user_code.py"


@pytest.fixture(scope="module")
def reported() -> dict[int, tuple[str, str]]:
    """What pyright says about each line: severity and message."""
    beside = Path(sys.executable).with_name("pyright")
    command = str(beside) if beside.exists() else shutil.which("pyright")
    if command is None:
        pytest.skip("pyright is not installed")
    done = subprocess.run(
        [command, "--outputjson", "--pythonpath", sys.executable, str(PROGRAM)],
        cwd=HERE.parent, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright did not run: {done.stderr[:200]}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {d["range"]["start"]["line"]: (d["severity"], d["message"]) for d in found}


def lines(mark: str) -> list[tuple[int, str]]:
    return [(i, x) for i, x in enumerate(PROGRAM.read_text().splitlines()) if mark in x]


@pytest.mark.slow
def test_every_name_of_the_front_door_has_its_type(reported):
    for number, line in lines("reveal_type("):
        expected = line.split("# <")[1].removesuffix(">")
        severity, message = reported[number]
        assert severity == "information"
        assert message.endswith(f'is "{expected}"'), line


@pytest.mark.slow
def test_a_wrong_argument_is_an_error_and_a_right_one_is_not(reported):
    wrong = {number for number, _ in lines("# wrong")}
    assert {n for n, (severity, _) in reported.items() if severity == "error"} == wrong


def test_keyword_arguments_are_the_settings():
    of_all = typing.get_type_hints(Given)
    assert list(of_all) == list(FIELDS)
    of_mbac = of_all | {"discount": float | None}  # of simulated episodes, which are of one length
    for given, names, of in (
        (GivenToPGPE, pgpe.SETTINGS, of_all), (GivenToMBAC, mbac.SETTINGS, of_mbac)
    ):  # fmt: skip
        assert typing.get_type_hints(given) == {name: of[name] for name in names}


def test_the_types_are_those_that_are_loaded():
    """A name of the package is in the part for type checkers, and the other way round."""
    text = Path(bayespg.__file__).read_text()
    block = text[text.index("if TYPE_CHECKING:") : text.index("command.begin()")]
    named = {line.split(" as ")[1] for line in block.splitlines() if " as " in line}
    assert named == set(bayespg.__all__)


@pytest.mark.parametrize("name", sorted(bayespg._MODULES))
def test_a_public_module_shows_its_public_names_only(name):
    module = getattr(bayespg, name)
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, public) for public in dir(module))


def test_agents_are_classes():
    agent = bayespg.BAC("CartPole-v1", policy="linear")
    assert isinstance(agent, bayespg.BAC)
    assert isinstance(agent, bayespg.Agent)
    assert not isinstance(agent, bayespg.BPG)


def test_a_class_loads_its_own_kind_only(tmp_path):
    bayespg.BAC("CartPole-v1", policy="linear").save(tmp_path / "saved")
    assert type(bayespg.BAC.load(tmp_path / "saved")) is bayespg.BAC
    assert isinstance(bayespg.Agent.load(tmp_path / "saved"), bayespg.BAC)
    with pytest.raises(ValueError, match="holds an agent of class BAC, not PGPE"):
        bayespg.PGPE.load(tmp_path / "saved")


def test_help_describes_every_argument_with_an_example():
    for function in (bayespg.evidence.model1, bayespg.evidence.model2):
        text = function.__doc__
        assert all(f"        {name}: " in text for name in ("scores", "returns", "fisher"))
        assert ">>> " in text
