"""``memplan paths``: the fused and the unfused way of a path side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from memplan.cli import terminal
from memplan.cli.arguments import parse_arguments
from memplan.cli.estimate import read_question
from memplan.llama.flag_values import whole

USAGE = """\
Usage: memplan paths MODEL [llama-server's flags] [options]

  What can be computed in one op (fused) and from small ones (unfused), such as
  the lightning indexer of DeepSeek-V4, side by side: what each device takes,
  the tensors that make the difference (lid_kq, its permuted copy, lid_score,
  masks), what is alive when each compute buffer is fullest, and from which
  context on each does not fit.

Options:
  --of NAME          the path, as --path of estimate names it: indexer,
                     hyper-connections; by default the model's first
  --path NAME=WAY    how the model's other paths are computed
  --top N            lines of each list (12)
  --json             print one JSON object, sizes in bytes
  -h, --help         print this

  --gpu, --rig, --no-gpu, --host-mib, --llama, --app, --without-op,
  --hyper-connections and llama-server's flags are those of memplan estimate.

  Both are forced here, as by estimate's --path indexer=WAY. --without-op
  LIGHTNING_INDEXER does not choose a path: it says that no GPU has the fused
  op, which the fused path then leaves to the host.

Examples:
  memplan paths deepseek-v4-flash --gpu "2*RTX 3090" -cmoe -c 131072 -np 1

Exit status: 0 answered, 2 bad input (one line says what).
"""

VALUES = ("--of", "--top", "--path", "--hyper-connections")


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan paths`` on stdout; the exit status. Raises MemplanError for bad input."""
    arguments = parse_arguments(argv, VALUES)
    if arguments.help:
        sys.stdout.write(USAGE)
        return 0
    top = whole("--top", arguments.own.get("--top", ("12",))[-1], 1, 1_000_000)
    question = read_question(arguments)

    from memplan.comparing.paths import both_paths
    from memplan.output.paths import paths_json, render_paths

    with terminal.ProgressBar("searching") as bar:
        found = both_paths(question, arguments.own.get("--of", ("",))[-1], bar)
    if arguments.json:
        text = paths_json(found)
    else:
        text = render_paths(
            found, top=top, colour=terminal.colour(), unicode=terminal.unicode(), width=terminal.limit()
        )
    sys.stdout.write(text)
    return 0
