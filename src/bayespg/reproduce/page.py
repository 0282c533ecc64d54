"""The HTML page of the reproduction: every claim with its verdict, the measurements behind it, and
the command that repeats them. It is made only from the files that experiments write."""

import math
from collections.abc import Sequence
from pathlib import Path

from bayespg.reproduce import report, sentences
from bayespg.reproduce.claims import judged
from bayespg.reproduce.report import Content
from bayespg.runs import page
from bayespg.runs.page import Markup, fill

CLASSES = {
    "holds": "holds", "does not hold": "fails", "not decided": "undecided", "not run": "undecided",
    "holds as printed": "holds", "holds under an admissible reading": "holds",
    "does not hold under any reading tried": "fails",
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
    claims = [(content["experiment"], claim) for content in contents for claim in content["claims"]]
    of_paper = sentences.tested(contents)
    counts = [
        fill(
            '<li><b class="{}">{}</b>{}</li>', CLASSES[outcome], count, sentences.OUTCOMES[outcome]
        )
        for outcome, count in sentences.counts(of_paper).items()
    ]
    others = [
        [badge(claim), _linked(claim), KINDS[claim["kind"]], _shortest(claim), _links(name)]
        for name, claim in claims
        if claim["kind"] != "paper"
    ]
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
    shown = [
        fill("<p>{} {}: {}</p>", _badge(r.verdict or "not run"), r.name,
             [fill("{} ({}) ", _linked(claim), _shortest(claim)) for _, claim in r.claims])
        for r in judged.readings
        if r.claims
    ]  # fmt: skip
    missing = [reading.name for reading in judged.readings if not reading.claims]
    if missing:
        shown.append(fill('<p class="soft">Not run here: {}.</p>', "; ".join(missing)))
    words = judged.sentence
    note = fill('<p class="soft">{}.</p>', words.untested) if words.untested else Markup("")
    return [_badge(judged.verdict), words.says, words.place, fill("{}{}", shown, note)]


def _linked(claim: Content) -> Markup:
    return fill('<a href="#{}">{}</a>', claim["id"], claim["says"])


def _links(name: str) -> Markup:
    return fill('<a href="#figure-{name}">figure</a> <a href="#data-{name}">data</a>', name=name)


def _shortest(claim: Content) -> str:
    """The effect closest to a bound, as text."""

    def room(effect: Content) -> float:
        above, below = claim["above"], claim["below"]
        if None in effect.values():
            return -math.inf
        low = math.inf if above is None else effect["low"] - above
        high = math.inf if below is None else below - effect["high"]
        return min(low, high)

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
    bounds = [
        f"{word} {_number(claim[word])}" for word in ("above", "below") if claim[word] is not None
    ]
    said = claim["effect"][:1].upper() + claim["effect"][1:]
    return fill(
        '<article id="{id}"><header><h3>{says}</h3>{badge}</header>'
        '<p class="soft">{where}. <a href="#figure-{experiment}">Figure</a></p>'
        '<p class="words">{effect}; the claim says {bounds}.</p>{effects}</article>',
        id=claim["id"], says=claim["says"], badge=badge(claim), experiment=experiment, effect=said,
        where=", ".join(filter(None, (claim["place"], claim["reading"]))) or "ours",
        bounds=" and ".join(bounds), effects=_effects(claim),
    )  # fmt: skip


def _effects(claim: Content) -> Markup:
    scale = _scale(claim)
    rows = [
        fill(
            '<tr><td class="where">{}</td><td>{}</td><td class="number">{}</td>'
            '<td class="words">{}</td></tr>',
            e["where"], _interval(e, claim, scale), _words(e), e["words"],
        )
        for e in claim["effects"]
    ]  # fmt: skip
    table = '<div class="scroll"><table class="effects"><tbody>{}</tbody></table></div>'
    return fill(table, rows)


def _bounds(claim: Content) -> list[float]:
    return [claim[name] for name in ("above", "below") if claim[name] is not None]


def _scale(claim: Content):
    """A map from numbers to positions from 4 to 196; logarithmic if all numbers are positive and
    differ by a factor of more than 5."""
    numbers = [e[k] for e in claim["effects"] for k in ("low", "value", "high")] + _bounds(claim)
    numbers = [number for number in numbers if number is not None]
    low, high = min(numbers), max(numbers)
    wide = low > 0 and high > 5 * low
    near, far = (math.log(low), math.log(high)) if wide else (low, high)
    span = (far - near) or 1.0

    def place(x: float) -> float:
        return 4 + 192 * ((math.log(x) if wide else x) - near) / span

    return place


def _interval(effect: Content, claim: Content, place) -> Markup:
    if None in effect.values():
        return Markup("")
    low, value, high = (place(effect[k]) for k in ("low", "value", "high"))
    css = CLASSES[judged(effect["low"], effect["high"], claim["above"], claim["below"])]
    bounds = "".join(
        f'<line class="bound" x1="{place(b):.1f}" x2="{place(b):.1f}" y1="0" y2="16"/>'
        for b in _bounds(claim)
    )
    return Markup(
        f'<svg viewBox="0 0 200 16" class="{css}" aria-hidden="true">{bounds}'
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
