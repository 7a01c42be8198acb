from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.errors import FlagError
from memplan.llama import flag_table as table
from memplan.llama.flag_values import ALL_LAYERS, EXPERTS_PATTERN
from memplan.llama.flag_words import arity
from memplan.llama.flags import Flags, check_devices, parse_flags

DATA = Path(__file__).parent.parent / "data"


def parsed(line: str, app: str = "server") -> Flags:
    return parse_flags(line.split(), app)


def test_one_text_is_no_list() -> None:
    with pytest.raises(FlagError, match=r"give a list of words, as in \['-c', '4096'\]"):
        parse_flags("-c 4096")


def test_no_flags_are_llama_servers_defaults() -> None:
    assert parse_flags([]) == Flags()
    assert (Flags().n_parallel, Flags().kv_unified, Flags().n_outputs_max) == (4, True, 4)


def test_llama_cli_has_one_sequence_and_an_output_for_every_token() -> None:
    flags = parse_flags([], "cli")
    assert (flags.n_parallel, flags.kv_unified, flags.n_outputs_max) == (1, False, 2048)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("-c 131072", "n_ctx", 131072),
        ("-c +4096", "n_ctx", 4096),
        ("-c 0", "n_ctx", 0),
        ("--ctx-size 4096", "n_ctx", 4096),
        ("--ctx_size 4096", "n_ctx", 4096),
        ("-c 4096 -c 8192", "n_ctx", 8192),
        ("-b 4096", "n_batch", 4096),
        ("-ub 2048", "n_ubatch", 2048),
        ("-b 4096 -ub 0", "n_ubatch", 4096),
        ("-np 8", "n_parallel", 8),
        ("-np -1", "n_parallel", 4),
        ("-np -1 -no-kvu", "kv_unified", True),
        ("-np 2", "kv_unified", False),
        ("-np 2 -kvu", "kv_unified", True),
        ("-np 2 -kvu --no-kv-unified", "kv_unified", False),
        ("-fa on", "flash_attn", "on"),
        ("-fa 1", "flash_attn", "on"),
        ("-fa enabled", "flash_attn", "on"),
        ("-fa off", "flash_attn", "off"),
        ("-fa 0", "flash_attn", "off"),
        ("-fa auto", "flash_attn", "auto"),
        ("-fa -1", "flash_attn", "auto"),
        ("-ctk q8_0", "type_k", "q8_0"),
        ("-ctv iq4_nl", "type_v", "iq4_nl"),
        ("-ngl 10", "n_gpu_layers", 10),
        ("-ngl 0", "n_gpu_layers", 0),
        ("-ngl auto", "n_gpu_layers", ALL_LAYERS),
        ("-ngl all", "n_gpu_layers", ALL_LAYERS),
        ("-ngl -1", "n_gpu_layers", ALL_LAYERS),
        ("-sm none", "split_mode", "none"),
        ("-sm row", "split_mode", "row"),
        ("-mg 1", "main_gpu", 1),
        ("-mg -1", "main_gpu", -1),
        ("-ts 3,1", "tensor_split", (3.0, 1.0)),
        ("-ts 3/1", "tensor_split", (3.0, 1.0)),
        ("-ts 3,,1,", "tensor_split", (3.0, 1.0)),
        ("-ts 0.1", "tensor_split", (0.10000000149011612,)),
        ("-ts .5,1e1", "tensor_split", (0.5, 10.0)),
        ("-dev CUDA1,CUDA0", "devices", ("CUDA1", "CUDA0")),
        ("-dev none", "devices", ()),
        ("-nkvo", "offload_kqv", False),
        ("-nkvo -kvo", "offload_kqv", True),
        ("--no-op-offload", "op_offload", False),
        ("--swa-full", "swa_full", True),
        ("--no-host", "no_host", True),
        ("-nr", "repack", False),
        ("--no-mmap", "load_mode", "none"),
        ("--mlock", "load_mode", "mlock"),
        ("-lm mmap+mlock", "load_mode", "mmap+mlock"),
        ("-fit off", "fit", False),
        ("--fit 1", "fit", True),
        ("-fitt 512,1024", "fit_target", (512, 1024)),
        ("-m a.gguf", "model", "a.gguf"),
        ("-hf org/repo:Q4 -hff a.gguf", "model", "hf:org/repo/a.gguf"),
        ("-hf org/repo:Q4", "model", "hf:org/repo:Q4"),
        ("--kv-unified-per-slot 8192", "n_ctx", 4 * 8192),
        ("--kv-unified-per-slot 8192 -np 2", "n_ctx", 2 * 8192),
        ("--kv-unified-per-slot 8192 -c 0", "n_ctx", 0),
        ("--kv-unified-per-slot 8192 -c 4096", "n_ctx", 4096),
        ("--embeddings", "n_batch", 512),
        ("--spec-type draft-mtp", "load_mtp", True),
        ("--spec-type draft-mtp", "n_rs_seq", 3),
        ("--spec-type draft-mtp --spec-draft-n-max 5", "n_rs_seq", 5),
        ("--spec-type draft-simple", "n_rs_seq", 0),
        ("--spec-type draft-simple", "n_draft", 3),
        ("--spec-type none,ngram-cache", "n_draft", 0),
        ("--spec-type ngram-cache", "n_draft", 8),
        ("--spec-type ngram-simple --spec-ngram-simple-size-m 20", "n_draft", 20),
        ("--spec-default", "n_draft", 64),
        ("--override-kv a.b=int:4", "kv_overrides", (("a.b", 4),)),
        ("--override-kv a=bool:true,b=str:x,c=float:0.5", "kv_overrides", (("a", True), ("b", "x"), ("c", 0.5))),
        ('--override-kv "a=str:x,y"', "kv_overrides", (("a", "x,y"),)),
    ],
)
def test_a_flag_sets_its_field(line: str, field: str, value: Any) -> None:
    assert getattr(parsed(line), field) == value


