"""How long sweeps take: twelve contexts drawn as PNG by one command, and 500 points in one process.

    python benchmarks/sweep.py [--runs N] [--points N] [--llama 'COMMAND -m {model} -c {ctx}']

Budgets: 1.5 s and 8 s. Both are timed in turn with what else would give the same figures: twelve single commands, and
the plain planner, which makes every tensor. With ``--llama``, llama.cpp's own planner is asked for the same twelve
contexts: a command of yours that plans without allocating, such as llama-fit-params; ``{model}`` and ``{ctx}`` stand
for the header's path and the context.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import memplan as mp
from memplan.estimator import answer
from memplan.question import Question

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.estimate import CARD, full_header
from benchmarks.timing import in_turn, memplan, report

CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 196608, 262144, 393216, 524288, 786432, 1048576)
PLAIN_POINTS = 10
"""Points that the plain planner is timed on, to be compared with as many of the sweep's."""


def each(words: list[list[str]]) -> Callable[[int], object]:
    """Several commands, one after the other."""

    def run(_: int) -> None:
        for line in words:
            subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)

    return run


def pictures(runs: int, llama: str) -> None:
    """The whole command that draws twelve contexts."""
    with tempfile.TemporaryDirectory() as folder:
        model, png = Path(folder) / "model.gguf", Path(folder) / "a.png"
        full_header(model)
        question = [str(model), "--gpu", CARD, "-np", "1"]
        over = "ctx=" + ",".join(map(str, CONTEXTS))
        plot = "12 contexts as PNG (budget 1.5 s)"
        single = [[sys.executable, "-m", "memplan", "estimate", *question, "-c", str(c), "--json"] for c in CONTEXTS]
        things = {
            plot: memplan("plot", *question, "--over", over, "-o", str(png)),
            "the same sweep as CSV, no picture": memplan("sweep", *question, "--over", over, "--csv"),
            "12 single estimates": each(single),
        }
        if llama:
            lines = [shlex.split(llama.replace("{model}", str(model)).replace("{ctx}", str(c))) for c in CONTEXTS]
            things["llama.cpp's own planner, 12 times"] = each(lines)
        report(in_turn(things, runs), plot)


def points(count: int) -> None:
    """Many points in one process."""
    header = mp.read_model("deepseek-v4-flash")
    rig = mp.parse_gpus([CARD])
    step = max(256, (1_000_000 // count) // 256 * 256)
    contexts = [4096 + step * i for i in range(count)]
    start = time.perf_counter()
    mp.sweep(header, ["-np", "1"], rig, {"ctx": contexts})
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    for n_ctx in contexts[:: max(1, count // PLAIN_POINTS)][:PLAIN_POINTS]:
        flags = mp.parse_flags(["-np", "1", "-c", str(n_ctx)])
        answer(Question.of(header, flags, rig, "latest"), plain=True)
    plain = (time.perf_counter() - start) / PLAIN_POINTS
    print(
        f"{count} points in one process (budget 8 s for 500): {seconds:.2f} s, {seconds / count * 1e3:.1f} ms a point"
    )
    print(f"{'the plain planner, a point':<44} {plain * 1e3:9.1f} ms  x{plain / (seconds / count):.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--llama", default="", metavar="COMMAND")
    args = parser.parse_args()
    pictures(args.runs, args.llama)
    points(args.points)


if __name__ == "__main__":
    main()
