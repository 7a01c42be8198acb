"""Which tensors fill a compute buffer, and by how much one of them would have to shrink.

python examples/explain.py
"""

from __future__ import annotations

import memplan


def main() -> None:
    model = memplan.read_model("deepseek-v4-flash")
    flags = memplan.parse_flags(["-c", "131072", "-np", "1", "-cmoe"])
    explanation = memplan.explain(model, flags, memplan.parse_gpus(["2*RTX 3090"]))
    for buffer in explanation.buffers:
        peak = buffer.peak
        if peak is None:
            continue
        print(f"{buffer.device}: {buffer.bytes:,} bytes, fullest at node {peak.node}")
        for group in peak.groups[:3]:
            print(f"  {group.bytes / peak.bytes:4.0%}  {group.base}, {group.count} of them")
        print(f"  {peak.lost / peak.bytes:4.0%}  lost in {len(peak.gaps)} gaps")
        assert sum(tensor.bytes for tensor in peak.live) + peak.lost == peak.bytes


if __name__ == "__main__":
    main()
