"""HTML in one file: light and dark, narrow and wide, vector graphics, tables that sort.

Every function takes text and gives HTML; `Markup` is HTML already and is not escaped again.
"""

import base64
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from bayespg._support.files import make_directory, write_whole


class Markup(str):
    """HTML."""

    __slots__ = ()


def fill(template: str, *values: object, **named: object) -> Markup:
    """An HTML template with the values at its {}, all of them escaped; those of a list one after
    the other."""
    return Markup(template.format(*map(text, values), **{k: text(v) for k, v in named.items()}))


def text(content: object) -> Markup:
    """Escaped, unless it is HTML already."""
    if isinstance(content, list):
        return Markup("".join(map(text, content)))
    return content if isinstance(content, Markup) else Markup(html.escape(str(content)))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> Markup:
    """Sorts by the column whose heading is clicked; lines of a cell stay apart."""
    head = [fill('<th scope="col">{}</th>', column) for column in columns]
    body = []
    for row in rows:
        cells = [Markup(text(cell).replace("\n", "<br>")) for cell in row]
        body.append(fill("<tr>{}</tr>", [fill("<td>{}</td>", cell) for cell in cells]))
    return fill(
        '<div class="scroll"><table class="{}"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>'
        "</div>",
        f"sortable {kind}".strip(), head, body,
    )  # fmt: skip


def figure(svg: str, caption: str, id: str) -> Markup:
    """A figure as an image, so that its identifiers do not collide with others."""
    return fill(
        '<figure id="{id}"><img class="figure" alt="{caption}" src="{source}">'
        "<figcaption>{caption}</figcaption></figure>",
        id=id, caption=caption, source=_data("image/svg+xml", svg),
    )  # fmt: skip


def download(name: str, content: str) -> Markup:
    """A link that downloads `content`, which is embedded in the page, as a JSON file."""
    address = _data("application/json", content)
    return fill('<a download="{name}" href="{address}">{name}</a>', name=name, address=address)


def note(content: str) -> Markup:
    return fill('<p class="soft">{}</p>', content)


def command(line: str) -> Markup:
    return fill('<code class="command">{}</code>', line)


def details(summary: str, *content: str) -> Markup:
    return fill("<details><summary>{}</summary>{}</details>", summary, list(content))


def write(path: Path, title: str, *content: str, reload: int | None = None) -> Path:
    """Write the whole page; with `reload` it reloads itself every `reload` seconds."""
    again = f'\n<meta http-equiv="refresh" content="{reload}">' if reload else ""
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">{again}
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>{_asset("style.css")}</style>
</head>
<body>
{chr(10).join(map(text, content))}
<script>{_asset("sort.js")}</script>
</body>
</html>
"""
    make_directory(path.parent)
    write_whole(path, page.encode(errors="backslashreplace"))
    return path


def _asset(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")


def _data(kind: str, content: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content.encode()).decode()}"
