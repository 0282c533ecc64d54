"""Write docs/reproduction.md, and the report that the site holds, from what `bayespg reproduce all
--out docs/results` and `python benchmarks/experiments.py all --out docs/results` leave; and the
tables of README.md and docs/benchmarks.md that come from the runs of benchmarks/suite.py and
benchmarks/learning.py.

python docs/render.py
"""

import re
import sys
from itertools import groupby
from pathlib import Path

from bayespg.reproduce import EXPERIMENTS, page, sentences

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))
import model_based  # noqa: E402

RESULTS = HERE / "results"
FUTURE = (
    ("other partitions of the integrand", "future-work.md#other-partitions"),
    ("other kernels, such as sequence kernels", "future-work.md#sequence-kernels"),
    ("a learned model: model-based Bayesian policy gradient", "model-based.md#what-it-needs"),
    ("more efficient Fisher estimates", "future-work.md#fisher-estimates"),
    ("a non-parametric actor", "future-work.md#a-non-parametric-actor"),
    ("larger domains", "benchmarks.md"),
    ("steps that use second moments", "algorithms/actor-critic.md#agents-and-networks"),
)
"""The directions of Section 10, and where they are followed."""
MODEL = """The learned model on three tasks of the paper: real steps until two evaluations in a row
reach a return, in the median over seeds from 810 on, [BAC](model-based.md#what-it-needs) beside
it."""
WIDEST = 4
"""Claims that fit side by side into a table of readings."""
MARKS = {"holds": "✓", "does not hold": "✗", "not decided": "?", page.UNCONFIRMABLE: "?*"}
BESIDE = {"check": "the printed numbers", "ours": "ours"}
PROOFS = (
    ("Proposition 1", "the posterior of the integral of a vector-valued process",
     ("tests/test_integrals.py::test_a_vector_valued_process_is_equation_17",
      "tests/test_rest_of_the_paper.py::test_coupled_components_are_proposition_1")),
    ("Proposition 2", "the posterior of an integral with a vector-valued g",
     ("tests/test_integrals.py::test_a_vector_g_integrates_to_a_vector",)),
    ("Proposition 3", "b and b₀ of Model 1 with the quadratic Fisher kernel",
     ("tests/test_kernels.py::test_proposition_3_holds_under_numerical_integration",
      "tests/test_quadrature.py::test_model1_is_the_papers")),
    ("Proposition 4", "B and B₀ of Model 2 with the Fisher kernel",
     ("tests/test_kernels.py::test_proposition_4_holds_under_numerical_integration",
      "tests/test_quadrature.py::test_model2_is_the_papers_plus_a_constant")),
    ("Proposition 5", "the posterior of both models with a dictionary",
     ("tests/test_quadrature.py::test_a_dictionary_that_drops_members_gives_proposition_5",)),
    ("Proposition 6", "the posterior of the gradient in the actor-critic",
     ("tests/test_actor_critic.py::test_the_posterior_and_its_evidence_are_the_printed_ones",)),
    ("Proposition 7", "the same with a dictionary of state-action pairs",
     ("tests/test_actor_critic.py::test_the_posterior_and_its_evidence_are_the_printed_ones",
      "tests/test_actor_critic.py::test_the_dictionary_of_these_tests_really_drops_pairs")),
)  # fmt: skip
"""What the paper proves, and the tests that compare the library with it."""
HOW = """
What *Bayesian Policy Gradient and Actor-Critic Algorithms* says, measured again: every sentence of
its experiments and conclusions that can be tested, in a paraphrase, with a verdict. The reasons
behind the verdicts are in [findings](findings.md).

A sentence is judged under readings, which are listed before they are run: the paper's own choice,
where it is printed, comes first ("as printed"), then choices that it leaves open. It **holds as
printed** if the first reading is printed and holds, **holds under an admissible reading** if
another one does, **does not hold under any reading tried** if all that were run fail, and is **not
decided** otherwise. A reading holds if all its claims do. A claim has one or several effects, each
with an interval over independent runs; the intervals of a claim hold jointly with 95 % confidence.

| mark | a claim, or a reading |
|---|---|
| ✓, in tables no mark | holds: all intervals lie within the bounds of the claim |
| ✗ | does not hold: an interval lies outside |
| ?, ?* | is not decided at this size; with ?* no outcome at this size could confirm it |
| (2 runs) | had so few runs that it decides nothing |

A row of a table is a reading: it holds if no cell has a mark, and where the head of a column names
another choice, there is one reading for each.

Numbers are the least and the greatest effect and, in brackets, the range of all intervals. Each
link has the name of an experiment and leads to its figure; the command that repeats it is at [the
end of this page](#the-commands), the file of the same name that ends in `.json` has all effects,
bounds and tables, and `bayespg report docs/results` shows them on one page. A name in brackets,
such as `figure-3`, is that of the sentence on the command line.
"""


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def ledger(found):
    """The page: every sentence with its readings, then the claims that belong to none."""
    judged = sentences.fold(found)
    parts = ["# The paper, sentence by sentence", HOW, _counts(judged)]
    for section, some in groupby(judged, lambda of: of.sentence.place.partition(", ")[0]):
        parts += [f"\n## {section}\n", "\n".join(map(_sentence, some)).rstrip()]
    parts += ["\n## Propositions\n", _proofs()]
    parts += ["\n## The future work of Section 10, done\n"]
    parts += [f"- [{_capital(says)}]({where})" for says, where in FUTURE]
    parts += ["", MODEL, "", _by_a_model()]
    about = [content for content in found if content["experiment"] in EXPERIMENTS]
    claims = [(content, claim) for content in about for claim in content["claims"]]
    others = [(c, k) for c, k in claims if not k["sentence"]]
    parts += ["\n## Our own claims about the same experiments", *_others(others)]
    return "\n".join([*parts, "\n## The commands\n", *_commands(found), "", _made(found), ""])


