"""Data flows one way: the floors of docs/architecture.md, of which a module imports from its own and those above alone.

Imports for types and inside functions count too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import memplan

PACKAGE = Path(memplan.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
DOORS = {"memplan", "memplan.__main__"}
"""Which stand outside of all floors."""


def floors() -> dict[str, int]:
    """The number of each floor, from the top, by its first name: ``errors``, ``gguf``, ``llama``."""
    rows = re.findall(r"^\| (`[^|]+`) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    names = [re.findall(r"`(\w+)(?:/|\.py)`", row) for row in rows]
    return {name: number for number, row in enumerate(names) for name in row}


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a module imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in inner)


IMPORTS = {name: set(imported(path)) for name, path in MODULES.items() if name not in DOORS}


def test_every_module_is_on_a_floor() -> None:
    assert {name.split(".")[1] for name in IMPORTS} == floors().keys()


def test_no_module_imports_from_a_floor_below() -> None:
    number = floors()
    assert [
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        for other in sorted(others - DOORS)
        if number[other.split(".")[1]] > number[name.split(".")[1]]
    ] == []


def test_no_circle() -> None:
    """But for types: a tensor has a buffer, whose type says how large a tensor is there."""
    IMPORTS["memplan.ggml.tensor"].remove("memplan.ggml.backend")
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError
