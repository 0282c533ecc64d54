"""Write docs/results.md and docs/reproduction.md from what `bayespg reproduce all --out
docs/results` and `python benchmarks/experiments.py all --out docs/results` leave.

python docs/render.py
"""

from pathlib import Path

from bayespg.reproduce import EXPERIMENTS, page, sentences

HERE = Path(__file__).parent
RESULTS = HERE / "results"
MADE = "Made by `python docs/render.py` from `docs/results/*.json`; changes belong there."
MOST = 40
"""Rows of a table that a reader can still look through."""

TITLES = {
    "check": "Comparisons with the numbers the paper prints",
    "ours": "Our own claims, in the same form",
}
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


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text):
    return text.replace("\n", "<br>").replace("|", "\\|")


def section(content):
    name, c = content["experiment"], content["configuration"]
    judged = table(
        ["", "claim", "measured", "verdict"],
        [
            [k["reading"] or k["kind"], k["says"], k["measured"], verdict(k)]
            for k in content["claims"]
        ],
    )
    rows = content["table"]["rows"]
    whole = table(content["table"]["columns"], rows)
    if len(rows) > MOST:
        whole = f"Its table has {len(rows)} rows: see the report, or `docs/results/{name}.json`."
    return f"""<a id="{name}"></a>
## {content["item"]}: {content["title"]}

`{page.command(content)}`: {c["runs"]:,} runs, {content["seconds"]:.0f} s on {content["device"]},
JAX {content["versions"]["jax"]}.

![{content["title"]}](results/{name}.svg)

{judged if content["claims"] else ""}

{whole}

{chr(10).join("- " + note for note in content["notes"])}
"""


def verdict(claim):
    said = page.verdict(claim)
    return said if said == "holds" else f"**{said}**"


def ledger(found, whole=True):
    claims = [(content, claim) for content in found for claim in content["claims"]]
    judged = sentences.fold(found)
    parts = ["# The paper, sentence by sentence", _how(whole), _counts(judged)]
    place = None
    for of in judged:
        if (of.sentence.place.split(",")[0]) != place:
            place = of.sentence.place.split(",")[0]
            parts.append(f"\n## {place}\n")
        parts += _sentence(of)
    parts += ["\n## Propositions\n", _proofs()]
    for kind, title in TITLES.items():
        lines = [_line(c, k) for c, k in claims if k["kind"] == kind and not k["sentence"]]
        parts += [f"\n## {title}\n", *lines]
    commands = "\n".join(f"    {page.command(content)}" for content in found)
    parts += ["\n## The commands\n", commands, "", MADE, ""]
    return "\n".join(parts)


def _sentence(judged):
    """A sentence, its readings, and the claims of each, as nested lists."""
    words = judged.sentence
    note = f" Not tested: {words.untested}." if words.untested else ""
    lines = [f"- **{judged.verdict}**: {_capital(words.says)} ({words.place}).{note}"]
    for reading in judged.readings:
        if not reading.claims:
            continue
        said = reading.verdict or sentences.size(reading)
        lines.append(f"    - *{reading.name}*: {said}")
        lines += [f"        {_line(*claim, place=False)}" for claim in reading.claims]
    missing = [reading.name for reading in judged.readings if not reading.claims]
    if missing and words.readings:
        lines.append(f"    - not run: {'; '.join(missing)}")
    if judged.beside:
        lines.append("    - ours, beside it:")
        lines += [f"        {_line(*claim, place=False)}" for claim in judged.beside]
    return lines


def _proofs():
    """The propositions, each with the tests that prove it."""
    rows = [[p, says, "<br>".join(f"`{t}`" for t in tests)] for p, says, tests in PROOFS]
    return table(["", "says", "tests"], rows)


def _capital(text):
    return f"{text[0].upper()}{text[1:]}"


def _line(content, claim, place=True):
    """A claim as an entry of a list, with the range of its effects and of their intervals."""
    name = content["experiment"]
    where = f" ({claim['place']})" if place and claim["place"] else ""
    link = f"[{name}](results.md#{name})"
    said = f"{page.verdict(claim)}: {_capital(claim['says'])}{where}"
    return f"- {said}. {link}, {claim['effect']}: {_range(claim)}"


def _range(claim):
    values, low, high = ([e[k] for e in claim["effects"]] for k in ("value", "low", "high"))
    values = dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values)))
    return f"{' to '.join(values)} [{min(low):.3g}, {max(high):.3g}]"


def _how(whole):
    report = (
        "The bounds, all effects and the figures are in\n[report.html](results/report.html), which "
        "`bayespg report docs/results` writes. "
        if whole
        else ""
    )
    return f"""
What *Bayesian Policy Gradient and Actor-Critic Algorithms* says, measured again: every sentence of
its experiments and conclusions that can be tested, in a paraphrase, with a verdict.

A sentence is judged under readings, which are listed before they are run: the paper's own choice,
where it is printed, comes first ("as printed"), then choices that it leaves open. It **holds as
printed** if the first reading is printed and holds, **holds under an admissible reading** if
another one does, **does not hold under any reading tried** if all that were run fail, and is **not
decided** otherwise. A reading holds if all its claims do. Each claim has one or several effects,
each with an interval over independent runs; the intervals of a claim hold jointly with 95 %
confidence. A claim
holds if all of them lie within its bounds, does not hold if one lies outside, and is otherwise not
decided at this size. Shown are the least and the greatest effect and, in brackets, the range of all
its intervals. Readings that were run at a small size only are shown with their numbers and decide
nothing.
{report}The reasons behind the verdicts are in [findings.md](findings.md).
"""


def _counts(judged):
    rows = [[outcome, str(count)] for outcome, count in sentences.counts(judged).items()]
    return table(["sentences of the paper", str(len(judged))], rows)


def main():
    found = page.read(RESULTS, list(EXPERIMENTS))
    missing = EXPERIMENTS.keys() - {content["experiment"] for content in found}
    for name in sorted(missing):
        print(f"left out, not there or made by an older version: {name}.json")
    whole = not missing
    head = (
        f"# Results\n\n{MADE} Claims marked ours are not the paper's. Where several processes "
        "shared an experiment, the seconds are those of the last one.\n"
    )
    (HERE / "results.md").write_text("\n".join([head, *map(section, found)]).rstrip() + "\n")
    (HERE / "reproduction.md").write_text(ledger(found, whole))
    if whole:
        page.write(RESULTS, list(EXPERIMENTS))


if __name__ == "__main__":
    main()