def _by_a_model():
    """Real steps with a learned model and without, from the stored runs."""
    lines = model_based.stored(RESULTS / "model-based.jsonl")
    rows = []
    for task in ("LQR", "MountainCar", "ShipSteering"):
        row = [task, f"{model_based.TASKS[task].threshold:g}"]
        for name in ("MBAC", "BAC"):
            those = [x for x in lines if (x["task"], x["algorithm"]) == (task, name)]
            row += model_based.summary([x for x in those if not model_based.cut_short(x)])[:2]
        rows.append(row)
    return table(["task", "return", "MBAC solved", "steps", "BAC solved", "steps"], rows)


def _sentence(judged):
    """A sentence in one line, and below it the claims of its readings."""
    words, run = judged.sentence, [reading for reading in judged.readings if reading.claims]
    _, _, figure = words.place.partition(", ")
    missing = [reading.name for reading in judged.readings if not reading.claims]
    note = f" Not tested: {words.untested}." if words.untested else ""
    if missing and words.readings:
        note += f" Not run: {missing[0] if len(missing) == 1 else 'all other readings'}."
    links = ", ".join(dict.fromkeys(_link(content) for r in run for content, _ in r.claims))
    said = f"{_capital(words.says)}{figure and f' ({figure})'}."
    below = _table(run) or _list(run)
    beside = [
        f"- {BESIDE[claim['kind']]}, beside it: {_line(claim)}, {_link(c)}"
        for c, claim in judged.beside
    ]
    first = f"**{judged.verdict}**: {said} (`{judged.name}`){note} {links}".rstrip()
    parts = [first, "\n".join(below), "\n".join(beside)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(run):
    """Readings below each other, and claims side by side; nothing where few claims are shared.

    Readings that differ only in the words before a case of LQR share its row.
    """
    columns, effects = {}, {claim["effect"] for reading in run for _, claim in reading.claims}
    for reading in run:
        variant, row = _split(reading.name)
        row += "" if reading.verdict else f" ({_runs(reading)} runs)"
        for _, claim in reading.claims:
            said = claim["says"] if len(effects) == 1 else _said(claim)
            columns.setdefault((variant, said), {})[row] = f"{_mark(claim)}{_range(claim)}"
    rows = list(dict.fromkeys(row for cells in columns.values() for row in cells))
    filled = sum(map(len, columns.values()))
    if len(rows) < 2 or len(columns) > WIDEST or 2 * filled <= len(rows) * len(columns):
        return []
    alike = {}
    for (variant, said), cells in columns.items():
        alike.setdefault((said, tuple(cells.get(row, "") for row in rows)), []).append(variant)
    heads = [
        _capital(said if len(some) > 1 or not some[0] else f"{some[0]}: {said}")
        for (said, _), some in alike.items()
    ]
    lines = zip(rows, *(cells for _, cells in alike), strict=True)
    measured = [f"{_capital(*effects)}:\n"] if len(effects) == 1 else []
    return [*measured, table(["reading", *heads], lines)]


def _split(name):
    """The words before a case of Sigma and starting point, and the case."""
    case = next((case for case in sentences.LQR if name.endswith(f", {case}")), None)
    return (name.removesuffix(f", {case}"), case) if case else ("", name)


def _list(run):
    """Readings and their claims as a list; a claim alone says what its sentence says."""
    if len(run) == 1 and len(run[0].claims) == 1:
        ((_, claim),) = run[0].claims
        return [
            f"- *{run[0].name}* {_state(run[0])}: {claim['effect']}{_aside(claim)}: {_range(claim)}"
        ]
    lines = []
    for reading in run:
        claims = [claim for _, claim in reading.claims]
        effects = {claim["effect"] for claim in claims}
        measured = f": {effects.pop()}" if len(effects) == 1 else ""
        lines.append(f"- *{reading.name}* {_state(reading)}{measured}")
        for claim in claims:
            said = _capital(claim["says"] if measured else _said(claim))
            lines.append(f"    - {MARKS[page.verdict(claim)]} {said}: {_range(claim)}")
    return lines


def _state(reading):
    return MARKS[reading.verdict] if reading.verdict else f"({_runs(reading)} runs)"


def _runs(reading):
    return min(content["configuration"]["runs"] for content, _ in reading.claims)


def _said(claim):
    return f"{claim['says']}: {claim['effect']}"


def _line(claim):
    return f"{MARKS[page.verdict(claim)]} {_capital(_said(claim))}: {_range(claim)}"


def _mark(claim):
    mark = MARKS[page.verdict(claim)]
    return "" if mark == "✓" else f"{mark} "


def _aside(claim):
    """What a claim says of its sizes in brackets at its end."""
    _, bracket, inside = claim["says"].rpartition(" (")
    return f" ({inside}" if bracket and inside.endswith(")") else ""


def _range(claim):
    values, low, high = ([e[k] for e in claim["effects"]] for k in ("value", "low", "high"))
    if None in (*values, *low, *high):
        return "not finite"
    values = dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values)))
    return f"{'…'.join(values)} [{min(low):.3g}, {max(high):.3g}]"


