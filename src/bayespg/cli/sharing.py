"""bayespg push and pull: saved agents to and from other places."""

from pathlib import Path

from bayespg.agents import share
from bayespg.cli.common import app, say
from bayespg.cli.options import argument, option


@app.command()
def push(
    saved: Path = argument("A saved agent or a run."),
    to: str = argument("A folder, a web address (PUT) or hf://OWNER/NAME."),
    name: str | None = option("Name of the file.", shown="that of SAVED"),
) -> None:
    """Send a saved agent as one file, with a model card where it can be kept."""
    say("Sent: ", (share.push(saved, to, name), "bold"))


@app.command()
def pull(
    source: str = argument("A web address, hf://OWNER/NAME/FILE, a file or a folder."),
    out: Path | None = option("File.", shown="its name, here"),
) -> None:
    """Fetch a saved agent and check it. None of its content is run."""
    path = share.pull(source, out)
    say("Saved: ", (str(path), "bold"), f"; load it with bayespg.load({str(path)!r})")
