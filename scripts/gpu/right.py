"""The phase right: whether the GPU gives what the CPU gives, and whether its health is seen."""

import math
import os
import signal
import subprocess
import sys
import time

import card
import server
from phase import Failed, Skip

# Tests whose vectors are small: for compute-sanitizer, and for the emulated device.
SMALL = ("^(TestBagForward|TestBagBackward|TestCoalesce|TestMerge|TestAverage|TestApply|TestMatMul|TestSoftmaxCrossEntropy|TestFirstNonFinite|TestCopy"
         "|TestWeights|TestMaximum|TestSkippedIDs|TestSteps|TestAdagrad|TestAdam|TestNonFinite|TestRoundedOnce|TestMisaligned|TestOrdersOfIDs"
         "|TestStream|TestStreamBadID)$")
BACKENDS = ("go", "cpu", "cuda")
JOBS = ("--trainers 2 --dim 64", "--trainers 2 --optimizer adam --batch 1024", "--trainers 2 --optimizer rowwise_adagrad --placement rows",
        "--trainers 2 --apply mean --reduce trainers", "--trainers 1 --dim 256 --batch 8192 --lr 5")
EMULATED_JOBS = ("--trainers 2 --dim 8", JOBS[-1])
XID_SECONDS = 5


def cpp_tests(step, kit):
    """The C++ tests, each a program."""
    programs = sorted(p for p in kit.need("tests").glob("gradbus_*") if os.access(p, os.X_OK) and p.is_file() and p.suffix != ".so")
    if not programs:
        raise Skip("not built: no tests/gradbus_*")
    for program in programs:
        try:
            step.run([program], kit)
        except Failed as e:
            step.wrong(str(e))
    step.figure("C++ test programs", len(programs), "count")


def go_tests(step, kit, *more):
    """The Go tests of every operation on this very library, bit for bit against the CPU; then those of other packages."""
    if kit.emulated:
        more = ("-test.short", "-test.run", SMALL)
    first = kit.need("tests/cuda.test")
    for test in [first, *sorted(set(first.parent.glob("*.test")) - {first})]:
        arguments = ["-library", kit.kernels(), "-require", "cuda", *more] if test == first else ["-test.short"]
        try:
            out = step.run([test, "-test.timeout", "%.0fs" % step.left(), "-test.v", *arguments], kit, cwd=kit.need(test.stem))
        except Failed as e:
            step.wrong(str(e))
            continue
        step.figure("Go tests of " + test.stem, sum(line.startswith("--- PASS") for line in out.splitlines()), "count")


def sanitizers(step, kit):
    """compute-sanitizer's four tools on the small tests, side by side."""
    kit.card()
    tool, test = kit.tool("compute-sanitizer"), kit.need("tests/cuda.test")
    # Go interrupts its threads with signals, which the tool takes for the program's own.
    more = {"cwd": kit.need("cuda"), "env": {**kit.environment, "GODEBUG": "asyncpreemptoff=1"}}
    files = {name: kit.work / ("sanitizer-" + name) for name in ("memcheck", "racecheck", "initcheck", "synccheck")}
    children = {}
    for name, path in files.items():
        with open(path, "wb") as to:
            children[name] = step.start([tool, "--tool", name, "--error-exitcode", "86", "--print-limit", "20", test, "-library", kit.kernels(),
                                         "-require", "cuda", "-test.short", "-test.run", SMALL], kit, to=to, **more)
    for name, child in children.items():
        try:
            status = child.wait(max(step.left(), 0.1))
        except subprocess.TimeoutExpired:
            status = "none within its time"
        text = files[name].read_text(errors="replace")
        step.log.write("== %s\n%s\n" % (name, text[-20000:]))
        if status != 0:
            step.wrong("%s: status %s" % (name, status))


