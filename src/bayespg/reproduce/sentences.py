"""What the paper says, sentence by sentence, and the readings under which each is judged.

A sentence has one entry here, with its place and a paraphrase. Where the paper leaves a choice open
or prints one that cannot be meant, its readings are listed, before they are run; the first is the
paper's own choice where that is printed, and then its name begins with "as printed". A claim names
its sentence and reading. A reading holds if all its claims hold.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from bayespg._support import checks

PRINTED = "as printed"
Verdict = Literal["holds", "not decided", "does not hold"]
"""Of a claim or a reading, the best first."""
Outcome = Literal[
    "holds as printed", "holds under an admissible reading",
    "does not hold under any reading tried", "not decided", "not tested",
]  # fmt: skip
OUTCOMES: dict[Outcome, str] = {
    "holds as printed": "hold as printed",
    "holds under an admissible reading": "hold under an admissible reading",
    "does not hold under any reading tried": "do not hold under any reading tried",
    "not decided": "are not decided",
    "not tested": "are not tested",
}
"""The verdicts of a sentence, and how several are counted."""


class Sentence(NamedTuple):
    """A sentence of the paper."""

    place: str
    says: str
    readings: tuple[str, ...] = (PRINTED,)
    untested: str = ""
    """Why nothing here decides it."""


SIGMAS, STARTS = ("10⁻³", "0.1", "0.3", "1"), ("κ ~ N(0, I)", "κ ~ U(-1, 1)")
LQR = tuple(f"Σ = {sigma} I, {start}" for sigma in SIGMAS for start in STARTS)
"""The paper prints neither Sigma nor the initial policies of Figures 3 to 5."""
OTHERS = {cell: f"{cell}, G from M other paths" for cell in (LQR[0], LQR[3])}
TREND, RETURNS, EXCESS = "trend of average returns", "average returns", "costs above the optimum"
"""What "alike" is said of; the figures show average returns."""
NOISE = (f"{PRINTED}: Σ = T σ_r² u_j² or T σ_r², kernel of scale 1", "Σ = 10⁻³ I as without noise")
G_PRINTED, G_CORRECTED = f"{PRINTED}: Algorithm 3", "Algorithm 3, last weight 1"
G_EPISODES = f"{G_CORRECTED}, MCPG as a sum over episodes"
ALGORITHM3 = (G_PRINTED, G_CORRECTED)
MEAN, SUM = f"{PRINTED}: MCPG as a mean over steps", "MCPG as a sum over episodes"
INTEGRATED = "MCPG as a mean over steps, BPG with the actions integrated out of G"
LONG = f"{G_CORRECTED}, training episodes of up to 1,000 steps"
FITTED = "Σ = 10⁻³ I, which gives Table 2"
FIGURE1 = (FITTED, *(f"Σ = {sigma} I" for sigma in SIGMAS[1:]))
SHIP_TUNED = "reward 1 on success, goal of 10 m, tuned rates"
SHIP_PRINTED = f"{PRINTED}: Table 6's rates, reward 1 on success"
SHIP = (SHIP_PRINTED, SHIP_TUNED)
RATIO, DIFFERENCE = "ratio of total variances", "difference of total variances"
MAZE = ("the T-maze, Model 2 with a flat baseline",)
TASKS, ENDING = f"{PRINTED}: LQR and the random walk", "LQR with paths that may end at every step"
SENTENCES = {
    "sparse-faster": Sentence(
        "Section 4.4", "a dictionary of paths often makes Algorithm 1 significantly faster, above "
        "all with many paths"),
    "bandit-variance": Sentence(
        "Section 6.1, Table 2", "quadrature's variance is below Monte Carlo's by one order of "
        "magnitude with 10 samples and by six with 100"),
    "bandit-accuracy": Sentence(
        "Section 6.1, Table 2", "quadrature is more accurate than Monte Carlo with 100 samples and "
        "about as accurate with 10"),
    "figure-1-model-1": Sentence(
        "Section 6.2.1, Figure 1", "Model 1 has smaller squared and angular errors than Monte "
        "Carlo", FIGURE1),
    "figure-1-model-2": Sentence(
        "Section 6.2.1, Figure 1", "Model 2 has smaller squared and angular errors than Monte "
        "Carlo", FIGURE1),
    "noise-slight": Sentence(
        "Section 6.2.1, Figure 2", "noise on the rewards raises the errors of quadrature and of "
        "Monte Carlo only slightly", NOISE),
    "noise-similar": Sentence(
        "Section 6.2.1, Figure 2", "with noise the comparison with Monte Carlo stays as in "
        "Figure 1", NOISE),
    "natural-cost": Sentence(
        "Section 6.2.2", "BPG's natural gradient comes at little extra cost"),
    "lqr-optimum": Sentence(
        "Section 6.2.2", "the best policy of LQR has λ ≈ -0.92 and the least σ, 0.001, and costs "
        "0.3067; its κ₁ is -0.16"),
    "figure-3": Sentence(
        "Section 6.2.2, Figure 3", "Monte Carlo is ahead of BPG and BPNG only at M = 5; with more "
        "paths both are ahead of it", LQR),
    "figure-3-prior": Sentence(
        "Section 6.2.2", "Monte Carlo is ahead at M = 5 because Bayesian estimates from few paths "
        "rely on a prior that says little", (), "a reason; no run here separates it from others"),
    "figure-4": Sentence(
        "Section 6.2.2, Figure 4", "with G estimated by maximum likelihood or by Monte Carlo, BPG "
        "and BPNG are still ahead of Monte Carlo", LQR),
    "figure-4-few": Sentence(
        "Section 6.2.2, Figure 4", "with few paths the maximum-likelihood G is ahead of the Monte "
        "Carlo G; with many the difference vanishes", (*LQR, *OTHERS.values())),
    "figure-4-form": Sentence(
        "Section 6.2.2", "BPG-ML does well because its model of the transitions has the right "
        "form", ("Σ = 10⁻³ I, κ ~ N(0, I)",)),
    "figure-5": Sentence(
        "Section 6.2.2, Figure 5", "BPG-var is ahead of BPG and of Monte Carlo at every M, also at "
        "M = 5", LQR),
    "figure-5-bpng": Sentence(
        "Section 6.2.2, Figures 3 and 5", "BPG-var learns faster than BPNG and ends like it",
        (*(f"{RETURNS}, {cell}" for cell in LQR), *(f"{EXCESS}, {cell}" for cell in LQR))),
    "figure-5-alike": Sentence(
        "Section 6.2.2, Figure 5", "BPG-var and BPG perform more and more alike as M grows",
        (*(f"{TREND}, {cell}" for cell in LQR),
         *(f"{RETURNS}, {cell}" for cell in LQR), *(f"{EXCESS}, {cell}" for cell in LQR))),
    "figure-5-reliable": Sentence(
        "Section 6.2.2", "the reason is that the gradient estimate becomes more reliable as M "
        "grows", (FITTED,)),
    "hessian": Sentence(
        "Section 6.2.2", "Vien et al. (2011): with the mean of the Hessian as learning rates BPG "
        "converges faster than BPG and BPNG", (), "a result of another paper, on its own tasks; "
        "the Hessian is `quadrature.hessian`, tested in tests/test_rest_of_the_paper.py"),
    "rates": Sentence(
        "Sections 6.2.2 and 8, Tables 3 to 6", "of many rates tried, the printed ones are the best",
        (), "the paper does not say which were tried; lqr-rates, random-walk-rates and "
        "ship-steering-rates try one grid for all methods"),
    "steps-vary-less": Sentence(
        "Section 7", "estimates from single transitions vary less than those from whole paths, "
        "above all where paths are long", (RATIO, DIFFERENCE)),
    "figure-6": Sentence(
        "Section 8.1, Figure 6", "BAC's gradient estimates are more accurate and vary less than "
        "those of Monte Carlo and quadrature (also given as the reason for its robustness)",
        ALGORITHM3),
    "walk-robust": Sentence(
        "Section 8.1", "BAC never produces a policy whose episodes do not end, also when its "
        "learning rate is changed", ALGORITHM3),
    "walk-bpg-improves": Sentence("Section 8.1, Figure 7", "BPG improves as M grows"),
    "walk-bpg": Sentence(
        "Section 8.1, Figure 7", "BPG is behind MCPG at M = 1 and 25, and like BAC at M = 100",
        (MEAN, SUM, INTEGRATED)),
    "figure-7": Sentence(
        "Section 8.1, Figure 7", "BAC learns significantly faster than MCPG and BPG",
        (*ALGORITHM3, G_EPISODES)),
    "lengths": Sentence(
        "Section 8.1, remark", "quadrature loses where paths differ in length: it is well ahead of "
        "Monte Carlo on LQR, and less so on the random walk", (TASKS, ENDING)),
    "kernels-lengths": Sentence(
        "Section 8.1, remark", "most other kernels on paths lose where paths differ in length, too",
        (), "about kernels in the literature; a signature kernel on both tasks is in "
        "docs/future-work.md"),
    "figure-8": Sentence(
        "Section 8.2, Figure 8", "BAC performs better than MCPG and varies less between runs",
        (*ALGORITHM3, G_EPISODES)),
    "car-five": Sentence(
        "Section 8.2, Figure 8", "BAC finds a good policy with M = 5, and changes little with "
        "more episodes", ALGORITHM3),
    "car-mcpg": Sentence(
        "Section 8.2, Figure 8", "MCPG improves and varies less between runs as M grows",
        (MEAN, SUM)),
    "car-forty": Sentence(
        "Section 8.2, Figure 8", "at M = 40 MCPG ends like BAC, but learns more slowly",
        (*ALGORITHM3, G_EPISODES, LONG)),
    "ship-more": Sentence(
        "Section 8.3, Figure 9", "more episodes per update improve both methods", SHIP),
    "ship-bigger": Sentence(
        "Section 8.3, Figure 9", "the improvement is larger for BAC", SHIP),
    "ship-five": Sentence(
        "Section 8.3, Figure 9", "at M = 5 MCPG is slightly ahead at first and soon behind", SHIP),
    "ship-early": Sentence(
        "Section 8.3, Figure 9", "at M = 10 and 20 BAC is ahead from the beginning, above all at "
        "M = 20", SHIP),
    "ship-end": Sentence(
        "Section 8.3, Figure 9", "BAC ends with more success than MCPG at every M", SHIP),
    "ship-spread": Sentence(
        "Section 8.3, Figure 9", "BAC usually varies less between runs than MCPG", SHIP),
    "fewer-samples": Sentence(
        "Abstract and Section 10", "quadrature needs significantly fewer samples for an accurate "
        "gradient", (FITTED,)),
    "covariance-cost": Sentence(
        "Abstract and Section 10", "the covariance of the gradient comes at little extra cost"),
    "partial-observation": Sentence(
        "Sections 5 and 10", "BPG extends to partial observation, and to any finite history of "
        "observations, without change", MAZE),
    "internal-state": Sentence(
        "Section 5", "BPG can be extended to policies with internal state", MAZE),
    "line-search": Sentence(
        "Section 10", "the gradient of Algorithm 1 may be used with conjugate gradients and line "
        "searches", (), "a possibility, not a result; it is `line_search.conjugate_gradients`, "
        "tested in tests/test_line_search.py"),
    "bac-accurate": Sentence(
        "Section 10", "BAC's gradient is more accurate than that of either model of BPG from the "
        "same data", ALGORITHM3),
    "bac-natural-cost": Sentence(
        "Section 10", "BAC's natural gradient comes at little extra cost"),
    "sparse-both": Sentence(
        "Section 10, Sections 4.4 and 7.3", "the sparse forms of BPG and BAC need significantly "
        "less time and memory"),
}  # fmt: skip
"""In the order of the paper."""


def checked(name: str, reading: str) -> Sentence:
    """The sentence of that name; ValueError if there is none, or if it has no such reading."""
    if name not in SENTENCES:
        hint = checks.suggestion(name, SENTENCES)
        raise ValueError(f"sentence: no sentence of the paper is called '{name}'; {hint}")
    sentence = SENTENCES[name]
    if reading and reading not in sentence.readings:
        hint = checks.suggestion(reading, sentence.readings)
        raise ValueError(f"reading: the sentence '{name}' has no reading '{reading}'; {hint}")
    return sentence


class Reading(NamedTuple):
    """A reading of a sentence, with its claims."""

    name: str
    verdict: Verdict | None
    """None: it was not run."""
    claims: list[tuple[dict[str, Any], dict[str, Any]]]
    """The content of the experiment, and the claim."""


class Judged(NamedTuple):
    """A sentence with its verdict and its readings."""

    name: str
    sentence: Sentence
    verdict: Outcome
    readings: list[Reading]
    beside: list[tuple[dict[str, Any], dict[str, Any]]]
    """Claims of ours about the same sentence and comparisons with the numbers that the paper
    prints, which do not decide it."""


def fold(contents: Sequence[dict[str, Any]]) -> list[Judged]:
    """Every sentence, judged from the claims of the experiments that there are. A claim without a
    reading belongs to all readings of its sentence; one that was run at a small size decides
    nothing where other experiments have the paper's size."""
    paper = any(content["configuration"]["paper"] for content in contents)
    judged = []
    for name, sentence in SENTENCES.items():
        own, beside = (
            [(content, claim) for content in contents for claim in content["claims"]
             if claim["sentence"] == name and (claim["kind"] == "paper") == decides]
            for decides in (True, False)
        )  # fmt: skip
        readings = []
        for reading in sentence.readings:
            some = [(c, claim) for c, claim in own if claim["reading"] in ("", reading)]
            if len(sentence.readings) > 1 and not any(claim["reading"] for _, claim in some):
                some = []
            whole = all(c["configuration"]["paper"] or not paper for c, _ in some)
            verdict = worst([claim["verdict"] for _, claim in some]) if some and whole else None
            readings.append(Reading(reading, verdict, some))
        judged.append(Judged(name, sentence, verdict_of(sentence, readings), readings, beside))
    return judged


def size(reading: Reading) -> str:
    """Why a reading that was run has no verdict."""
    given = [content["configuration"] for content, _ in reading.claims]
    small = next(c for c in given if not c["paper"])
    kind = "quick" if small["quick"] else "default"
    return f"run at {kind} size ({small['runs']} runs), which decides nothing"


def tested(contents: Sequence[dict[str, Any]]) -> list[Judged]:
    """The sentences about which there are claims; with all of them, also those that are not
    tested."""
    judged = fold(contents)
    some = [j for j in judged if j.beside or any(r.claims for r in j.readings)]
    ready = {j.name for j in some} >= {name for name, s in SENTENCES.items() if not s.untested}
    return judged if ready else some


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Of claims that must all hold."""
    return max(verdicts, key=get_args(Verdict).index)


def verdict_of(sentence: Sentence, readings: Sequence[Reading]) -> Outcome:
    if sentence.untested:
        return "not tested"
    verdicts = [reading.verdict for reading in readings]
    if "holds" in verdicts:
        printed = verdicts[0] == "holds" and sentence.readings[0].startswith(PRINTED)
        return "holds as printed" if printed else "holds under an admissible reading"
    tried = {verdict for verdict in verdicts if verdict}
    return "does not hold under any reading tried" if tried == {"does not hold"} else "not decided"


def counts(judged: Sequence[Judged]) -> dict[Outcome, int]:
    """How many sentences have each verdict."""
    return {outcome: sum(j.verdict == outcome for j in judged) for outcome in OUTCOMES}
