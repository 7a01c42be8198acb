"""Does it fit, and where is it tight?

python examples/estimate.py [MODEL] [GPU ...]
"""

from __future__ import annotations

import sys

import memplan


def main(model: str = "deepseek-v4-flash", *gpus: str) -> None:
    rig = memplan.parse_gpus(gpus or ["2*RTX 3090"])
    flags = memplan.parse_flags(["-c", "65536", "-np", "1", "-cmoe"])
    estimate = memplan.estimate(memplan.read_model(model), flags, rig)
    if estimate.refused:
        print("llama.cpp would not start:", estimate.refused.message)
        return
    for device in estimate.devices:
        print(f"{device.name}: {device.used >> 20:,} MiB used, {device.left >> 20:,} MiB left")
    print(f"host: {estimate.host.used >> 20:,} MiB")
    print("fits" if estimate.fits else "does not fit", "(exact)" if estimate.exact else f"({estimate.approximate})")


if __name__ == "__main__":
    main(*sys.argv[1:])
