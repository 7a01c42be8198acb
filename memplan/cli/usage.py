"""The help of ``memplan estimate``, which is printed without loading a library for it."""

from __future__ import annotations

ESTIMATE = """\
Usage: memplan estimate MODEL [llama-server's flags] [options]

  What llama.cpp will allocate on every device with these flags, to the byte,
  from the model's header alone; the GPUs need not be there.

  MODEL is a GGUF file (any shard of a split one, or a header-only file), an
  address (https://..., hf:OWNER/REPO/FILE.gguf, hf:OWNER/REPO:QUANT, and the
  same with modelscope:), of which only the header is read, or a built-in name
  (see memplan models). A whole llama-server command line can be pasted in its
  place: memplan estimate llama-server -m FILE -c 131072 ..., with what stands
  before it (variables, sudo, docker run IMAGE), or be read from a file: a
  script (.sh, .bat, .ps1), a systemd unit, a compose file, an INI preset;
  FILE#NAME says which of several services or sections

Options:
  --gpu SPEC         a GPU, in device order; may be repeated.
                     SPEC is [N*]NAME[:TOTAL_MIB[:FREE_MIB[:CC]]], such as
                     "2*RTX 3090" or "RTX 3090:24268:23868:8.6"
                     Others than NVIDIA's are for Vulkan or Metal ("M2 Ultra"),
                     approximately; in CC's place Vulkan, Metal or ROCm asks
                     for that. A server's: rpc:HOST:PORT:TOTAL_MIB[:FREE_MIB]
  --rig FILE         the GPUs and the host's memory, in TOML or JSON
  --host-mib MIB     the host's memory; without it, or a rig file that says it,
                     the host is not checked
  --no-gpu           no GPU
                     with none of these: this machine's (see memplan devices)
  --llama RELEASE    a release of llama.cpp, by tag (v0.5.0) or build (b10068);
                     the newest tag by default (memplan releases marks it)
  --app server|cli   llama-server (default) or llama-cli
  --without-op OP    GPUs refuse this op, as if they had no kernel for it; may
                     be repeated. What follows is llama.cpp's choice: without
                     LIGHTNING_INDEXER, releases from v0.4.0 on run that op on
                     the host, older ones build it from small ops on the GPUs
  --path NAME=WAY    how a part of the graph is computed, whatever the GPUs can
                     do: fused (in ops of its own), unfused (from small ops), or
                     auto (default), which is the release's own choice; may be
                     repeated. DeepSeek-V4 has indexer and hyper-connections
  --indexer WAY, --hyper-connections WAY
                     other spellings of --path indexer=WAY and so on
  --filled N         tokens that each slot holds when the run time is counted;
                     all that it can hold by default. With it buffers are those
                     of a server that has loaded, which differ a little from what
                     llama.cpp plans, and its file is mapped (CPU_Mapped)
  --reserve MIB[,MIB...]
                     what should be left on every GPU, or on each, for what no
                     rule has: the code of kernels, loaded as they are used. By
                     default 300 on a CUDA device; with less left it is tight
  --offline          read no header from the network, only from the cache
  --no-cache         read headers from the network anew and keep none; what was
                     kept before is kept as it is there now
  --timeout SECONDS  how long the network may take in all (30); the next try
                     goes on from where one broke off
  --json             print one JSON object, sizes in bytes
  --check            exit with 1 when it does not fit, or llama.cpp refuses
  -h, --help         print this

llama-server's flags that decide memory (others are accepted; see its own help):
  -c, --ctx-size N               tokens of context; 0: the model's own (default)
  -b, --batch-size N             tokens of a batch (2048)
  -ub, --ubatch-size N           tokens computed at once (512)
  -np, --parallel N              slots; without it 4, sharing one context
  -kvu, -no-kvu                  one context shared by all slots, or a part each
  -fa, --flash-attn on|off|auto  flash attention (auto)
  -ctk, -ctv TYPE                types of the K and V caches (f16)
  -ngl, --n-gpu-layers N         layers on the GPUs (all)
  -sm none|layer|row, -mg INDEX  how layers are split; the GPU to use with none
  -ts, --tensor-split N0,N1,...  the share of each GPU
  -ot PATTERN=BUFFER,...         tensors to a buffer, as in exps=CPU
  -cmoe; -ncmoe N                experts on the host: all; of the first N layers
  -nkvo, --no-op-offload, --no-host, --no-repack, --swa-full
  -dev, --override-kv, --kv-unified-per-slot
  --spec-type, --spec-draft-n-max, -md FILE, -ngld, -devd, -otd, -cmoed, -ncmoed
  -ctkd, -ctvd                   what drafts: an MTP block, or another model
  --mmproj FILE, --no-mmproj-offload, -mmdev
  --models-preset FILE#SECTION   what a section of a preset says
  LLAMA_ARG_* are read from the environment, as llama-server reads them

Examples:
  memplan estimate deepseek-v4-flash --gpu "2*RTX 3090" -c 65536 -np 1 -cmoe
  memplan estimate llama-server -m model.gguf -c 8192 -ub 1024 --gpu "RTX 5090"
  memplan estimate model.gguf --rig examples/two-3090.toml -ncmoe 36 --json

Exit status: 0 answered, 1 with --check, 2 bad input (one line says what).
"""
