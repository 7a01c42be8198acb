"""The flags of llama-server and llama-cli: spellings, how many values each takes, and what memplan makes of it.

Follows ``common_params_parser_init`` (``common/arg.cpp``) of llama.cpp v0.4.0 to b11434: flags of any are known, as
a command line may be older than the release it is asked about. ``memplan.llama.flags`` reads those that decide memory;
the rest is listed so that a whole command line can be given, and a typing error is still found.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final


def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
"""Types that ``-ctk`` and ``-ctv`` take (``common/arg.cpp``: ``kv_cache_types``)."""

POOLING: Final = ("none", "mean", "cls", "last", "rank")
"""Values of ``--pooling``."""

MAX_DEVICES: Final = 16
"""``llama_max_devices()`` and ``GGML_CUDA_MAX_DEVICES``."""

MAX_SEQUENCES: Final = 256
"""``LLAMA_MAX_SEQ``: the most sequences a context takes."""

NO_VALUE: Final = words_of("""
    --swa-full --no-host -cmoe --cpu-moe -kvu --kv-unified -no-kvu --no-kv-unified -kvo --kv-offload -nkvo
    --no-kv-offload --repack -nr --no-repack --op-offload --no-op-offload --mlock --mmap --no-mmap -dio --direct-io
    -ndio --no-direct-io --embedding --embeddings --rerank --reranking --spec-default -bs --backend-sampling
    -sp --special --spm-infill --ignore-eos --check-tensors --reuse-port --metrics --props
    --lora-init-without-apply --log-disable -v --verbose --log-verbose --offline --spec-draft-cpu-moe -cmoed
    --cpu-moe-draft --verbose-prompt -st --single-turn -mli --multiline-input --simple-io
    --cache-idle-slots --no-cache-idle-slots --context-shift --no-context-shift --perf --no-perf -e --escape
    --no-escape --warmup --no-warmup -cb --cont-batching -nocb --no-cont-batching --mmproj-auto --no-mmproj
    --no-mmproj-auto --mmproj-offload --no-mmproj-offload --cors-credentials --no-cors-credentials --ui-mcp-proxy
    --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy -ag --agent -no-ag --no-agent --ui --webui --no-ui
    --no-webui --cache-prompt --no-cache-prompt --slots --no-slots --models-autoload --no-models-autoload --jinja
    --no-jinja --reasoning-preserve --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing
    --prefill-assistant --no-prefill-assistant --log-jsonl --no-log-jsonl --log-prefix --no-log-prefix
    --log-timestamps --no-log-timestamps --spec-draft-backend-sampling --no-spec-draft-backend-sampling
    --display-prompt --no-display-prompt --show-timings --no-show-timings
""")
"""Flags that stand alone."""

NUMBER: Final = words_of("""
    -c --ctx-size --kv-unified-per-slot -b --batch-size -ub --ubatch-size -np --parallel -ncmoe --n-cpu-moe -ncffn
    --n-cpu-ffn -mg --main-gpu -fitc --fit-ctx --spec-draft-n-max --spec-ngram-mod-n-max --spec-ngram-simple-size-m
    --spec-ngram-map-k-size-m --spec-ngram-map-k4v-size-m
    -t --threads -tb --threads-batch --prio --cpu-strict-batch --prio-batch --poll-batch -n --predict --n-predict
    --keep -ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cram --cache-ram --top-k
    --repeat-last-n --dry-allowed-length --dry-penalty-last-n --mirostat --yarn-orig-ctx --image-min-tokens
    --image-max-tokens --mtmd-batch-max-tokens --video-timestamp-interval --embd-normalize --port -to --timeout
    --sse-ping-interval --threads-http --cache-reuse --models-max --reasoning-budget --sleep-idle-seconds -lv
    --verbosity --log-verbosity --spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd
    --threads-batch-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio --prio-draft
    --spec-draft-poll --poll-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch
    --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe
    -ncmoed --n-cpu-moe-draft --spec-draft-n-min --spec-ngram-mod-n-min --spec-ngram-mod-n-match
    --spec-ngram-simple-size-n --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-min-hits
    --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-min-hits
