"""How long one estimate takes: as a command on a header with a full vocabulary, and once more in the same process.

    python benchmarks/estimate.py [--runs N] [--llama 'COMMAND -m {model}']

With ``--llama``, llama.cpp's own planner is timed in turn with memplan on the same question: a command of yours that
takes a model and plans without allocating, such as llama-fit-params; ``{model}`` stands for the header's path.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

import memplan as mp
from memplan.estimator import answer
from memplan.models.builtin import builtin_header
from memplan.question import Question

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.timing import command, in_turn, memplan, report
from tests.gguf import writer

TOKENS = 129_280
CARD = "RTX PRO 6000"


def full_header(path: Path) -> None:
    """A header as people have it: Flash's, with as many tokens and merges."""
    model = builtin_header("deepseek-v4-flash")
    keys = [(name, model.value_types[name], value) for name, value in model.metadata.items()]
    keys = [key for key in keys if not key[0].startswith("tokenizer.")]
    keys += [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", "deepseek-v3"),
        ("tokenizer.ggml.tokens", "arr[str]", [f"t{i:06x}" for i in range(TOKENS)]),
        ("tokenizer.ggml.token_type", "arr[i32]", [1] * TOKENS),
        ("tokenizer.ggml.merges", "arr[str]", [f"t{i:06x} t{i + 1:06x}" for i in range(TOKENS)]),
    ]
    head = writer.header(keys, [(t.name, t.shape, t.type.name) for t in model.tensors.values()])
    with path.open("wb") as file:
        file.write(head)
        # a hole for the data: llama.cpp looks at the file's length
        last = max(model.tensors.values(), key=lambda t: t.offset)
        file.truncate(len(head) + last.offset + last.nbytes + 4096)


def commands(runs: int, llama: str) -> None:
    """Whole commands, beside a Python that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        full_header(path)
        flags = ("-c", "131072", "-np", "1")
        things = {
            "python that does nothing": command(sys.executable, "-c", "pass"),
            "estimate, header with 129,280 tokens": memplan("estimate", str(path), "--gpu", CARD, *flags, "--json"),
            "estimate, built-in model": memplan("estimate", "deepseek-v4-flash", "--gpu", CARD, *flags, "--json"),
        }
        if llama:
            things["llama.cpp's own planner"] = command(*shlex.split(llama.replace("{model}", str(path))))
        report(in_turn(things, runs), "llama.cpp's own planner" if llama else "python that does nothing")


def in_process(runs: int) -> None:
    """One more estimate of each kind, beside the plain replay of the whole graph."""
    model, dense = mp.read_model("deepseek-v4-flash"), mp.read_model("qwen3-32b")
    one, two, eight = (mp.parse_gpus([spec]) for spec in (CARD, "2*RTX 3090", "8*RTX 3090"))
    unfused = ("DSV4_HC_PRE", "DSV4_HC_COMB", "DSV4_HC_POST")

    def flags(run: int, *more: str) -> mp.Flags:
        # a context that was not asked about before
        return mp.parse_flags(["-c", str(65536 + 4096 * run), "-np", "1", *more])

    def plain(run: int) -> None:
        asked = flags(run)
        answer(Question.of(model, asked, one, "latest"), plain=True)

    report(
        in_turn(
            {
                "plain replay, another context": plain,
                "another context": lambda run: mp.estimate(model, flags(run), one),
                "the same again": lambda run: mp.estimate(model, flags(0), one),
                "another ubatch": lambda run: mp.estimate(model, flags(0, "-ub", str(512 + 64 * run)), one),
                "another placement, 2 GPUs": lambda run: mp.estimate(model, flags(0, "-ncmoe", str(8 + run)), two),
                "another placement, 8 GPUs": lambda run: mp.estimate(model, flags(0, "-ncmoe", str(8 + run)), eight),
                "another context, a dense model": lambda run: mp.estimate(dense, flags(run), one),
                "hyper-connections in small ops": lambda run: mp.estimate(model, flags(run), one, "latest", unfused),
            },
            runs,
        ),
        "plain replay, another context",
    )


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=9)
    arguments.add_argument("--llama", default="", metavar="COMMAND")
    given = arguments.parse_args()
    commands(given.runs, given.llama)
    in_process(given.runs)
