"""What an explanation of run time says is what the estimate counts, op by op."""

from __future__ import annotations

import pytest

from memplan.explaining.run_time import RunTimeExplanation, explain_run_time
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.run_time import decides, render_run_time
from memplan.question import Question
from memplan.rig import parse_gpus

pytestmark = pytest.mark.slow

MIB = 1 << 20


def explained(
    args: str, gpu: str = "RTX PRO 6000", release: str = "v0.5.0", filled: int | None = None
) -> RunTimeExplanation:
    header = builtin_header("deepseek-v4-flash:antirez-q2")
    return explain_run_time(Question.of(header, parse_flags(args.split()), parse_gpus([gpu]), release, filled=filled))


def test_the_indexers_top_k_decides_a_long_context() -> None:
    x = explained("-c 131072 -np 1 -ub 512", "2*RTX PRO 6000")
    for use in x.devices:
        assert decides(use).startswith("TOP_K of lid_score_masked decides, in layers")
        assert decides(use).endswith("384.0 MiB of scratch for 512 tokens at once, with 131,072 in the slot")
        assert [what for what, _ in use.ops[0].pieces][-1] == "CUB's own"
        assert (use.pool, use.workspace) == (386 * MIB, 32 * MIB)
    assert [use.ops[0].count for use in x.devices] == [10, 11]
    text = render_run_time(x, top=3, unicode=False, colour=False)
    assert text.isascii()
    assert "it reads lid_score_masked [f32, 32768 x 512]" in text
    assert "CUDA0:" not in render_run_time(x, device="CUDA1", unicode=False, colour=False)


@pytest.mark.parametrize(
    "args", ["-c 20000 -np 3", "-c 16384 -np 1 -fa off", "-c 9000 -np 2 -ub 300 -b 700", "-cmoe -c 4096"]
)
@pytest.mark.parametrize("filled", [None, 1000])
def test_it_adds_up_to_the_estimate(args: str, filled: int | None) -> None:
    x = explained(args, "3*RTX 3090", "b10068", filled)
    assert [use.bytes for use in x.devices] == [device.run_time for device in x.estimate.devices]
    for use in x.devices:
        assert all(op.bytes >= sum(size for _, size in op.pieces) for op in use.ops)


def test_what_drafts_is_told_apart() -> None:
    flags = parse_flags(["-c", "8192", "-np", "1", "-md", "d", "--spec-type", "draft-dspark"])
    target, draft = builtin_header("deepseek-v4-flash:antirez-q2"), builtin_header("deepseek-v4-flash-dspark")
    x = explain_run_time(Question.of(target, flags, parse_gpus(["2*RTX PRO 6000"]), "v0.5.0", draft=draft))
    assert [(use.device, use.drafts) for use in x.devices] == [
        ("CUDA0", False), ("CUDA1", False), ("CUDA0", True), ("CUDA1", True)
    ]  # fmt: skip
    for device in x.estimate.devices:
        assert device.run_time == sum(use.bytes for use in x.devices if use.device == device.name)
    assert decides(x.devices[3]).startswith("MUL_MAT of fc.weight decides: ")
    text = render_run_time(x, unicode=False, colour=False)
    assert "CUDA1, what drafts: " in text and "inp_target_features [f32, 12288 x 512]" in text


def test_what_is_not_modelled_is_said() -> None:
    (use,) = explained("-c 4096 -np 1", "RX 7900 XTX").devices
    assert not use.modelled
    assert decides(use) == "what its kernels take at run time is not modelled"


def test_a_refusal_has_no_devices() -> None:
    x = explained("-c 4096 -ctk q8_0")
    assert x.devices == ()
    assert "does not start" in render_run_time(x, unicode=False, colour=False)