def test_overrides_keep_the_order_of_the_command_line() -> None:
    flags = parsed(r"-ot blk\.1\.=CUDA1,a=CUDA0 -ncmoe 2 -ot exps=CPU -cmoe")
    assert flags.overrides == (
        (r"blk\.1\.", "CUDA1"),
        ("a", "CUDA0"),
        (r"blk\.0" + EXPERTS_PATTERN, "CPU"),
        (r"blk\.1" + EXPERTS_PATTERN, "CPU"),
        ("exps", "CPU"),
        (EXPERTS_PATTERN, "CPU"),
    )


def test_an_override_is_split_at_its_first_equals_sign() -> None:
    assert parsed("-ot a=b=CPU").overrides == (("a", "b=CPU"),)


def test_ncffn_names_dense_tensors() -> None:
    assert parsed("-ncffn 1").overrides == ((r"blk\.0\.ffn_(up|down|gate)\.", "CPU"),)


@pytest.mark.parametrize(
    ("line", "outputs"),
    [
        ("-np 1", 1),
        ("-np 8", 8),
        ("-np 8 -b 4", 4),
        ("", 4),
        ("-np 2 --spec-type draft-mtp", 8),
        ("-np 2 --spec-default", 130),
        ("-np 1 --embeddings", 512),
    ],
)
def test_outputs_are_slots_times_drafted_tokens(line: str, outputs: int) -> None:
    assert parsed(line).n_outputs_max == outputs


def test_what_is_loaded_beside_the_model() -> None:
    flags = parsed("-md draft.gguf --spec-type draft-simple --mmproj p.gguf --no-mmproj-offload -ngld 3 -otd exps=CPU")
    assert (flags.draft_model, flags.drafting, flags.draft_gpu_layers) == ("draft.gguf", "draft-simple", 3)
    assert (flags.projector, flags.projector_offload, flags.projector_device) == ("p.gguf", False, None)
    assert flags.draft_overrides == (("exps", "CPU"),)
    assert flags.inexact == ()
    assert parsed("--lora a.gguf --lora b.gguf").inexact == ("LoRA adapters add tensors to the graph",)
    changed = flags.with_(draft_type_k="q8_0", projector_device="CUDA1")
    assert changed.words()[-4:] == ("-mmdev", "CUDA1", "-ctkd", "q8_0")


