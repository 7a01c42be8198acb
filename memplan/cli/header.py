"""``memplan header``: a model's header as a file of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from memplan.cli.asked import access_for
from memplan.cli.options import read_options
from memplan.errors import FlagError

HELP: Final = """\
Usage: memplan header MODEL -o FILE [options]

  Write the header of a model as a GGUF file without data: what memplan needs to
  plan for it, on another machine or from a report. Every byte is the original's;
  a split model becomes one file. llama.cpp's GGUF reader reads it too.

  MODEL is what memplan estimate takes: a GGUF file, an address, a built-in name.

Options:
  -o, --output FILE  the file to write, all of it or nothing; never over a model
  --no-vocab         leave out the vocabulary (tokenizer.*): kilobytes, not
                     megabytes; how many tokens there were is kept
  --sparse           let the file seem as long as the model, with a hole for its
                     data, so that llama-fit-params can measure it
  --offline          read no header from the network, only from the cache
  --no-cache         keep no header that was read from the network
  -h, --help         print this

Examples:
  memplan header deepseek-v4-flash -o flash.gguf
  memplan header flash.gguf --no-vocab -o small.gguf
  memplan estimate small.gguf --gpu "2*RTX 3090" -c 65536 -ncmoe 36 -np 1

Exit status: 0 written, 2 bad input (one line says what).
"""


def run(argv: Sequence[str]) -> int:
    """Write the header; the exit status. Raises MemplanError."""
    options = read_options(
        argv,
        "header",
        values=("-o --output",),
        switches=("--no-vocab", "--sparse", "--offline", "--no-cache"),
        names=("MODEL",),
    )
    if options.help:
        sys.stdout.write(HELP)
        return 0
    model, path = options.names[0], options.get("--output")
    if not path:
        raise FlagError("where to? name the file to write with -o FILE")

    from memplan.models.raw import header_file, model_files
    from memplan.outfile import check_output, write_output

    access = access_for(model, offline="--offline" in options, cache="--no-cache" not in options)
    inputs = model_files(model)
    check_output(path, inputs, header=True)
    header = header_file(model, access, vocabulary="--no-vocab" not in options)
    write_output(path, header.data, header.size if "--sparse" in options else None, inputs, header=True)
    print(f"{path}: {len(header.data):,} bytes of header", file=sys.stderr)
    return 0
