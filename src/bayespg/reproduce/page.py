"""The HTML page of the reproduction: every claim with its verdict, the measurements behind it, and
the command that repeats them. It is made only from the files that experiments write."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bayespg.reproduce import report, sentences
from bayespg.reproduce.claims import judged
from bayespg.reproduce.report import Content
from bayespg.runs import page
from bayespg.runs.page import Markup, fill

CLASSES = {
    "holds": "holds", "does not hold": "fails", "not decided": "undecided", "not run": "undecided",
    "holds as printed": "holds", "holds under an admissible reading": "holds",
    "does not hold under any reading tried": "fails", "not tested": "undecided",
}  # fmt: skip
UNCONFIRMABLE = "not decided; no outcome at this size could confirm it"
KINDS = {"check": "comparison with printed numbers", "ours": "ours"}
RULES = (
    "Each sentence of the paper has readings: the choices that the paper prints, where it prints "
    "them, then others that it leaves open. A reading is decided by claims, and a claim by one or "
    "more measured effects with intervals over independent runs, which hold jointly with 95 % "
    "confidence. A claim holds if all its intervals lie within its bounds, does not hold if one "
    "lies outside, and is otherwise not decided at this size; a reading holds if all its claims do."
)
PAPER = (
    "Bayesian Policy Gradient and Actor-Critic Algorithms (Ghavamzadeh, Engel, Valko, JMLR 2016)"
)


def read(folder: Path, names: Sequence[str]) -> list[Content]:
    """The results in a folder, first those of `names`; unreadable ones are left out."""
    paths = [folder / f"{name}.json" for name in names]
    others = sorted(set(folder.glob("*.json")) - set(paths))
    contents = [(path, report.read(path)) for path in (*paths, *others) if path.is_file()]
    return [of for path, of in contents if of is not None and of["experiment"] == path.stem]


def unreadable(folder: Path, names: Sequence[str]) -> list[str]:
    """The files of these experiments that `read` leaves out, though they are in the folder."""
    there = {content["experiment"] for content in read(folder, names)}
    return [f"{n}.json" for n in names if n not in there and (folder / f"{n}.json").exists()]


def command(content: Content) -> str:
    """The command that repeats these numbers."""
    c = content["configuration"]
    size = " --paper" if c["paper"] else " --quick" if c["quick"] else ""
    runs = f"--runs {c['runs']} --seed {c['seed']}"
    return f"{content['program']} {content['experiment']}{size} {runs}"


def write(folder: Path, names: Sequence[str]) -> Path:
    """Write <folder>/report.html from all results in the folder."""
    contents = read(folder, names)
    sections = [_experiment(content, folder) for content in contents]
    title = "bayespg: the paper, sentence by sentence"
    return page.write(folder / "report.html", title, *_head(contents), *sections)


def _head(contents: Sequence[Content]) -> list[Markup]:
    of_paper = sentences.tested(contents)
    counts = [
        fill('<li><b class="{}">{}</b>{}</li>', CLASSES[of], count, sentences.OUTCOMES[of])
        for of, count in sentences.counts(of_paper).items()
    ]
    others = [
        [badge(claim), _linked(claim), KINDS[claim["kind"]], _shortest(claim),
         fill('<a href="#figure-{name}">figure</a> <a href="#data-{name}">data</a>',
              name=content["experiment"])]
        for content in contents
        for claim in content["claims"]
        if claim["kind"] != "paper"
    ]  # fmt: skip
    return [
        Markup("<h1>The paper, sentence by sentence</h1>"),
        fill("<p>A reproduction of {}. {}</p>", PAPER, RULES),
        fill('<ul class="counts">{}</ul>', counts),
        page.table(["verdict", "sentence", "where", "readings"], map(_row, of_paper), "ledger"),
        Markup("<h2>Other claims</h2>"),
        page.table(["verdict", "claim", "", "measured", ""], others, "ledger"),
    ]


def _row(judged: sentences.Judged) -> list[str | Markup]:
    """A sentence with its readings, and the claims of each."""
    shown, missing, words = [], [], judged.sentence
    for r in judged.readings:
        if r.claims:
            shows = _badge(r.verdict or "not run", "" if r.verdict else sentences.size(r))
            each = [fill("{} ({}) ", _linked(claim), _shortest(claim)) for _, claim in r.claims]
            shown.append(fill("<p>{} {}: {}</p>", shows, r.name, each))
        else:
            missing.append(r.name)
    if missing:
        shown.append(page.note(f"Not run here: {'; '.join(missing)}."))
    if words.untested:
        shown.append(page.note(f"{words.untested}."))
    return [_badge(judged.verdict), words.says, words.place, fill("{}", shown)]


def _linked(claim: Content) -> Markup:
    return fill('<a href="#{}">{}</a>', claim["id"], claim["says"])


def _shortest(claim: Content) -> str:
    """The effect closest to a bound, as text."""
    above, below = (
        (sign * math.inf if claim[bound] is None else claim[bound])
        for bound, sign in (("above", -1), ("below", 1))
    )

    def room(e: Content) -> float:
        return -math.inf if None in e.values() else min(e["low"] - above, below - e["high"])

    e = min(claim["effects"], key=room)
    return f"{e['where']}: {_words(e)}" if e["where"] else _words(e)


def badge(claim: Content) -> Markup:
    return _badge(claim["verdict"], verdict(claim))


def _badge(verdict: str, words: str = "") -> Markup:
    return fill('<span class="verdict {}">{}</span>', CLASSES[verdict], words or verdict)


def verdict(claim: Content) -> str:
    """The verdict in words, which say so if nothing measured at this size could confirm it."""
    undecided = claim["verdict"] == "not decided" and not claim["confirmable"]
    return UNCONFIRMABLE if undecided else claim["verdict"]


def _experiment(content: Content, folder: Path) -> Markup:
    name, c, v = content["experiment"], content["configuration"], content["versions"]
    svg, data = folder / f"{name}.svg", f"{name}.json"
    made = (
        f"{c['runs']:,} runs, seed {c['seed']}; {content['seconds']:,.0f} s on "
        f"{content['device']}, bayespg {v['bayespg']}, JAX {v['jax']}. "
    )
    stored = page.download(data, (folder / data).read_text("utf-8"))
    shown = [
        fill('<h2 id="experiment-{}">{}: {}</h2>', name, content["item"], content["title"]),
        page.command(command(content)),
        fill('<p class="soft">{}<span id="data-{}">{}</span></p>', made, name, stored),
    ]
    if svg.exists():
        shown.append(page.figure(svg.read_text("utf-8"), content["title"], f"figure-{name}"))
    shown += [_claim(claim, name) for claim in content["claims"]]
    numbers = page.table(content["table"]["columns"], content["table"]["rows"])
    shown.append(page.details("All numbers", numbers, *map(page.note, content["notes"])))
    return fill("<section>{}</section>", shown)


def _claim(claim: Content, experiment: str) -> Markup:
    bounds = {word: claim[word] for word in ("above", "below") if claim[word] is not None}
    place = _scale(claim, bounds.values())
    effects = [
        fill(
            '<tr><td class="where">{}</td><td>{}</td><td class="number">{}</td>'
            '<td class="words">{}</td></tr>',
            e["where"], _interval(e, claim, bounds.values(), place), _words(e), e["words"],
        )
        for e in claim["effects"]
    ]  # fmt: skip
    effect = claim["effect"][:1].upper() + claim["effect"][1:]
    return fill(
        '<article id="{id}"><header><h3>{says}</h3>{badge}</header>'
        '<p class="soft">{where}. <a href="#figure-{experiment}">Figure</a></p>'
        '<p class="words">{effect}; the claim says {bounds}.</p>'
        '<div class="scroll"><table class="effects"><tbody>{effects}</tbody></table></div>'
        "</article>",
        id=claim["id"], says=claim["says"], badge=badge(claim), experiment=experiment,
        effect=effect,
        where=", ".join(filter(None, (claim["place"], claim["reading"]))) or "ours",
        bounds=" and ".join(f"{word} {_number(at)}" for word, at in bounds.items()),
        effects=effects,
    )  # fmt: skip


def _scale(claim: Content, bounds: Iterable[float]) -> Callable[[float], float]:
    """A map from numbers to positions from 4 to 196; logarithmic if all numbers are positive and
    differ by a factor of more than 5."""
    ends = [e[k] for e in claim["effects"] for k in ("low", "value", "high")]
    numbers = [number for number in (*ends, *bounds) if number is not None]
    low, high = min(numbers), max(numbers)
    of = math.log if low > 0 and high > 5 * low else float
    near, span = of(low), (of(high) - of(low)) or 1.0
    return lambda x: 4 + 192 * (of(x) - near) / span


def _interval(effect: Content, claim: Content, bounds: Iterable[float], place) -> Markup:
    if None in effect.values():
        return Markup("")
    low, value, high = (place(effect[k]) for k in ("low", "value", "high"))
    css = CLASSES[judged(effect["low"], effect["high"], claim["above"], claim["below"])]
    lines = "".join(
        f'<line class="bound" x1="{place(b):.1f}" x2="{place(b):.1f}" y1="0" y2="16"/>'
        for b in bounds
    )
    return Markup(
        f'<svg viewBox="0 0 200 16" class="{css}" aria-hidden="true">{lines}'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="8" y2="8" stroke-width="2"/>'
        f'<circle cx="{value:.1f}" cy="8" r="3"/></svg>'
    )


def _words(effect: Content) -> str:
    return f"{_number(effect['value'])} [{_number(effect['low'])}, {_number(effect['high'])}]"


def _number(x: float | None) -> str:
    if x is None:
        return "not finite"
    if x == 0 or 1e-3 <= abs(x) < 1e5:
        return f"{x:,.3g}" if abs(x) < 1000 else f"{x:,.0f}"
    return f"{x:.2e}"
