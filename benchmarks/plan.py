"""How long a plan takes, as a whole command, beside llama.cpp's own --fit on the same question.

    python benchmarks/plan.py [--runs N] [--model FILE] [--llama 'COMMAND -m {model} {args} --fit {margin}']

With ``--llama``, llama.cpp's placement is timed in turn with memplan: a command of yours that places a model without
allocating, on pretended GPUs if there are none. ``{model}``, ``{args}`` and ``{margin}`` are filled in; ``{gpus}`` is
the rig as name:major:minor:total:free, separated by semicolons, for a wrapper that pretends.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))
from memplan.rig import parse_gpus

MARGIN = 1024
PATIENCE = 120.0
BUDGETS = ((4, 1.0), (16, 3.0))
"""Seconds a plan may take, up to so many GPUs."""

QUESTIONS = (
    ("1 GPU", ["RTX 3090"], "-c 131072 -np 1 -ub 1024"),
    ("2 GPUs", ["2*RTX 3090"], "-c 131072 -np 1 -ub 512"),
    ("4 GPUs", ["4*RTX 3090"], "-c 524288 -np 4 -ub 2048"),
    ("4 unequal GPUs", ["RTX 3090", "RTX 5060 Ti", "2*RTX 4060 Ti"], "-c 131072 -np 1 -ub 512"),
    ("8 GPUs", ["8*RTX 3060"], "-c 131072 -np 1 -ub 512"),
    ("15 unequal GPUs", ["3*RTX 3060", "4*RTX 3070", "3*P100", "5*RTX 3060:12288:9000"], "-c 131072 -np 1 -ub 512"),
    ("16 GPUs", ["16*RTX 3070"], "-c 131072 -np 1 -ub 512"),
)


def seconds(words: list[str]) -> float | None:
    """How long a command takes; None when it fails or does not end."""
    start = time.perf_counter()
    try:
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return None
    return time.perf_counter() - start if done.returncode == 0 else None


def gpu_text(specs: list[str]) -> str:
    gpus = parse_gpus(specs).gpus
    figures = ((g.description, *g.compute_capability, g.total >> 20, g.free >> 20) for g in gpus)
    return ";".join(":".join(map(str, of_one)) for of_one in figures)


def shown(times: list[float | None]) -> str:
    ended = [t for t in times if t is not None]
    if not ended:
        return f"no answer ({PATIENCE:.0f} s)"
    return f"{median(ended):6.2f} s ({min(ended):.2f} to {max(ended):.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default="deepseek-v4-flash")
    parser.add_argument("--llama", default="")
    options = parser.parse_args()
    late = 0
    for name, specs, flags in QUESTIONS:
        gpus = [word for spec in specs for word in ("--gpu", spec)]
        line = [sys.executable, "-m", "memplan", "plan", options.model, *flags.split(), "--json", *gpus]
        rig = shlex.quote(gpu_text(specs))
        filled = options.llama.format(model=options.model, args=flags, margin=MARGIN, gpus=rig)
        ours: list[float | None] = []
        theirs: list[float | None] = []
        for _ in range(options.runs):
            ours.append(seconds(line))
            if filled and len(theirs) < 2:  # it is slow, and some questions it never answers
                theirs.append(seconds(shlex.split(filled)))
        count = len(parse_gpus(specs).gpus)
        budget = next(limit for most, limit in BUDGETS if count <= most)
        ended = [t for t in ours if t is not None]
        in_time = bool(ended) and median(ended) <= budget
        late += not in_time
        beside = f"   llama.cpp --fit: {shown(theirs)}" if filled else ""
        print(f"{name:<18} {shown(ours)}  {'within' if in_time else 'OVER'} {budget:.0f} s{beside}", flush=True)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
