"""The built-in models: their names, hyper-parameters and recipes, a row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from memplan.gguf.header import Value
from memplan.models.builtin_model import BuiltinModel, gguf_keys
from memplan.models.catalogue_attention import ROWS as ATTENTION
from memplan.models.catalogue_latent import ROWS as LATENT
from memplan.models.recipes import COMMON, DEEPSEEK4, DENSE, DSPARK, FLASH


def deepseek4(
    first_ratios: tuple[int, int] = (0, 0), changed: Mapping[str, Value] = MappingProxyType({})
) -> dict[str, Value]:
    """DeepSeek-V4's metadata: Flash's, but for what is ``changed``.

    ``first_ratios``: the compression ratios of layers 0 and 1; from layer 2 on, 4 (CSA) and 128 (HCA) take turns.
    """
    flash: dict[str, Value] = {
        "block_count": 43, "context_length": 1048576, "embedding_length": 4096, "attention.head_count": 64,
        "attention.head_count_kv": 1, "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0,
        "rope.scaling.original_context_length": 65536, "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-6, "expert_used_count": 6, "expert_gating_func": 4, "expert_count": 256,
        "attention.key_length": 512, "attention.value_length": 512, "rope.dimension_count": 64,
        "attention.q_lora_rank": 1024, "attention.sliding_window": 128, "expert_feed_forward_length": 2048,
        "expert_shared_count": 1, "expert_weights_scale": 1.5, "expert_weights_norm": True,
        "attention.indexer.head_count": 64, "attention.indexer.key_length": 128, "attention.indexer.top_k": 512,
        "attention.output_group_count": 8, "attention.output_lora_rank": 1024,
        "attention.compress_rope_freq_base": 160000.0, "hyper_connection.count": 4,
        "hyper_connection.sinkhorn_iterations": 20, "hyper_connection.epsilon": 1e-6, "hash_layer_count": 3,
        "vocab_size": 129280,
    }  # fmt: skip
    flash |= changed
    layers, hc, n_embd = (flash[key] for key in ("block_count", "hyper_connection.count", "embedding_length"))
    assert isinstance(layers, int) and isinstance(hc, int) and isinstance(n_embd, int)  # rows of this file
    ratios = (*first_ratios, *(4 if i % 2 == 0 else 128 for i in range(layers - 2)))[:layers]
    limits: dict[str, Value] = {"swiglu_clamp_exp": (10.0,) * layers, "swiglu_clamp_shexp": (10.0,) * layers}
    # one ratio more than layers: the MTP layer's, in files with that layer and without
    return {**flash, **limits, "attention.compress_ratios": (*ratios, 0), "embedding_length_out": hc * n_embd}


PRO: Mapping[str, Value] = {
    "block_count": 61, "embedding_length": 7168, "attention.head_count": 128, "attention.q_lora_rank": 1536,
    "attention.output_group_count": 16, "expert_count": 384, "expert_feed_forward_length": 3072,
    "attention.indexer.top_k": 1024, "expert_weights_scale": 2.5,
}  # fmt: skip
"""What DeepSeek-V4-Pro has otherwise than Flash, its first layers' ratios aside."""


def _dspark() -> dict[str, Value]:
    """What drafts for Flash: stages of its own kind, attention over the window alone."""
    keys = deepseek4(changed={"block_count": 3, "hash_layer_count": 0, "block_size": 5})
    return {**keys, "attention.compress_ratios": (0, 0, 0), "target_layers": (41, 42, 43)}


_QWEN3 = gguf_keys(
    context_length=262144, key_length=128, value_length=128, layer_norm_rms_epsilon=1e-6, vocab_size=151936
)  # fmt: skip

_DELTA_NET = gguf_keys(
    context_length=262144, key_length=256, value_length=256, dimension_count=64, layer_norm_rms_epsilon=1e-6,
    freq_base=1e7, conv_kernel=4, state_size=128, group_count=16, full_attention_interval=4,
)  # fmt: skip
_QWEN35 = gguf_keys(_DELTA_NET, dimension_sections=(11, 11, 10, 0), vocab_size=248320)
_MTP = {"q4_K_M-mtp": replace(DENSE["q4_K_M"], about="q4_K_M and one layer for multi-token prediction", nextn=True)}


