from __future__ import annotations

import re
from pathlib import Path

import pytest

from memplan.backends.devices import Gpu
from memplan.backends.known import near_names
from memplan.backends.make import driver_notes
from memplan.errors import RigError
from memplan.rig import parse_gpu_spec, parse_gpus
from memplan.rig_file import load_rig, parse_rig, write_rig

MIB = 1 << 20
EXAMPLES = Path(__file__).parent.parent / "examples"


def test_a_spec_with_all_figures_is_taken_as_it_is() -> None:
    gpu = Gpu("NVIDIA GeForce RTX 3090", 24268 * MIB, 23868 * MIB, (8, 6), sms=82)
    assert parse_gpu_spec("NVIDIA GeForce RTX 3090:24268:23868:8.6") == (gpu,)
    assert parse_gpu_spec("2*NVIDIA GeForce RTX 3090:24268:23868:8.6") == (gpu, gpu)
    assert parse_gpu_spec(" 2 x  NVIDIA GeForce RTX 3090 : 24268 : 23868 : 8.6 ") == (gpu, gpu)


def test_a_known_card_needs_no_figures() -> None:
    (gpu,) = parse_gpu_spec("RTX 3090")
    assert gpu.total == 24268 * MIB
    assert gpu.compute_capability == (8, 6)
    assert 0 < gpu.free < gpu.total
    (own,) = parse_gpu_spec("RTX 3090::20000")
    assert (own.total, own.free) == (gpu.total, 20000 * MIB)
    (other,) = parse_gpu_spec("RTX 3090:::8.9")
    assert (other.total, other.compute_capability) == (gpu.total, (8, 9))


def test_an_unknown_card_needs_total_and_capability_only() -> None:
    (gpu,) = parse_gpu_spec("Dream 1:1000::9.0")
    assert (gpu.description, gpu.total) == ("Dream 1", 1000 * MIB)
    assert 0 < gpu.free < gpu.total


def test_specs_keep_their_order() -> None:
    rig = parse_gpus(["RTX 4060 Ti", "2*RTX 3090"])
    assert [gpu.total // MIB for gpu in rig.gpus] == [16380, 24268, 24268]
    assert parse_gpus([]).gpus == ()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "a name is missing"),
        ("2*", "a name is missing"),
        (":24268", "a name is missing"),
        ("RTX 3090:1:1:8.6:1", "too many colons"),
        ("0*RTX 3090", "no GPU: leave it out"),
        ("17*RTX 3090", "1 to 16"),
        ("999999999*RTX 3090", "1 to 16"),
        ("RTX 3090:many", "whole number of MiB"),
        ("RTX 3090:-5", "whole number of MiB"),
        ("RTX 3090:24268.5", "whole number of MiB"),
        ("RTX 3090:0", "must be from 1"),
        ("RTX 3090:99999999999", "must be from 1"),
        ("RTX 3090:24268:30000", "free no more than it"),
        ("RTX 3090:24268:23868:86", "as in 8.6"),
        ("RTX 3090:24268:23868:8", "as in 8.6"),
        ("RTX 3090:24268:23868:sm_86", "as in 8.6"),
        ("RTX 3090:24268:23868:0.1", "compute capability"),
        ("RTX 3900", "RTX 3090"),
        ("Voodoo 2", "not a card that memplan knows"),
        ("-1*RTX 3090", "the count '-1' must be a whole number from 1 to 16"),
        ("1.5*RTX 3090", "the count '1.5'"),
        ("1.5x RTX 3090", "the count '1.5'"),
        ("1000000000*RTX 3090", "the count '1000000000'"),
        ("two*RTX 3090", "the count 'two'"),
        ("*RTX 3090", "the count ''"),
        ("RTX 3090\ntouch x #:24268:23868:8.6", "the name has line ends"),
        ("RTX 3090+2*RTX 5090", "repeat --gpu for each kind: --gpu 'RTX 3090' --gpu '2*RTX 5090'"),
        ("2*RTX 3090+RTX 5090", "repeat --gpu for each kind: --gpu '2*RTX 3090' --gpu 'RTX 5090'"),
        ("RTX 3090:24268,RTX 5090", "--gpu 'RTX 3090:24268' --gpu 'RTX 5090'"),
        ("RTX 3090:24268:99999", "99,999 of 24,268 MiB free"),
    ],
)
def test_wrong_specs(spec: str, said: str) -> None:
    with pytest.raises(RigError) as caught:
        parse_gpu_spec(spec)
    assert said in str(caught.value)
    assert str(caught.value).startswith("--gpu ")
    assert "\n" not in str(caught.value)


