"""Data: the sets of the paper and any folder of images, resident in memory as bytes; batches that can be replayed.

Names are resolved when they are first used: `fetch` and `official` answer without torch and numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from momentex.data.arrays import Arrays as Arrays
    from momentex.data.arrays import Loaded as Loaded
    from momentex.data.fetch import describe as describe
    from momentex.data.fetch import find as find
    from momentex.data.fetch import get as get
    from momentex.data.resident import Augment as Augment
    from momentex.data.resident import Evaluation as Evaluation
    from momentex.data.resident import Form as Form
    from momentex.data.resident import Normalize as Normalize
    from momentex.data.resident import Part as Part
    from momentex.data.resident import Resident as Resident
    from momentex.data.resident import evaluation_batches as evaluation_batches
    from momentex.data.splits import balanced_subset as balanced_subset
    from momentex.data.splits import held_out as held_out
    from momentex.data.splits import stratified as stratified

_HOME = {
    "Arrays": "arrays",
    "Loaded": "arrays",
    "describe": "fetch",
    "find": "fetch",
    "get": "fetch",
    "Augment": "resident",
    "Evaluation": "resident",
    "Form": "resident",
    "Normalize": "resident",
    "Part": "resident",
    "Resident": "resident",
    "evaluation_batches": "resident",
    "balanced_subset": "splits",
    "held_out": "splits",
    "stratified": "splits",
}

__all__ = [
    "Arrays",
    "Augment",
    "Evaluation",
    "Form",
    "Loaded",
    "Normalize",
    "Part",
    "Resident",
    "balanced_subset",
    "describe",
    "evaluation_batches",
    "find",
    "get",
    "held_out",
    "stratified",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'momentex.data' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"momentex.data.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
