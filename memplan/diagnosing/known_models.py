"""Which built-in models a log's tensors may be of."""

from __future__ import annotations

from collections import Counter
from typing import Final

from memplan.diagnosing.log import Load
from memplan.gguf.header import Header
from memplan.models.builtin import builtin_header
from memplan.models.catalogue import MODELS

_TELLING: Final = ("block_count", "embedding_length", "expert_count")
"""Keys that tell models apart before their tensors are counted."""


def builtin_models(load: Load) -> list[str]:
    """Built-in models of the log's architecture with as many tensors of each type as it counts."""
    if not load.types:
        return []
    architecture = load.metadata.get("general.architecture")
    names = []
    for model in MODELS.values():
        if architecture not in (None, model.arch):
            continue
        for name, recipe in model.recipes.items():
            keys = model.metadata(recipe)
            shown = [(load.metadata.get(f"{model.arch}.{key}"), keys.get(key)) for key in _TELLING]
            alike = all(text is None or value is None or text == str(value) for text, value in shown)
            if alike and load.types.keys() <= recipe.types:
                names.append(f"{model.name}:{name}")
    return [name for name in names if same_types(load, builtin_header(name)) is True]


def same_types(load: Load, header: Header) -> bool | None:
    """Whether the log counts as many tensors of each type as ``header`` has; None when it does not count them."""
    if not load.types:
        return None
    key = f"{header.metadata.get('general.architecture')}.block_count"
    if load.metadata.get(key, str(header.metadata.get(key))) != str(header.metadata.get(key)):
        return False
    return Counter(tensor.type.name for tensor in header.tensors.values()) == Counter(load.types)
