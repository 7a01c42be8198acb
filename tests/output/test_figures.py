from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")


def test_a_home_that_cannot_be_written_to_is_nobodys_concern(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder")
    code = "from memplan.output.figures import *; write_figure(__import__('sys').argv[1], new_figure(2, 1, LIGHT))"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "MPL"))} | {"HOME": str(home)}
    command = [sys.executable, "-c", code, str(tmp_path / "f.png")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "f.png").stat().st_size > 100
