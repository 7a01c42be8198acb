"""The page as a folder of static files: its own, memplan as a zip archive, and Pyodide's core."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from memplan.errors import OutputError, shown
from memplan.outfile import Kind, cannot_be_written, write_output
from memplan.page.core import VERSION

PACKAGE: Final = Path(__file__).parent.parent
STATIC: Final = Path(__file__).parent / "static"

LISTING: Final = "files.json"
"""Every other file with its SHA-256: what the browser keeps, and what tells that a folder is a page of memplan's."""

_NOT_NEEDED: Final = ("cli", "machine", "diagnosing", "comparing", "page/static", "presets")
"""What of the package nothing on the page asks for."""

_NOTICE: Final = f"""\
Pyodide {VERSION}: CPython for WebAssembly. Mozilla Public License 2.0.
Unchanged from npm's package pyodide {VERSION}. Sources: https://github.com/pyodide/pyodide, tag {VERSION}.
"""


def page_files(core: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every file of the page by its name in the folder, with ``/`` between; ``core``: Pyodide's."""
    files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.is_file()}
    files["memplan.zip"] = packed()
    files |= {f"pyodide/{name}": data for name, data in core.items()}
    files["pyodide/NOTICE.txt"] = _NOTICE.encode()
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return {**files, LISTING: json.dumps({"page": "memplan", "files": listed}, indent=1).encode()}


def packed() -> bytes:
    """The package's modules as a zip archive, the same bytes each time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(PACKAGE.rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            if not name.startswith(tuple(f"{folder}/" for folder in _NOT_NEEDED)):
                archive.writestr(zipfile.ZipInfo(f"memplan/{name}"), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return out.getvalue()


def check_folder(path: str, *, force: bool = False) -> None:
    """Whether the page can be written there: a new folder, an empty one, or one with a page. Raises OutputError.

    ``force``: also beside and in place of other files.
    """
    folder = Path(path)
    try:
        if not path or (folder.exists() and not folder.is_dir()):
            raise OutputError(f"{shown(path)}: is not a folder; give the name of a new one")
        if not folder.exists() and not folder.absolute().parent.is_dir():
            raise OutputError(f"{shown(path)}: there is no folder {shown(os.path.dirname(path))}; make it first")
        if not force and folder.is_dir() and any(folder.iterdir()) and not _is_page(folder):
            raise OutputError(f"{shown(path)}: is not empty, and no page of memplan's; give another folder, or --force")
    except (OSError, ValueError) as error:
        raise cannot_be_written(path, error) from None


def write_page(path: str, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write every file, the listing last. Raises OutputError, in one line."""
    check_folder(path, force=force)
    folder = Path(path)
    try:
        for name in {str(Path(name).parent) for name in files}:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_be_written(path, error) from None
    for name, data in files.items():
        write_output(str(folder / name), data, _FILE, force=True)


def _is_page(folder: Path) -> bool:
    try:
        listing = json.loads((folder / LISTING).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(listing, dict) and listing.get("page") == "memplan"


def _never(_: BinaryIO) -> bool:
    return False


_FILE: Final = Kind("file of a page", _never)
