"""A sweep as CSV, with columns of one's own choosing.

python examples/sweep_to_csv.py > sweep.csv
"""

from __future__ import annotations

import csv
import sys

import memplan


def main() -> None:
    model = memplan.read_model("deepseek-v4-flash")
    rig = memplan.parse_gpus(["2*RTX 3090"])
    sweep = memplan.sweep(model, ["-cmoe"], rig, {"ctx": "16k:256k", "np": [1, 4]})
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*(axis.name for axis in sweep.axes), "tokens a slot", "least left, MiB", "fits"])
    for point in sweep.points:
        estimate = point.estimate
        least = min(device.left for device in estimate.devices)
        writer.writerow([*point.values, estimate.n_ctx_seq, least >> 20, estimate.fits])


if __name__ == "__main__":
    main()
