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
  plan for it, on another machine or from a report. Every byte is the
  original's; a split model becomes one file. llama.cpp's GGUF reader reads it
  too.

  MODEL is what memplan estimate takes: a GGUF file, an address or a built-in
  name.

Options:
  -o, --output FILE  the file to write, all of it or nothing; in place of
                     another header-only file, too, but never of a model
  --force            write it in place of any other file but a model
  --no-vocab         leave out the vocabulary (tokenizer.*): kilobytes, not
                     megabytes; how many tokens there were is kept
  --sparse           let the file seem as long as the model, with a hole for its
                     data, so that llama-fit-params can measure it
  --offline          read no header from the network, only from the cache
  --no-cache         read headers from the network anew and keep none; what was
                     kept before is kept as it is there now
  --timeout SECONDS  how long the network may take in all (30); the next try
                     goes on from where one broke off
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
        values=("-o --output", "--timeout"),
        switches=("--no-vocab", "--sparse", "--force", "--offline", "--no-cache"),
        names=("MODEL",),
    )
    if options.help:
        sys.stdout.write(HELP)
        return 0
    model, path = options.names[0], options.get("--output")
    if not path:
        raise FlagError("where to? name the file to write with -o FILE")

    from memplan.gguf.raw import HEADER
    from memplan.models.raw import header_file, model_files
    from memplan.outfile import check_output, write_output

    offline, cache = "--offline" in options, "--no-cache" not in options
    access = access_for(model, offline=offline, cache=cache, timeout=options.get("--timeout") or "")
    inputs, force = model_files(model), "--force" in options
    check_output(path, HEADER, inputs, force=force)
    header = header_file(model, access, vocabulary="--no-vocab" not in options)
    size = header.size if "--sparse" in options else None
    write_output(path, header.data, HEADER, size, inputs, force=force)
    what = f"{path}: {len(header.data):,} bytes of header"
    if "--no-vocab" in options:
        tokens = f"without its vocabulary of {header.tokens:,} tokens" if header.tokens else "which has no vocabulary"
        what = f"{what}, {tokens}"
    print(what, file=sys.stderr)
    return 0
