"""``memplan page``: memplan in a browser, as a folder of static files or served on this machine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Final

from memplan.cli.options import read_options
from memplan.cli.waiting import waiting
from memplan.errors import FlagError
from memplan.llama.flag_values import whole

HELP: Final = """\
Usage: memplan page [options]

  A page to plan on, in the browser: what you would ask memplan estimate, plot
  and plan, answered as you change it. The browser runs memplan itself, so no
  server is asked and nothing leaves it.

  Without -o it is served to this machine alone, on 127.0.0.1, until Ctrl-C,
  and opened in the browser.

Options:
  -o, --output DIR   write the page as a folder of static files (17 MB) that
                     anyone can publish; in place of another page, too
  --pyodide DIR      the folder of npm's package pyodide, unpacked. Without it,
                     npm fetches that once (6 MB), and it is kept
  --port N           the port to serve on (any that is free)
  --no-browser       print the address, open no browser
  --force            write into a folder with other files
  -h, --help         print this

Examples:
  memplan page
  memplan page -o site

Exit status: 0 written or ended by Ctrl-C, 2 bad input (one line says what).
"""


def run(argv: Sequence[str]) -> int:
    """Write the page, or serve it until Ctrl-C; the exit status. Raises MemplanError."""
    options = read_options(
        argv,
        "page",
        values=("-o --output", "--pyodide", "--port"),
        switches=("--no-browser", "--force"),
    )
    if options.help:
        sys.stdout.write(HELP)
        return 0
    folder, port = options.get("--output"), options.get("--port")
    if folder is not None and (alone := [word for word in ("--port", "--no-browser") if word in options]):
        raise FlagError(f"{alone[0]} is for serving the page: leave out -o DIR")
    if folder is None and "--force" in options:
        raise FlagError("--force is for the folder of -o DIR")

    from memplan.page.core import pyodide_core
    from memplan.page.folder import check_folder, page_files, write_page

    if folder is not None:
        check_folder(folder, force="--force" in options)
    with waiting("Pyodide"):
        core = pyodide_core(options.get("--pyodide"))
    files = page_files(core)
    if folder is not None:
        write_page(folder, files, force="--force" in options)
        size = sum(map(len, files.values()))
        print(f"{folder}: {len(files)} files, {size / 1e6:.1f} MB; publish them, or look at them by any web server",
              file=sys.stderr)  # fmt: skip
        return 0
    return _serve(files, 0 if port is None else whole("--port", port, 0, 65535), browser="--no-browser" not in options)


def _serve(files: dict[str, bytes], port: int, *, browser: bool) -> int:
    from memplan.page.server import PageServer

    with PageServer(files, port) as server:
        print(f"{server.address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if browser:
            import webbrowser

            webbrowser.open(server.address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0