""")
"""Flags with one value that llama.cpp reads as a 32-bit whole number."""

TEXT: Final = words_of("""
    -fa --flash-attn -ctk --cache-type-k -ctv --cache-type-v -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts
    --tensor-split -ot --override-tensor -dev --device -fit --fit -fitt --fit-target -lm --load-mode --override-kv
    --spec-type --pooling -m --model -mu --model-url -hf -hfr --hf-repo -hff --hf-file -dr --docker-repo
    -C --cpu-mask -Cr --cpu-range --cpu-strict --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch -lcs
    --lookup-cache-static -lcd --lookup-cache-dynamic -r --reverse-prompt --samplers -s --seed --sampler-seq
    --sampling-seq --temp --temperature --top-p --min-p --top-nsigma --top-n-sigma --xtc-probability
    --xtc-threshold --typical --typical-p --repeat-penalty --presence-penalty --frequency-penalty --dry-multiplier
    --dry-base --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp
    --mirostat-lr --mirostat-ent -l --logit-bias --grammar --grammar-file -j --json-schema -jf --json-schema-file
    --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-ext-factor --yarn-attn-factor
    --yarn-beta-slow --yarn-beta-fast -dt --defrag-thold -mm --mmproj -mmu --mmproj-url -mmdev --mmproj-device
    --video-fps --video-ffmpeg-dir --rpc -lzm --lazy-mode --numa --lora --lora-scaled --control-vector
    --control-vector-scaled -a --alias --tags -hft --hf-token --host --path --cors-origins --cors-methods
    --cors-headers --api-prefix --ui-config --webui-config --ui-config-file --webui-config-file --tools
    --tools-runtime --mcp-servers-config --mcp-servers-json --api-key --api-key-file --ssl-key-file
    --ssl-cert-file --chat-template-kwargs --slot-save-path --media-path --models-dir --models-preset
    --reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget-message --chat-template
    --chat-template-file -sps --slot-prompt-similarity --log-file --log-prompts-dir --log-colors --spec-draft-hf
    -hfd -hfrd --hf-repo-draft --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd
    --cpu-range-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-type-k -ctkd
    --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft --spec-draft-override-tensor -otd
    --override-tensor-draft --spec-synth-len --spec-synth-rates --spec-draft-p-split --draft-p-split
    --spec-draft-p-min --draft-p-min --spec-draft-sampling --spec-draft-device -devd --device-draft
    --spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-model -md --model-draft
    --server-base -co --color -p --prompt -sys --system-prompt -f --file -sysf --system-prompt-file -bf --binary-file
    --image --audio --video -o --output --output-file
""")
"""Flags with one value of any other kind."""

SECRET: Final = words_of("--api-key -hft --hf-token --mcp-servers-config --mcp-servers-json")
"""Flags whose value may be nobody else's to see; none of them decides memory."""

TWO_VALUES: Final = words_of("--control-vector-layer-range")
"""Flags with two values."""

ARITY: Final = MappingProxyType(
    dict.fromkeys(NO_VALUE, 0) | dict.fromkeys(NUMBER, 1) | dict.fromkeys(TEXT, 1) | dict.fromkeys(TWO_VALUES, 2)
)
"""Every flag and how many values it takes."""

REMOVED: Final = MappingProxyType(
    dict.fromkeys(words_of("--draft --draft-n --draft-max"), "--spec-draft-n-max or --spec-ngram-mod-n-max")
    | dict.fromkeys(words_of("--draft-min --draft-n-min"), "--spec-draft-n-min or --spec-ngram-mod-n-min")
    | {
        "--spec-ngram-size-n": "--spec-ngram-simple-size-n, --spec-ngram-map-k-size-n or --spec-ngram-mod-n-match",
        "--spec-ngram-size-m": "--spec-ngram-simple-size-m or --spec-ngram-map-k-size-m",
        "--spec-ngram-min-hits": "--spec-ngram-simple-min-hits or --spec-ngram-map-k-min-hits",
    }
)
"""Flags that llama.cpp only keeps to say what replaced them, and what that is."""

ANSWERS: Final = words_of("-h --help --usage --version -cl --cache-list --completion-bash --list-devices")
"""Flags with which llama-server prints something and ends, without loading a model."""

OTHER_MODEL: Final = words_of("""
    --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec
    --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default
    --vision-gemma-4b-default --vision-gemma-12b-default
""")
"""Flags that stand for a model of their own, downloaded."""

NOT_MODELLED: Final = MappingProxyType(
    dict.fromkeys(words_of("--lora --lora-scaled"), "LoRA adapters add tensors to the graph")
    | dict.fromkeys(words_of("--control-vector --control-vector-scaled"), "control vectors add tensors to the graph")
    | dict.fromkeys(words_of("--embedding --embeddings --rerank --reranking"), "embeddings change the graph's outputs")
    | dict.fromkeys(words_of("-bs --backend-sampling"), "samplers on the GPU add tensors to the graph")
)
"""Flags that change the model's own buffers in a way that is not modelled; and why."""

_IK_LLAMA: Final = words_of("""
    -rtr --run-time-repack -fmoe --fused-moe -no-fmoe --no-fmoe --no-fused-moe -mla --mla-use -amb
    --attention-max-batch -ser --smart-expert-reduction -ger --grouped-expert-routing -no-fug --no-fug
    --no-fused-up-gate -no-mmad --no-mmad --no-fused-mul-multiadd -gr --graph-reuse -no-gr --no-gr --no-graph-reuse
    -mqkv --merge-qkv -muge --merge-up-gate-experts -khad --k-cache-hadamard -vhad --v-cache-hadamard -sas
    --scheduler-async -vq --validate-quants -op --offload-policy -ooae --offload-only-active-experts -no-ooae
    --no-offload-only-active-experts -smf16 --split-mode-f16 -smf32 --split-mode-f32 -grt --graph-reduce-type -smgs
    --split-mode-graph-scheduling --max-gpu -cuda --cuda-params -crs --cache-ram-similarity -cram-n-min
    --cache-ram-n-min -cd --ctx-size-draft -dkvc --dump-kv-cache -thp --transparent-huge-pages --defer-experts
    --no-fa --no-flash-attn
""")
"""Flags that ik_llama.cpp has and llama.cpp has not (its docs/parameters.md)."""


def fork_of(flag: str) -> str:
    """The fork of llama.cpp that has ``flag``, which llama.cpp has not; empty for any other word."""
    if flag.startswith("--moe-cache"):
        return "forks with a cache of experts"
    return "ik_llama.cpp" if flag in _IK_LLAMA else ""