def test_files_with_gb_for_mib() -> None:
    for text in ("host_mib = 192\n[[gpus]]\nname = 'RTX 3090'", "[[gpus]]\nname = 'RTX 3090'\ntotal_mib = 24"):
        with pytest.raises(RigError, match=r"too small to be meant; (192 GB are 196608|24 GB are 24576)"):
            parse_rig(text, json=False)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("A100", "A100 is taken for one with 80 GB; there are some with 40 GB: NAME:TOTAL_MIB says which"),
        ("Strix Halo", "Strix Halo is taken for one with 128 GB; there are some with 32, 64, 96 GB"),
        ("M2 Ultra", "M2 Ultra is taken for the one with the most memory, 192 GB; M2 Ultra 96GB names another"),
        ("A100 40GB", ""),
        ("A100:81920", ""),
        ("NVIDIA A100-SXM4-80GB", ""),
        ("M2 Ultra 64GB", ""),
        ("RTX 3090", ""),
    ],
)
def test_a_size_that_nobody_said_is_told(spec: str, said: str) -> None:
    gpus = parse_gpu_spec(f"2*{spec}")
    assert gpus[0].assumed.startswith(said) and bool(gpus[0].assumed) == bool(said)
    told = [note for note in driver_notes(gpus) if "is taken for" in note]
    assert told == ([gpus[0].assumed] if said else [])


def test_the_times_sign_counts_too() -> None:
    assert parse_gpu_spec("2\xd7RTX 3090") == parse_gpu_spec("2 X RTX 3090") == parse_gpu_spec("2*RTX 3090")


def test_one_text_is_no_list() -> None:
    with pytest.raises(RigError, match=r"give a list of specs, as in \['2\*RTX 3090'\]"):
        parse_gpus("2*RTX 3090")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("7900 XTX", "AMD Radeon RX 7900 XTX (RADV NAVI31)"),
        ("7900xt", "AMD Radeon RX 7900 XT (RADV NAVI31)"),
        ("2x7900 XTX", "AMD Radeon RX 7900 XTX (RADV NAVI31)"),
        ("9070", "AMD Radeon RX 9070 (RADV GFX1201)"),
        ("B580", "Intel(R) Arc(tm) B580 Graphics (BMG G21)"),
        ("A770", "Intel(R) Arc(tm) A770 Graphics (DG2)"),
        ("2xT4", "Tesla T4"),
    ],
)
def test_a_card_may_be_called_by_its_number(spec: str, name: str) -> None:
    gpus = parse_gpus([spec]).gpus
    assert {gpu.description for gpu in gpus} == {name} and len(gpus) == (2 if spec[0] == "2" else 1)


def test_a_card_of_unknown_memory_is_not_asked_for_again() -> None:
    with pytest.raises(RigError, match=r"'AMD Radeon 780M': give its memory: NAME:TOTAL_MIB"):
        parse_gpus(["AMD Radeon 780M"])


def test_other_makers_cards_are_near_to_none() -> None:
    assert near_names("Radeon 3090") == near_names("Xe 9") == []
    assert "MI210" in near_names("MI250X") and near_names("RX 7950 XTX")[0] == "RX 7900 XTX"
    assert all(near.startswith("Arc") for near in near_names("Arc B770"))
    assert near_names("RTX 3900")[0] == "RTX 3090"
    assert near_names("3091")[0] == "RTX 3090"


def test_more_gpus_than_llama_cpp_takes() -> None:
    with pytest.raises(RigError, match=r"18 GPUs: .* at most 15 of them"):
        parse_gpus(["9*RTX 3090", "9*RTX 4090"])


