"""Write docs/results.md and docs/reproduction.md from what `bayespg reproduce all --out
docs/results` and `python benchmarks/experiments.py all --out docs/results` leave.

python docs/render.py
"""

from pathlib import Path

from bayespg.reproduce import EXPERIMENTS, page

HERE = Path(__file__).parent
RESULTS = HERE / "results"
MADE = "Made by `python docs/render.py` from `docs/results/*.json`; changes belong there."
MOST = 40
"""Rows of a table that a reader can still look through."""

TITLES = {
    "paper": "Claims of the paper",
    "check": "Comparisons with the numbers the paper prints",
    "ours": "Our own claims, in the same form",
}


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
        [[k["kind"], k["says"], k["measured"], verdict(k)] for k in content["claims"]],
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
    judged = [(content, claim) for content in found for claim in content["claims"]]
    parts = ["# The paper, claim by claim", _how(whole), _counts(judged)]
    for kind, title in TITLES.items():
        lines = [_line(content, claim) for content, claim in judged if claim["kind"] == kind]
        parts += [f"\n## {title}\n", *lines]
    commands = "\n".join(f"    {page.command(content)}" for content in found)
    parts += ["\n## The commands\n", commands, "", MADE, ""]
    return "\n".join(parts)


def _line(content, claim):
    """A claim as an entry of a list, with the range of its effects and of their intervals."""
    name, place = content["experiment"], f" ({claim['place']})" if claim["place"] else ""
    said = f"{claim['says'][0].upper()}{claim['says'][1:]}{place}"
    link = f"[{name}](results.md#{name})"
    return f"- **{page.verdict(claim)}**: {said}. {link}, {claim['effect']}: {_range(claim)}"


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
What *Bayesian Policy Gradient and Actor-Critic Algorithms* says, measured again: every claim of
the paper that can be tested, with what was measured here and a verdict.

Each claim has one or several effects, each with an interval over independent runs; the intervals of
a claim hold jointly with 95 % confidence. A claim holds if all of them lie within its bounds, does
not hold if one lies outside, and is otherwise not decided at this size. Shown are the least and the
greatest effect and, in brackets, the range of all its intervals. {report}The reasons behind the
verdicts are in [findings.md](findings.md).
"""


def _counts(judged):
    def count(verdict, kind):
        return str(sum(c["verdict"] == verdict and c["kind"] == kind for _, c in judged))

    rows = [[v, *(count(v, kind) for kind in TITLES)] for v in page.CLASSES]
    return table(["", "the paper's", "comparisons with printed numbers", "ours"], rows)


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
