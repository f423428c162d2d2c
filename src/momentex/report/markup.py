"""Text that is markup already, and text that is not: what is not is escaped on its way in, wherever it comes from."""

from __future__ import annotations

import re
from html import escape

# XML has no characters for these, escaped or not.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
VOID = ("meta", "link", "br", "hr")


class Markup(str):
    """Markup, made by functions of this package alone."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Any text, so that it is read as text; markup is left as it is.

    >>> escaped("<script>"), escaped(Markup("<b>bold</b>"))
    ('&lt;script&gt;', '<b>bold</b>')
    """
    return text if isinstance(text, Markup) else Markup(escape(FORBIDDEN.sub("\ufffd", text)))


def tag(name: str, /, *inside: str, **attributes: str | float | None) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; what is None is left out.

    >>> tag("p", "5 < 6", class_="small")
    '<p class="small">5 &lt; 6</p>'
    """
    given = "".join(
        f' {_named(key)}="{escaped(_short(value))}"' for key, value in attributes.items() if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(*inside)}</{name}>")


def _named(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def joined(*parts: str) -> Markup:
    """One after the other."""
    return Markup("".join(map(escaped, parts)))


def _short(value: str | float) -> str:
    """Numbers with as many digits as can be seen."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
