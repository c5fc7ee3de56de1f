"""Programs that tests start: Python scripts in processes of their own, and a ps.

Scripts are forked from one process that has imported torch and gradbus, and has not opened the library: they begin in
milliseconds, and are what a script of its own is otherwise, from ``__name__`` to the status in which the interpreter
ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import gradbus
from gradbus import ps as server

WITHIN = 60.0  # seconds that a test waits for what has to come
PATH = os.pathsep.join([str(Path(gradbus.__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")])

NURSERY = """
import json, os, signal, sys
import torch, torch.utils.data, gradbus, gradbus.session, gradbus.saving, gradbus.ddp
children = {}
for line in iter(sys.stdin.readline, ""):
    order = json.loads(line)
    if "script" in order:
        child = os.fork()
        if child == 0:
            break
        children[child] = None
        print(child, flush=True)
        continue
    child = order["status"]
    if children[child] is None:
        pid, status = os.waitpid(child, os.WNOHANG)
        children[child] = os.waitstatus_to_exitcode(status) if pid else None
    print(json.dumps(children[child]), flush=True)
else:
    os._exit(0)
for number, path in (1, order["out"]), (2, order["err"]):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.environ.update(order["env"])
sys.argv = [order["script"], *order["arguments"]]
for name in "children", "line", "child", "number", "path":
    globals().pop(name, None)
exec(compile(open(order["script"]).read(), order["script"], "exec"), globals())
"""


def until(condition, what, within=WITHIN):
    """Polls until a condition holds, and gives what it gave."""
    end = time.monotonic() + within
    while True:
        got = condition()
        if got:
            return got
        assert time.monotonic() < end, f"waited {within} s for {what}"
        time.sleep(0.01)


class Nursery:
    """The process that scripts are forked from."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATH},
        )

    def ask(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(WITHIN)


class Forked:
    """A script: what subprocess.Popen has of it."""

    def __init__(self, nursery, script, arguments, out, err, env):
        self.nursery = nursery
        self.pid = nursery.ask(
            script=str(script), arguments=[str(a) for a in arguments], out=str(out), err=str(err), env=env
        )
        self.returncode = None

    def poll(self):
        if self.returncode is None:
            self.returncode = self.nursery.ask(status=self.pid)
        return self.returncode

    def wait(self, timeout=WITHIN):
        until(lambda: self.poll() is not None, "the end of a script", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Program:
    """A process that a test has started. Its output goes to files, so that it never waits for a reader."""

    def __init__(self, folder, name, make):
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self.out.touch()
        self.err.touch()
        self.process = make(self)

    def wait_for(self, text):
        """Waits until the output has a text."""

        def there():
            over = self.process.poll() is not None
            if text in self.out.read_text():
                return True
            assert not over, f"ended with {self.process.returncode} before {text!r}: {self.said()}"
            return False

        try:
            until(there, f"{text!r} in the output")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.said()}") from None

    def end(self):
        """Waits for the end; gives the status."""
        try:
            return self.process.wait(WITHIN)
        except (subprocess.TimeoutExpired, AssertionError):
            raise AssertionError(f"still running after {WITHIN} s: {self.said()}") from None

    def said(self):
        return f"\n-- stdout\n{self.out.read_text()}\n-- stderr\n{self.err.read_text()}"

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Starter:
    """Starts programs, and ends those that are left when a test is over."""

    def __init__(self, folder, nursery):
        self.folder, self.nursery, self.programs, self._files = folder, nursery, [], 0

    def _add(self, name, make):
        self._files += 1
        program = Program(self.folder, f"{name}{self._files}", make)
        self.programs.append(program)
        return program

    def _script(self, source):
        script = self.folder / f"script{self._files}.py"
        script.write_text(textwrap.dedent(source))
        return script

    def python(self, source, *arguments, **env):
        """A script, dedented, in a process of its own."""
        return self._add("python", lambda p: Forked(self.nursery, self._script(source), arguments, p.out, p.err, env))

    def interpreter(self, source, *arguments):
        """The same in an interpreter that is started for it, as a script that spawns others needs."""
        return self._add(
            "python",
            lambda p: subprocess.Popen(
                [sys.executable, str(self._script(source)), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=open(p.out, "w"),
                stderr=open(p.err, "w"),
                env={**os.environ, "PYTHONPATH": PATH},
            ),
        )

    def ps(self, *flags):
        """A ps on a free port, with further flags: (program, address)."""
        port = self.folder / f"port{self._files}"
        arguments = [server.program(), "--listen", "127.0.0.1:0", "--port-file", str(port), "--http", "127.0.0.1:0"]
        arguments += map(str, flags)
        ps = self._add(
            "ps",
            lambda p: subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=open(p.out, "w"), stderr=open(p.err, "w")
            ),
        )
        return ps, until(lambda: port.exists() and port.read_text().strip(), "the port of ps")


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def start(tmp_path, nursery):
    starter = Starter(tmp_path, nursery)
    yield starter
    for program in starter.programs:
        program.kill()


def last(program):
    assert program.end() == 0, program.said()
    return program.out.read_text().splitlines()[-1]
