"""``--rpc`` and the rig: without that flag llama.cpp knows no server's devices.

Servers are registered in the order of the list, each with all its devices in a row, and come before this machine's
GPUs (common/arg.cpp: ``add_rpc_devices``; ggml-rpc.cpp: ``ggml_backend_rpc_add_server``; src/llama.cpp:
``llama_prepare_model_devices``, v0.5.0). That is the order in which ``-ts`` and ``--fit-target`` count.
"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.backends.devices import RPC, Rig
from memplan.llama.flags import Flags


def rpc_words(flags: Flags, rig: Rig) -> tuple[str, ...]:
    """``--rpc`` with the rig's servers, in the rig's order; nothing when it is given or no server is used."""
    servers = _used(flags, rig)
    return ("--rpc", ",".join(servers)) if servers and not flags.rpc else ()


def server_reasons(flags: Flags, rig: Rig) -> tuple[str, ...]:
    """Why figures do not hold: servers that ``--rpc`` names and the rig lacks, or the other way round."""
    there = _endpoints(rig)
    reasons = [
        f"the RPC server {name} is not in the rig: add --gpu rpc:{name}:TOTAL_MIB"
        for name in dict.fromkeys(flags.rpc)
        if name not in there
    ]
    if flags.rpc:
        reasons += [
            f"the rig's RPC server {name} is not in --rpc: llama.cpp would not use it; name it there too, or take it"
            " out of the rig"
            for name in _used(flags, rig)
            if name not in flags.rpc
        ]
    return tuple(reasons)


def server_notes(flags: Flags, rig: Rig) -> tuple[str, ...]:
    """What a command line lacks that is for a rig with servers."""
    words = rpc_words(flags, rig)
    if not words:
        return ()
    return (f"llama.cpp uses the rig's RPC devices only with {' '.join(words)}, ahead of -dev and -ot: add it",)


def _endpoints(rig: Rig) -> Sequence[str]:
    return tuple(dict.fromkeys(gpu.endpoint for gpu in rig.gpus if gpu.endpoint))


def _used(flags: Flags, rig: Rig) -> Sequence[str]:
    """The rig's servers; none when ``-dev`` leaves out all of their devices."""
    if flags.devices is not None and not any(name.startswith(RPC) for name in flags.devices):
        return ()
    return _endpoints(rig)
