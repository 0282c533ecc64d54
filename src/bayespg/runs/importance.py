"""Which settings of a sweep mattered: the share of the differences between combinations that each
setting explains alone, beside what chance would explain."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from bayespg.runs import plots

GROUPS = 4
"""The number of parts of equal size into which a range of numbers is divided."""
SHUFFLES = 400
SHOWN = 4
"""The number of settings that have a panel of their own."""


class Importance(NamedTuple):
    """The importance of one setting."""

    share: float
    """The adjusted share of the variance of the places that the setting explains alone."""
    chance: float
    """What 95 % of the same places in random order stay below."""


def of(settings: Mapping[str, Sequence[Any]], places: np.ndarray) -> dict[str, Importance]:
    """The importance of every setting that has more than one value.

    `places` are those of the combinations in the order of their success; places rather than
    returns, because returns after different numbers of steps cannot be compared.
    """
    rng = np.random.default_rng(0)
    shuffled = np.stack([rng.permutation(places) for _ in range(SHUFFLES)])
    importances = {}
    for name, values in settings.items():
        group = _groups(values)
        if 1 < group.max() + 1 < len(places):
            by_chance = np.quantile(_explained(group, shuffled), 0.95)
            share = float(_explained(group, places[None])[0])
            importances[name] = Importance(share, float(by_chance))
    return importances


def _groups(values: Sequence[Any]) -> np.ndarray:
    """The number of the group of each value: quarters of a range, or equal values."""
    numbers = all(type(value) in (int, float) for value in values)
    if numbers and len(set(values)) > GROUPS:
        cuts = np.quantile(values, np.arange(1, GROUPS) / GROUPS)
        return np.unique(np.searchsorted(cuts, values, side="right"), return_inverse=True)[1]
    return np.unique([str(value) for value in values], return_inverse=True)[1]


def _explained(group: np.ndarray, places: np.ndarray) -> np.ndarray:
    """1 - (variance within groups) / (variance of all), both unbiased; at least 0."""
    N, k = places.shape[1], int(group.max()) + 1
    members = np.eye(k)[group]
    means = places @ members / members.sum(0)
    within = np.sum((places - means[:, group]) ** 2, 1) / (N - k)
    return np.maximum(1 - within / places.var(1, ddof=1), 0.0)


def draw(
    settings: Mapping[str, Sequence[Any]],
    places: np.ndarray,
    returns: Sequence[float],
    stopped: Sequence[bool],
    title: str,
) -> Figure | None:
    """Bars of the importance of settings, and for the most important ones the return of every
    combination, NaN where it failed; None if there are too few combinations to tell."""
    importances = of(settings, places)
    if not importances:
        return None
    names = sorted(importances, key=lambda name: importances[name].share)
    shown = names[::-1][:SHOWN]
    with plots.styled():
        figure, (axes,) = plots.sheet(1, 1 + len(shown), width=3 + 2.4 * len(shown), height=3.0)
        bars = axes[0]
        bars.barh(names, [importances[name].share for name in names], color="#c2410c", height=0.5)
        bars.plot([importances[name].chance for name in names], names, "|", color="#444444", ms=14)
        bars.set_xlim(0, 1)
        bars.set_xlabel("share explained (mark: by chance)")
        bars.set_title(plots.plain(title))
        bars.grid(axis="y", visible=False)
        for panel, name in zip(axes[1:], shown, strict=True):
            _panel(panel, settings[name], np.asarray(returns), np.asarray(stopped))
            panel.set_xlabel(plots.plain(name))
        crosses = ",\ncross: failed" if np.isnan(returns).any() else ""
        axes[1].set_ylabel(f"return (hollow: stopped early{crosses})")
        return figure


def _panel(axes: Any, values: Sequence[Any], returns: np.ndarray, stopped: np.ndarray) -> None:
    numbers = all(type(value) in (int, float) for value in values)
    words = sorted(set(map(str, values)))
    x = np.array(values if numbers else [words.index(str(value)) for value in values], float)
    axes.scatter(x[stopped], returns[stopped], s=18, facecolors="none", edgecolors="#9a9a9a")
    axes.scatter(x[~stopped], returns[~stopped], s=22, color="#c2410c")
    failed = x[np.isnan(returns)]
    at_the_bottom = axes.get_xaxis_transform()
    axes.plot(failed, np.full(failed.size, 0.03), "x", color="#9a9a9a", transform=at_the_bottom)
    if not numbers:
        axes.set_xticks(range(len(words)), [plots.plain(word) for word in words])
        axes.set_xlim(-0.5, len(words) - 0.5)
    elif 0 < 10 * x.min() <= x.max():
        axes.set_xscale("log")