def jobs(step, kit):
    """Jobs by every backend: all end with the same weights, bit for bit. The last is so large that a GPU takes part."""
    kit.jobs()
    epochs, digests = ["--epochs", "1" if kit.emulated else "3"], {}
    data = server.index(kit.work / "Packages", 9500 if kit.emulated else 20000)
    for backend in BACKENDS:
        ps = server.Server(step, kit, backend, "digests-" + backend, "--gpu", "off")
        for i, job in enumerate(EMULATED_JOBS if kit.emulated else JOBS):
            found = server.result(step.run(ps.job("job-%d" % i, job.split() + epochs, data), kit))
            if not found["backend"].startswith(backend):
                step.wrong("%s: ran on %s, not on %s" % (job, found["backend"], backend))
            digest = digests.setdefault(job, found["weights_sha256"])
            if not digest or found["weights_sha256"] != digest:
                step.wrong("%s: other weights on %s than on %s" % (job, backend, BACKENDS[0]))
        if backend == "cuda":
            calls = ps.calls().get("cuda", 0)
            step.figure("operations of the ps that the GPU did", calls, "count")
            if not calls:
                step.wrong("the GPU did no operation of the ps")
        ps.end()
    step.figure("jobs with equal weights on " + ", ".join(BACKENDS), len(digests), "count")


def goes_on(step, kit):
    """A job that is begun by a ps of one backend, which is killed, and ended by a ps of the other from the first one's version, has the
    weights of the CPU."""
    kit.jobs()
    arguments = (EMULATED_JOBS[0] if kit.emulated else JOBS[2]).split() + ["--epochs", "400" if kit.emulated else "250"]
    ps = server.Server(step, kit, "cpu", "whole", "--gpu", "off")
    want = server.result(step.run(ps.job("whole", arguments), kit))["weights_sha256"]
    ps.end()
    for first, second in (("cpu", "cuda"), ("cuda", "cpu")):
        name, folder = "%s-then-%s" % (first, second), kit.work / ("versions-" + first)
        more = ("--gpu", "off", "--checkpoint-dir", folder, "--checkpoint-every", "1s")
        ps = server.Server(step, kit, first, name + "-1", *more)
        out = kit.work / (name + ".json")
        with open(out, "wb") as to:
            trainer = step.start(ps.job(name, arguments), kit, to=to)
        step.until(30, "durable version of the first ps", lambda: trainer.poll() is not None or (folder.exists() and any(folder.rglob("complete.json"))))
        if trainer.poll() is not None:
            raise Failed("%s: the job ended before the first ps did" % name)
        ps.end(signal.SIGKILL)
        after = server.Server(step, kit, second, name + "-2", *more, listen=ps.url.split("//")[1])
        if trainer.wait(max(step.left(), 0.1)) != 0:
            raise Failed("%s: the trainer ended with status %d" % (name, trainer.returncode))
        if not after.said("job restarts"):
            step.wrong("%s: the second ps did not go on from a version of the first" % name)
        if server.result(out.read_text())["weights_sha256"] != want:
            step.wrong("%s: other weights than by one ps on the CPU" % name)
        after.end()


def torch_kernels(step, kit):
    """The kernels on PyTorch's CUDA tensors beside PyTorch's own: bit for bit where both add in one order, else within a bound."""
    kit.card()
    step.run([kit.torch(), "-B", "csrc/bench/compare_torch.py", "--device", "cuda", "--library", kit.kernels(), "--quick", "--seconds", "0.02"], kit)


def torch_model(step, kit):
    """A model with gradbus tables whose tensors are on the GPU trains to the bits of the same on the CPU."""
    python, package = kit.torch(), kit.need("python/gradbus")
    kit.need("python/gradbus/libgradbus.so", "build/capi/libgradbus.so")
    device = "cpu" if kit.emulated else "cuda"
    out = step.run([python, "-B", kit.root / "scripts/gpu/torch_model.py", "--device", device], kit,
                   env={**kit.environment, "PYTHONPATH": str(package.parent)}, statuses=(0, 3))
    if "SKIP" in out:
        raise Skip(out.split("SKIP", 1)[1].strip().splitlines()[0])


def xid(step, kit):
    """A fault in a process of its own, seen by ps. On the emulated device the ps makes it up."""
    state = ["--gpu-state", kit.work / "gpus.json"]
    if kit.emulated:
        ps = server.Server(step, kit, "cpu", "xid", "--gpu-use", "0", "--inject", "gpu=0,xid=31,after=2s", *state)
    else:
        ps = server.Server(step, kit, "cpu", "xid", "--gpu", "require", *state)
    def count():
        return sum(v for (name, _), v in ps.metrics().items() if name == "gradbus_gpu_xid_events_total")
    if count():
        raise Failed("the ps counts XIDs before one was provoked")
    begin = time.monotonic()
    if not kit.emulated:
        step.until(15, "GPU in the metrics", lambda: any(name == "gradbus_gpu_info" for name, _ in ps.metrics()))
        begin = time.monotonic()
        step.run([sys.executable, "-B", kit.root / "scripts/gpu/xid.py"], kit, seconds=15)
    step.until(XID_SECONDS, "XID in the metrics of the ps", count)
    step.figure("an XID is seen by ps after", time.monotonic() - begin, "s")
    ps.end()


