"""Write the notebooks of the tutorial from its pages.

python docs/notebooks.py
"""

import json
import re
from pathlib import Path

TUTORIAL = Path(__file__).parent / "tutorial"
PARTS = ("train", "judge", "decide")
CODE = re.compile(r"^```python\n(.*?)^```$\n?", re.DOTALL | re.MULTILINE)
PAGE = re.compile(r"\]\((?!http)([\w./-]+)\.md")


def notebook(page: str) -> str:
    """A page of Markdown as a notebook: each block of Python a cell, what is between them too."""
    cells = []
    for i, text in enumerate(CODE.split(page)):
        if not text.strip():
            continue
        kind = "code" if i % 2 else "markdown"
        lines = text.strip().splitlines(keepends=True)
        if kind == "markdown":
            # The other parts are notebooks beside this one, and all other pages a folder above.
            lines = [PAGE.sub(_target, line) for line in lines]
        empty = {"execution_count": None, "outputs": []} if kind == "code" else {}
        cells.append({
            "cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}, "source": lines, **empty
        })  # fmt: skip
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _target(link: re.Match[str]) -> str:
    return f"]({link[1]}.ipynb" if link[1] in PARTS else link[0]


if __name__ == "__main__":
    for part in PARTS:
        page = (TUTORIAL / f"{part}.md").read_text("utf-8")
        (TUTORIAL / f"{part}.ipynb").write_text(notebook(page), "utf-8")
