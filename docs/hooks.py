"""What happens to pages while the site is built: equations become MathML, which browsers draw
without a library."""

import html
import re

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
NAME = r'<span class="n"><span title="(\w+)">\w+</span></span>'
SHAPE = re.compile(rf'{NAME} <span class="o">\*</span> {NAME}(?=<span class="p">\])')
THIN = '<mspace width="0.167em" />'
MENDED = (
    # Names of functions, as log and Cov are: some come as operators, none has the space it needs.
    (r"<m[io][^>]*>([A-Za-z]{2,})</m[io]>", rf"{THIN}<mi>\1</mi>"),
    (r"(<mi>[A-Za-z]{2,}</mi>)(?=<m(?:i|row|sub|sup))", rf"\1{THIN}"),
    # A prime is high enough by itself.
    (
        r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>",
        r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>',
    ),
    (r"<mo>&#x02207;</mo>", "<mi>&#x02207;</mi>"),  # no space after nabla
    (r"<mi>(&#x003[9A].;)</mi>", r'<mi mathvariant="normal">\1</mi>'),  # Greek capitals are upright
)


def on_page_content(content, page, config, files):
    return EQUATION.sub(lambda match: equation(match[2], match[1] == "div"), content)


def on_post_page(output, page, config):
    """A shape as "N *d" is a string; the reference takes it for a product."""
    return SHAPE.sub(r'<span class="s2">"\1 *\2"</span>', output)


def equation(text, block):
    """MathML for what arithmatex leaves, TeX between \\( and \\) or \\[ and \\].

    Displayed formulas side by side, with \\qquad between them, may also stand below each other
    where the page is narrow.
    """
    tex = html.unescape(text).strip()[2:-2].strip()
    if not block:
        return mathml(tex, "inline")
    parts = "".join(mathml(part.strip(), "block") for part in tex.split(r"\qquad"))
    return f'<div class="equation">{parts}</div>'


def mathml(tex, display):
    # GitHub does not know \operatorname, and the converter does not set \mathrm upright.
    found = convert(re.sub(r"\\mathrm\{(\w+)\}", r"\\operatorname{\1}", tex), display=display)
    if "\\" in found or "<mi>&</mi>" in found:
        raise ValueError(f"no MathML for {tex}")
    for pattern, replacement in MENDED:
        found = re.sub(pattern, replacement, found)
    return found
