"""The probability of going uphill in simulated runs, beside an oracle that knows how strong the
gradient is.

    python benchmarks/sure_simulated.py --out docs/results/sure-simulated.jsonl
    python benchmarks/sure_simulated.py --table docs/results/sure-simulated.jsonl

Each update has M scores u ~ N(0, I) of n parameters and returns g'u + noise, with `signal` = M
|g|^2. The oracle states how often steps go uphill. The observer knows the frequencies of all
signals and the normal approximation of the agreement under each, that the signal does not change,
and that all are equally probable; what it has to learn is which one it is.

`FRESH` cells were fixed before the rule of runs was chosen on the others. There noise is normal or
has Student's distribution with three degrees of freedom, or the contribution of a path is the
gradient plus such noise. In the last ones a signal vanishes after half of the updates.

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
from bayespg.posterior.agreement import agreement, draw_strength, learn, no_weights, probability
from bayespg.posterior.agreement import spread as of_products

RUNS, UPDATES, LAST = 60, 150, 100
SIZES = ((2, 5), (4, 5), (8, 20), (2, 20))
SIGNALS = (0.0, 1.0, 4.0, 16.0)
FRESH_SIZES, FRESH_SIGNALS = ((3, 10), (6, 3), (16, 50)), (0.0, 2.0, 9.0)
KINDS = ("normal returns", "heavy returns", "normal noise", "heavy noise")
VANISHES = 9.0
BATCHES = 2_000
of_batches = jax.jit(jax.vmap(agreement))
BATCH_SIZES = ((4, 2), (4, 30), (10, 10), (30, 3), (20, 200))


@jax.jit
def stated(K: jax.Array):
    """What each update says by itself, and given those before it; and its agreement."""

    def update(weights, K):
        of = of_products(K)
        weights = learn(weights, of)
        return weights, (agreement(K), probability(weights, of), of.share)

    begin = jnp.broadcast_to(no_weights(K.dtype), (K.shape[1], *no_weights(K.dtype).shape))
    return jax.lax.scan(jax.vmap(update), begin, K)[1]


def contributions(M: int, n: int, signal: np.ndarray, kind: str, rng) -> np.ndarray:
    U = rng.normal(size=(UPDATES, RUNS, M, n))
    shape, strength = (UPDATES, RUNS, M), np.sqrt(signal / M)[:, None, None]
    heavy = rng.standard_t(3, size=shape) / np.sqrt(3)
    if kind.endswith("noise"):
        U = U * heavy[..., None] if kind == "heavy noise" else U
        U[..., 0] += strength
        return U
    R = strength * U[..., 0] + (heavy if kind == "heavy returns" else rng.normal(size=shape))
    return R[..., None] * U


def measured(M: int, n: int, signals: tuple[float, ...], kind: str, rng) -> list[dict]:
    """A line for each signal. Where the signal vanishes nobody observes."""
    rows, shares, ups = [], [], []
    changes = len(signals) == 1
    for signal in signals:
        over = np.full(UPDATES, signal)
        over[UPDATES // 2 :] *= not changes
        C = contributions(M, n, over, kind, rng)
        up = np.where(over[:, None] > 0, 0.5 + 0.5 * np.sign(C.sum(2)[..., 0]), 0.5)
        K = jnp.asarray(C @ C.swapaxes(-1, -2), jnp.float32)
        alone, run, share = map(np.asarray, stated(K))
        last = slice(UPDATES - LAST, None)
        true = np.broadcast_to(up.mean(1, keepdims=True) if changes else up.mean(), up.shape)
        rows.append({
            "M": M, "n": n, "kind": kind, "signal": signal, "changes": changes,
            "alone": float(alone.mean()), "after 20": float(run[15:25].mean()),
            "last": float(run[last].mean()), "end": float(run[-20:].mean()),
            "observed": float(up[last].mean()), "brier_alone": brier(alone[last], up[last]),
            "brier": brier(run[last], up[last]), "oracle": brier(true[last], up[last]),
        })  # fmt: skip
        shares.append(share)
        ups.append(up)
    for row, said, up in zip(rows, observer(shares, ups), ups, strict=True):
        row["observer"] = brier(said[UPDATES - LAST :], up[UPDATES - LAST :])
    return rows


def observer(shares: list[np.ndarray], ups: list[np.ndarray]) -> list[np.ndarray]:
    """What somebody states who knows the distribution of `shares` under each signal."""
    p, known = [up.mean() for up in ups], [(x.mean(), x.std()) for x in shares]
    said = []
    for x in shares:
        log = [np.cumsum(-(((x - m) / s) ** 2) / 2 - np.log(s), 0) for m, s in known]
        weights = np.exp(np.stack(log) - np.max(log, 0))
        said.append(np.tensordot(p, weights / weights.sum(0), 1))
    return said


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
    """Over all sizes, as these hardly differ."""
    head = "contributions", "up to 0.7", "0.7 to 0.9", "above 0.9", "most apart", "no gradient"
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for scored, name in ((True, "returns times scores"), (False, "gradient plus noise")):
        of = [r for r in rows if r["scored"] == scored]
        count, said, seen = np.moveaxis(np.array([r["parts"] for r in of]), 2, 0)
        total = count.sum(0)
        parts = zip(
            (count * said).sum(0) / total, (count * seen).sum(0) / total, total, strict=True
        )
        apart = max((r["said"] - r["observed"] for r in of), key=abs)
        noise = [r["noise"] for r in of]
        cells = [f"{s:.2f} / {c:.2f} ({k:.0f})" for s, c, k in parts]
        cells += [f"{apart:+.2f}", f"{min(noise):.2f} to {max(noise):.2f}"]
        text.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(text)


def table(rows: list[dict]) -> str:
    runs = [r for r in rows if "signal" in r]
    usual = [r for r in runs if (r["M"], r["n"]) in SIZES]
    fresh = [r for r in runs if (r["M"], r["n"]) in FRESH_SIZES]
    batches = table_of_batches([r for r in rows if "scored" in r])
    return "\n\n".join([batches, table_of_runs(usual, "alone"), table_of_runs(fresh)])


def table_of_runs(rows: list[dict], *more: str) -> str:
    """Stated by runs, before it what `more` names; observed. Brier scores relative to the oracle's,
    and where there are such rows what is stated in the end of a signal that has vanished."""
    constant, vanished = ([r for r in rows if r["changes"] == changes] for changes in (False, True))
    signals = list(dict.fromkeys(r["signal"] for r in constant))
    head = ["contributions", "M", "directions", *(f"signal {signal:g}" for signal in signals)]
    head += [*(["one batch"] if more else []), "run", "observer"]
    head += ["vanished: stated", "run"] if vanished else []
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cell in dict.fromkeys(_cell(r) for r in constant):
        of = [r for r in constant if _cell(r) == cell]
        stated = [
            f"{', '.join(f'{r[stage]:.2f}' for stage in (*more, 'last'))}; {r['observed']:.2f}"
            for r in of
        ]
        scores = *(["brier_alone"] if more else []), "brier", "observer"
        oracle = sum(r["oracle"] for r in of)
        ratios = [f"{sum(r[score] for r in of) / oracle:.2f}" for score in scores]
        for r in vanished:
            if _cell(r) == cell:
                ratios += [f"{r['end']:.2f}", f"{r['brier'] / r['oracle']:.2f}"]
        text.append(f"| {' | '.join([*map(str, cell), *stated, *ratios])} |")
    return "\n".join(text)


def _cell(row: dict) -> tuple[str, int, int]:
    return row["kind"], row["M"], row["n"]


def every(_: argparse.Namespace) -> Iterator[lines.Line]:
    rng = np.random.default_rng(0)
    for M, n in SIZES:
        yield from measured(M, n, SIGNALS, KINDS[0], rng)
    rng = np.random.default_rng(1)
    yield from (drawn(M, n, scored, rng) for scored in (True, False) for M, n in BATCH_SIZES)
    rng = np.random.default_rng(2)
    for signals in (FRESH_SIGNALS, (VANISHES,)):
        for kind in KINDS:
            for M, n in FRESH_SIZES:
                yield from measured(M, n, signals, kind, rng)


if __name__ == "__main__":
    lines.run(argparse.ArgumentParser(description=__doc__), every, table)
