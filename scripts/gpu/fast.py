"""The phase fast: how long kernels take, next to PyTorch's and cuEmbed's, what bounds them, and what their constants are worth."""

import csv
import io
import json
import re
import statistics

import card
import sweep
from phase import Failed, Skip

# What ncu tells of a kernel, by the names of figures.
METRICS = {"gpu__time_duration.sum": ("time", "us"), "dram__throughput.avg.pct_of_peak_sustained_elapsed": ("share of DRAM", "%"),
           "sm__warps_active.avg.pct_of_peak_sustained_active": ("occupancy", "%"),
           "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("waits for memory", "warps"),
           "smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio": ("waits for the queue", "warps"),
           "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("waits at barriers", "warps")}
PROFILED = (0, 3, 5, 7)  # of the cases of ours.py: bags of 64 and of 256 values, coalesce and coalesce+sgd of uniform ids
FORMS = (("foreach=True", "foreach"), ("fused=True", "fused"), ("index_add_", "index"), ("momentum=0).step", "plain"), ("sparse buffer", "optim"),
         ("torch.mean", "mean"), ("torch.add", "add"))


def amount(n):
    """6250000 as 6.25M, 163840 as 164k."""
    size, unit = (10**6, "M") if n >= 10**6 else (10**3, "k") if n >= 10**4 else (1, "")
    return ("%.3g" % (n / size) if size > 1 else str(n)) + unit


def called(row):
    """The name of a measurement of psbench kernels or compare_torch.py."""
    parts = [row["op"]]
    if row.get("rows"):
        parts[0] += " %s x %d" % (amount(row["rows"]), row["dim"])
    if row.get("bags"):
        parts.append("%d x %d" % (row["bags"], row["length"]))
    elif row.get("terms"):
        parts.append("%d of %s" % (row["terms"], amount(row["n"])))
    elif row.get("n"):
        parts.append(amount(row["n"]))
    if row.get("ids"):
        parts.append(row["ids"])
    if row.get("dtype", "float32") != "float32":
        parts.append(row["dtype"])
    form = next((short for text, short in FORMS if text in row.get("torch", "")), "")
    return ", ".join(parts + [form] * bool(form))


def psbench(kit, *more):
    """The command that measures kernels on the device."""
    return [kit.need("bin/psbench"), "kernels", "--backend", "cuda", "--kernel-library", kit.kernels(), *(["--quick"] if kit.emulated else []), *more]


def kernels(step, kit):
    """Every operation by calls queued on a stream, on device memory."""
    ops = ["--ops", "bag_forward,average"] if kit.emulated else []
    text = step.run(psbench(kit, "--json", *ops), kit)
    (kit.out / "kernels.json").write_text(text)
    for row in json.loads(text):
        step.figure(called(row), row["seconds"] * 1e3, "ms")
        if row["op"].startswith("stream"):
            step.figure(row["op"] + " rate", row["gb_per_second"], "GB/s")


def placed(step, kit):
    """Calls of shards and trainers on the host's memory, by the CPU and by the GPU."""
    kit.card()
    out = step.run([kit.need("tests/cuda.test"), "-library", kit.kernels(), "-test.run", "NONE", "-test.bench", "Placed", "-test.benchtime", "20x"], kit,
                   cwd=kit.need("cuda"))
    for name, value in re.findall(r"^BenchmarkPlaced/(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op", out, re.M):
        step.figure(name.replace("_", " "), float(value) / 1e3, "us")
    if not step.figures:
        raise Failed("the benchmark printed no figures")


def torch(step, kit):
    """The same operations in PyTorch, on the same tensors, in turn."""
    kit.card()
    path = kit.out / "torch.json"
    step.run([kit.torch(), "-B", "csrc/bench/compare_torch.py", "--device", "cuda", "--library", kit.kernels(), "--seconds", "1", "--json", path], kit)
    for row in json.loads(path.read_text()):
        name = called(row)
        step.figure(name, row["seconds"] * 1e3, "ms")
        step.figure(name + ", ratio", row["ratio"], "x")


def cuembed(step, kit):
    """cuEmbed's forward pass on the sizes of ours."""
    headers, nvcc = kit.need("third_party/cuembed"), kit.tool("nvcc")
    program, arch = kit.work / "cuembed", "-arch=sm_90" if kit.emulated else "-arch=native"
    release = re.search(r"release (\d+)", step.run([nvcc, "--version"], kit))
    if release and int(release[1]) < 12:
        raise Skip("nvcc of CUDA %s: cuEmbed needs 12" % release[1])
    step.run([nvcc, "-O3", "-std=c++17", arch, "-I", headers, "scripts/gpu/cuembed.cu", "-o", program, *(["-c"] if kit.emulated else [])], kit)
    if kit.emulated:
        raise Skip("compiled; the emulated device does not run it")
    for line in step.run([program], kit).splitlines():
        name, milliseconds = line.rsplit(" ", 1)
        step.figure(name, float(milliseconds), "ms")


def profiled(text):
    """{metric: value} of the longest kernel in ncu's table of raw values, and its name."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    values = [r for r in rows if r.get("ID", "").isdigit()]  # the first row has units
    def of(row, metric):
        try:
            return float(row.get(metric, "").replace(",", ""))
        except ValueError:
            return None
    values = [r for r in values if of(r, "gpu__time_duration.sum") is not None]
    if not values:
        raise Failed("ncu told of no kernel: it may need the right to read the GPU's counters")
    longest = max(values, key=lambda r: of(r, "gpu__time_duration.sum"))
    units = rows[0] if not rows[0].get("ID", "").isdigit() else {}
    found = {m: of(longest, m) for m in METRICS if of(longest, m) is not None}
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}.get(units.get("gpu__time_duration.sum", ""), 1e-3)
    found["gpu__time_duration.sum"] *= scale
    return re.sub(r"[<(].*", "", longest.get("Kernel Name", "")).split("::")[-1], found


def ncu(step, kit):
    """What bounds the longest kernel of an operation."""
    kit.card()
    tool, python, library = kit.tool("ncu"), kit.torch(), kit.kernels()
    for number in PROFILED:
        text = step.run([tool, "--csv", "--page", "raw", "--metrics", ",".join(METRICS), "--profile-from-start", "off", "--target-processes", "all",
                         python, "-B", "scripts/gpu/ours.py", "--profile", number, "it=%s" % library], kit)
        (kit.out / ("ncu-%d.csv" % number)).write_text(text)
        name = called(next(json.loads(line) for line in text.splitlines() if line.startswith('{"op"')))
        try:
            kernel, found = profiled(text)
        except Failed as e:
            step.wrong("%s: %s" % (name, e))
            continue
        step.log.write("ncu: the longest kernel of %s is %s\n" % (name, kernel))
        for metric, value in found.items():
            step.figure("%s: %s" % (name, METRICS[metric][0]), value, METRICS[metric][1])


def constants(step, kit):
    """What other values of the kernels' constants are worth: all are compiled first, then measured in turn, three times."""
    if kit.emulated:
        raise Skip("compiled %s alone; the emulated device has no times of its own" % sweep.sample(step, kit, "90"))
    python, arch = kit.torch(), card.query("compute_cap").get("compute_cap", "").replace(".", "")
    built = sweep.build(step, kit, step.limit * 0.65, arch)
    for name, why in built.missing.items():
        step.wrong("%s: %s" % (name, why))
    out = step.run([python, "-B", "scripts/gpu/ours.py", *("%s=%s" % pair for pair in built.libraries.items())], kit)
    for row in json.loads(out.strip().splitlines()[-1]):
        step.figure("%s: %s" % (row["name"], called(row)), statistics.median(row["runs"]) * 1e6, "us", [r * 1e6 for r in row["runs"]])


STEPS = [("kernels", 110, kernels), ("torch", 110, torch), ("cuembed", 60, cuembed), ("ncu", 80, ncu), ("placed", 40, placed), ("sweep", 240, constants)]
