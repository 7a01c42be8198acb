"""Built-in models of the architectures that attend over plain or sliding caches, dense ones and such with experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memplan.gguf.header import Value
from memplan.models.builtin_model import BuiltinModel, gguf_keys
from memplan.models.recipes import COMMON, DENSE, DYNAMIC, Recipe, Rule


def _with(recipes: Mapping[str, Recipe], *rules: Rule) -> dict[str, Recipe]:
    """Recipes with rules of q4_K_M that this model's files have beside the others."""
    common = recipes["q4_K_M"]
    return {**recipes, "q4_K_M": replace(common, rules=(*common.rules[:-1], *rules, common.rules[-1]))}


def _mtp(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """Recipes of files that always have a layer for multi-token prediction."""
    return {name: replace(recipe, nextn=True) for name, recipe in recipes.items()}


def _every(n_layer: int, period: int, most: Value, last: Value) -> tuple[int, ...]:
    """A value a layer: ``last`` in each ``period``-th, ``most`` in the others."""
    return tuple(last if il % period == period - 1 else most for il in range(n_layer))  # type: ignore[misc]


_LLAMA3 = gguf_keys(
    context_length=131072, key_length=128, value_length=128, dimension_count=128, layer_norm_rms_epsilon=1e-5,
    freq_base=5e5, vocab_size=128256,
)  # fmt: skip
_MISTRAL = gguf_keys(
    block_count=40, embedding_length=5120, feed_forward_length=32768, head_count=32, head_count_kv=8, key_length=128,
    value_length=128, dimension_count=128, layer_norm_rms_epsilon=1e-5, vocab_size=131072,
)  # fmt: skip
_QWEN3 = gguf_keys(
    context_length=40960, key_length=128, value_length=128, layer_norm_rms_epsilon=1e-6, freq_base=1e6,
    vocab_size=151936,
)  # fmt: skip
_GLM4 = gguf_keys(
    head_count=96, head_count_kv=8, key_length=128, value_length=128, dimension_count=64, layer_norm_rms_epsilon=1e-5,
    freq_base=1e6, vocab_size=151552, expert_used_count=8, expert_shared_count=1, expert_gating_func=2,
    expert_weights_norm=True,
)  # fmt: skip
_GPT_OSS = {
    **gguf_keys(
        context_length=131072, embedding_length=2880, feed_forward_length=2880, head_count=64, head_count_kv=8,
        key_length=64, value_length=64, layer_norm_rms_epsilon=1e-5, freq_base=1.5e5, vocab_size=201088,
        expert_used_count=4, expert_feed_forward_length=2880, sliding_window=128,
    ),
    "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096,
}  # fmt: skip
_GEMMA3 = {
    **gguf_keys(
        context_length=131072, layer_norm_rms_epsilon=1e-6, freq_base=1e6, vocab_size=262144, sliding_window=1024
    ),
    "rope.scaling.type": "linear", "rope.scaling.factor": 8.0,
}  # fmt: skip
_GEMMA4 = gguf_keys(
    layer_norm_rms_epsilon=1e-6, freq_base=1e6, vocab_size=262144, key_length=512, value_length=512,
    key_length_swa=256, value_length_swa=256, dimension_count=512, dimension_count_swa=256, freq_base_swa=1e4,
    final_logit_softcapping=30.0,
)  # fmt: skip
_GEMMA4_EXTRA = ("layer_output_scale.weight", "attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
_BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
_STEP_EXPERTS = ("ffn_gate_inp", "ffn_gate_exps", "ffn_down_exps", "ffn_up_exps",
                 "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp")  # fmt: skip
_DENSE = ("ffn_gate", "ffn_down", "ffn_up")


def _absent(layers: range, *kinds: str) -> frozenset[str]:
    """Weights that these layers lack."""
    return frozenset([f"blk.{il}.{kind}" for il in layers for kind in kinds])


ROWS = (
    BuiltinModel(
        "llama-3.1-8b", "Llama-3.1-8B: 32 layers", "llama",
        gguf_keys(
            _LLAMA3, block_count=32, embedding_length=4096, feed_forward_length=14336, head_count=32, head_count_kv=8
        ),
        "q4_K_M", DENSE, extra=("output.weight", "rope_freqs.weight"),
    ),
    BuiltinModel(
        "llama-3.2-3b", "Llama-3.2-3B: 28 layers", "llama",
        gguf_keys(
            _LLAMA3, block_count=28, embedding_length=3072, feed_forward_length=8192, head_count=24, head_count_kv=8
        ),
        "q4_K_M", DENSE, extra=("rope_freqs.weight",),
    ),
    BuiltinModel(
        "llama-3.3-70b", "Llama-3.3-70B: 80 layers", "llama",
        gguf_keys(
            _LLAMA3, block_count=80, embedding_length=8192, feed_forward_length=28672, head_count=64, head_count_kv=8
        ),
        "q4_K_M", _with(DENSE, Rule("attn_v", "q5_K")), extra=("output.weight", "rope_freqs.weight"),
    ),
    BuiltinModel(
        "llama-4-scout", "Llama-4-Scout: 48 layers, 16 experts", "llama4",
        gguf_keys(
            _LLAMA3, context_length=10485760, block_count=48, embedding_length=5120, feed_forward_length=16384,
            head_count=40, head_count_kv=8, vocab_size=202048, expert_count=16, expert_used_count=1,
            expert_feed_forward_length=8192, interleave_moe_layer_step=1,
        ),
        "q4_K_M", DYNAMIC, extra=("output.weight", "rope_freqs.weight"),
    ),
    BuiltinModel(
        "mistral-small-24b", "Mistral-Small-24B: 40 layers", "llama",
        gguf_keys(_MISTRAL, context_length=131072, freq_base=1e9), "q4_K_M", DENSE,
    ),
    BuiltinModel(
        "devstral-small-2-24b", "Devstral-Small-2-24B: 40 layers", "mistral3",
        {
            **gguf_keys(_MISTRAL, context_length=393216, freq_base=1e8, temperature_scale=0.1),
            "rope.scaling.type": "yarn", "rope.scaling.factor": 48.0, "rope.scaling.original_context_length": 8192,
            "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
        },
        "q8_0", DENSE,
    ),
    BuiltinModel(
        "qwen3-8b", "Qwen3-8B: 36 layers", "qwen3",
        gguf_keys(
            _QWEN3, block_count=36, embedding_length=4096, feed_forward_length=12288, head_count=32, head_count_kv=8
        ),
        "q4_K_M", DENSE,
    ),
    BuiltinModel(
        "qwen3-32b", "Qwen3-32B: 64 layers", "qwen3",
        gguf_keys(
            _QWEN3, block_count=64, embedding_length=5120, feed_forward_length=25600, head_count=64, head_count_kv=8
        ),
        "q4_K_M", DENSE,
    ),
    BuiltinModel(
        "phi-4", "Phi-4: 40 layers", "phi3",
        gguf_keys(
            context_length=16384, block_count=40, embedding_length=5120, feed_forward_length=17920, head_count=40,
            head_count_kv=10, dimension_count=128, layer_norm_rms_epsilon=1e-5, freq_base=2.5e5, vocab_size=100352,
        ),
        "q4_K_M", _with(DENSE, Rule("attn_qkv", "q5_K")), extra=("output.weight", "attn_qkv.weight"),
    ),
    BuiltinModel(
        "glm-4.5-air", "GLM-4.5-Air: 46 layers, 128 experts", "glm4moe",
        gguf_keys(
            _GLM4, context_length=131072, block_count=46, embedding_length=4096, feed_forward_length=10944,
            expert_count=128, expert_feed_forward_length=1408, leading_dense_block_count=1, expert_weights_scale=1.0,
        ),
        "q4_K_M", _mtp(DYNAMIC),
        extra=("output.weight", *_BIASES, "nextn.embed_tokens.weight", "nextn.shared_head_head.weight"),
    ),
    BuiltinModel(
        "glm-4.6", "GLM-4.6 and GLM-4.7: 92 layers, 160 experts", "glm4moe",
        gguf_keys(
            _GLM4, context_length=202752, block_count=92, embedding_length=5120, feed_forward_length=12288,
            expert_count=160, expert_feed_forward_length=1536, leading_dense_block_count=3, expert_weights_scale=2.5,
            expert_group_count=1, expert_group_used_count=1,
        ),
        "ud-q2", _mtp(DYNAMIC), extra=("output.weight", *_BIASES, "attn_q_norm.weight", "attn_k_norm.weight"),
    ),
    BuiltinModel(
        "ernie-4.5-21b-a3b", "ERNIE-4.5-21B-A3B: 28 layers, 64 experts", "ernie4_5-moe",
        gguf_keys(
            context_length=131072, block_count=28, embedding_length=2560, feed_forward_length=12288, head_count=20,
            head_count_kv=4, layer_norm_rms_epsilon=1e-5, freq_base=5e5, vocab_size=103424, expert_count=64,
            expert_used_count=6, expert_feed_forward_length=1536, expert_shared_count=2,
            expert_shared_feed_forward_length=3072, leading_dense_block_count=1, interleave_moe_layer_step=1,
        ),
        "q4_K_M", DENSE, extra=("exp_probs_b.bias", "ffn_gate_exps.weight"),
    ),
    BuiltinModel(
        "minimax-m2", "MiniMax-M2 and M2.5: 62 layers, 256 experts", "minimax-m2",
        gguf_keys(
            context_length=196608, block_count=62, embedding_length=3072, feed_forward_length=1536, head_count=48,
            head_count_kv=8, key_length=128, value_length=128, dimension_count=64, layer_norm_rms_epsilon=1e-6,
            freq_base=5e6, vocab_size=200064, expert_count=256, expert_used_count=8, expert_feed_forward_length=1536,
            expert_gating_func=2,
        ),
        "q4_K_M", DYNAMIC,
    ),
    BuiltinModel(
        "gpt-oss-20b", "gpt-oss-20b: 24 layers, 32 experts", "gpt-oss",
        gguf_keys(_GPT_OSS, block_count=24, expert_count=32), "mxfp4", {"mxfp4": COMMON["mxfp4"]}, _BIASES,
    ),
    BuiltinModel(
        "gpt-oss-120b", "gpt-oss-120b: 36 layers, 128 experts", "gpt-oss",
        gguf_keys(_GPT_OSS, block_count=36, expert_count=128), "mxfp4", {"mxfp4": COMMON["mxfp4"]}, _BIASES,
    ),
    BuiltinModel(
        "gemma-3-12b", "Gemma-3-12B: 48 layers", "gemma3",
        gguf_keys(
            _GEMMA3, block_count=48, embedding_length=3840, feed_forward_length=15360, head_count=16, head_count_kv=8,
            key_length=256, value_length=256,
        ),
        "q4_K_M", DENSE, extra=(),
    ),
    BuiltinModel(
        "gemma-3-27b", "Gemma-3-27B: 62 layers", "gemma3",
        gguf_keys(
            _GEMMA3, block_count=62, embedding_length=5376, feed_forward_length=21504, head_count=32, head_count_kv=16,
            key_length=128, value_length=128,
        ),
        "q4_K_M", DENSE, extra=(),
    ),
    BuiltinModel(
        "gemma-4-31b", "Gemma-4-31B: 60 layers", "gemma4",
        gguf_keys(
            _GEMMA4, context_length=262144, block_count=60, embedding_length=5376, feed_forward_length=21504,
            head_count=32, head_count_kv=_every(60, 6, 16, 4), sliding_window=1024, shared_kv_layers=0,
            sliding_window_pattern=_every(60, 6, True, False), embedding_length_per_layer_input=0,
        ),
        "q4_K_M", DENSE, extra=_GEMMA4_EXTRA, absent=_absent(range(5, 60, 6), "attn_v.weight"),
    ),
    BuiltinModel(
        "gemma-4-26b-a4b", "Gemma-4-26B-A4B: 30 layers, 128 experts", "gemma4",
        gguf_keys(
            _GEMMA4, context_length=262144, block_count=30, embedding_length=2816, feed_forward_length=2112,
            head_count=16, head_count_kv=_every(30, 6, 8, 2), sliding_window=1024, shared_kv_layers=0,
            sliding_window_pattern=_every(30, 6, True, False), embedding_length_per_layer_input=0, expert_count=128,
            expert_used_count=8, expert_feed_forward_length=704,
        ),
        "q4_K_M", DENSE, (*_GEMMA4_EXTRA, "ffn_gate_inp.weight", "ffn_gate_up_exps.weight", "ffn_down_exps.scale"),
        absent=_absent(range(5, 30, 6), "attn_v.weight"),
    ),
    BuiltinModel(
        "gemma-4-e4b", "Gemma-4-E4B: 42 layers, embeddings by layer", "gemma4",
        gguf_keys(
            _GEMMA4, context_length=131072, block_count=42, embedding_length=2560, feed_forward_length=10240,
            head_count=8, head_count_kv=2, sliding_window=512, shared_kv_layers=18,
            sliding_window_pattern=_every(42, 6, True, False), embedding_length_per_layer_input=256,
        ),
        "q8_0", DENSE, extra=_GEMMA4_EXTRA,
        absent=_absent(range(24, 42), "attn_k.weight", "attn_v.weight", "attn_k_norm.weight"),
    ),
    BuiltinModel(
        "step-3.5-flash", "Step-3.5-Flash: 45 layers, 288 experts", "step35",
        gguf_keys(
            context_length=262144, block_count=45, embedding_length=4096, feed_forward_length=11264,
            head_count=tuple(96 if il % 4 else 64 for il in range(45)), head_count_kv=(8,) * 45, key_length=128,
            value_length=128, dimension_count=128, layer_norm_rms_epsilon=1e-5, freq_base=5e6, freq_base_swa=1e4,
            vocab_size=128896, expert_count=288, expert_used_count=8, expert_feed_forward_length=1280,
            expert_shared_feed_forward_length=1280, leading_dense_block_count=3, expert_gating_func=2,
            expert_weights_scale=3.0, expert_weights_norm=True, sliding_window=512,
            sliding_window_pattern=tuple(il % 4 != 0 for il in range(45)),
            swiglu_clamp_exp=(0.0,) * 43 + (7.0,) * 2, swiglu_clamp_shexp=(0.0,) * 43 + (16.0,) * 2,
        ),
        "q4_K_M", DYNAMIC,
        extra=(
            "rope_freqs.weight", "attn_q_norm.weight", "attn_k_norm.weight", "attn_gate.weight", "exp_probs_b.bias",
            *(f"{kind}.weight" for kind in (*_STEP_EXPERTS, *_DENSE)),
        ),
        absent=_absent(range(3), *(f"{kind}.weight" for kind in _STEP_EXPERTS), "exp_probs_b.bias")
        | _absent(range(3, 45), *(f"{kind}.weight" for kind in _DENSE)),
    ),
)  # fmt: skip
"""The models, a row each."""
