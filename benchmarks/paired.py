"""How many paired episodes `compare_returns` takes to say which of two policies is better, beside
t-tests: one after a fixed number of episodes, and one that is looked at after every ten.

    python benchmarks/paired.py --out docs/results/paired.jsonl
    python benchmarks/paired.py --table docs/results/paired.jsonl

Differences of returns are normal, or with heavy tails (Student's t with three degrees of freedom),
in units of their standard deviation.
"""

import argparse
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import lines
import numpy as np
from scipy import stats

from bayespg.agents.paired import AT_ONCE, _sign

RUNS, MOST, LEVEL = 1_000, 200, 0.95
SIZES = (0.0, 0.2, 0.5, 1.0)
TAILS = {"normal": np.inf, "heavy": 3.0}


def measured(size: float, tails: str, rng: np.random.Generator) -> list[dict]:
    x = rng.normal(size=(RUNS, MOST))
    if tails == "heavy":
        x = rng.standard_t(3, size=(RUNS, MOST)) / np.sqrt(3)
    x = x + size
    looks = range(AT_ONCE, MOST + 1, AT_ONCE)
    sure = np.stack([np.asarray(jax.vmap(_sign)(jnp.asarray(x[:, :M]))) for M in looks], 1)
    t = np.stack([np.asarray(stats.ttest_1samp(x[:, :M], 0, axis=1)[1]) for M in looks], 1)
    up = np.stack([x[:, :M].mean(1) > 0 for M in looks], 1)
    fixed = np.full(t.shape, 1.0)
    fixed[:, -1] = t[:, -1]
    rules = {"compare": sure >= LEVEL, "t-test, every ten": t < 0.05, "t-test, once": fixed < 0.05}
    rows = []
    for name, decided in rules.items():
        any_, at = decided.any(1), np.where(decided.any(1), decided.argmax(1), len(looks) - 1)
        right = up[np.arange(RUNS), at]
        wrong = np.mean(any_ & (True if size == 0 else ~right))
        rows.append({
            "tails": tails, "size": size, "rule": name,
            "episodes": float(np.mean((at + 1) * AT_ONCE)), "decided": float(any_.mean()),
            "wrong": float(wrong), "runs": RUNS,
        })  # fmt: skip
    return rows


def table(rows: list[dict]) -> str:
    """For each rule the pairs of episodes, and the shares of comparisons decided and wrong."""
    rules = list(dict.fromkeys(r["rule"] for r in rows))
    text = [f"| differences | size | {' | '.join(rules)} |", "|---|---" + "|---" * len(rules) + "|"]
    for tails, size in dict.fromkeys((r["tails"], r["size"]) for r in rows):
        cells = [
            f"{r['episodes']:.0f}, {r['decided']:.2f}, {r['wrong']:.3f}"
            for r in rows
            if (r["tails"], r["size"]) == (tails, size)
        ]
        text.append(f"| {tails} | {size:g} | {' | '.join(cells)} |")
    return "\n".join(text)


def every(_: argparse.Namespace) -> Iterator[lines.Line]:
    rng = np.random.default_rng(0)
    return (row for tails in TAILS for size in SIZES for row in measured(size, tails, rng))


if __name__ == "__main__":
    lines.run(argparse.ArgumentParser(description=__doc__), every, table)