def _others(claims):
    """Claims that belong to no sentence; what several say alike stands once, above them."""
    groups = {}
    for content, claim in claims:
        about, colon, says = claim["says"].partition(": ")
        about, says = (about, f"{says}, ") if colon else (claim["says"], "")
        groups.setdefault((_link(content), f"{says}{claim['effect']}"), []).append((about, claim))
    lines = []
    for (link, measured), some in groups.items():
        lines.append(f"\n{link}, {measured}:\n")
        lines += [
            f"- {MARKS[page.verdict(claim)]} {_capital(about)}: {_range(claim)}"
            for about, claim in some
        ]
    return lines


def _link(content):
    return f"[{content['experiment']}](results/{content['experiment']}.svg)"


def _commands(found):
    """One line for each program and size, with the experiments and their runs."""
    groups = {}
    for content in found:
        name, c = content["experiment"], content["configuration"]
        runs = f" --runs {c['runs']}"
        command = page.command(content).replace(f" {name}", " NAME").replace(runs, " --runs RUNS")
        groups.setdefault(command, []).append(f"{name} {c['runs']}")
    return [f"- `{command}`: {', '.join(some)}" for command, some in groups.items()]


def _proofs():
    """The propositions, each with the tests that prove it."""
    rows = [[p, says, "<br>".join(f"`{t}`" for t in tests)] for p, says, tests in PROOFS]
    return table(["", "says", "tests"], rows)


def _capital(text):
    return f"{text[0].upper()}{text[1:]}"


def _counts(judged):
    rows = [[outcome, str(count)] for outcome, count in sentences.counts(judged).items()]
    return table(["sentences of the paper", str(len(judged))], rows)


def _made(found):
    versions = sorted({content["versions"]["bayespg"] for content in found})
    return (
        f"Measured with bayespg {' and '.join(versions)}; each file names its own version. Made by "
        "`python docs/render.py` from `docs/results/*.json`; changes belong there."
    )


def with_runs(page):
    """A page with tables between comments such as <!-- suite --> as the stored runs of
    benchmarks/suite.py and benchmarks/learning.py give them."""
    for name, text in tables_of_runs().items():
        opening, closing = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        page = re.sub(
            re.escape(opening) + ".*?" + re.escape(closing),
            lambda _, all=opening + text + closing: all, page, flags=re.DOTALL,
        )  # fmt: skip
    return page


def tables_of_runs():
    """Tables by the names of their comments."""
    import front
    import leads
    import learning
    import suite_goals
    import suite_report

    def of(*names):
        return suite_report.stored([RESULTS / f"{name}.jsonl" for name in names])

    others = of("rivals")
    few = {f"{name}, stopped when solved" for name in ("ars", "dqn")}
    made = suite_report.tables(
        of("suite", "suite-rivals") | {name: others[name] for name in others if name in few}
    )
    early, whole = (
        [
            row
            for row in suite_report.tables(of("suite", name))[key].splitlines()
            if not row.endswith("|  |")
        ]
        for name, key in (("suite-sac", "early"), ("suite-sac-full", "score"))
    )
    below = suite_report.below_start(of("suite-random"))
    return {
        "suite": f"{made['all tasks']}\n\n{made['score']}",
        "suite seconds": made["threshold"],
        "suite-sac": "\n".join(early),
        "suite-sac-full": "\n".join(whole),
        "goals": suite_goals.table(of("suite", "suite-rivals", "suite-sac", "suite-random")),
        "generated": "\n".join(f"    {line}" for line in below),
        "leads": leads.table([RESULTS / "leads.jsonl"]),
        "learning": learning.table(RESULTS / "ours.jsonl", RESULTS / "rivals.jsonl"),
        "first table": front.table(front.scores()),
    }


def main():
    for path in (HERE.parent / "README.md", HERE / "benchmarks.md"):
        path.write_text(with_runs(path.read_text("utf-8")), "utf-8")
    found = page.read(RESULTS, list(EXPERIMENTS))
    missing = EXPERIMENTS.keys() - {content["experiment"] for content in found}
    for name in sorted(missing):
        print(f"left out, not there or made by an older version: {name}.json")
    (HERE / "reproduction.md").write_text(ledger(found), "utf-8")
    if not missing:
        page.write(RESULTS, list(EXPERIMENTS))


if __name__ == "__main__":
    main()
