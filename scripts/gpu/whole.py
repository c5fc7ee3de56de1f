"""The phase whole: jobs as users run them, by cpu with one thread, cpu with eight, and cuda."""

import json
import statistics

import server

TURNS = 3
PARTS = ("keys", "rows", "compute", "send", "results")
SIDES = {"cpu x1": ("cpu", 1), "cpu x8": ("cpu", 8), "cuda": ("cuda", 1)}


def packages(step, kit):
    """The rate of packages by batch and dim, the three sides in turn, and of one size what a trainer spends its time on."""
    kit.jobs()
    batches, dims, epochs = ((64, 128), (8,), 1) if kit.emulated else ((256, 1024, 4096, 16384), (64, 256), 4)
    data = server.index(kit.work / "Packages", 2000 if kit.emulated else 65000)
    servers = {side: server.Server(step, kit, backend, side.replace(" ", "-"), "--gpu", "off", "--threads", str(threads))
               for side, (backend, threads) in SIDES.items()}
    rates, parts, turns = {}, {}, 0
    for turn in range(TURNS):
        for dim in dims:
            for batch in batches:
                for side, (_, threads) in SIDES.items():
                    if step.left() < 8:
                        step.wrong("no time for the rest of turn %d of %d" % (turn + 1, TURNS))
                        return tell(step, rates, parts)
                    arguments = ["--trainers", "1", "--dim", dim, "--batch", batch, "--epochs", epochs, "--threads", threads, "--lr", "5"]
                    found = server.result(step.run(servers[side].job("whole-%d" % turns, arguments, data), kit))
                    turns += 1
                    rates.setdefault((dim, batch, side), []).append(found["samples_per_second"])
                    if (dim, batch) == (dims[0], batches[-2]):
                        for part in PARTS:
                            parts.setdefault((side, part), []).append(found["time"][part] / found["seconds"] * 100)
    for ps in servers.values():
        ps.end()
    return tell(step, rates, parts)


def tell(step, rates, parts):
    for (dim, batch, side), runs in sorted(rates.items()):
        step.figure("packages, dim %d, batch %d, %s" % (dim, batch, side), statistics.median(runs), "samples/s", runs)
    for (side, part), runs in sorted(parts.items()):
        step.figure("packages, %s: time for %s" % (side, part), statistics.median(runs), "%", runs)


def dlrm(step, kit):
    """DLRM with its layers on the GPU: tables of nn.EmbeddingBag there, of gradbus in the process, and of gradbus on a ps."""
    kit.need("python/gradbus/libgradbus.so", "build/capi/libgradbus.so")
    sizes = "--rounds 1 --steps 3 --warmup 2 --distinct 5 --batch 64 --smaller 1000" if kit.emulated else "--rounds 3 --steps 100 --batch 2048"
    out = step.run([kit.torch(), "-B", "python/bench/compare.py", "--ways", "plain,local,gradbus", "--processes", "1", "--json", "--ps", kit.need("bin/ps"),
                    "--device", "cpu:0" if kit.emulated else "cuda", *sizes.split()], kit)
    rounds = json.loads(out.strip().splitlines()[-1])["rounds"]
    for way, name in (("plain", "nn.EmbeddingBag"), ("local", "gradbus, one process"), ("gradbus", "gradbus, on a ps")):
        runs = [r[way]["samples_per_second"] for r in rounds]
        step.figure("DLRM, " + name, statistics.median(runs), "samples/s", runs)


STEPS = [("packages", 390, packages), ("dlrm", 150, dlrm)]
