"""Makes the pictures of docs/images and the outputs that the pages show, as the pages themselves say to.

    python docs/make.py [NAME ... | outputs | page]

A picture is made by the command in README.md or a page of docs/ that ends in ``-o NAME.png`` or ``--timeline
NAME.png``; an output is what the command after ``$`` in a console block prints, or its first lines where dots follow.
With names, only those pictures are made, or only the outputs. page.png shows the page in a browser: Chromium, driven by
Playwright.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
IMAGES = HERE / "images"
CHANGES = "## Every change by build"
"""What the table of changes stands under, at the end of its page."""

PAGE = "page.png"
"""The picture of the page, and the question in it."""

QUESTION = "#model=deepseek-v4-flash&c=524288&np=1&gpu=2*RTX+3090&host=128&ncmoe=34"

STACK = 'memplan plot deepseek-v4-flash --gpu "RTX PRO 6000" -np 4 -kvu -o stack.png'
"""The first picture of reading-a-plot.md, whose page draws it in the terminal."""


def pages() -> list[Path]:
    """README.md and every page here."""
    return [TOP / "README.md", *sorted(HERE.glob("*.md"))]


def shell_lines(page: Path) -> Iterator[str]:
    """The memplan commands in a page's sh blocks."""
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        yield from (line for line in block.splitlines() if line.startswith("memplan "))


def pictures() -> dict[str, list[str]]:
    """The arguments that make each picture, by its name."""
    lines = [STACK, *(line for page in pages() for line in shell_lines(page))]
    words = [shlex.split(line)[1:] for line in lines if line.endswith(".png")]
    return {line[-1]: line for line in words}


def consoles(text: str) -> Iterator[tuple[str, str, str]]:
    """Every console block that shows one command: the block, the command, the output."""
    yield from re.findall(r"(```console\n\$ (memplan [^\n]*)\n(.*?)```)", text, re.DOTALL)


def shortened(output: str, shown: str) -> str:
    """As many lines of ``output`` as are shown already, if what is shown ends in dots."""
    if not shown.endswith("...\n"):
        return output
    return "".join([*output.splitlines(keepends=True)[: shown.count("\n") - 1], "...\n"])


def printed(words: list[str]) -> str:
    """What a memplan command prints on a terminal of 80 columns."""
    from memplan.cli import main as memplan

    os.environ["COLUMNS"] = "80"
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out):
        if memplan(words):
            sys.exit(f"memplan {shlex.join(words)} failed")
    out.seek(0)
    return out.read()


def changes_table() -> str:
    """What each build changed for memory, newest first, as a table."""
    from memplan.releases import BUILDS, FORKS

    lines = ["| build | known by | what it changed for memory |", "|---|---|---|"]
    for r in (*reversed(BUILDS), *FORKS):
        name = r.name if r in FORKS or r.name == f"b{r.build}" else f"{r.name} ({r.build})"
        known = (
            "its answers" if r in FORKS else "answers and source" if r.asked else f"source; b{r.after} has it not yet"
        )
        lines.append(f"| {name} | {known} | {r.changed} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """A page with its table of changes as it has to be."""
    before, heading, _ = text.partition(f"{CHANGES}\n")
    return f"{before}{heading}\n{changes_table()}" if heading else text


def photograph() -> None:
    """Write PAGE, in 96 colours."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    from memplan.page.core import pyodide_core
    from memplan.page.folder import page_files
    from memplan.page.server import PageServer

    with PageServer(page_files(pyodide_core())) as server, sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 980})
        page.goto(f"{server.address}{QUESTION}")
        page.wait_for_selector('body[data-ready][data-asking=""]', timeout=120_000)
        picture = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
        server.shutdown()
    picture.convert("RGB").quantize(96, dither=Image.Dither.NONE).save(PAGE, optimize=True)


def main(wanted: list[str]) -> None:
    """Make what is wanted, or everything."""
    os.chdir(IMAGES)
    for name, words in pictures().items():
        if not wanted or name.removesuffix(".png") in wanted:
            # as it is in place of what an older memplan drew
            printed([*words, "--force"])
            print(name)
    if not wanted or "page" in wanted:
        photograph()
        print(PAGE)
    for page in pages() if not wanted or "outputs" in wanted else ():
        old = page.read_text(encoding="utf-8")
        text = with_table(old)
        for block, command, shown in consoles(old):
            output = shortened(printed(shlex.split(command)[1:]), shown)
            text = text.replace(block, f"```console\n$ {command}\n{output}```")
        if text != old:
            page.write_text(text, encoding="utf-8")
            print(page.name)


if __name__ == "__main__":
    main(sys.argv[1:])
