"""Data flows one way: no module of planning imports, by whatever way, one that imports it."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import memplan.planning

FOLDER = Path(memplan.planning.__file__).parent


def imported(path: Path) -> set[str]:
    """Modules of planning that a module imports, for types too."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {str(node.module).rpartition(".")[2] for node in nodes if str(node.module).startswith("memplan.planning.")}


def test_no_circle() -> None:
    graph = {path.stem: imported(path) for path in FOLDER.glob("*.py")}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("estimates") < order.index("attempt") < order.index("search") < order.index("plan")
