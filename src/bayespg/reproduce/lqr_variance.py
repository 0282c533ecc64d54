"""Figure 5: steps scaled by the posterior covariance (BPG-var).

The paper says only that the initial policies are random. The same methods are therefore run twice,
from kappa ~ N(0, I) as in Figure 3 and from kappa uniform on (-1, 1), and what the paper says about
Figures 3 and 5 is judged for both.
"""

import jax

from bayespg.policies import BoundedLinearGaussian
from bayespg.reproduce import claims
from bayespg.reproduce.claims import ALIKE, Claim, Row, differences, pair, ratios
from bayespg.reproduce.lqr_optimisation import (
    METHODS,
    ahead,
    cost,
    learn,
    paper_claims,
    report,
)
from bayespg.reproduce.report import Progress, Report, Settings
from bayespg.reproduce.samples import Samples

FIGURE = "Section 6.2.2, Figure 5"
UNIFORM = "κ ~ U(-1, 1)"
SHOWN = {name: METHODS[name] for name in ("MCPG", "BPG", "BPNG", "BPG-var")}


def uniform(runs: int, key) -> BoundedLinearGaussian:
    """kappa ~ U(-1, 1), both components."""
    with jax.enable_x64(True):
        return BoundedLinearGaussian(jax.random.uniform(key, (runs, 2), minval=-1.0, maxval=1.0))


def run(settings: Settings, progress: Progress) -> Report:
    costs = learn(SHOWN, settings, lambda f, what: progress(f / 2, what))
    narrow = learn(SHOWN, settings, lambda f, what: progress(0.5 + f / 2, what), uniform, UNIFORM)
    named = {f"{name}, {UNIFORM}": method for name, method in SHOWN.items()}
    both = {**costs, **{(f"{name}, {UNIFORM}", M): of for (name, M), of in narrow.items()}}
    return report({**SHOWN, **named}, both)


def _claims(id: str, start: str = "") -> tuple[Row, ...]:
    above = "ratio of final costs above the optimum"
    return (
        ahead(f"{id}-bpg", FIGURE, f"BPG-var is ahead of BPG at every M{start}", "BPG-var", "BPG"),
        ahead(f"{id}-mcpg", FIGURE, f"BPG-var is ahead of Monte Carlo at every M{start}",
              "BPG-var", "MCPG"),
        Row(f"{id}-bpng", FIGURE, f"BPG-var learns faster than BPNG{start}",
            "difference of costs, mean over all updates", differences,
            pair("average", "BPG-var", "BPNG")),
        Row(f"{id}-bpng-end", FIGURE, f"BPG-var ends like BPNG{start}",
            f"{above}, BPNG to BPG-var", ratios, pair("final", "BPG-var", "BPNG"), **ALIKE),
        Row(f"{id}-many", FIGURE, f"BPG-var is like BPG when M is large{start}",
            f"{above}, BPG to BPG-var", ratios, pair("final", "BPG-var", "BPG"), (40,), **ALIKE),
    )  # fmt: skip


FROM = f", from {UNIFORM}"
CLAIMS = _claims("var")
UNIFORM_CLAIMS = (
    *_claims("var-uniform", FROM),
    *paper_claims("Section 6.2.2, Figure 3", "uniform", FROM),
)


def judge(samples: Samples) -> list[Claim]:
    other = {
        (what, name.removesuffix(f", {UNIFORM}"), M): values
        for (what, name, M), values in samples.items()
        if name.endswith(UNIFORM)
    }
    return claims.judge(CLAIMS, samples, cost) + claims.judge(UNIFORM_CLAIMS, other, cost)
