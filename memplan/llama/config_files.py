"""llama.cpp's own configuration files, which every program of it reads before its environment and its words.

Follows ``common_params_apply_system_config`` (common/arg.cpp), ``fs_get_config_directory`` (common/common.cpp) and
``apply_to_params`` (common/preset.cpp), v0.5.0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

CONFIG_FILES_SINCE: Final = 10852
"""The first build known to read such files; b10361 has none yet."""

_FILE: Final = "config.ini"


def config_files(environment: Mapping[str, str], windows: bool = os.name == "nt") -> list[str]:
    """Where the files may be, the system's before the user's."""
    shared, own = ("PROGRAMDATA", "APPDATA") if windows else ("", "XDG_CONFIG_HOME")
    folders = [environment.get(shared, "") if windows else "/etc", environment.get(own, "")]
    if not windows and not folders[1] and environment.get("HOME"):
        folders[1] = os.path.join(environment["HOME"], ".config")
    return [os.path.join(folder, "llama.cpp", _FILE) for folder in folders if folder]


def config_flags(environment: Mapping[str, str], build: int) -> tuple[list[str], list[str]]:
    """The words that the files which are there amount to, in order, and what to say of it.

    ``[*]`` counts before what stands in no section or in ``[default]``; other sections are not read, nor keys that are
    no flags of llama-server's. Raises FlagError for a file that llama.cpp would not take.
    """
    from memplan.llama.preset_file import EVERY, UNNAMED, read_presets, setting_words

    words: list[str] = []
    notes: list[str] = []
    if build < CONFIG_FILES_SINCE:
        return words, notes
    for path in filter(os.path.isfile, config_files(environment)):
        sections = read_presets(path, "")
        before = len(words)
        for section in (EVERY, UNNAMED):
            found = setting_words(sections.get(section, {}), section, applied=True)
            words += [word for setting in sorted(found) for word in found[setting]]
        if len(words) > before:
            notes.append(f"read as llama.cpp reads its configuration, {path}: {' '.join(words[before:])}"[:200])
    return words, notes
