"""Shows the examples of docstrings as code on the API page: Markdown takes a bare `>>>` for a quotation."""

import re
from typing import Any

import griffe


class DoctestBlocks(griffe.Extension):
    """Fences every run of lines that starts with `>>>` and ends at an empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"^>>> .*(?:\n.+)*", r"```pycon\n\g<0>\n```", obj.docstring.value, flags=re.M)
