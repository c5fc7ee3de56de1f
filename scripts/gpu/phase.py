"""A phase: steps with time limits, and the JSON that they leave."""

import datetime
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PHASE_SECONDS = 540
OK, FAILED, SKIPPED = "ok", "failed", "skipped"


class Skip(Exception):
    """What a step needs is not built yet, or is not on this machine."""


class Failed(Exception):
    """A step found something wrong."""


class Log:
    """The log of a phase, which programs write to themselves."""

    def __init__(self, path):
        path.write_bytes(b"")
        self.path, self.file = path, open(path, "ab", buffering=0)

    def write(self, text):
        self.file.write(text.encode("utf-8", "replace"))

    def size(self):
        return os.fstat(self.file.fileno()).st_size

    def last_line(self, from_):
        """The last line behind a place in it that says something."""
        with open(self.path, "rb") as f:
            f.seek(from_)
            lines = f.read().decode("utf-8", "replace").splitlines()
        lines = [" ".join(line.split()) for line in lines if line.strip() and not line.startswith("== ")]
        return lines[-1][:160] if lines else "it printed nothing"


class Kit:
    """What steps run with: folders, libraries, whether the device is emulated."""

    def __init__(self, root, out, emulated):
        self.root, self.out, self.emulated = pathlib.Path(root), pathlib.Path(out), emulated
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gpu-run-"))
        name = "libgradbus_emu.so" if emulated else "libgradbus.so"
        self.library = self.first("lib/" + name, "build/" + name)
        self.environment = dict(os.environ)
        if self.library:
            self.environment["GRADBUS_KERNEL_LIBRARY"] = str(self.library)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.work, ignore_errors=True)

    def first(self, *names):
        """The first of these paths below the folder that exists, or None."""
        return next((self.root / n for n in names if (self.root / n).exists()), None)

    def need(self, *names):
        """As first; a step without it is skipped."""
        found = self.first(*names)
        if not found:
            raise Skip("not built: no %s" % names[0])
        return found

    def kernels(self):
        """The kernel library; a step without it is skipped."""
        if not self.library:
            raise Skip("not built: no lib/%s" % ("libgradbus_emu.so" if self.emulated else "libgradbus.so"))
        return self.library

    def jobs(self):
        """A step that runs jobs is skipped without the kernel library, or commands that take one."""
        self.kernels()
        for name, *words in (("bin/ps",), ("bin/trainer", "packages")):
            said = subprocess.run([self.need(name), *words, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if "--kernel-library" not in said.stdout:
                raise Skip("not built: %s takes no --kernel-library" % name)

    def tool(self, name):
        """A program of CUDA's toolkit; a step without it is skipped."""
        for folder in os.environ.get("PATH", "").split(":") + ["/usr/local/cuda/bin"]:
            if folder and os.access(os.path.join(folder, name), os.X_OK):
                return os.path.join(folder, name)
        raise Skip("no %s on this machine" % name)

    def card(self):
        """Skips a step that a real GPU alone can do."""
        if self.emulated:
            raise Skip("the emulated device has no driver and no times of its own")

    def torch(self):
        """The python3 that has PyTorch; a step without it is skipped."""
        for python in ("python3", "/usr/bin/python3"):
            if subprocess.run([python, "-c", "import torch"], capture_output=True, stdin=subprocess.DEVNULL).returncode == 0:
                return python
        raise Skip("no python3 here has PyTorch")


class Step:
    """One step while it runs, and its record afterwards."""

    def __init__(self, name, limit, log):
        self.name, self.limit, self.log = name, limit, log
        self.deadline = time.monotonic() + limit
        self.figures, self.children, self.broken = [], [], []

    def left(self):
        return self.deadline - time.monotonic()

    def figure(self, name, value, unit, runs=None):
        """Records a figure; runs are the values that it is the median of. A name is a cell of a table: at most 60 characters."""
        name = name[:60]
        if not math.isfinite(value) or any(f["name"] == name for f in self.figures):
            raise Failed("figure %s: %s %s is not finite, or the second of its name" % (name, value, unit))
        row = {"name": name, "unit": unit, "value": float("%.5g" % value)}
        if runs and len(runs) > 1:
            row.update(low=float("%.5g" % min(runs)), high=float("%.5g" % max(runs)))
        self.figures.append(row)

    def wrong(self, message):
        """Notes a failure; the step goes on with what does not depend on it."""
        self.log.write("WRONG: %s\n" % message)
        self.broken.append(message)

    def start(self, command, kit, to=None, **more):
        """Starts a program in a group of its own, which the step's end kills."""
        command = [str(c) for c in command]
        self.log.write("\n== %s: %s\n" % (self.name, " ".join(command)))
        more = {"env": kit.environment, "cwd": kit.root, "stderr": self.log.file, **more}
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=to or self.log.file, start_new_session=True, **more)
        except OSError as e:
            raise Failed("cannot start %s: %s" % (command[0], e.strerror)) from e
        self.children.append(child)
        return child

    def run(self, command, kit, seconds=None, statuses=(0,), **more):
        """Runs a program to its end and gives what it printed."""
        seconds = min(seconds or self.left(), self.left())
        from_ = self.log.size()
        with tempfile.TemporaryFile("w+", dir=kit.work, errors="replace") as out:
            child = self.start(command, kit, to=out, **more)
            try:
                status = child.wait(max(seconds, 0.1))
            except subprocess.TimeoutExpired:
                kill(child)
                status = None
            out.seek(0)
            text = out.read()
        if status in statuses:
            return text
        self.log.write(text[-20000:])
        name, said = os.path.basename(str(command[0])), self.log.last_line(from_)
        raise Failed("%s ran past its %.0f s; last line: %s" % (name, seconds, said) if status is None else
                     "%s ended with status %d: %s" % (name, status, said))

    def until(self, seconds, what, found):
        """Polls found() until it gives something true."""
        end = time.monotonic() + min(seconds, self.left())
        while True:
            value = found()
            if value:
                return value
            if time.monotonic() > end:
                raise Failed("no %s within %.0f s" % (what, seconds))
            time.sleep(0.05)

    def close(self):
        for child in self.children:
            kill(child)


def kill(child):
    """Ends a program and all that it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has ended; its number may be another user's by now
        pass
    child.wait()


def one_step(kit, log, name, limit, function, most):
    """Runs a step and gives its record."""
    limit = min(limit, most)
    record = {"name": name, "status": SKIPPED, "reason": "no time left in the phase", "seconds": 0.0, "limit_seconds": round(limit, 1), "figures": []}
    if limit < 3:
        return record
    begin, step = time.monotonic(), Step(name, limit, log)
    status, reason = OK, ""
    try:
        function(step, kit)
        if step.broken:
            status, reason = FAILED, "; ".join(step.broken[:3]) + ("; and %d more" % (len(step.broken) - 3) if len(step.broken) > 3 else "")
    except Skip as e:
        status, reason = SKIPPED, str(e)
    except Failed as e:
        status, reason = FAILED, "; ".join(step.broken[:2] + [str(e)])
    except Exception as e:  # a defect of the step ends that step alone
        status, reason = FAILED, "%s: %s" % (type(e).__name__, e)
    finally:
        step.close()
    record.update(status=status, reason=reason, seconds=round(time.monotonic() - begin, 1), figures=step.figures)
    return record


def write(path, record):
    """Writes JSON so that it appears whole or not at all."""
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as f:
        json.dump(record, f, indent=1)
        f.write("\n")
    os.replace(part, path)


def run(phase, steps, kit, machine, clocks, only=()):
    """Runs the steps (name, limit, function) of a phase. Returns how many failed."""
    begin = time.monotonic()
    record = {"phase": phase, "emulated": kit.emulated, **machine, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "limit_seconds": PHASE_SECONDS, "seconds": 0.0, "clocks_before": clocks(), "clocks_after": {}}
    record["steps"] = [{"name": name, "status": SKIPPED, "reason": "not reached" if not only or name in only else "not chosen by --only",
                        "seconds": 0.0, "limit_seconds": limit, "figures": []} for name, limit, _ in steps]
    path = kit.out / (phase + ".json")
    write(path, record)
    log = Log(kit.out / (phase + ".log"))
    for i, (name, limit, function) in enumerate(steps):
        if not only or name in only:
            done = one_step(kit, log, name, limit, function, PHASE_SECONDS - (time.monotonic() - begin))
            print("==== %-16s %-8s %6.1f s%s" % (name, done["status"], done["seconds"], "  " + done["reason"] if done["reason"] else ""), flush=True)
            record["steps"][i] = done
            record.update(seconds=round(time.monotonic() - begin, 1), clocks_after=clocks())
            write(path, record)
    count = {s: sum(step["status"] == s for step in record["steps"]) for s in (OK, FAILED, SKIPPED)}
    print("==== %s: %d ok, %d failed, %d skipped, after %.0f s: %s" % (phase, count[OK], count[FAILED], count[SKIPPED], record["seconds"], path),
          file=sys.stderr if count[FAILED] else sys.stdout)
    return count[FAILED]
