"""What happens to pages while the site is built: equations become MathML, which browsers draw
without a library, and pictures of experiments that have not run here are named instead of shown."""

import html
import re
from pathlib import Path

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
NAME = re.compile(r"<m[io][^>]*>([A-Za-z]{2,})</m[io]>")
"""Of a function, as log and Cov are; the converter takes some for operators and spaces none."""
THIN = '<mspace width="0.167em" />'
RESULT = re.compile(r"!\[[^\]]*\]\((results/([\w-]+)\.\w+)\)")


def on_page_markdown(markdown, page, config, files):
    folder = Path(page.file.abs_src_path).parent

    def picture(match):
        if (folder / match[1]).exists():
            return match[0]
        return f"*The picture is drawn by `bayespg reproduce {match[2]} --out docs/results`.*"

    return RESULT.sub(picture, markdown)


def on_page_content(content, page, config, files):
    return EQUATION.sub(lambda match: equation(match[2], match[1] == "div"), content)


def equation(text, block):
    """MathML for what arithmatex leaves, TeX between \\( and \\) or \\[ and \\]."""
    tex = html.unescape(text).strip()[2:-2].strip()
    # \operatorname is not known to GitHub, and \mathrm not upright in what the converter makes.
    tex = re.sub(r"\\mathrm\{(\w+)\}", r"\\operatorname{\1}", tex)
    found = convert(tex, display="block" if block else "inline")
    if "\\" in found or "<mi>&</mi>" in found:
        raise ValueError(f"no MathML for {tex}")
    found = NAME.sub(rf"{THIN}<mi>\1</mi>", found)
    found = re.sub(r"(<mi>[A-Za-z]{3,}</mi>)(?=<m(?:i|row|sub|sup))", rf"\1{THIN}", found)
    found = found.replace("<mo>&#x02207;</mo>", "<mi>&#x02207;</mi>")  # no space after nabla
    return f'<div class="equation">{found}</div>' if block else found
