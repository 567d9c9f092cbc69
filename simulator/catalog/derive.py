#!/usr/bin/env python3
"""Prints the derived files of this folder from the public data they come from.

    derive.py DATA gavel_v100

DATA holds gavel/isolated.csv (stanford-futuredata/gavel, MIT). Only the standard library.
"""
import csv
import sys

DATA = sys.argv[1] if len(sys.argv) > 2 else sys.exit(__doc__)


def gavel_v100():
    print("""# Steps a second of Gavel's job types alone on V100s of one node, to three digits.
# Source: stanford-futuredata/gavel, simulation throughputs (MIT). Printed by derive.py.
job_type,gpus,steps_per_s""")
    for r in csv.DictReader(open(f"{DATA}/gavel/isolated.csv", newline="")):
        if (r["gpu"], r["consolidated"]) == ("v100", "1") and float(r["steps_per_s"]) > 0:
            batch = f" (batch size {r['batch_size']})" if r["batch_size"] else ""
            print(f"{r['model']}{batch},{r['num_gpus']},{float(r['steps_per_s']):.3g}")


{"gavel_v100": gavel_v100}[sys.argv[2]]()
