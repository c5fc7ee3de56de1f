#!/usr/bin/env python3
"""Tests of the runner, and one small phase whose JSON goes into the folder given: bench/gpu runs them and reads it."""

import contextlib
import io
import json
import pathlib
import sys
import unittest

import fast
import phase
import right
import server
import sweep

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Names(unittest.TestCase):
    def test_called(self):
        for row, want in (
                ({"op": "bag_forward", "rows": 10**6, "dim": 64, "bags": 8192, "length": 20, "n": 163840, "ids": "zipf"}, "bag_forward 1M x 64, 8192 x 20, zipf"),
                ({"op": "coalesce", "rows": 10**6, "dim": 64, "n": 163840, "ids": "uniform"}, "coalesce 1M x 64, 164k, uniform"),
                ({"op": "dense sgd", "n": 64 * 10**6, "torch": "torch.optim.SGD(lr, fused=True).step()"}, "dense sgd, 64M, fused"),
                ({"op": "average", "terms": 8, "n": 6250000, "torch": "torch.mean(stacked)"}, "average, 8 of 6.25M, mean"),
                ({"op": "bag_forward", "rows": 5 * 10**6, "dim": 128, "bags": 8, "length": 1, "dtype": "float16"}, "bag_forward 5M x 128, 8 x 1, float16")):
            self.assertEqual(fast.called(row), want)


class Ncu(unittest.TestCase):
    text = ('==PROF== Connected\n"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed"\n'
            '"","","ns","%"\n"0","void gradbus::look_kernel<1>(int)","1,500.0","3.5"\n"1","void gradbus::sum_kernel<(Term)0>(int)","22,400.0","61.2"\n')

    def test_longest(self):
        kernel, found = fast.profiled(self.text)
        self.assertEqual(kernel, "sum_kernel")
        self.assertEqual(found["dram__throughput.avg.pct_of_peak_sustained_elapsed"], 61.2)
        self.assertAlmostEqual(found["gpu__time_duration.sum"], 22.4)

    def test_nothing(self):
        for text in ("", "==ERROR== ERR_NVGPUCTRPERM\n", self.text.split('"0"')[0]):
            self.assertRaises(phase.Failed, fast.profiled, text)


class Nvml(unittest.TestCase):
    info = 'driver="580.1",gpu="GPU-1",host="h",index="0",name="NVIDIA X",pci="0000:41:00.0"'
    smi = {"uuid": "GPU-1", "name": "NVIDIA X", "driver_version": "580.1", "pci.bus_id": "00000000:41:00.0", "memory.total": "1000", "memory.used": "100",
           "temperature.gpu": "40", "power.draw": "100.5", "enforced.power.limit": "700.00", "clocks.sm": "1980", "clocks.mem": "3201",
           "pcie.link.width.current": "16"}
    values = {"gradbus_gpu_memory_size_bytes": 1000 * 2**20, "gradbus_gpu_memory_used_bytes": 600 * 2**20, "gradbus_gpu_temperature_celsius": 41,
              "gradbus_gpu_power_watts": 101, "gradbus_gpu_power_limit_watts": 700, "gradbus_gpu_sm_clock_hertz": 1.98e9,
              "gradbus_gpu_memory_clock_hertz": 3.201e9, "gradbus_gpu_pcie_lanes": 16}

    def differing(self, change, smi=None):
        metrics = {("gradbus_gpu_info", self.info): 1, **{(n, 'gpu="GPU-1",host="h"'): v for n, v in {**self.values, **change}.items() if v is not None}}
        return right.differences(metrics, {**self.smi, **(smi or {})}, {**self.smi, **(smi or {})})

    def test_equal(self):
        self.assertEqual(self.differing({}), [])
        self.assertEqual(len(right.TEXTS) + len(right.NUMBERS), 12)

    def test_each_that_differs_is_told(self):
        for name, value in self.values.items():
            self.assertEqual(len(self.differing({name: 2 * value + 2**31})), 1, name)
            self.assertEqual(len(self.differing({name: None})), 1, name)
        for field in right.TEXTS.values():
            self.assertEqual(len(self.differing({}, {field: "1:2:3" if field == "pci.bus_id" else "other"})), 1, field)

    def test_what_neither_tells(self):
        self.assertEqual(self.differing({"gradbus_gpu_pcie_lanes": None}, {"pcie.link.width.current": "[N/A]"}), [])


class Metrics(unittest.TestCase):
    def test_sample(self):
        self.assertEqual(server.sample('a_total{gpu="x y",xid="xid-31"} 2'), (("a_total", 'gpu="x y",xid="xid-31"'), 2.0))
        self.assertEqual(server.sample("a 1e+06"), (("a", ""), 1e6))
        self.assertEqual(server.labels('gpu="x y",name="a\\"b"'), {"gpu": "x y", "name": 'a\\"b'})


class Sweep(unittest.TestCase):
    def test_every_constant_is_there_and_changes(self):
        for constant in sweep.CONSTANTS:
            text = (ROOT / "csrc" / constant.file).read_text(encoding="utf-8")
            for change in constant.changes:
                new, values = sweep.changed(text, constant, change)
                self.assertEqual(sum(a != b for a, b in zip(text.splitlines(), new.splitlines())), 1, constant.name)
                self.assertTrue(all(v > 0 for v in values), constant.name)

    def test_a_constant_that_is_gone(self):
        self.assertRaisesRegex(phase.Failed, "kWaves: 0 lines", sweep.changed, "", sweep.CONSTANTS[2], lambda n: n)

    def test_sources_see_files_by_way_of_others(self):
        known = {}
        self.assertTrue(sweep.sees(ROOT / "csrc", "cuda/bag_forward.cu", "cuda/places.cuh", known))
        self.assertFalse(sweep.sees(ROOT / "csrc", "cuda/apply_dense.cu", "cuda/segments.cuh", known))


def wrong(step, kit):
    step.figure("before it went wrong", 1, "count")
    step.wrong("this")
    step.run(["sh", "-c", "echo that >&2; exit 3"], kit)


def hangs(step, kit):
    step.run(["sh", "-c", "sleep 1000 & wait"], kit)


def unbuilt(step, kit):
    kit.need("no/such/file")


def small(out):
    """A phase of every outcome, in which the last steps run all the same."""
    steps = [("good", 60, lambda step, kit: step.figure("rate", 2, "ms", [1, 2, 3])), ("wrong", 60, wrong), ("hangs", 3, hangs), ("unbuilt", 60, unbuilt),
             ("defect", 60, lambda step, kit: {}["none"]), ("unchosen", 60, wrong), ("last", 60, lambda step, kit: step.run(["true"], kit))]
    machine = {"card": "emulated", "driver": "", "capability": "", "commit": "none"}
    said = io.StringIO()
    with phase.Kit(ROOT, out, True) as kit, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        failed = phase.run("right", steps, kit, machine, dict, [name for name, _, _ in steps if name != "unchosen"])
    reasons = {s["name"]: s["reason"] for s in json.loads((out / "right.json").read_text())["steps"]}
    for name, want in (("wrong", "this; sh ended with status 3: that"), ("hangs", "sh ran past its 3 s"), ("unbuilt", "not built: no no/such/file")):
        if want not in reasons[name]:
            sys.exit("step %s: %s, want %s" % (name, reasons[name], want))
    if failed != 3:
        sys.exit("%d steps failed, want 3" % failed)


if __name__ == "__main__":
    to = pathlib.Path(sys.argv.pop(1))
    small(to)
    unittest.main()
