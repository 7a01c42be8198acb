"""Presets: the words here are those that a llama-server of v0.5.0, in router mode, gives its children for the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan.errors import FlagError
from memplan.llama.flags import parse_flags
from memplan.llama.preset_file import OPTION, read_presets, with_preset

GLOBAL = "version = 1\n[*]\nctx-size = 8192\nn-gpu-layers = 99\njinja = true\n; comment\n"

FIRST = r"""
[a:q4_k_m]
model = /nonexistent.gguf ; trailing
c = 1
ctx-size = 4096
override-tensor = blk\.1\.=CPU
n-cpu-moe = 2
cpu-moe = false
no-kv-offload = true
kv-unified = off
no-repack = 0
LLAMA_ARG_UBATCH = 256
stop-timeout = 3
swa-full = 1
mmproj-offload = yes
"""

SECOND = """
[a:q4_k_m]
np = 2
no-kvu = on
cpu-moe = true
ot = exps=CPU
ncmoe = 3
m = /x y.gguf
"""


def words(tmp_path: Path, text: str, section: str = "", flags: tuple[str, ...] = (), model: str = "") -> list[str]:
    path = tmp_path / "p.ini"
    path.write_text(text, newline="")
    return with_preset([OPTION, f"{path}#{section}" if section else str(path), *flags], model)[0]


def test_a_section_over_that_of_every_model(tmp_path: Path) -> None:
    routers = [
        "--jinja", "--mmproj-offload", "--repack", "--swa-full", "--ctx-size", "4096", "--no-kv-offload",
        "--no-kv-unified", "--model", "/nonexistent.gguf", "--n-cpu-moe", "2", "--n-gpu-layers", "99",
        "--override-tensor", r"blk\.1\.=CPU", "--ubatch-size", "256",
    ]  # fmt: skip
    ours = words(tmp_path, GLOBAL + FIRST)
    assert sorted(ours) == sorted(routers)
    assert parse_flags(ours) == parse_flags(routers)


def test_a_section_that_is_there_twice_counts_as_it_is_last(tmp_path: Path) -> None:
    routers = [
        "--jinja", "--ctx-size", "8192", "--cpu-moe", "--no-kv-unified", "--model", "/x y.gguf", "--n-cpu-moe", "3",
        "--n-gpu-layers", "99", "--parallel", "2", "--override-tensor", "exps=CPU",
    ]  # fmt: skip
    ours = words(tmp_path, GLOBAL + FIRST + SECOND, "a:Q4_K_M")
    found, wanted = parse_flags(ours), parse_flags(routers)
    assert (found.overrides, found.n_parallel, found.model) == (wanted.overrides, 2, "/x y.gguf")
    assert parse_flags(routers).kv_unified == found.kv_unified is False


def test_the_routers_own_flags_replace_a_sections(tmp_path: Path) -> None:
    found = parse_flags(
        words(tmp_path, GLOBAL + SECOND, flags=("-c", "512", "--override-tensor", "a=CPU", "-ub", "64"))
    )
    assert (found.n_ctx, found.n_ubatch) == (512, 64)
    assert found.overrides[-1] == ("a", "CPU") and ("exps", "CPU") not in found.overrides


def test_the_section_is_the_model_that_is_asked_for(tmp_path: Path) -> None:
    text = "[A]\nnp = 3\n[a]\nnp = 4\r\n[b]\rnp = 5\n"
    assert words(tmp_path, text, model="a") == ["-np", "4"]
    assert words(tmp_path, text, model="A") == ["-np", "3"]
    assert words(tmp_path, text, model="B") == ["-np", "5"]
    assert with_preset([OPTION, f"{tmp_path}/p.ini"], "b")[1] == ""
    assert with_preset([OPTION, f"{tmp_path}/p.ini#b"], "m.gguf")[1] == "m.gguf"
    with pytest.raises(FlagError, match=r"which section\? write FILE#SECTION; it has A, a, b"):
        words(tmp_path, text, model="m.gguf")


def test_the_environment_comes_before_a_section_and_may_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.ini").write_text(SECOND)
    variables = [OPTION, f"{tmp_path}/p.ini", "--parallel", "7", "--ctx-size", "512"]
    found = parse_flags(with_preset(["-b", "64"], "", variables)[0])
    assert (found.n_parallel, found.n_ctx, found.n_batch) == (2, 512, 64)


def test_without_the_option_all_stays_as_it_is() -> None:
    assert with_preset(["-c", "1", "-c", "2"], "m") == (["-c", "1", "-c", "2"], "m")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\n  ctx-size = 1\n", "line 2 is neither"),
        ("[a]\nctx-size\n", "line 2 is neither"),
        ("[a\nnp = 1", "line 1 is neither"),
        ("[a]\n-np = 1", "line 2 is neither"),
        ("[a]\nctx_size = 1\n", "'ctx_size' in [a] is no option of llama-server's"),
        ("[a]\ncontrol-vector-layer-range = 1\n", "takes two values"),
        ("", "it has none"),
        ("\0" * 2_000_000, "larger than any preset"),
    ],
)
def test_what_llama_server_refuses(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(FlagError) as caught:
        words(tmp_path, text)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_of_its_own_is_served_without_a_preset(tmp_path: Path) -> None:
    with pytest.raises(FlagError, match="-m and --models-preset"):
        words(tmp_path, SECOND, flags=("-m", "x.gguf"))
    with pytest.raises(FlagError, match="No such file"):
        with_preset([OPTION, str(tmp_path / "none.ini")], "")


def test_every_preset_that_memplan_has_is_read() -> None:
    from memplan.planning.presets import presets_folder

    for file in sorted(presets_folder().glob("*.ini")):
        for section in read_presets(str(file)):
            if section != "default":
                parse_flags(with_preset([OPTION, f"{file}#{section}"], "")[0])
