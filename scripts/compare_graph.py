"""A graph that llama.cpp built, node by node beside memplan's: the first step with a new release.

    python scripts/compare_graph.py GRAPH.jsonl[.gz] RELEASE [MODEL] [--app server|cli] [--without-op OP]...
                                    [--digest] [-- llama-server's flags]

GRAPH is what scripts/ask_llama.cpp writes: every tensor of a prompt graph, one JSON object a line, nodes in the order
of their computation: ``id`` (a number; ``L...`` for a leaf), ``name``, ``op``, ``type``, ``ne``, ``nb``, ``flags`` (1:
an input), of views ``view_of`` (an id) and ``offset``, and ``src`` (ids). MODEL is deepseek-v4-flash:antirez-q2 and
the flags are ``-c 131072 -b 2048 -ub 512 -np 1 -fa on`` unless given. ``--app``: cli for every program but
llama-server, which reserves fewer outputs; server when left out. Prints the nodes that differ, and exits with 1 if any
does. ``--digest`` prints the line that the tests keep of a graph (tests/data/golden/graphs.json).
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from memplan.backends.cuda import KNOWN_OPS
from memplan.backends.devices import Gpu, Rig
from memplan.errors import MemplanError
from memplan.estimator import answer
from memplan.ggml.tensor import FLAG_INPUT
from memplan.llama.context import Fused
from memplan.llama.flags import parse_flags
from memplan.models.open import open_model
from memplan.question import Question
from memplan.releases import find_release

if TYPE_CHECKING:
    from memplan.ggml.graph import Graph
    from memplan.ggml.tensor import Tensor
    from memplan.gguf.header import Header

LARGE_GPU = Gpu("NVIDIA H200", 1 << 50, 1 << 50, (9, 0))
"""A GPU that takes all of any model."""

FLAGS = ["-c", "131072", "-b", "2048", "-ub", "512", "-np", "1", "-fa", "on"]
"""Those that a graph is listed with first."""

BLOCK = 250
"""Nodes to a hash of a digest."""

_COPY = re.compile(r"[^#]+#(.*)#[0-9]+$")
"""The name of a copy on another device: ``CUDA0#NAME#0``."""

Node = list[Any]
"""(name, op, type, ne, nb, offset of a view, sources: a node's number or a leaf's type, ne, nb)."""


def golden_nodes(path: Path) -> list[Node]:
    """The nodes that llama.cpp computed."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    tensors = [json.loads(line) for line in text.splitlines()]
    by_id = {t["id"]: t for t in tensors}
    nodes = [t for t in tensors if not t["id"].startswith("L")]
    number = {t["id"]: i for i, t in enumerate(nodes)}

    def copied(t: dict[str, Any]) -> bool:
        base = by_id.get(t.get("view_of", ""))
        if base is None:
            return False
        return bool(base["flags"] & FLAG_INPUT) or (
            base["op"] == "GET_ROWS" and by_id[base["src"][0]]["name"] == "token_embd.weight"
        )

    named: dict[str, list[dict[str, Any]]] = {}
    for t in nodes:
        named.setdefault(t["name"], []).append(t)

    def original(t: dict[str, Any], at: int) -> dict[str, Any]:
        """What the scheduler copied for a split that another device computes: the last of its name before."""
        of = _COPY.match(t["name"])
        before = [n for n in named.get(of[1], ()) if number[n["id"]] < at] if of is not None else []
        return before[-1] if before else t

    def source(id: str, at: int) -> object:
        t = by_id[id] if id in number else original(by_id[id], at)
        return number[t["id"]] if t["id"] in number and not copied(t) else [t["type"], t["ne"], t["nb"]]

    return [
        _node(t["name"], t["op"], t["type"], t["ne"], t["nb"], t.get("offset"), (source(id, i) for id in t["src"]))
        for i, t in enumerate(nodes)
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
    """Whether llama.cpp's scheduler puts a copy in the place of ``t`` where there is a GPU: a view of what the host
    has."""
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
    header: Header,
    release: str,
    flags: Sequence[str],
    without_ops: Sequence[str] = (),
    fused: Fused | None = None,
    app: str = "server",
) -> Graph:
    """The prompt graph on one large GPU; ``fused`` in place of what llama.cpp's probes would find."""
    followed, note = find_release(release)
    if note:
        print(note, file=sys.stderr)
    found = answer(Question.of(header, parse_flags(flags, app), Rig((LARGE_GPU,)), followed, without_ops))
    if found.made is None:
        raise SystemExit(f"no graph: {found.estimate.refused}")
    context = found.made.context
    return context.graphs.whole(context.params.prompt_batch, fused or context.fused).graph


def known_op(text: str) -> str:
    """An op that a GPU may refuse, by ggml's name. Raises ArgumentTypeError."""
    op = text.upper()
    if op not in KNOWN_OPS:
        near = difflib.get_close_matches(op, sorted(KNOWN_OPS), n=1, cutoff=0.5)
        raise argparse.ArgumentTypeError(f"no op is called {text}{f'; did you mean {near[0]}?' if near else ''}")
    return op


def differing(golden: Sequence[Node], own: Sequence[Node]) -> list[int]:
    """Numbers of the nodes that differ; those that one side has not are among them."""
    longer = max(len(golden), len(own))
    return [i for i in range(longer) if i >= len(golden) or i >= len(own) or golden[i] != own[i]]


def digest(nodes: Sequence[Node]) -> dict[str, Any]:
    """Number of nodes, and one short hash for every ``BLOCK`` of them."""
    blocks = (nodes[i : i + BLOCK] for i in range(0, len(nodes), BLOCK))
    return {"nodes": len(nodes), "blocks": [hashlib.sha256(json.dumps(b).encode()).hexdigest()[:10] for b in blocks]}


def compared(asked: argparse.Namespace) -> int:
    """Compare, or print a digest; the exit status. Raises MemplanError and OSError."""
    golden = golden_nodes(asked.graph)
    flags = asked.flags or FLAGS
    find_release(asked.release)
    if asked.digest:
        app = {} if asked.app == "server" else {"app": asked.app}
        line = {"release": asked.release, **app, "flags": flags, "without_ops": asked.without_op, **digest(golden)}
        print(json.dumps(line))
        return 0
    own = own_nodes(build(open_model(asked.model), asked.release, flags, asked.without_op, app=asked.app))
    wrong = differing(golden, own)
    for i in wrong[:5]:
        print(f"node {i}")
        print("  llama.cpp", golden[i] if i < len(golden) else "has none")
        print("  memplan  ", own[i] if i < len(own) else "has none")
    print(f"{len(golden)} nodes in llama.cpp, {len(own)} in memplan, {len(wrong)} differ")
    return 1 if wrong else 0


def main() -> int:
    """Read the command line and answer it; the exit status, 2 for what cannot be read."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], epilog="llama-server's flags follow after --"
    )
    parser.add_argument("graph", type=Path)
    parser.add_argument("release")
    parser.add_argument("model", nargs="?", default="deepseek-v4-flash:antirez-q2")
    parser.add_argument("--app", choices=("server", "cli"), default="server")
    parser.add_argument("--without-op", action="append", default=[], type=known_op)
    parser.add_argument("--digest", action="store_true")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    asked = parser.parse_args(words[:at])
    asked.flags = words[at + 1 :]
    try:
        return compared(asked)
    except (MemplanError, OSError) as fault:
        print(f"compare_graph: {fault}", file=sys.stderr)
    except (ValueError, KeyError) as fault:
        print(f"compare_graph: the graph is not as scripts/ask_llama.cpp writes it: {fault!r}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