def _nemotron(pattern: str, heads_kv: int, n_ff: int, **own: Value) -> dict[str, Value]:
    """Nemotron-H's metadata; ``pattern``: a letter a layer, M for a state space, * for attention, else feed-forward."""
    common = gguf_keys(
        key_length=128, value_length=128, layer_norm_rms_epsilon=1e-5, layer_norm_epsilon=1e-5, conv_kernel=4,
        state_size=128, group_count=8, vocab_size=131072, block_count=len(pattern),
        head_count_kv=tuple(heads_kv if c == "*" else 0 for c in pattern),
        feed_forward_length=tuple(0 if c in "M*" else n_ff for c in pattern),
    )  # fmt: skip
    return gguf_keys(common, **own)


_NEMOTRON3 = gguf_keys(
    context_length=1048576, expert_shared_count=1, expert_weights_norm=True, expert_group_count=1,
    expert_group_used_count=1,
)  # fmt: skip

_ROWS = (
    BuiltinModel(
        "deepseek-v4-flash", "DeepSeek-V4-Flash: 43 layers, 256 experts", "deepseek4", deepseek4(), "antirez-q2",
        FLASH,
    ),
    BuiltinModel(
        "deepseek-v4-flash-dspark", "DeepSeek-V4-Flash's drafter: 3 stages, 256 experts", "dflash",
        _dspark(), "mxfp4", DSPARK, extra=(), shapes={"markov_w1.weight": (256, 129280), "conf_proj.weight": (4352, 1)},
    ),
    BuiltinModel(
        "deepseek-v4-pro", "DeepSeek-V4-Pro: 61 layers, 384 experts", "deepseek4", deepseek4((128, 128), PRO), "mxfp4",
        DEEPSEEK4,
    ),
    BuiltinModel(
        "qwen3-30b-a3b", "Qwen3-30B-A3B: 48 layers, 128 experts", "qwen3moe",
        gguf_keys(
            _QWEN3, block_count=48, embedding_length=2048, feed_forward_length=6144, head_count=32, head_count_kv=4,
            freq_base=1e7, expert_count=128, expert_used_count=8, expert_feed_forward_length=768,
        ),
        "q4_K_M",
    ),
    BuiltinModel(
        "qwen3-235b-a22b", "Qwen3-235B-A22B: 94 layers, 128 experts", "qwen3moe",
        gguf_keys(
            _QWEN3, block_count=94, embedding_length=4096, feed_forward_length=12288, head_count=64, head_count_kv=4,
            freq_base=5e6, expert_count=128, expert_used_count=8, expert_feed_forward_length=1536,
        ),
        "q4_K_M",
    ),
    BuiltinModel(
        "qwen3.6-35b-a3b", "Qwen3.6-35B-A3B, as Qwen3.5's: 40 layers, 256 experts", "qwen35moe",
        gguf_keys(
            _QWEN35, block_count=40, embedding_length=2048, head_count=16, head_count_kv=2, inner_size=4096,
            time_step_rank=32, expert_count=256, expert_used_count=8, expert_feed_forward_length=512,
            expert_shared_feed_forward_length=512,
        ),
        "q4_K_M", {**COMMON, **_MTP},
    ),
    BuiltinModel(
        "qwen3.5-397b-a17b", "Qwen3.5-397B-A17B: 60 layers, 512 experts", "qwen35moe",
        gguf_keys(
            _QWEN35, block_count=60, embedding_length=4096, head_count=32, head_count_kv=2, inner_size=8192,
            time_step_rank=64, expert_count=512, expert_used_count=10, expert_feed_forward_length=1024,
            expert_shared_feed_forward_length=1024,
        ),
        "q4_K_M", {**COMMON, **_MTP},
    ),
    BuiltinModel(
        "qwen3.6-27b", "Qwen3.6-27B, as Qwen3.5's: 64 layers", "qwen35",
        gguf_keys(
            _QWEN35, block_count=64, embedding_length=5120, feed_forward_length=17408, head_count=24, head_count_kv=4,
            inner_size=6144, time_step_rank=48,
        ),
        "q4_K_M", {**DENSE, **_MTP},
    ),
    BuiltinModel(
        "qwen3.5-9b", "Qwen3.5-9B: 32 layers", "qwen35",
        gguf_keys(
            _QWEN35, block_count=32, embedding_length=4096, feed_forward_length=12288, head_count=16, head_count_kv=4,
            inner_size=4096, time_step_rank=32,
        ),
        "q4_K_M", {**DENSE, **_MTP},
    ),
    BuiltinModel(
        "qwen3-next-80b-a3b", "Qwen3-Next-80B-A3B and Qwen3-Coder-Next: 48 layers, 512 experts", "qwen3next",
        gguf_keys(
            _DELTA_NET, block_count=48, embedding_length=2048, head_count=16, head_count_kv=2, inner_size=4096,
            time_step_rank=32, expert_count=512, expert_used_count=10, expert_feed_forward_length=512,
            expert_shared_feed_forward_length=512, vocab_size=151936,
        ),
        "q4_K_M", {**COMMON, **_MTP},
    ),
    BuiltinModel(
        "nemotron-3-nano-30b-a3b", "Nemotron-3-Nano-30B-A3B: 52 layers, 128 experts", "nemotron_h_moe",
        {**_NEMOTRON3, **_nemotron(
            "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 2, 1856, embedding_length=2688, head_count=32,
            dimension_count=84, inner_size=4096, time_step_rank=64, expert_count=128, expert_used_count=6,
            expert_feed_forward_length=1856, expert_shared_feed_forward_length=3712, expert_weights_scale=2.5,
        )},
        "q4_K_M",
    ),
    BuiltinModel(
        "nemotron-3-super-120b-a12b", "Nemotron-3-Super-120B-A12B: 88 layers, 512 experts", "nemotron_h_moe",
        {**_NEMOTRON3, **_nemotron(
            "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME", 2, 2688,
            embedding_length=4096, head_count=32, dimension_count=128, inner_size=8192, time_step_rank=128,
            expert_count=512, expert_used_count=22, expert_feed_forward_length=2688,
            expert_shared_feed_forward_length=5376, expert_weights_scale=5.0, moe_latent_size=1024,
        )},
        "q4_K_M", {**COMMON, **_MTP}, extra=("output.weight", "ffn_latent_down.weight", "ffn_latent_up.weight"),
        mtp={"attention.head_count_kv": 2},
    ),
    BuiltinModel(
        "nemotron-nano-9b-v2", "Nemotron-Nano-9B-v2: 56 layers", "nemotron_h",
        _nemotron(
            "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", 8, 15680, context_length=131072,
            embedding_length=4480, head_count=40, dimension_count=112, inner_size=10240, time_step_rank=128,
        ),
        "q4_K_M", DENSE,
    ),
    BuiltinModel(
        "kimi-linear-48b-a3b", "Kimi-Linear-48B-A3B: 27 layers, 256 experts", "kimi-linear",
        gguf_keys(
            context_length=1048576, block_count=27, embedding_length=2304, feed_forward_length=9216, head_count=32,
            head_count_kv=tuple(1 if il % 4 == 3 or il == 26 else 0 for il in range(27)), key_length=576,
            value_length=512, dimension_count=64, layer_norm_rms_epsilon=1e-5, freq_base=1e4, vocab_size=163840,
            expert_count=256, expert_used_count=8, expert_feed_forward_length=1024, expert_shared_count=1,
            leading_dense_block_count=1, expert_gating_func=2, expert_weights_scale=2.446, expert_weights_norm=True,
            kv_lora_rank=512, key_length_mla=192, value_length_mla=128, conv_kernel=4, head_dim=128,
        ),
        "q4_K_M",
    ),
)  # fmt: skip

MODELS: Mapping[str, BuiltinModel] = {model.name: model for model in (*_ROWS, *LATENT, *ATTENTION)}
"""The built-in models, by name."""
