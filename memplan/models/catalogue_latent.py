"""Built-in models that attend over latent keys, and such whose attention an indexer narrows."""

from __future__ import annotations

from dataclasses import replace

from memplan.models.builtin_model import BuiltinModel, gguf_keys
from memplan.models.recipes import DYNAMIC, KEPT_F32, Recipe, Rule

_DEEPSEEK = {
    **gguf_keys(
        context_length=163840, block_count=61, embedding_length=7168, feed_forward_length=18432, head_count=128,
        head_count_kv=1, key_length=576, value_length=512, dimension_count=64, layer_norm_rms_epsilon=1e-6,
        freq_base=1e4, vocab_size=129280, expert_count=256, expert_used_count=8, expert_feed_forward_length=2048,
        expert_shared_count=1, leading_dense_block_count=3, expert_gating_func=2, expert_weights_scale=2.5,
        expert_weights_norm=True, q_lora_rank=1536, kv_lora_rank=512, key_length_mla=192, value_length_mla=128,
    ),
    "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 4096,
    "rope.scaling.yarn_log_multiplier": 0.1,
}  # fmt: skip
_GROUPS = gguf_keys(expert_group_count=8, expert_group_used_count=4)
_KIMI = {
    **_DEEPSEEK,
    **gguf_keys(
        context_length=262144, head_count=64, freq_base=5e4, vocab_size=163840, expert_count=384,
        leading_dense_block_count=1, expert_weights_scale=2.827, expert_group_count=1, expert_group_used_count=1,
    ),
    "rope.scaling.factor": 64.0,
}  # fmt: skip
_GLM5 = gguf_keys(
    context_length=202752, block_count=78, embedding_length=6144, feed_forward_length=12288, head_count=64,
    head_count_kv=1, key_length=576, value_length=512, dimension_count=64, layer_norm_rms_epsilon=1e-5, freq_base=1e6,
    vocab_size=154880, expert_count=256, expert_used_count=8, expert_feed_forward_length=2048, expert_shared_count=1,
    leading_dense_block_count=3, expert_gating_func=2, expert_weights_scale=2.5, expert_weights_norm=True,
    expert_group_count=1, expert_group_used_count=1, q_lora_rank=2048, kv_lora_rank=512, key_length_mla=256,
    value_length_mla=256, indexer_head_count=32, indexer_key_length=128, indexer_top_k=2048,
)  # fmt: skip

_MTP = {name: replace(recipe, nextn=True) for name, recipe in DYNAMIC.items()}
"""Recipes of files that always have a layer for multi-token prediction."""

_GLM = {
    **_MTP,
    "ud-q5": Recipe(
        "experts q5_K and q6_K, those of one early layer and the last down experts a size larger, the rest q8_0",
        (
            KEPT_F32,
            Rule("indexer[.]proj", "f32"),
            # sizes of buffers in public logs tell how many; of the early layer, that it is one of 4 to 20 or so
            Rule("ffn_down_exps", "q8_0", layers=(8, 75, 76, 77)),
            Rule("ffn_(gate|up)_exps", "q6_K", layers=(8,)),
            Rule("ffn_down_exps", "q6_K"),
            Rule(".*_exps", "q5_K"),
            Rule(".*", "q8_0"),
        ),
        nextn=True,
    ),
}
"""Those of GLM-5's files."""

_BIAS = ("output.weight", "exp_probs_b.bias")
_INDEXER = (
    *_BIAS, "indexer.k_norm.weight", "indexer.k_norm.bias", "indexer.attn_k.weight", "indexer.attn_q_b.weight",
    "indexer.proj.weight",
)  # fmt: skip

