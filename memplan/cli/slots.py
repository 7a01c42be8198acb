"""``memplan slots``: how many slots fit, and how much context each gets."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from memplan.cli import terminal
from memplan.cli.arguments import Arguments, parse_arguments
from memplan.cli.estimate import DOES_NOT_FIT, PATHS, read_question
from memplan.errors import FlagError
from memplan.llama.flag_table import MAX_SEQUENCES
from memplan.llama.flag_values import whole
from memplan.sweeping.axes import MODELS

USAGE = """\
Usage: memplan slots MODEL [llama-server's flags] [options]

  A row for each number of slots: with a part of the context each, and all
  sharing one (-kvu); for a model with a lightning indexer on both paths of it.
  What caches and compute buffers take, how much context a slot gets, and
  whether it fits. What llama-server does without -np, 4 slots that share one
  context, is marked as the default. Where it does not fit but fewer slots do,
  the last line says so.

Options:
  --np N,N,...       slots to try (1,2,4,8)
  --json             print one JSON object, sizes in bytes
  --check            exit with 1 when the default, or what -np asks for, does
                     not fit on the path that llama.cpp takes
  -h, --help         print this

  --gpu, --rig, --no-gpu, --host-mib, --llama, --app, --without-op, --path,
  --hyper-connections and llama-server's flags are those of memplan estimate;
  --indexer says which path's default the last line and --check are about.

Examples:
  memplan slots deepseek-v4-flash --gpu "2*RTX 3090" -cmoe -c 65536
  memplan slots flash.gguf --gpu "RTX PRO 6000" -c 524288 --np 1,2

Exit status: 0 answered, 1 with --check, 2 bad input (one line says what).
"""

VALUES = ("--np",)

MOST_COUNTS = 32
"""Counts of slots in one table, each of which takes four estimates."""


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan slots`` on stdout; the exit status. Raises MemplanError for bad input."""
    arguments = parse_arguments(argv, (*VALUES, *PATHS))
    if arguments.help:
        sys.stdout.write(USAGE)
        return 0
    counts = _counts(arguments)
    question = read_question(arguments).without(MODELS)

    from memplan.output.slots import render_slots, slots_json
    from memplan.sweeping.slots import COUNTS, SLOTS, slot_table

    with terminal.ProgressBar("slots:") as bar:
        table = slot_table(question, counts or COUNTS, bar)
    if arguments.json:
        text = slots_json(table)
    else:
        given = question.without(SLOTS.replaced).flags.words()
        text = render_slots(table, given, colour=terminal.colour(), unicode=terminal.unicode(), width=terminal.limit())
    sys.stdout.write(text)
    of_interest = [row for row in table.rows if row.path == table.usual]
    row = next((row for row in of_interest if row.given), None) or next(row for row in of_interest if row.default)
    return DOES_NOT_FIT if arguments.check and not row.estimate.fits else 0


def _counts(arguments: Arguments) -> tuple[int, ...]:
    texts = arguments.own.get("--np", ())
    if not texts:
        return ()
    counts = {whole("--np", part, 1, MAX_SEQUENCES) for part in texts[-1].split(",")}
    if len(counts) > MOST_COUNTS:
        raise FlagError(f"--np: {len(counts)} counts of slots; at most {MOST_COUNTS}; memplan sweep --over np=1:256:1")
    return tuple(sorted(counts))
