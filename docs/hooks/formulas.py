"""Formulas of the pages as MathML, made while the site is built: browsers draw it themselves, without a script."""

import html
import re
import unicodedata

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
NUMBER = re.compile(r"\\tag\{(\d+)\}")
STYLED = re.compile(r'<(m[a-z]+) mathvariant="(bold|double-struck|script)">([^<&])</\1>')
UNKNOWN_TO_THE_CONVERTER = {r"\|": "‖"}


def on_page_content(content: str, **_: object) -> str:
    """Called by MkDocs with the HTML of a page, in which arithmatex has marked what is a formula."""
    return FORMULA.sub(lambda found: formula(html.unescape(found[2]), is_block=found[1] == "div"), content)


def formula(tex: str, is_block: bool) -> str:
    """One formula; a numbered one has its number beside it, and can be linked to as #eq-7."""
    for unknown, known in UNKNOWN_TO_THE_CONVERTER.items():
        tex = tex.replace(unknown, known)
    number = NUMBER.search(tex)
    mathml = convert(NUMBER.sub("", tex).strip(), display="block" if is_block else "inline")
    mathml = STYLED.sub(lambda found: f"<{found[1]}>{styled(found[3], found[2])}</{found[1]}>", mathml)
    if not is_block:
        return mathml
    place = f' id="eq-{number[1]}"' if number else ""
    shown = f'<span class="formula-number">({number[1]})</span>' if number else ""
    # a wide formula scrolls within its box on a phone, so the box must be reachable by keyboard
    return f'<div class="formula"{place}><div class="formula-body" tabindex="0">{mathml}</div>{shown}</div>'


def styled(letter: str, style: str) -> str:
    """A letter as the character that looks bold, double-struck or script: browsers draw no other `mathvariant`."""
    words = unicodedata.name(letter).replace("LATIN ", "").replace("LETTER ", "")
    # some characters, such as script R, are older than the rest and have shorter names
    for name in (f"MATHEMATICAL {style} {words}", f"{style} {words}"):
        try:
            return unicodedata.lookup(name)
        except KeyError:
            continue
    return letter
