"""``memplan page``: memplan in a browser, as a folder of static files or served on this machine."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from memplan.cli.command import APP, Command, number
from memplan.cli.waiting import waiting
from memplan.errors import FlagError

app = typer.Typer(**APP)


@app.command(
    cls=Command,
    epilog="""\
Examples:
  memplan page
  memplan page -o site

Exit status: 0 written or ended by Ctrl-C, 2 bad input (one line says what).
""",
)
def page(
    folder: Annotated[str | None, typer.Option("-o", "--output", metavar="DIR")] = None,
    pyodide: Annotated[str | None, typer.Option("--pyodide", metavar="DIR")] = None,
    port: Annotated[int | None, number("--port", 0, 65535)] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser")] = False,
    force: Annotated[bool, typer.Option("--force")] = False,
) -> int:
    """A page to plan on, in the browser: what you would ask memplan estimate, plot and plan, answered as you change it.
    The browser runs memplan itself, so no server is asked and nothing leaves it.

    Without -o it is served to this machine alone, on 127.0.0.1, until Ctrl-C, and opened in the browser.

    --output: Write the page as a folder of static files (14 MB) that anyone can publish; in place of another page, too.
    --pyodide: The folder of npm's package pyodide, unpacked. Without it, npm fetches that once (6 MB), and it is kept.
    --port: The port to serve on (any that is free).
    --no-browser: Print the address, open no browser.
    --force: Write into a folder with other files.
    """
    if folder is not None and (port is not None or no_browser):
        raise FlagError(f"{'--no-browser' if port is None else '--port'} is for serving the page: leave out -o DIR")
    if folder is None and force:
        raise FlagError("--force is for the folder of -o DIR")

    from memplan.page.core import pyodide_core
    from memplan.page.folder import check_folder, page_files, write_page

    if folder is not None:
        check_folder(folder, force=force)
    with waiting("Pyodide"):
        core = pyodide_core(pyodide)
    files = page_files(core)
    if folder is not None:
        write_page(folder, files, force=force)
        size = sum(map(len, files.values()))
        print(f"{folder}: {len(files)} files, {size / 1e6:.1f} MB; publish them, or look at them by any web server",
              file=sys.stderr)  # fmt: skip
        return 0
    return _serve(files, port or 0, browser=not no_browser)


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
