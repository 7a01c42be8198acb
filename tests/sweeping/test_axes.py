from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import FlagError, MemplanError
from memplan.releases import BUILDS
from memplan.sweeping.axes import MAX_VALUES, axis_flags, parse_axis


@pytest.mark.parametrize(
    ("text", "flags", "values"),
    [
        ("ctx=4096:65536", ("-c",), (4096, 8192, 16384, 32768, 65536)),
        ("ctx=4k:64k", ("-c",), (4096, 8192, 16384, 32768, 65536)),
        ("c=1000:5000", ("-c",), (1000, 2000, 4000, 5000)),
        ("--ctx-size=1m", ("--ctx-size",), (1048576,)),
        ("np=1,2,4", ("-np",), (1, 2, 4)),
        ("np=1:4:1,8", ("-np",), (1, 2, 3, 4, 8)),
        ("ncmoe=0:43:10", ("-ncmoe",), (0, 10, 20, 30, 40)),
        ("ub=512:2048:x1.5", ("-ub",), (512, 768, 1152, 1728, 2048)),
        ("ub=512:2048:*4", ("-ub",), (512, 2048)),
        ("b+ub=512,1024", ("-b", "-ub"), (512, 1024)),
        ("cache=f16,q8_0", ("-ctk", "-ctv"), ("f16", "q8_0")),
        ("ctk+ctv=f16", ("-ctk", "-ctv"), ("f16",)),
        ("fa=on,off", ("-fa",), ("on", "off")),
        ("cmoe=on,off", ("-cmoe",), ("on", "off")),
        ("cpu-moe=on", ("--cpu-moe",), ("on",)),
        ("ngl=10,all", ("-ngl",), (10, "all")),
        ("np=-1,1", ("-np",), (-1, 1)),
        ("ts=3,1;1,1", ("-ts",), ("3,1", "1,1")),
        ("ot=exps=CPU;blk\\.1=CUDA0", ("-ot",), ("exps=CPU", "blk\\.1=CUDA0")),
        ("n_gpu_layers=1,2", ("--n-gpu-layers",), (1, 2)),
        ("indexer=fused,unfused", (), ("fused", "unfused")),
        ("app=server,cli", (), ("server", "cli")),
        ("gpu=RTX 3090,2*RTX 3090+RTX 5090", (), ("RTX 3090", "2*RTX 3090+RTX 5090")),
        ("ctx=4096,4096,4096:8192", ("-c",), (4096, 8192)),
    ],
)
def test_axes(text: str, flags: tuple[str, ...], values: tuple[int | str, ...]) -> None:
    axis = parse_axis(text)
    assert (axis.flags, axis.values) == (flags, values)


def test_all_releases() -> None:
    assert parse_axis("llama=all").values == tuple(release.name for release in BUILDS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ctx", "must be NAME=VALUES"),
        ("=4096", "must be NAME=VALUES"),
        ("ctx=", "must be NAME=VALUES"),
        ("ctx=1,,2", "a value is missing"),
        ("ctx=abc", "must be a number"),
        ("ctx=1:2:3:4", "must be a number"),
        ("ctx=8192:4096", "must rise"),
        ("ctx=0:4096", "must start above 0"),
        ("ctx=1:4096:0", "a step of 0"),
        ("ctx=1:4096:x1", "by 1.01 or more"),
        ("ctx=0:1000000:1", "more than 4096"),
        ("contxt=1", "there is no such axis"),
        ("foo=1", "a llama-server flag, llama, gpu, app, or a path that the model has"),
        ("ctxx=1", "did you mean ctx"),
        ("--paralel=1", "did you mean --parallel"),
        ("cmoe=yes", "with on and off"),
        ("indexer=maybe", "fused or unfused"),
        ("llama=main", "write a tag"),
        ("gpu=RTX 3091", "RTX 3090"),
        ("control-vector-layer-range=1", "takes 2 values"),
        ("ngl+=1", "there is no such axis"),
        ("ctx=4096,999999999999", "999999999999: too large; llama.cpp takes at most 2147483647"),
        ("ctx=4096:4194304k", "too large"),
        ("model=a,b", "one model each time; memplan compare"),
        ("hf=a,b", "one model each time"),
        ("md=a,b", "one model each time"),
        ("mmproj=a,b", "one model each time"),
        ("ctx=" + "9x" * 5000, "must be a number"),
        ("ctx=" + "9" * 5000, "must be a number"),
        ("cmoe=" + "y" * 5000, "with on and off"),
        ("x" * 5000 + "=1", "there is no such axis"),
        ("-" + "x" * 5000 + "=1", "unknown flag"),
    ],
)
def test_wrong_axes(text: str, said: str) -> None:
    with pytest.raises(MemplanError) as error:
        parse_axis(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20), st.one_of(st.none(), st.integers(300, 1 << 20)))
def test_ranges_rise_and_keep_their_ends(low: int, more: int, step: int | None) -> None:
    high = low + more
    values = [v for v in parse_axis(f"c={low}:{high}" + (f":{step}" if step else "")).values if isinstance(v, int)]
    assert values[0] == low
    assert values == sorted(set(values))
    assert len(values) <= MAX_VALUES
    if step:
        assert high - step < values[-1] <= high
    else:
        assert values[-1] == high


@given(st.text(max_size=30))
def test_any_text_is_an_axis_or_one_clear_line(text: str) -> None:
    try:
        parse_axis(text)
    except MemplanError as error:
        assert "\n" not in str(error)


def test_what_an_axis_replaces() -> None:
    axis = parse_axis("ctx=4096")
    assert axis.is_context and axis.is_number
    assert axis.replaced == {"-c", "--ctx-size"}
    experts = parse_axis("ncmoe=1,2")
    assert experts.replaced == {"-ncmoe", "--n-cpu-moe"}


def test_words_and_labels() -> None:
    assert parse_axis("cache=q8_0").words("q8_0") == ["-ctk", "q8_0", "-ctv", "q8_0"]
    assert parse_axis("kvu=on,off").words("off") == ["-no-kvu"]
    assert parse_axis("cmoe=on,off").words("on") == ["-cmoe"]
    assert parse_axis("cmoe=on,off").words("off") == []
    assert parse_axis("np=4").label(4) == "-np 4"
    assert parse_axis("ctx=4k").label(4096) == "4,096 tokens"
    assert parse_axis("indexer=fused").label("fused") == "fused indexer"
    assert parse_axis("cmoe=on").label("off") == "no -cmoe"


def test_a_plain_name_that_no_flag_has() -> None:
    with pytest.raises(FlagError):
        axis_flags("")
