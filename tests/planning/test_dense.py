"""Plans of models without experts, beside what llama.cpp's own ``--fit`` (v0.5.0) places for the same."""

from __future__ import annotations

import pytest

from memplan.models.builtin import builtin_header
from memplan.planning.api import plan
from memplan.planning.overrides import matched, write_overrides
from memplan.planning.plan import Plan
from memplan.rig import MIB, parse_gpus

pytestmark = pytest.mark.slow

RTX_3060, RTX_3090 = "RTX 3060:12288:11888", "RTX 3090:24268:23868"


@pytest.mark.parametrize(
    ("model", "gpus", "flags", "fit", "args"),
    [
        (
            "llama-3.3-70b", [RTX_3090] * 2, "-c 16384 -np 1", 41377448448,
            ("-ngl", "99", "-ts", "41,40", "-ot", r"\.40\.ffn_up=CUDA1"),
        ),
        (
            "llama-3.3-70b", [RTX_3060, "RTX 4090:24210:23810"], "-c 65536 -ub 1024 -np 1", 21935800832,
            ("-ngl", "43", "-ts", "14,29", "-ot", r"\.51\.ffn_(gate|up)=CUDA1"),
        ),
        (
            "qwen3-32b", ["RTX 4060 Ti:16380:15980"], "-c 8192 -np 1", 13720125440,
            ("-ngl", "47", "-ot", r"\.63\.ffn_down=CPU"),
        ),
        ("gemma-3-27b", ["RTX 5070:12226:11826"], "-c 16384 -np 1", 9842612224, ("-ngl", "36")),
        ("phi-4", [RTX_3060], "-c 16384 -np 4", 7962890240, ("-ngl", "38", "-ot", r"\.3[89]\.ffn_down=CPU")),
    ],
)  # fmt: skip
def test_no_less_than_fit(model: str, gpus: list[str], flags: str, fit: int, args: tuple[str, ...]) -> None:
    """``fit``: bytes of weights that ``--fit`` leaves on GPUs."""
    found = plan(builtin_header(model), [*flags.split(), "-fa", "on"], parse_gpus(gpus), margin_mib=1024)
    assert isinstance(found, Plan)
    assert found.args == args
    assert sum(device.model for device in found.estimate.devices) >= fit
    assert all(device.left >= 1024 * MIB for device in found.estimate.devices)
    assert not any("expert" in note for note in found.notes)


def test_patterns_of_feed_forward_weights() -> None:
    names = tuple(builtin_header("llama-3.3-70b").tensors)
    for kinds in (("up",), ("down", "up"), ("gate", "up", "down")):
        wanted = {f"blk.{il}.ffn_{kind}.weight": "CPU" for il in (1, 10, 79) for kind in kinds}
        assert matched(write_overrides(wanted, names), names) == wanted


def test_a_context_that_nobody_asked_for_costs_no_layer_its_place() -> None:
    rig = parse_gpus(["RTX 4090:24210:23810"])
    for model in ("gemma-3-27b", "qwen3-30b-a3b"):
        found = plan(builtin_header(model), ["-np", "1"], rig, search=["c"])
        assert isinstance(found, Plan)
        assert found.shares[-1].layers is None and not found.shares[-1].experts
        n_ctx = int(found.args[found.args.index("-c") + 1])
        assert 4096 < n_ctx == found.estimate.n_ctx < found.estimate.model.n_ctx_train
        more = plan(builtin_header(model), ["-np", "1", "-c", str(n_ctx + 256)], rig)
        assert isinstance(more, Plan)
        assert more.shares[-1].layers is not None or "-ot" in more.args