def test_a_value_may_look_like_a_flag() -> None:
    assert parsed("--prompt -c -c 4096").n_ctx == 4096


def test_every_known_flag_is_accepted() -> None:
    good = {
        "-ot": "a=CPU", "--override-tensor": "a=CPU", "-sm": "layer", "--split-mode": "layer", "-lm": "auto",
        "--load-mode": "auto", "-lzm": "auto", "--lazy-mode": "auto", "--override-kv": "a=int:1",
        "--pooling": "none", "--spec-type": "none", "-ctk": "f16", "-ctv": "f16", "--cache-type-k": "f16",
        "--cache-type-v": "f16", "-otd": "a=CPU",
        "--spec-draft-override-tensor": "a=CPU", "--override-tensor-draft": "a=CPU",
        **dict.fromkeys(("-ctkd", "--spec-draft-type-k", "--cache-type-k-draft"), "f16"),
        **dict.fromkeys(("-ctvd", "--spec-draft-type-v", "--cache-type-v-draft"), "f16"),
    }  # fmt: skip
    for flag, count in table.ARITY.items():
        parse_flags([flag, *[good.get(flag, "1")] * count])


def test_arity() -> None:
    assert [arity(x) for x in ("-c", "--ctx_size", "-kvu", "--control-vector-layer-range", "-zzz", "-h")] == [
        1, 1, 0, 2, None, 0,
    ]  # fmt: skip


def test_what_llama_servers_own_help_lists() -> None:
    """``--help`` of a llama-server of v0.5.0: each flag with all its spellings, and its values' names."""
    lines = (DATA / "flags-v0.5.0.txt").read_text().splitlines()[1:]
    assert len(lines) == 255
    for line in lines:
        flags, _, hint = line.partition(" = ")
        values = 2 if hint == "START END" else 1 if hint else 0
        for flag in flags.split():
            assert arity(flag) == (1 if flag in table.REMOVED else values), flag


