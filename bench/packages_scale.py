#!/usr/bin/env python3
"""How the cost of a batch grows with the number of trainers: `trainer packages` with 32 lanes on one ps.

For each number of trainers: samples a second, and of a batch the messages and bytes that all trainers send and receive,
and the milliseconds of processor time of ps and of all trainers. What a start and an end cost is left out: of a long
run and a short one, the difference counts. Traffic is what trainers counted when training ended, before they read whole
tables for their digests. Several builds run in turn, so that their figures can be compared.

    bench/packages_scale.py --bin bin                          1 to 32 trainers
    bench/packages_scale.py --bin bin --bin ../before/bin --trainers 1,4,16 --runs 3
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

TICK = os.sysconf("SC_CLK_TCK")


def processor(pid):
    """Seconds of processor time of a process."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def wait_for(path, process):
    while not os.path.exists(path):
        if process.poll() is not None:
            sys.exit(f"ps ended with status {process.returncode}")
        time.sleep(0.02)
    with open(path) as file:
        return file.read().strip()


def train(bin_, trainers, epochs, options):
    """What one run on a ps of its own took in all, and how fast it was."""
    with tempfile.TemporaryDirectory() as work:
        command = [f"{bin_}/ps", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--shards", str(options.shards)]
        command += ["--port-file", f"{work}/url"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = wait_for(f"{work}/url", server)
            ours = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [f"{bin_}/trainer", "packages", "--server", url, "--spawn", "--json"]
            command += ["--lanes", str(options.lanes), "--trainers", str(trainers), "--epochs", str(epochs)]
            result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = {"ps ms": 1e3 * processor(server.pid)}
        finally:
            server.terminate()
            server.wait()
    used["trainers ms"] = 1e3 * (theirs.ru_utime + theirs.ru_stime - ours.ru_utime - ours.ru_stime)
    for name, unit in ("messages_sent", 1), ("messages_received", 1), ("bytes_sent", 1024), ("bytes_received", 1024):
        if name in result:  # an older build counts no messages
            used[name.replace("bytes", "KiB").replace("_", " ")] = result[name] / unit
    return result["samples_per_second"], result["batches"], used


def run(bin_, trainers, options):
    """The rate of a long run, and of its batches beyond those of a short one what each took."""
    _, few, short = train(bin_, trainers, 1, options)
    rate, many, long = train(bin_, trainers, 1 + options.epochs, options)
    return {"samples/s": rate} | {name: (long[name] - short[name]) / (many - few) for name in long}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", action="append", help="folder of ps and trainer; repeat it to compare builds (bin)")
    parser.add_argument("--trainers", default="1,2,4,8,16,32")
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="how many more the long run has than the short one")
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    for trainers in map(int, options.trainers.split(",")):
        builds = options.bin or ["bin"]
        runs = {bin_: [] for bin_ in builds}
        for _ in range(options.runs):
            for bin_ in builds:
                runs[bin_].append(run(bin_, trainers, options))
        for bin_, found in runs.items():
            print(f"{trainers:3} trainers  {bin_}: " + ", ".join(
                f"{name} {statistics.median(r[name] for r in found):,.1f}" for name in found[0]), flush=True)


if __name__ == "__main__":
    main()
