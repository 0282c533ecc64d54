"""A folder of seeds: runs that differ by their seed only, in FOLDER/seed-0, FOLDER/seed-1 and so
on. FOLDER/seeds.json lists the seeds that are to be trained, begun or not, so that a folder whose
training was stopped can be resumed as a whole, and has a digest of that list.

    plan(folder, range(4), config)         # before the first seed is trained
    Run.create(directory(folder, 0), ...)  # as each seed begins
    members(folder), waiting(folder)       # what has begun, and what has not
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bayespg._support.files import make_directory, printable, read_json, write_whole
from bayespg._support.random import LARGEST_SEED
from bayespg.runs.store import CONFIG, Run, started_seeds

PLAN = "seeds.json"
FREE = ("seed", "workers", "episode_timeout")
"""Settings in which the runs of a folder may differ: none but the first changes their numbers."""


def directory(folder: Path, seed: int) -> Path:
    """The run directory of a seed."""
    return folder / f"seed-{seed}"


def members(path: Path) -> list[Path]:
    """A run directory itself, or those of the seeds that have begun."""
    directories = [path] if (path / CONFIG).exists() else started_seeds(path)
    if not directories:
        raise ValueError(
            f"{path}: no run is here; expected a folder that 'bayespg train' has written"
        )
    return directories


def plan(folder: Path, seeds: Iterable[int], config: dict[str, Any]) -> None:
    """Save the seeds to be trained; all seeds of a folder must have the same settings."""
    if there := started_seeds(folder):
        first = Run.open(there[0]).config
        for name, value in json.loads(json.dumps(config)).items():
            if name not in FREE and first.get(name, value) != value:
                raise ValueError(
                    f"out: {folder} holds seeds with {name} {first[name]!r}, not {value!r}; give "
                    "another folder"
                )
    make_directory(folder)
    planned = sorted({*_planned(folder), *seeds})
    content = json.dumps({"seeds": planned, "sha256": _digest(planned)})
    write_whole(folder / PLAN, f"{content}\n".encode())


def waiting(folder: Path) -> list[int]:
    """Planned seeds whose training has not begun."""
    return [k for k in _planned(folder) if not (directory(folder, k) / CONFIG).exists()]


def _planned(folder: Path) -> list[int]:
    path = folder / PLAN
    seeds = read_json(path, (dict, list)) if path.exists() else []
    digest = None
    if isinstance(seeds, dict):
        if seeds.keys() != {"seeds", "sha256"} or not isinstance(seeds["seeds"], list):
            raise ValueError(
                f"{path}: expected a list of seeds and its sha256, found {seeds!r:.40}; repair it, "
                "or write the list alone, as in [0, 1]"
            )
        seeds, digest = seeds["seeds"], seeds["sha256"]
    if wrong := [k for k in seeds if type(k) is not int or not 0 <= k <= LARGEST_SEED]:
        raise ValueError(
            f"{path}: expected a list of seeds, found {wrong[0]!r:.40}, and seeds are whole "
            f"numbers from 0 to {LARGEST_SEED}; repair it"
        )
    if digest not in (None, _digest(seeds)):
        raise ValueError(
            f"{path}: wrong checksum, it was changed; write the list of its seeds alone, as in "
            "[0, 1], to accept it"
        )
    return sorted(set(seeds))


def _digest(seeds: list[int]) -> str:
    return hashlib.sha256(json.dumps(seeds).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ by their seed only."""

    name: str
    runs: list[Run]

    @property
    def task(self) -> str:
        return str(self.runs[0].config.get("environment"))


def group(path: Path) -> Group:
    """The runs of a folder, or the one run that is there."""
    return Group(printable(path.absolute().name), [Run.open(member) for member in members(path)])