ROWS = (
    BuiltinModel(
        "deepseek-r1", "DeepSeek-R1 and V3: 61 layers, 256 experts", "deepseek2", _DEEPSEEK, "ud-q2", DYNAMIC,
        extra=_BIAS,
    ),
    BuiltinModel(
        "deepseek-v3.1", "DeepSeek-V3.1: 61 layers, 256 experts", "deepseek2", {**_DEEPSEEK, **_GROUPS}, "ud-q2",
        DYNAMIC, extra=_BIAS,
    ),
    BuiltinModel(
        "deepseek-v3.2", "DeepSeek-V3.2: 61 layers, 256 experts, an indexer", "deepseek32",
        gguf_keys(
            {**_DEEPSEEK, **_GROUPS}, indexer_head_count=64, indexer_key_length=128, indexer_top_k=2048
        ),
        "ud-q2", _MTP, extra=(*_BIAS, "nextn.embed_tokens.weight", "nextn.shared_head_head.weight"),
    ),
    BuiltinModel(
        "kimi-k2", "Kimi-K2 and K2.5: 61 layers, 384 experts", "deepseek2", _KIMI, "ud-q2", DYNAMIC, extra=_BIAS
    ),
    BuiltinModel(
        "glm-4.7-flash", "GLM-4.7-Flash: 47 layers, 64 experts", "deepseek2",
        gguf_keys(
            context_length=202752, block_count=47, embedding_length=2048, feed_forward_length=10240, head_count=20,
            head_count_kv=1, key_length=576, value_length=512, dimension_count=64, layer_norm_rms_epsilon=1e-5,
            freq_base=1e6, vocab_size=154880, expert_count=64, expert_used_count=4, expert_feed_forward_length=1536,
            expert_shared_count=1, leading_dense_block_count=1, expert_gating_func=2, expert_weights_scale=1.8,
            expert_weights_norm=True, expert_group_count=1, expert_group_used_count=1, q_lora_rank=768,
            kv_lora_rank=512, key_length_mla=256, value_length_mla=256,
        ),
        "q4_K_M", extra=_BIAS,
    ),
    BuiltinModel(
        "glm-5", "GLM-5: 78 layers, 256 experts, an indexer", "glm-dsa", _GLM5, "ud-q2", _GLM, extra=_INDEXER
    ),
    BuiltinModel(
        "glm-5.2", "GLM-5.2: 78 layers, 256 experts, an indexer", "glm-dsa",
        gguf_keys(_GLM5, context_length=1048576, freq_base=8e6), "ud-q2", _GLM, extra=_INDEXER,
    ),
    BuiltinModel(
        "mistral-4-119b", "Mistral-4-119B: 36 layers, 128 experts", "mistral4",
        {
            **gguf_keys(
                context_length=1048576, block_count=36, embedding_length=4096, feed_forward_length=12288,
                head_count=32, head_count_kv=1, key_length=320, value_length=256, dimension_count=64,
                layer_norm_rms_epsilon=1e-6, freq_base=1e4, vocab_size=131072, expert_count=128, expert_used_count=4,
                expert_feed_forward_length=2048, expert_shared_count=1, leading_dense_block_count=0,
                expert_gating_func=1, expert_weights_scale=1.0, expert_weights_norm=True, q_lora_rank=1024,
                kv_lora_rank=256, key_length_mla=128, value_length_mla=128, temperature_scale=0.1,
            ),
            "rope.scaling.type": "yarn", "rope.scaling.factor": 128.0, "rope.scaling.original_context_length": 8192,
        },
        "q4_K_M", DYNAMIC,
    ),
    BuiltinModel(
        "minimax-m3", "MiniMax-M3: 60 layers, 128 experts, an indexer of blocks", "minimax-m3",
        gguf_keys(
            context_length=524288, block_count=60, embedding_length=6144, feed_forward_length=12288, head_count=64,
            head_count_kv=4, key_length=128, value_length=128, dimension_count=64, layer_norm_rms_epsilon=1e-6,
            freq_base=5e6, vocab_size=200064, expert_count=128, expert_used_count=4, expert_feed_forward_length=3072,
            expert_shared_count=1, leading_dense_block_count=3, expert_gating_func=2, expert_weights_scale=2.0,
            expert_weights_norm=True, indexer_head_count=4, indexer_key_length=128, indexer_top_k=16,
            indexer_block_size=128, indexer_local_blocks=1,
        ),
        "ud-q2", DYNAMIC,
    ),
)  # fmt: skip
