"""Pictures are sealed: what was changed since memplan drew it is not replaced without --force."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan.errors import OutputError
from memplan.output.figures import DARK, FORMATS, LIGHT, check_figure_path, new_figure, write_figure


@pytest.mark.parametrize("ending", FORMATS)
def test_only_pictures_as_they_were_drawn_are_replaced(ending: str, tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / f"a{ending}"
    write_figure(str(path), new_figure(2, 1, LIGHT))
    if ending == ".png":
        assert image.imread(path).shape == (200, 400, 4)
    write_figure(str(path), new_figure(2, 1, DARK))
    drawn = path.read_bytes()
    middle = len(drawn) // 2
    for changed in (drawn[:middle] + b"x" + drawn[middle + 1 :], drawn + b"\n", drawn[:-9], b"\n" + drawn):
        path.write_bytes(changed)
        with pytest.raises(OutputError, match="is not a picture as memplan draws it; give another name, or --force"):
            check_figure_path(str(path))
        check_figure_path(str(path), force=True)
