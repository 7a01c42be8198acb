"""Write the files of presets/, or say which of them are stale: presets.py [--check] [NAME ...]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from memplan.output.presets import preset_text  # noqa: E402
from memplan.planning.presets import SETTINGS, PresetFile, preset_files, preset_plan  # noqa: E402
from memplan.releases import LATEST  # noqa: E402

FOLDER = TOP / "presets"


def make(file: PresetFile) -> str:
    """The text of one file."""
    sections = [(n_ctx, slots, preset_plan(file, n_ctx, slots, "latest")) for n_ctx, slots in SETTINGS]
    return preset_text(file, LATEST, sections)


def main() -> int:
    """Write what differs; with --check only name it. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file is stale")
    parser.add_argument("names", nargs="*", help="only these files")
    options = parser.parse_args()
    files = {file.name: file for file in preset_files()}
    stale = 0
    for name in options.names or files:
        path, text = FOLDER / f"{name}.ini", make(files[name])
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        print(f"{'stale' if options.check else 'wrote'}: {path.name}")
        if not options.check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if not options.names:
        for path in FOLDER.glob("*.ini"):
            if path.stem not in files:
                stale += 1
                print(f"{'not made by this' if options.check else 'removed'}: {path.name}")
                if not options.check:
                    path.unlink()
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
