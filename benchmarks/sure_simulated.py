"""The probability of going uphill in simulated runs, whose ratio of signal to noise is constant,
beside an oracle that knows it.

    python benchmarks/sure_simulated.py --out docs/results/sure-simulated.jsonl
    python benchmarks/sure_simulated.py --table docs/results/sure-simulated.jsonl

Each update has M scores u ~ N(0, I) of n parameters and returns g'u + noise, with `signal` = M
|g|^2. The oracle states how often steps go uphill.

Single batches have gradients drawn from the hyperprior. Their contributions are returns times
scores, as above, or the gradient plus noise.
"""

import argparse
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import lines
import numpy as np

from bayespg.calibration import ENDS, _part, brier
from bayespg.posterior.agreement import (
    agreement,
    draw_strength,
    drift,
    no_weights,
    observe,
    prior,
    probability,
)
from bayespg.posterior.agreement import spread as of_products

RUNS, UPDATES, LAST = 60, 150, 100
SIZES = ((2, 5), (4, 5), (8, 20), (2, 20))
SIGNALS = (0.0, 1.0, 4.0, 16.0)
BATCHES = 2_000
of_batches = jax.jit(jax.vmap(agreement))
BATCH_SIZES = ((4, 2), (4, 30), (10, 10), (30, 3), (20, 200))


def stated(C: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """What each update says by itself, and given those before it."""

    def update(weights, C):
        K = C @ C.T
        of = of_products(K)
        before = jnp.where(jnp.any(weights > 0), drift(weights, of.paths), prior(of.paths))
        weights = observe(before, of)
        return weights, (agreement(K), probability(weights, of))

    begin = jnp.broadcast_to(no_weights(C.dtype), (C.shape[1], *no_weights(C.dtype).shape))
    both = jax.jit(lambda C: jax.lax.scan(jax.vmap(update), begin, C)[1])(C)
    return np.asarray(both[0]), np.asarray(both[1])


def measured(M: int, n: int, signal: float, rng: np.random.Generator) -> dict:
    U = rng.normal(size=(UPDATES, RUNS, M, n))
    R = np.sqrt(signal / M) * U[..., 0] + rng.normal(size=(UPDATES, RUNS, M))
    C = R[..., None] * U
    up = 0.5 + 0.5 * np.sign(C.sum(2)[..., 0]) if signal else np.full((UPDATES, RUNS), 0.5)
    alone, run = stated(jnp.asarray(C, jnp.float32))
    last, true = slice(UPDATES - LAST, None), np.full((LAST, RUNS), up.mean())
    return {
        "M": M, "n": n, "signal": signal, "alone": float(alone.mean()),
        "after 20": float(run[15:25].mean()), "last": float(run[last].mean()),
        "observed": float(up.mean()), "brier_alone": brier(alone[last], up[last]),
        "brier": brier(run[last], up[last]), "oracle": brier(true, up[last]),
    }  # fmt: skip


def drawn(M: int, n: int, scored: bool, rng: np.random.Generator) -> dict:
    """One batch, for gradients from the hyperprior."""
    keys = jax.random.split(jax.random.key(int(rng.integers(2**31))), BATCHES)
    z = np.asarray(jax.vmap(draw_strength)(keys))
    g, C = z[:, None] / np.sqrt(M), rng.normal(size=(BATCHES, M, n))
    if scored:
        C *= (g * C[..., 0] + rng.normal(size=(BATCHES, M)))[..., None]
    else:
        C[..., 0] += g
    up = np.where(z > 0, 0.5 + 0.5 * np.sign(C.sum(1)[:, 0]), 0.5)
    said = np.asarray(of_batches(jnp.asarray(C @ C.transpose(0, 2, 1))))
    return {
        "M": M, "n": n, "scored": scored, "said": float(said.mean()), "observed": float(up.mean()),
        "parts": [_part(said, up, *ends) for ends in ENDS], "noise": float(said[z == 0].mean()),
    }  # fmt: skip


def table_of_batches(rows: list[dict]) -> str:
    head = "contributions", "M", "directions", "mean", "up to 0.7", "0.7 to 0.9", "above 0.9"
    head = (*head, "no gradient")
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in rows:
        parts = [f"{s:.2f} / {c:.2f} ({k:.0f})" if k else "" for k, s, c in r["parts"]]
        text.append(
            f"| {'returns times scores' if r['scored'] else 'gradient plus noise'} | {r['M']} | "
            f"{r['n']} | {r['said']:.2f} / {r['observed']:.2f} | {' | '.join(parts)} | "
            f"{r['noise']:.2f} |"
        )
    return "\n".join(text)


def table(rows: list[dict]) -> str:
    batches, rows = [[r for r in rows if ("scored" in r) == one] for one in (True, False)]
    signals = list(dict.fromkeys(r["signal"] for r in rows))
    head = "M", "directions", *(f"signal {signal:g}" for signal in signals), "Brier scores"
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for M, n in SIZES:
        of = [r for r in rows if (r["M"], r["n"]) == (M, n)]
        stated = [
            f"{r['alone']:.2f}, {r['after 20']:.2f}, {r['last']:.2f}; {r['observed']:.2f}"
            for r in of
        ]
        brier = [np.mean([r[k] for r in of]) for k in ("brier_alone", "brier", "oracle")]
        scores = "{:.3f}, {:.3f}; {:.3f}".format(*brier)
        text.append(f"| {M} | {n} | {' | '.join(stated)} | {scores} |")
    return "\n".join([table_of_batches(batches), "", *text])


def every(_: argparse.Namespace) -> Iterator[lines.Line]:
    rng = np.random.default_rng(0)
    yield from (measured(M, n, signal, rng) for M, n in SIZES for signal in SIGNALS)
    rng = np.random.default_rng(1)
    yield from (drawn(M, n, scored, rng) for scored in (True, False) for M, n in BATCH_SIZES)


if __name__ == "__main__":
    lines.run(argparse.ArgumentParser(description=__doc__), every, table)
