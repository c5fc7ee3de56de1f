"""Libraries whose kernels have other constants, compiled on the machine with the GPU.

The whole library is compiled once, by CMake, for the machine's GPU. Of each variant only the CUDA sources that see the constant are
compiled again, by the very commands that CMake wrote down, from a copy of csrc with that one line changed.
"""

import collections
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import time

from phase import Failed

# Constant: its file, its line with its values as groups, and what makes other values of them.
Constant = collections.namedtuple("Constant", "name file pattern changes")
TIMES, PLUS = (lambda n: n // 2, lambda n: 2 * n), (lambda n: n - 1, lambda n: n + 1)
CONSTANTS = (
    Constant("kInFlight", "cuda/places.cuh", r"constexpr int kInFlight = (\d+);", TIMES),
    Constant("SumBlocks", "cuda/segments.cuh", r"return light && kReading == kFours16 \? (\d+) : light && kReading == kFours32 \? (\d+) : (\d+);", PLUS),
    Constant("kWaves", "cuda/segments.cuh", r"constexpr int64_t kWaves = (\d+);", TIMES),
    Constant("kSumThreads", "cuda/segments.cuh", r"constexpr int kSumThreads = (\d+);", TIMES),
    Constant("kLong", "cuda/check_device.cuh", r"constexpr uint32_t kLong = (\d+);", TIMES),
)
AS_IT_IS = "as it is"
Built = collections.namedtuple("Built", "libraries missing")


def changed(text, constant, change):
    """The text of the constant's file with other values, and these."""
    found = list(re.finditer(constant.pattern, text))
    if len(found) != 1:
        raise Failed("%s: %d lines of csrc/%s match, want 1" % (constant.name, len(found), constant.file))
    line, values = found[0][0], [change(int(v)) for v in found[0].groups()]
    at, end = found[0].span()
    for group in range(len(values), 0, -1):
        b, e = found[0].span(group)
        line = line[:b - at] + str(values[group - 1]) + line[e - at:]
    return text[:at] + line + text[end:], values


def sees(csrc, source, file, known):
    """Whether a source includes a file of csrc, by way of others too."""
    if source not in known:
        known[source] = set()
        text = (csrc / source).read_text(encoding="utf-8")
        for name in re.findall(r'^#include "([^"]+)"', text, re.M):
            for place in (name, os.path.join(os.path.dirname(source), name)):
                if (csrc / place).exists():
                    known[source] |= {os.path.normpath(place)} | sees(csrc, os.path.normpath(place), None, known)
                    break
    return known[source] if file is None else file in known[source]


def commands(step, kit, arch):
    """What CMake compiles: [(source below the folder or None, command as words)], and the static runtime of CUDA."""
    build = kit.work / "sweep"
    environment = {**kit.environment, "CUDACXX": kit.tool("nvcc")}
    step.run([kit.tool("cmake"), "-S", kit.root, "-B", build, "-DGRADBUS_CUDA=ON", "-DGRADBUS_CUDA_ARCHITECTURES=%s-real" % arch, "-DGRADBUS_TESTS=OFF",
              "-DGRADBUS_EMU=OFF", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DGRADBUS_STAMP=%s/native_stamp.h" % build], kit, env=environment)
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if "gradbus_objects" in entry.get("output", words[words.index("-o") + 1]):
            if "--options-file" in words:  # its folders change, too
                at = words.index("--options-file")
                words[at:at + 2] = shlex.split((build / words[at + 1]).read_text())
            found[os.path.relpath(entry["file"], kit.root)] = words
    cudart = re.search(r"^GRADBUS_CUDART:\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)
    if not found or not cudart:
        raise Failed("CMake wrote down no commands for the CUDA sources")
    return found, cudart[1]


def variants(kit, most):
    """{name: (folder with its csrc, the changed file)} of the library as it is and of so many variants."""
    found = {AS_IT_IS: (kit.root, None)}
    for constant, change in [(c, change) for c in CONSTANTS for change in c.changes][:most]:
        text, values = changed((kit.root / "csrc" / constant.file).read_text(encoding="utf-8"), constant, change)
        name = "%s %s" % (constant.name, "/".join(map(str, values)))
        folder = kit.work / ("variant-" + re.sub(r"\W+", "-", name))
        shutil.copytree(kit.root / "csrc", folder / "csrc")
        (folder / "csrc" / constant.file).write_text(text, encoding="utf-8")
        found[name] = (folder, constant.file)
    return found


def planned(kit, found, all_):
    """{(variant, source): (object, command)} of what has to be compiled."""
    known, tasks = {}, {}
    for name, (folder, file) in all_.items():
        objects = (folder if file else kit.work) / "objects"
        objects.mkdir()
        for source, words in found.items():
            if file is None or sees(kit.root / "csrc", os.path.relpath(source, "csrc"), file, known):
                to = objects / (source.replace("/", "-") + ".o")
                words = [w.replace(str(kit.root / "csrc"), str(folder / "csrc")) for w in words]
                words[words.index("-o") + 1] = str(to)
                tasks[name, source] = to, words
    return tasks


def sample(step, kit, arch):
    """Compiles one source of one variant, and names both."""
    found, _ = commands(step, kit, arch)
    (name, source), (_, words) = list(planned(kit, found, variants(kit, 1)).items())[-1]
    step.run(words, kit, cwd=kit.work)
    return source + " of " + name


def build(step, kit, seconds, arch):
    """Compiles the variants, as many as come to an end within some seconds."""
    end = time.monotonic() + min(seconds, step.left() - 10)
    found, cudart = commands(step, kit, arch)
    all_ = variants(kit, None)
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    tasks = {key: (to, pool.submit(compile_one, step, kit, words, end)) for key, (to, words) in planned(kit, found, all_).items()}
    libraries, missing = {}, {}
    for name in all_:
        objects = dict({s: t for (n, s), t in tasks.items() if n == AS_IT_IS}, **{s: t for (n, s), t in tasks.items() if n == name})
        try:
            for _, task in objects.values():
                task.result()
            libraries[name] = kit.work / ("lib%d.so" % len(libraries))
            step.run(["c++", "-shared", "-o", libraries[name], *(o for o, _ in objects.values()), cudart, "-lpthread", "-ldl", "-lrt"], kit)
        except Failed as e:
            libraries.pop(name, None)
            missing[name] = str(e)
    pool.shutdown()
    return Built(libraries, missing)


def compile_one(step, kit, words, end):
    """Compiles one file, or says that there was no time for it."""
    if end - time.monotonic() < 1:
        raise Failed("not compiled within its time")
    step.run(words, kit, seconds=end - time.monotonic(), cwd=kit.work)
