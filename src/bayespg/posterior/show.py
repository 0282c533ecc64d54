"""A posterior as text and as HTML; `posterior` is a `GradientPosterior`, which is built on this."""

from html import escape
from typing import Any

import numpy as np

from bayespg.posterior.decisions import Episodes
from bayespg.posterior.operators import LARGE

ROWS = 12
"""The number of components shown: those that are largest relative to their errors."""
SPECTRUM = 256
"""The largest number of parameters for which the directions that are known are shown as well."""


def _rows(posterior: Any) -> list[tuple[int, float, float, float]]:
    if posterior.mean.size > LARGE:
        return []
    mean, (lower, upper) = np.asarray(posterior.mean), posterior.interval()
    lower, upper = np.asarray(lower), np.asarray(upper)
    width = upper - lower
    sized = np.where(width > 0, np.abs(mean) / np.where(width > 0, width, 1.0), 0.0)
    order = np.argsort(-sized, kind="stable")[:ROWS]
    return [(int(j), float(mean[j]), float(lower[j]), float(upper[j])) for j in sorted(order)]


def _summary(posterior: Any) -> list[str]:
    n, M = posterior.mean.size, posterior.paths
    lines = [f"Gradient of {n} parameter{'s' * (n != 1)} from {M} path{'s' * (M != 1)}"]
    sure = posterior.probability_uphill()
    lines.append(f"uphill along the mean with probability {sure:.3g}")
    if M > 1:
        lines.append(_needed(posterior.episodes_needed(), sure))
    return lines


def _needed(episodes: Episodes, sure: float) -> str:
    """How many more paths it takes, where the paths say so: not where they speak against the
    mean."""
    more, lower, upper = episodes
    if not np.isfinite(more):
        return "no gradient shows: how many more paths it takes is unknown"
    if sure < 0.5:
        return "how many more paths it takes until 0.95 cannot be said yet"
    if upper == 0:
        return "enough paths for 0.95"
    if more == 0:
        return f"at most {upper:,.0f} more paths until 0.95, perhaps none, if there is a gradient"
    bounds = f"between {lower:,.0f} and {upper:,.0f}"
    return f"{more:,.0f} more paths until 0.95 ({bounds}) if there is a gradient"


def _known(posterior: Any) -> tuple[str, list[tuple[float, float, float]]]:
    """With many parameters, the directions that are known: a title, and slope and bounds of each,
    the most certain first."""
    n = posterior.mean.size
    if not ROWS < n <= SPECTRUM or posterior.paths < 2:
        return "", []
    certain = posterior.certain()
    title = f"{len(certain.slopes)} of {n} directions known, jointly with probability 0.95"
    rows = zip(certain.slopes, certain.lower, certain.upper, strict=True)
    return title, [(float(m), float(low), float(high)) for m, low, high in rows][:ROWS]


def _bounds(low: float, high: float) -> str:
    return f"{low:.4g} to {high:.4g}" if np.isfinite(high - low) else "unknown"


def text(posterior: Any) -> str:
    rows, lines = _rows(posterior), _summary(posterior)
    if rows:
        lines += ["", f"{'parameter':>9} {'mean':>12}   95 % interval"]
        lines += [f"{j:>9} {m:>12.4g}   {_bounds(low, high)}" for j, m, low, high in rows]
    if len(rows) < posterior.mean.size:
        lines.append(f"{posterior.mean.size - len(rows)} parameters not shown")
    title, known = _known(posterior)
    if title:
        lines += ["", title]
        lines += [f"{'slope':>9} {m:>12.4g}   {_bounds(low, high)}" for m, low, high in known]
    return "\n".join(lines)


def html(posterior: Any) -> str:
    """The summary, a table, and each interval as a line; with many parameters also the directions
    that are known."""
    rows = _rows(posterior)
    head = "<br>".join(map(escape, _summary(posterior)))
    if not rows:
        return f"<div>{head}</div>"
    components = [(j, (m, low, high)) for j, m, low, high in rows]
    hidden = posterior.mean.size - len(rows)
    tail = f"<div>{hidden} parameters not shown</div>" if hidden else ""
    title, known = _known(posterior)
    if title:
        tail += f"<div>{title}</div>"
        tail += _table("slope", [(str(k + 1), *of) for k, of in enumerate(known)])
    return f"<div>{head}{_table('mean', [(str(j), *of) for j, of in components])}{tail}</div>"


def _table(what: str, rows: list[tuple[str, float, float, float]]) -> str:
    ends = np.array([[low, high] for *_, low, high in rows])
    shown = np.abs(ends[np.isfinite(ends)]).max(initial=0.0) or 1.0
    cells = "".join(
        f"<tr><td>{j}</td><td>{m:.4g}</td><td>{_bounds(low, high)}</td>"
        f"<td>{_line(m / shown, low / shown, high / shown)}</td></tr>"
        for j, m, low, high in rows
    )
    first = "parameter" if what == "mean" else "direction"
    names = "".join(f"<th>{name}</th>" for name in (first, what, "95 % interval", ""))
    return f"<table><tr>{names}</tr>{cells}</table>"


def _line(mean: float, low: float, high: float) -> str:
    """An interval between -1 and 1 on a strip of 120 by 12 pixels, with a mark at zero."""
    low, high, mean = (60 + 58 * float(np.clip(x, -1, 1)) for x in (low, high, mean))
    return (
        '<svg width="120" height="12" role="img"><path d="M60 0V12" stroke="#999"/>'
        f'<path d="M{low:.1f} 6H{high:.1f}" stroke="#2a6f97" stroke-width="2"/>'
        f'<circle cx="{mean:.1f}" cy="6" r="3" fill="#2a6f97"/></svg>'
    )