# Values of NVML as ps shows them: the metric or its label, nvidia-smi's name, the unit of nvidia-smi in that of the metric, and how far
# the metric may be outside of what nvidia-smi said before and after. nvidia-smi leaves out the memory that the driver keeps for itself.
TEXTS = {"gpu": "uuid", "name": "name", "driver": "driver_version", "pci": "pci.bus_id"}
NUMBERS = {"gradbus_gpu_memory_size_bytes": ("memory.total", 2**20, 2**20), "gradbus_gpu_memory_used_bytes": ("memory.used", 2**20, 2**30),
           "gradbus_gpu_temperature_celsius": ("temperature.gpu", 1, 2), "gradbus_gpu_power_watts": ("power.draw", 1, 60),
           "gradbus_gpu_power_limit_watts": ("enforced.power.limit", 1, 1), "gradbus_gpu_sm_clock_hertz": ("clocks.sm", 1e6, 3e8),
           "gradbus_gpu_memory_clock_hertz": ("clocks.mem", 1e6, 1e6), "gradbus_gpu_pcie_lanes": ("pcie.link.width.current", 1, 0)}


def short_pci(text):
    """An address without leading zeros, function and case, in which drivers differ."""
    return ":".join(part.lstrip("0") or "0" for part in text.lower().split(".")[0].split(":"))


def differences(metrics, before, after):
    """What of twelve values differs between the metrics of a ps and what nvidia-smi said before and after."""
    wrong = []
    info = next((server.labels(text) for (name, text) in metrics if name == "gradbus_gpu_info"), {})
    for label, field in TEXTS.items():
        ours, theirs = info.get(label, ""), before.get(field, "")
        if (short_pci(ours) != short_pci(theirs) if label == "pci" else ours != theirs) or not ours:
            wrong.append("%s: %r, nvidia-smi has %r" % (label, ours, theirs))
    for name, (field, unit, off) in NUMBERS.items():
        ours = next((v for (n, _), v in metrics.items() if n == name), None)
        theirs = [card.number(x.get(field)) for x in (before, after)]
        if ours is None and theirs == [None, None]:
            continue  # the driver tells it to neither
        if ours is None or None in theirs or not min(theirs) * unit - off <= ours <= max(theirs) * unit + off or math.isnan(ours):
            wrong.append("%s: %s, nvidia-smi has %s" % (name, ours, theirs))
    return wrong


def nvml(step, kit):
    """Twelve values of NVML that ps shows, next to nvidia-smi."""
    kit.card()
    fields = list(TEXTS.values()) + [field for field, _, _ in NUMBERS.values()]
    ps = server.Server(step, kit, "cpu", "nvml", "--gpu", "require", "--gpu-state", kit.work / "nvml.json")
    step.until(15, "GPU in the metrics", lambda: any(name == "gradbus_gpu_temperature_celsius" for name, _ in ps.metrics()))
    before = card.query(*fields)
    time.sleep(3)  # so that the metrics are of a sample between the two
    metrics, after = ps.metrics(), card.query(*fields)
    for wrong in differences(metrics, before, after):
        step.wrong(wrong)
    step.figure("values of NVML compared with nvidia-smi", len(fields), "count")
    for words in (["status", "--ps", ps.page], ["gpu-ack", "--gpu-state", kit.work / "nvml.json"]):  # for the log, as users see it
        step.log.write(step.run([kit.need("bin/ps"), *words], kit))
    ps.end()


STEPS = [("nvml", 40, nvml), ("c++-tests", 60, cpp_tests), ("jobs", 110, jobs), ("goes-on", 75, goes_on), ("torch-kernels", 60, torch_kernels),
         ("torch-model", 40, torch_model), ("go-tests", 160, go_tests), ("sanitizers", 150, sanitizers), ("xid", 40, xid)]