def test_example_files() -> None:
    rig = load_rig(EXAMPLES / "two-3090.toml")
    assert rig.host_total == 131072 * MIB
    assert rig.gpus == parse_gpu_spec("2*NVIDIA GeForce RTX 3090:24268:23868:8.6")
    mixed = load_rig(str(EXAMPLES / "mixed.json"))
    assert [gpu.description for gpu in mixed.gpus[1:]] == ["NVIDIA GeForce RTX 4090"] * 2
    assert mixed.gpus[1].free == 23500 * MIB


def test_json_is_known_by_its_brace_and_a_file_may_have_no_gpus(tmp_path: Path) -> None:
    file = tmp_path / "rig"
    file.write_text('{"gpus": [{"name": "RTX 3090", "compute_capability": "8.9"}]}')
    assert load_rig(file).gpus[0].compute_capability == (8, 9)
    for text in ("host_mib = 1024", "gpus = []", '{"gpus": []}'):
        file.write_text(text)
        assert load_rig(file).gpus == ()


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "rig"
    for text in ("host_mib = 1024", '{"host_mib": 1024}'):
        file.write_text("\ufeff" + text)
        assert load_rig(file).host_total == 1024 * MIB


def test_a_file_without_a_name() -> None:
    with pytest.raises(RigError, match="rig file '': No such file"):
        load_rig("")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus = 1", "gpus: "),
        ("gpu = []", "gpu: there is no such key; those of a rig are gpus, host_mib, unified"),
        ("host_mib = -1", "host_mib: -1 MiB"),
        ('host_mib = "1"', "host_mib: must be a whole number"),
        ("host_mib = 1.5", "host_mib: "),
        ("[[gpus]]", "gpus[0].name: is missing"),
        ('[[gpus]]\nname = ""', "gpus[0].name: "),
        ('[[gpus]]\nname = "RTX 3090"\ncount = 0', "gpus[0] 'RTX 3090': no GPU: leave it out"),
        ('[[gpus]]\nname = "RTX 3090"\n[[gpus]]\nname = "Voodoo 2"', "gpus[1] 'Voodoo 2': not a card"),
        ('[[gpus]]\nname = "RTX 3090"\ntotal = 5', "gpus[0].total: there is no such key; those of a GPU are name, "),
        ('[[gpus]]\nname = "RTX 3090"\ntotal_mib = 0', "gpus[0] 'RTX 3090': total_mib: 0 MiB"),
        ('[[gpus]]\nname = "RTX 3090"\ncompute_capability = 86', "as in 8.6"),
        ("gpus = [", "not TOML"),
        ("{", "not JSON"),
        ("[1]", "1: there is no such key"),
        ("", "is empty"),
        (" \n", "is empty"),
        ("# nothing", "says nothing"),
        ("{}", "says nothing"),
        ('{"gpus": [], "gpus": []}', "key 'gpus' occurs twice"),
        ('{"gpus": [{"name": "RTX 3090", "count": 1, "count": 2}]}', "key 'count' occurs twice"),
        ("gpus = []\ngpus = []", "not TOML"),
        ("gpus = [1]", "gpus[0]: must be a table with some of name, total_mib"),
        ('{"gpus": ["RTX 3090"]}', "gpus[0]: must be a table"),
        ('{"gpus": {}}', "gpus: must be a list"),
        ('unified = "yes"', "unified: must be true or false"),
        ("[[gpus]]\nname = 3090", "gpus[0].name: must be text"),
        ('[[gpus]]\nname = "RTX 3090"\ncompute_capability = []', "compute_capability: must be a number or text"),
        ('[[gpus]]\nname = "RTX 3090"\ncount = 1.5', "gpus[0].count: must be a whole number"),
        ('[[gpus]]\nname = "RTX 3090"\ncount = 99999999999999999999', "99999999999999999999 GPUs"),
        ("{}{", "not JSON"),
        ('{"gpus": ' + "[" * 100000, "not JSON: nested too deeply"),
        ('{"host_mib": ' + "9" * 5000 + "}", "not JSON: a number in it has thousands of digits"),
    ],
)
def test_wrong_files_name_file_and_field(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "my rig"
    file.write_text(text)
    with pytest.raises(RigError) as caught:
        load_rig(file)
    assert said in str(caught.value)
    assert "my rig" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not re.search("instance|Entry|Input|pydantic|set_int|recursion", str(caught.value))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.toml", "a\0b"):
        with pytest.raises(RigError, match="rig file"):
            load_rig(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RigError, match="UTF-8"):
        load_rig(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b" " * (1 << 21))
    with pytest.raises(RigError, match="larger than"):
        load_rig(tmp_path / "large")


def test_bandwidths_of_a_rig_file(tmp_path: Path) -> None:
    file = tmp_path / "rig.toml"
    file.write_text("""host_bandwidth_gb_s = 204.8
[[gpus]]
name = "RTX 3090"
count = 2
bandwidth_gb_s = 900
[[gpus]]
name = "RTX 3060"
""")
    rig = load_rig(file)
    assert [gpu.bandwidth for gpu in rig.gpus] == [900.0, 900.0, None]
    assert rig.host_bandwidth == 204.8
    for json in (True, False):
        assert parse_rig(write_rig(rig, json=json), json=json) == rig


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("host_bandwidth_gb_s = 0", "host_bandwidth_gb_s: 0 GB/s, must be from 0.01 to 1e+06"),
        ("host_bandwidth_gb_s = nan", "host_bandwidth_gb_s: nan GB/s"),
        ('host_bandwidth_gb_s = "2xDDR5"', "host_bandwidth_gb_s: must be a number"),
        ('[[gpus]]\nname = "RTX 3090"\nbandwidth_gb_s = -5', "gpus[0] 'RTX 3090': bandwidth_gb_s: -5 GB/s"),
        ('[[gpus]]\nname = "RTX 3090"\nbandwidth_gb_s = true', "gpus[0].bandwidth_gb_s: must be a number"),
    ],
)
def test_bandwidths_that_are_none(text: str, said: str) -> None:
    with pytest.raises(RigError) as caught:
        parse_rig(text, json=False)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "json", "why"),
    [
        ("{" + ",".join(f'"{i:x}":1' for i in range(5000)) + ',"zz":1,"zz":2}', True, "key 'zz' occurs twice"),
        ("{" + ",".join(f'"{i:x}":1' for i in range(100_000)) + "}", True, "larger than 131072 bytes"),
        ("a" + ".a" * 20_000 + "=1", False, "a key of more than 16 parts"),
        ("[" + "'a' . " * 20 + "b]", False, "a key of more than 16 parts"),
        ("host_mib=0x" + "f" * 3600, False, "host_mib: is too large a number"),
        ("host_mib=-0x" + "f" * 3600, False, "not TOML"),
        ("host_mib=0b" + "1" * 65_000, False, "host_mib: is too large a number"),
        ('[[gpus]]\nname="x"\ncount=0x' + "f" * 3600, False, "gpus[0].count: is too large a number"),
        ('[[gpus]]\nname="x"\ncompute_capability=0x' + "f" * 3600, False, "compute_capability"),
        ('[[gpus]]\nname="x"\nbandwidth_gb_s=0x' + "f" * 3600, False, "bandwidth_gb_s"),
        ("a" * 65_000, False, "not TOML"),
        ("[" * 65_000, False, "not TOML"),
        ('{"a":' * 13_000, True, "not JSON"),
        ('{"host_mib": ' + "9" * 5000 + "}", True, "not JSON: a number in it has thousands of digits"),
        ('{"host_mib": 1e999}', True, "host_mib: must be a whole number"),
        ('{"host_bandwidth_gb_s": 1e999}', True, "host_bandwidth_gb_s"),
    ],
)
def test_size_depth_and_numbers_of_a_rig_file_are_bounded(text: str, json: bool, why: str) -> None:
    with pytest.raises(RigError) as caught:
        parse_rig(text, json=json)
    assert why in str(caught.value) and len(str(caught.value)) < 300
