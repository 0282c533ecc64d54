"""bayespg push and pull: saved agents to and from other places."""

from pathlib import Path
from typing import Annotated

import typer

from bayespg.agents import share
from bayespg.cli.common import app, say


@app.command()
def push(
    saved: Annotated[Path, typer.Argument(help="A saved agent or a run.")],
    to: Annotated[str, typer.Argument(help="A folder, a web address (PUT) or hf://OWNER/NAME.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the file.", show_default="that of SAVED")
    ] = None,
) -> None:
    """Send a saved agent as one file, with a model card where it can be kept."""
    say("Sent: ", (share.push(saved, to, name), "bold"))


@app.command()
def pull(
    source: Annotated[
        str, typer.Argument(help="A web address, hf://OWNER/NAME/FILE, a file or a folder.")
    ],
    out: Annotated[Path | None, typer.Option(help="File.", show_default="its name, here")] = None,
) -> None:
    """Fetch a saved agent and check it. None of its content is run."""
    path = share.pull(source, out)
    say("Saved: ", (str(path), "bold"), f"; load it with bayespg.load({str(path)!r})")