WRONG = [
    ("-c", "needs a value"),
    ("-c x", "whole number"),
    ("-c -1", "0 or more"),
    ("-c 4k", "whole number"),
    ("-c 1e5", "whole number"),
    ("-c 4096.0", "whole number"),
    ("-c 99999999999", "2147483647 or less"),
    ("-c " + "9" * 5000, "whole number"),
    ("-c ٣", "whole number"),
    ("-b 0", "1 or more"),
    ("-ub -1", "0 or more"),
    ("-np 0", "1 or more"),
    ("-np 257", "256 or less"),
    ("-fa maybe", "on, off or auto"),
    ("-fa -c", "on, off or auto"),
    ("-ctk q6_K", "must be one of f32"),
    ("-ctv Q8_0", "must be one of f32"),
    ("-ngl most", "whole number, auto or all"),
    ("-ngl 99999999999", "2147483647 or less"),
    ("-sm tensor", "not modelled"),
    ("-sm both", "must be one of none"),
    ("-ts a,b", "'a' is not a number"),
    ("-ts ,1", "'' is not a number"),
    ("-ts 1;2", "is not a number"),
    ("-ts -1,2", "is not a number"),
    ("-ts nan", "is not a number"),
    ("-ts 1e99", "too large"),
    ("-ts 1" + ",1" * 15, "16 values"),
    ("-ot exps", "PATTERN=BUFFER"),
    ("-ot a=CPU,", "PATTERN=BUFFER"),
    ("-ot blk.{1,2}.x=CPU", "comma ends a pattern"),
    ("-ot (=CPU", "-ot '('"),
    ("-ncmoe -1", "0 or more"),
    ("-ncmoe 5000", "4095 or less"),
    ("-ncmoe 3000 -ncmoe 3000", "6000 tensor overrides"),
    ("-mg a", "whole number"),
    ("-dev CUDA0,,CUDA1", "different device names"),
    ("-dev CUDA0,CUDA0", "different device names"),
    ("-lm fast", "must be one of auto"),
    ("-fit maybe", "on or off"),
    ("-fitt x", "whole number"),
    ("--port http", "whole number"),
    ("-m", "needs a value"),
    ("--pooling max", "must be one of none"),
    ("--spec-type magic", "must be one of none, draft-simple"),
    ("--spec-ngram-simple-size-m 0", "1 or more"),
    ("--kv-unified-per-slot 2000000000", "too large"),
    ("--override-kv a=4", "KEY=TYPE:VALUE"),
    ("--override-kv a=bool:1", "true, false"),
    ("--override-kv a=float:x", "must be a number"),
    ("--override-kv a=str:" + "x" * 128, "at most 127 bytes"),
    ("--control-vector-layer-range 1", "needs 2 values"),
    ("--draft-max 4", "use --spec-draft-n-max"),
    ("--help", "only prints"),
    ("--gpt-oss-20b-default", "a model of its own"),
    ("--ctx-sise 4096", "did you mean --ctx-size"),
    ("--ctx 4096", "did you mean --ctx-size or --ctx-checkpoints"),
    ("-ncmo 3", "did you mean -ncmoe"),
    ("--ctx-size=4096", "a space, not an equals sign: --ctx-size 4096"),
    ("--completely-unknown", "neither memplan nor llama-server"),
    ("4096", "unknown flag"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_wrong_flags(line: str, said: str) -> None:
    with pytest.raises(FlagError) as caught:
        parsed(line)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_empty_model_name_and_an_unknown_app() -> None:
    with pytest.raises(FlagError, match="needs the name of a model"):
        parse_flags(["-m", ""])
    with pytest.raises(FlagError, match="must be one of server, cli"):
        parse_flags([], "bench")
    with pytest.raises(FlagError, match="1 or more with --app cli"):
        parse_flags(["-np", "-1"], "cli")


def test_devices_are_checked_against_the_rig() -> None:
    check_devices(parsed("-ot exps=CPU,a=CUDA1 -dev CUDA1 -sm none -mg 0"), 2)
    check_devices(parsed("-sm none -mg -1"), 2)
    check_devices(parsed("-sm none -mg 3"), 0)
    check_devices(parsed("-dev cuda1,CUDA0 -mmdev cuda0 -devd none"), 2)  # llama.cpp compares names in any case
    assert parsed("-dev cuda1,vulkan0,Mtl0").devices == ("CUDA1", "Vulkan0", "MTL0")
    for line, said in (
        ("-ot a=CUDA2", "this rig has CUDA0, CUDA1, CPU"),
        ("-ot a=CUDA_Host", "no such buffer type"),
        ("-dev CUDA2", "this rig has CUDA0, CUDA1"),
        ("-devd CUDA2", "this rig has CUDA0, CUDA1"),
        ("-mmdev CUDA2", "this rig has CUDA0, CUDA1"),
        ("-sm none -mg 2", "numbered from 0 to 1"),
    ):
        with pytest.raises(FlagError, match=said):
            check_devices(parsed(line), 2)


def lines(*choices: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(choices), max_size=6).map(" ".join)


GIVEN = lines(
    *(
        "-c 4096",
        "--ctx_size 8192",
        "-c 0",
        "-b 1024",
        "-ub 256",
        "-ub 0",
        "-np 3",
        "-np -1",
        "-kvu",
        "-no-kvu",
        "-fa 1",
    ),
    *("-fa 1", "-ctk q8_0", "-ctv q8_0", "-ngl all", "-ngl 7", "-sm none", "-mg 1", "-ts 3/1,0.1", "-ot a=CPU,b=CUDA0"),
    *("-ncmoe 2", "-cmoe", "-ncffn 1", "-dev none", "-dev CUDA1", "--rpc h:1,g:2", "--rpc i:3", "-nkvo", "-kvo"),
    *("--no-op-offload", "--swa-full", "--no-host", "-nr", "-cram 5", "--mlock", "--fit off", "-fitt 1,2", "-m a.gguf"),
    *("--override-kv a.b=int:3", "--override-kv c=str:x", "--spec-type draft-eagle3", "--spec-draft-n-max 16"),
    *("--kv-unified-per-slot 1024", "--lora x", "--pooling mean", "--control-vector-layer-range 1 2", "--jinja"),
)
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "n_ctx": st.integers(0, 1 << 20),
    "n_ubatch": st.integers(1, 4096),
    "n_parallel": st.integers(1, 256),
    "kv_unified": st.booleans(),
    "flash_attn": st.sampled_from(["auto", "on", "off"]),
    "type_k": st.sampled_from(table.CACHE_TYPES),
    "n_gpu_layers": st.integers(0, 999),
    "tensor_split": st.lists(st.floats(0, 1e9, width=32), max_size=4).map(tuple),
    "devices": st.sampled_from([None, (), ("CUDA1", "CUDA0")]),
    "offload_kqv": st.booleans(),
    "op_offload": st.booleans(),
    "swa_full": st.booleans(),
    "repack": st.booleans(),
    "load_mode": st.sampled_from(["auto", "none", "dio"]),
    "kv_overrides": st.just((("a", True), ("b.c", -1.5), ("d", 'a,"b"'))),
    "fit": st.booleans(),
    "fit_target": st.just((7,)),
    "rpc": st.sampled_from([(), ("h:1",), ("h:1", "g:2", "j:9")]),
}


@settings(max_examples=300, deadline=None)
@given(GIVEN, st.sampled_from(["server", "cli"]), st.fixed_dictionaries({}, optional=CHANGES), st.booleans())
def test_flags_are_written_back_as_words(line: str, app: str, changes: dict[str, Any], rule: bool) -> None:
    try:
        flags = parsed(line, app)
    except FlagError:  # -np -1 of llama-cli
        return
    assert flags.words() == tuple(line.split())
    assert parse_flags(flags.words(), app) == flags
    if rule:
        changes["overrides"] = (*flags.overrides, (r"\.3\.", "CUDA1"))
    if flags.embeddings:  # limits the batch to the ubatch
        changes.pop("n_ubatch", None)
    changed = flags.with_(**changes)
    assert {name: getattr(changed, name) for name in changes} == changes
    same = {f.name for f in fields(Flags)} - changes.keys() - {"given", "argv", "inexact"}
    assert [getattr(changed, name) for name in same] == [getattr(flags, name) for name in same]
    assert parse_flags(changed.words(), app) == changed
    assert hash(changed) == hash(parse_flags(changed.words(), app))


def test_words_are_kept_as_they_were_spelled() -> None:
    flags = parsed("--ctx_size 4096 -ncmoe 2 -np 2 -ot a=CPU -kvu")
    assert flags.with_(n_ctx=8192).words() == tuple(["-ncmoe", "2", "-np", "2", "-ot", "a=CPU", "-kvu", "-c", "8192"])
    more = flags.with_(overrides=(*flags.overrides, ("b", "CUDA0")))
    assert more.words() == (*flags.words(), "-ot", "b=CUDA0")
    assert more.with_(overrides=(("b", "CUDA0"),)).words() == tuple(
        ["--ctx_size", "4096", "-np", "2", "-kvu", "-ot", "b=CUDA0"]
    )
    assert flags.without({"-ncmoe", "-ot"}).words() == tuple(["--ctx_size", "4096", "-np", "2", "-kvu"])
    assert flags.with_words("-np", "3").kv_unified and not parsed("-np 3").kv_unified
    assert Flags(n_ctx=4096, type_k="q8_0").words() == ("-c", "4096", "-ctk", "q8_0")
    with pytest.raises(FlagError, match=r"-c 4096 -ts 0.1: no flags say tensor_split=\(0.1,\)"):
        parsed("-c 4096").with_(tensor_split=(0.1,))  # no 32-bit float
