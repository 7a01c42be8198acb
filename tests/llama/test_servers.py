from __future__ import annotations

import pytest

from memplan.backends.devices import Rig
from memplan.errors import FlagError
from memplan.llama.flags import check_devices, parse_flags
from memplan.llama.servers import rpc_words, server_notes, server_reasons
from memplan.rig import parse_gpus


def rig(*specs: str) -> Rig:
    return parse_gpus(["RTX 3090", *specs])


TWO = rig("rpc:b:1:24000", "rpc:a:1:24000", "rpc:b:1:12000")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", ("--rpc", "b:1,a:1")),  # each server once, in the order in which its devices come first
        ("-dev CUDA0,RPC1", ("--rpc", "b:1,a:1")),
        ("-dev CUDA0", ()),
        ("--rpc b:1", ()),
    ],
)
def test_servers_are_named_where_llama_cpp_needs_it(line: str, words: tuple[str, ...]) -> None:
    flags = parse_flags(line.split())
    assert rpc_words(flags, TWO) == words
    assert all(word in " ".join(server_notes(flags, TWO)) for word in words)
    assert bool(server_notes(flags, TWO)) == bool(words)


def test_a_rig_without_servers_needs_none() -> None:
    assert rpc_words(parse_flags([]), rig()) == ()


def test_both_directions_are_compared() -> None:
    flags = parse_flags(["--rpc", "b:1,c:1"])
    named, unnamed = server_reasons(flags, TWO)
    assert "c:1 is not in the rig" in named
    assert "a:1 is not in --rpc" in unnamed
    assert server_reasons(parse_flags(["--rpc", "b:1", "--rpc", "a:1"]), TWO) == ()  # it adds up
    assert server_reasons(parse_flags([]), TWO) == ()
    unused = parse_flags(["--rpc", "b:1", "-dev", "CUDA0"])
    assert server_reasons(unused, TWO) == ()


def test_another_order_would_count_devices_wrong() -> None:
    check_devices(parse_flags(["--rpc", "b:1,c:1,a:1"]), TWO)
    with pytest.raises(FlagError, match="use one order"):
        check_devices(parse_flags(["--rpc", "a:1,b:1"]), TWO)
