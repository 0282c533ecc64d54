"""HTML in one file: light and dark, narrow and wide, vector graphics, tables that sort.

Every function takes text and gives HTML; `Markup` is HTML already and is not escaped again.
"""

import base64
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files


class Markup(str):
    """HTML."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Escaped, unless it is HTML already."""
    return content if isinstance(content, Markup) else Markup(html.escape(content))


def element(name: str, *content: str, **attributes: str) -> Markup:
    """<name attributes>content</name>; `class_` stands for class, None leaves one out."""
    given = {k.rstrip("_").replace("_", "-"): v for k, v in attributes.items()}
    said = "".join(f' {k}="{html.escape(v)}"' for k, v in given.items())
    return Markup(f"<{name}{said}>{''.join(map(text, content))}</{name}>")


def link(target: str, label: str) -> Markup:
    return element("a", label, href=target)


def join(parts: Iterable[str], between: str = "") -> Markup:
    return Markup(between.join(map(text, parts)))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], class_: str = "") -> Markup:
    """Sorts by the column whose heading is clicked."""
    head = element("tr", *(element("th", column, scope="col") for column in columns))
    body = [element("tr", *(element("td", _lines(cell)) for cell in row)) for row in rows]
    whole = element(
        "table",
        element("thead", head),
        element("tbody", *body),
        class_=f"sortable {class_}".strip(),
    )
    return element("div", whole, class_="scroll")


def _lines(cell: str) -> Markup:
    return join(cell.split("\n"), "<br>") if not isinstance(cell, Markup) else cell


def figure(svg: str, caption: str, id: str) -> Markup:
    """A figure as an image, so that its identifiers do not collide with others."""
    picture = f'<img class="figure" alt="{html.escape(caption)}" src="{_data("svg+xml", svg)}">'
    return element("figure", Markup(picture), element("figcaption", caption), id=id)


def download(name: str, content: str, label: str) -> Markup:
    """A download link for `content`, which is embedded in the page."""
    address = _data("json", content, "application")
    return Markup(f'<a download="{html.escape(name)}" href="{address}">{text(label)}</a>')


def command(line: str) -> Markup:
    return element("code", line, class_="command")


def details(summary: str, *content: str) -> Markup:
    return element("details", element("summary", summary), *content)


def document(title: str, *content: str, reload: int | None = None) -> str:
    """The whole page; with `reload` it reloads itself every `reload` seconds."""
    again = f'\n<meta http-equiv="refresh" content="{reload}">' if reload else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">{again}
<title>{text(title)}</title>
<link rel="icon" href="data:,">
<style>{_asset("style.css")}</style>
</head>
<body>
{join(content, chr(10))}
<script>{_asset("sort.js")}</script>
</body>
</html>
"""


def _asset(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")


def _data(kind: str, content: str, family: str = "image") -> str:
    return f"data:{family}/{kind};base64,{base64.b64encode(content.encode()).decode()}"
