"""``memplan header``: a model's header as a file of its own."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from memplan.cli import complete
from memplan.cli.asked import access_for
from memplan.cli.command import APP, Changes, Command, NoCache, Offline, Timeout
from memplan.errors import FlagError

app = typer.Typer(**APP)


@app.command(
    cls=Command,
    epilog="""\
Examples:
  memplan header deepseek-v4-flash -o flash.gguf
  memplan header flash.gguf --no-vocab -o small.gguf
  memplan estimate small.gguf --gpu "2*RTX 3090" -c 65536 -ncmoe 36 -np 1
""",
)
def header(
    model: Annotated[str, typer.Argument(metavar="MODEL", autocompletion=complete.models)],
    path: Annotated[str, typer.Option("-o", "--output", metavar="FILE")] = "",
    force: Annotated[bool, typer.Option("--force")] = False,
    no_vocab: Annotated[bool, typer.Option("--no-vocab")] = False,
    sparse: Annotated[bool, typer.Option("--sparse")] = False,
    changes: Changes = None,
    offline: Offline = False,
    no_cache: NoCache = False,
    timeout: Timeout = "",
) -> int:
    """Write the header of a model as a GGUF file without data: what memplan needs to plan for it, on another machine or
    from a report. Every byte is the original's; a split model becomes one file. llama.cpp's GGUF reader reads it too.

    MODEL is what memplan estimate takes: a GGUF file, an address or a built-in name.

    --output: The file to write, all of it or nothing; in place of another header-only file, too, but never of a model.
    --force: Write it in place of any other file but a model.
    --no-vocab: Leave out the vocabulary (tokenizer.*): kilobytes, not megabytes; how many tokens there were stays.
    --sparse: Let the file seem as long as the model, with a hole for its data, so that llama-fit-params can measure it.
    """
    from memplan.models.open import check_named

    check_named(model)
    if not path:
        raise FlagError("where to? name the file to write with -o FILE")

    from memplan.gguf.raw import HEADER
    from memplan.models.raw import header_file, model_files
    from memplan.outfile import check_output, write_output

    access = access_for(model, offline=offline, cache=not no_cache, timeout=timeout)
    inputs = model_files(model)
    check_output(path, HEADER, inputs, force=force)
    made = header_file(model, access, vocabulary=not no_vocab, changes=changes or ())
    size = made.size if sparse else None
    write_output(path, made.parts, HEADER, size, inputs, force=force)
    what = f"{path}: {made.nbytes:,} bytes of header"
    if no_vocab:
        tokens = f"without its vocabulary of {made.tokens:,} tokens" if made.tokens else "which has no vocabulary"
        what = f"{what}, {tokens}"
    print(what, file=sys.stderr)
    return 0
