#!/usr/bin/env python3
"""Runs one phase on a machine with an NVIDIA GPU; scripts/gpu_run.sh calls it and says how."""

import argparse
import os
import pathlib
import signal
import subprocess
import sys

import card
import fast
import phase
import right
import whole

PHASES = {"right": right.STEPS, "fast": fast.STEPS, "whole": whole.STEPS}
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def commit():
    """The commit of what is run: that of the packed folder, or of the checkout."""
    manifest = ROOT / "MANIFEST"
    if manifest.exists():
        first = manifest.read_text(encoding="utf-8").split("\n", 1)[0].split()
        if len(first) < 2 or first[0] != "commit":
            return "unknown"
        return first[1] if len(first) == 2 else first[1][:11] + "+"  # with changes
    try:
        out = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    except OSError:
        return "unknown"
    return out.stdout.strip() or "unknown"


def device(step, kit):
    """A phase without a GPU has failed, whatever else it can do."""
    if not kit.emulated and not card.query("name"):
        raise phase.Failed("nvidia-smi finds no GPU here")


def main():
    parser = argparse.ArgumentParser(prog="gpu_run.sh", description="One phase of what a machine with an NVIDIA GPU is asked.")
    parser.add_argument("phase", choices=sorted(PHASES))
    parser.add_argument("out", help="folder of PHASE.json and PHASE.log")
    parser.add_argument("--emulated", action="store_true", help="the emulated device and small sizes; figures mean nothing")
    parser.add_argument("--only", default="", help="only these steps, separated by commas")
    a = parser.parse_args()
    steps = [("device", 30, device)] + PHASES[a.phase]
    only = [name for name in a.only.split(",") if name]
    for name in only:
        if name not in [s[0] for s in steps]:
            parser.error("no step %s in %s: want %s" % (name, a.phase, ", ".join(s[0] for s in steps)))
    os.makedirs(a.out, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends what the step has started
    with phase.Kit(ROOT, pathlib.Path(a.out).resolve(), a.emulated) as kit:
        failed = phase.run(a.phase, steps, kit, {**card.machine(a.emulated), "commit": commit()}, card.clocks, only)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
