"""Episodes of a policy as a GIF."""

import io
import os
from pathlib import Path

import gymnasium
from PIL import Image

from bayespg._support.files import write_whole
from bayespg.agents.base import BaseAgent
from bayespg.environments import masks
from bayespg.paths.worlds import OnHost

RATE = 30
"""Frames per second, if the environment does not specify them."""


def record(
    agent: BaseAgent, path: Path, episodes: int = 1, seed: int = 0, deterministic: bool = True
) -> list[float]:
    """Play episodes, write them as a GIF, and return the returns."""
    if path.suffix.lower() != ".gif":
        raise ValueError(f"out: films are GIFs; expected a name such as watch.gif, found {path}")
    name = agent.names["environment"]
    if not (isinstance(agent.world, OnHost) and isinstance(name, str)):
        raise ValueError("watch: only a Gymnasium environment given by its id can be drawn")
    for kind in ("VIDEO", "AUDIO"):  # pictures are drawn in memory, and SDL looks for no screen
        os.environ.setdefault(f"SDL_{kind}DRIVER", "dummy")
    try:
        environment = gymnasium.make(name, render_mode="rgb_array", **agent.options)
        frames, returns = _play(agent, environment, episodes, seed, deterministic)
    except gymnasium.error.DependencyNotInstalled as problem:
        raise ValueError(
            f"watch: drawing {name} needs more packages: pip install 'bayespg[render]' ({problem})"
        ) from problem
    except Exception as problem:
        if not type(problem).__module__.startswith("mujoco"):
            raise
        raise ValueError(
            f"watch: {name} cannot be drawn without a screen here; set the environment variable "
            f"MUJOCO_GL to egl or osmesa ({problem})"
        ) from problem
    rate = environment.metadata.get("render_fps") or RATE
    path.parent.mkdir(parents=True, exist_ok=True)
    film = io.BytesIO()
    frames[0].save(
        film, "GIF", save_all=True, append_images=frames[1:], duration=1000 / rate, loop=0
    )
    write_whole(path, film.getvalue())
    environment.close()
    return returns


def _play(agent, environment, episodes, seed, deterministic):
    frames, returns = [], []
    for k in range(episodes):
        agent.reset()
        observation, info = environment.reset(seed=seed + k)
        total, ended, time = 0.0, False, 0
        while not ended:
            frame = environment.render()
            if frame is None:
                raise ValueError(f"watch: {agent.names['environment']} draws nothing")
            frames.append(Image.fromarray(frame))
            mask = masks.of_step(environment, info) if agent.world.masks else None
            action = agent.predict(observation, deterministic, action_masks=mask)
            observation, reward, terminated, truncated, info = environment.step(action)
            total, time = total + float(reward), time + 1
            ended = terminated or truncated or time >= agent.world.horizon
        returns.append(total)
    return frames, returns
