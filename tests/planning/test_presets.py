from __future__ import annotations

import re

import pytest

from memplan.errors import SourceError
from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.words import mib
from memplan.planning.presets import about, find_preset, presets_folder
from memplan.releases import LATEST
from scripts.presets import SETTINGS, PresetFile, make, preset_files

pytestmark = pytest.mark.slow

FILES = {file.name: file for file in preset_files()}


def sections(text: str) -> list[tuple[str, str, dict[str, str]]]:
    """Name, comment and keys of each section."""
    found = []
    for match in re.finditer(r"\n((?:;.*\n)*)\[(.+)\]\n((?:.+\n?)*)", text):
        pairs = [line.split(" = ", 1) for line in match[3].splitlines() if not line.startswith(";")]
        found.append((match[2], match[1], dict(pairs)))
    return found


def test_there_is_a_file_for_each_rig_and_model_and_no_other() -> None:
    assert {path.stem for path in presets_folder().glob("*.ini")} == FILES.keys()
    assert len({file.rig.name for file in FILES.values()}) >= 12


def test_files_are_what_the_script_writes() -> None:
    file = FILES["rtx-pro-6000.deepseek-v4-flash-mxfp4"]
    stale = make(file) != find_preset(file.name).read_text()
    assert not stale, "presets are stale: run python scripts/presets.py"


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_predicted_sizes_are_todays(file: PresetFile) -> None:
    text = find_preset(file.name).read_text()
    assert f"llama.cpp {LATEST.name}" in text
    found = sections(text)
    assert len(found) + text.count(": nothing fits") == len(SETTINGS)
    rig = file.rig.rig()
    number = list(FILES).index(file.name)
    for _, comment, keys in found[number % len(found) :][:1]:  # another section of each file: all would take long
        argv = [word for key, value in keys.items() for word in (f"--{key}", *(() if value == "true" else (value,)))]
        answer = estimate(builtin_header(file.model), parse_flags(argv), rig, LATEST)
        assert answer.fits and not answer.tight
        for device in answer.devices:
            predicted = f"weights {mib(device.model)}, context {mib(device.context)}, compute {mib(device.compute)}"
            assert f"; {device.name} {device.description}: {predicted}" in comment, "run python scripts/presets.py"


def test_rigs_that_are_not_cuda_are_marked() -> None:
    for name in ("strix-halo-128gb", "mac-128gb"):
        assert "APPROXIMATE" in find_preset(name).read_text()
    assert "APPROXIMATE" not in find_preset("h200").read_text()


def test_presets_are_found_by_the_beginning_of_their_names() -> None:
    assert find_preset("2x-rtx-3090").stem == "2x-rtx-3090.deepseek-v4-flash-antirez-q2"
    assert find_preset("h200.deepseek-v4-pro-mxfp4.ini").stem == "h200.deepseek-v4-pro-mxfp4"
    with pytest.raises(SourceError, match="which of"):
        find_preset("rtx")
    with pytest.raises(SourceError, match="there is none"):
        find_preset("../secrets")
    assert about(find_preset("h200").read_text()).startswith("deepseek-v4-flash:antirez-q2 on H200")
