"""Saved agents that travel: to a folder, a web server or the Hugging Face hub, and back.

    bayespg push cartpole.bayespg /shared/policies
    bayespg pull https://example.org/cartpole.bayespg

What travels is one file of arrays and JSON (`bayespg.agents.store`), with a model card made from
its configuration. Nothing that is fetched is run: the file is checked before it is written, and
`bayespg.load` imports a module for an environment only if the user names it.
"""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from bayespg._support import files
from bayespg._support.version import __version__
from bayespg.agents import store
from bayespg.agents.store import SUFFIX
from bayespg.runs.columns import Column
from bayespg.runs.store import CHECKPOINT, CONFIG, METRICS, Run

HUB = "hf://"
WEB = ("http://", "https://")
CARD = "README.md"
LARGEST = 2**30
"""The largest file that is fetched, in bytes."""
TIMEOUT = 60.0
"""Seconds without an answer after which a server is given up."""
PLACES = "a file or folder, an address with http:// or https://, or hf://"
"""Where saved agents travel to and from."""


def push(saved: Path, to: str, name: str | None = None) -> str:
    """Send a saved agent, or the newest checkpoint of a run, to a folder, to a web address by PUT,
    or to ``hf://OWNER/NAME``. Returns where it is."""
    content, config, last = _content(saved)
    name = f"{(name or saved.absolute().name).removesuffix(SUFFIX)}{SUFFIX}"
    if to.startswith(WEB):
        address = to if to.endswith(SUFFIX) else f"{to.rstrip('/')}/{name}"
        _ask(urllib.request.Request(address, content, method="PUT"))
        return address
    described = card(name, config, last).encode()
    if to.startswith(HUB):
        api, repository = _hub().HfApi(), to.removeprefix(HUB)
        api.create_repo(repository, exist_ok=True)
        for file, what in ((name, content), (CARD, described)):
            api.upload_file(path_or_fileobj=what, path_in_repo=file, repo_id=repository)
        return f"{HUB}{repository}/{name}"
    _refuse_other_protocols("to", to)
    folder = Path(to)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_whole(folder / name, content)
    files.write_whole(folder / f"{name}.md", described)
    return str(folder / name)


def pull(source: str, to: Path | None = None) -> Path:
    """Fetch a saved agent from a web address, ``hf://OWNER/NAME/FILE`` or a path, check it, and
    write it to `to`, or to a file of its name in the working directory."""
    if source.startswith(WEB):
        content = _ask(urllib.request.Request(source))
    elif source.startswith(HUB):
        owner, name, file = (*source.removeprefix(HUB).split("/", 2), "", "")[:3]
        content = files.read(Path(_hub().hf_hub_download(f"{owner}/{name}", file)), LARGEST)
    else:
        _refuse_other_protocols("source", source)
        if not Path(source).exists():
            raise ValueError(f"source: {source} does not exist; give {PLACES}")
        content = _content(Path(source))[0]
    name = source.partition("?")[0].rstrip("/").rpartition("/")[2].removesuffix(SUFFIX)
    path = Path(f"{name}{SUFFIX}") if to is None else to
    if path.exists():
        raise ValueError(f"{path}: exists already; give another name with --out")
    store.members(content, source)
    files.write_whole(path, content)
    return path


def card(name: str, config: dict[str, Any], last: dict[str, float]) -> str:
    """A model card in Markdown: what was trained, how far, with which settings, and how to load
    it."""
    shown = {k: v for k, v in config.items() if v not in (None, {}, [])}
    rows = "\n".join(f"| {k} | {json.dumps(v)} |" for k, v in shown.items())
    trained = "".join(
        f"- {column.meaning}: {column.show(last[column])}\n"
        for column in (Column.STEPS, Column.EPISODES, Column.RETURN, Column.RETURN_ERROR)
        if column in last
    )
    return (
        f"---\nlibrary_name: bayespg\ntags: [reinforcement-learning, bayespg]\n---\n"
        f"# {name}\n\nA policy for {config.get('environment') or 'an environment of its own'}, "
        f"trained by bayespg {__version__}.\n\n"
        f"```python\nagent = bayespg.load({name!r})\nagent.evaluate(episodes=100)\n```\n\n"
        + (f"At the last update, of the episodes it was trained with:\n\n{trained}\n" * bool(last))
        + f"| setting | value |\n|---|---|\n{rows}\n"
    )


def _content(saved: Path) -> tuple[bytes, dict[str, Any], dict[str, float]]:
    """A saved agent as the bytes of one file, its configuration, and the last row of its run."""
    if saved.is_file():
        content = files.read(saved, LARGEST)
        return content, json.loads(store.members(content, saved)[CONFIG]), {}
    run = Run.open(saved)
    if not (saved / CHECKPOINT).is_file():
        raise ValueError(f"{saved}: has no checkpoint yet; there is nothing to send")
    config = store.agent_of(run.config)
    parts = {CONFIG: json.dumps(config).encode(), CHECKPOINT: files.read(saved / CHECKPOINT)}
    last = run.metrics() if (saved / METRICS).exists() else {}
    return store.packed(parts), config, {k: float(v[-1]) for k, v in last.items() if len(v)}


def _refuse_other_protocols(name: str, place: str) -> None:
    if "://" in place:
        raise ValueError(f"{name}: expected {PLACES}, found {place}")


def _ask(request: urllib.request.Request) -> bytes:
    """The answer of a web server; OSError with its address."""
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            content = answer.read(LARGEST + 1)
    except urllib.error.URLError as problem:
        raise OSError(f"{request.full_url}: {problem}") from None
    if len(content) > LARGEST:
        raise ValueError(f"{request.full_url}: has more than {LARGEST:,} bytes")
    return content


def _hub() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            f"{HUB}: huggingface_hub is missing; pip install huggingface_hub, or give a folder or "
            "a web address"
        ) from None
    return huggingface_hub
