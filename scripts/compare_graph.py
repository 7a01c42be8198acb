"""A graph that llama.cpp built, node by node beside memplan's: the first step with a new release.

    python scripts/compare_graph.py GRAPH.jsonl[.gz] RELEASE MODEL [--without-op OP]... [-- llama-server's flags]

GRAPH lists every tensor of a prompt graph, one JSON object a line, nodes in the order of their computation: ``id`` (a
number; ``L...`` for a leaf), ``name``, ``op``, ``type``, ``ne``, ``nb``, ``offset`` (of views alone) and ``src``
(ids). Prints the nodes that differ, and exits with 1 if any does. ``--digest`` prints what the tests keep of it
(tests/data/golden/graphs.json).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from memplan.backends.devices import Gpu, Rig
from memplan.estimator import Question, load_model
from memplan.ggml.tensor import FLAG_INPUT
from memplan.llama.context import Fused
from memplan.llama.flags import parse_flags
from memplan.models.open import open_model
from memplan.releases import find_release

if TYPE_CHECKING:
    from memplan.ggml.graph import Graph
    from memplan.ggml.tensor import Tensor
    from memplan.gguf.header import Header

LARGE_GPU = Gpu("NVIDIA H200", 1 << 50, 1 << 50, (9, 0))
"""A GPU that takes all of any model."""

BLOCK = 250
"""Nodes to a hash of a digest."""

Node = list[Any]
"""(name, op, type, ne, nb, offset of a view, sources: a node's number or a leaf's type, ne, nb)."""


def golden_nodes(path: Path) -> list[Node]:
    """The nodes that llama.cpp computed."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    tensors = [json.loads(line) for line in text.splitlines()]
    by_id = {t["id"]: t for t in tensors}
    nodes = [t for t in tensors if not t["id"].startswith("L")]
    number = {t["id"]: i for i, t in enumerate(nodes)}

    def source(id: str) -> object:
        leaf = by_id[id]
        return number.get(id, [leaf["type"], leaf["ne"], leaf["nb"]])

    return [
        _node(t["name"], t["op"], t["type"], t["ne"], t["nb"], t.get("offset"), map(source, t["src"])) for t in nodes
    ]


def own_nodes(graph: Graph) -> list[Node]:
    """The nodes of a graph that memplan built."""
    number = {t: i for i, t in enumerate(graph.nodes)}
    return [
        _node(
            t.name,
            t.kind or t.op,
            t.type.name,
            list(t.ne),
            list(t.nb),
            None if t.view_src is None else t.view_offs,
            (number[s] if s in number and not _copied(s) else [s.type.name, list(s.ne), list(s.nb)] for s in t.src),
        )
        for t in graph.nodes
    ]


def _copied(t: Tensor) -> bool:
    """Whether llama.cpp's scheduler put a copy in the place of ``t``: a view of what lies on the host."""
    base = t.view_src
    if base is None:
        return False
    return bool(base.flags & FLAG_INPUT) or (base.op == "GET_ROWS" and base.src[0].name == "token_embd.weight")


def _node(
    name: str, op: str, type: str, ne: list[int], nb: list[int], offset: int | None, src: Iterable[object]
) -> Node:
    # flash attention had a name of its own once, and permutations strides of 32 bits; no size depends on either
    return ["" if op == "FLASH_ATTN_EXT" else name, op, type, ne, [x & 0xFFFFFFFF for x in nb], offset, list(src)]


def build(
    header: Header, release: str, flags: Sequence[str], without_ops: Sequence[str] = (), fused: Fused | None = None
) -> Graph:
    """The prompt graph on one large GPU; ``fused`` in place of what llama.cpp's probes would find."""
    followed, note = find_release(release)
    if note:
        print(note, file=sys.stderr)
    parsed = parse_flags(flags, "server")
    model = load_model(header, parsed, followed)
    question = Question(model, parsed, Rig((LARGE_GPU,)), followed, tuple(without_ops))
    answered = question.answer()
    if question.made is None:
        raise SystemExit(f"no graph: {answered.refused}")
    context = question.made[-1]
    return context.graphs.whole(context.params.prompt_batch, fused or context.fused).graph


def differing(golden: Sequence[Node], own: Sequence[Node]) -> list[int]:
    """Numbers of the nodes that differ; those that one side has not are among them."""
    longer = max(len(golden), len(own))
    return [i for i in range(longer) if i >= len(golden) or i >= len(own) or golden[i] != own[i]]


def digest(nodes: Sequence[Node]) -> dict[str, Any]:
    """Number of nodes, and one short hash for every ``BLOCK`` of them."""
    blocks = (nodes[i : i + BLOCK] for i in range(0, len(nodes), BLOCK))
    return {"nodes": len(nodes), "blocks": [hashlib.sha256(json.dumps(b).encode()).hexdigest()[:10] for b in blocks]}


def main() -> int:
    """Compare, or print a digest; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("graph", type=Path)
    parser.add_argument("release")
    parser.add_argument("model", nargs="?", default="deepseek-v4-flash:antirez-q2")
    parser.add_argument("--without-op", action="append", default=[])
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("flags", nargs="*", metavar="-- FLAG")
    asked = parser.parse_args()
    golden = golden_nodes(asked.graph)
    if asked.digest:
        print(json.dumps(digest(golden)))
        return 0
    flags = asked.flags or ["-c", "131072", "-b", "2048", "-ub", "512", "-np", "1", "-fa", "on"]
    own = own_nodes(build(open_model(asked.model), asked.release, flags, asked.without_op))
    wrong = differing(golden, own)
    for i in wrong[:5]:
        print(f"node {i}")
        print("  llama.cpp", golden[i] if i < len(golden) else "has none")
        print("  memplan  ", own[i] if i < len(own) else "has none")
    print(f"{len(golden)} nodes in llama.cpp, {len(own)} in memplan, {len(wrong)} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
