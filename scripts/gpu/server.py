"""A ps while a step runs, and jobs on it."""

import json
import random
import re
import signal
import subprocess
import urllib.error
import urllib.request

from phase import Failed, kill


class Server:
    """A ps on free ports. url is what trainers take, page the address of its HTTP server."""

    def __init__(self, step, kit, backend, name, *more, listen="127.0.0.1:0"):
        self.step, self.kit, self.backend, self.log = step, kit, backend, kit.work / (name + ".log")
        port = kit.work / (name + ".url")
        with open(self.log, "wb") as log:
            self.child = step.start([kit.need("bin/ps"), "--listen", listen, "--http", "127.0.0.1:0", "--port-file", port, "--backend", backend,
                                     "--log-format", "json", *more], kit, to=log, stderr=subprocess.STDOUT)
        self.url = step.until(30, "address of the ps", lambda: self.alive() and port.exists() and port.read_text().strip()).splitlines()[0]
        self.page = re.search(r"http://127\.0\.0\.1:\d+", step.until(10, "page of the ps", lambda: self.alive() and self.said("http://")))[0]

    def alive(self):
        """True, or Failed with what the ps said last."""
        if self.child.poll() is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines()
            raise Failed("the ps with --backend %s ended with status %d: %s" % (self.backend, self.child.returncode, lines[-1][:200] if lines else "it said nothing"))
        return True

    def said(self, text):
        """The log where it has the text, else nothing."""
        log = self.log.read_text(errors="replace")
        return log if text in log else ""

    def metrics(self):
        """{(name, labels as text): value} of /metrics."""
        try:
            with urllib.request.urlopen(self.page + "/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except (OSError, urllib.error.URLError) as e:
            self.alive()
            raise Failed("GET /metrics: %s" % e) from e
        return dict(sample(line) for line in text.splitlines() if line and not line.startswith("#"))

    def end(self, by=signal.SIGINT):
        """Ends the ps, and waits. One that is asked may first let a job come to its end."""
        self.child.send_signal(by)
        try:
            self.child.wait(15)
        except subprocess.TimeoutExpired:
            kill(self.child)
        self.step.log.write("== the log of a ps with --backend %s\n%s\n" % (self.backend, self.log.read_text(errors="replace")[-20000:]))

    def calls(self):
        """How many operations each backend has done in this ps."""
        return {labels(of)["backend"]: v for (name, of), v in self.metrics().items() if name == "gradbus_ps_calls_total"}

    def job(self, name, arguments, data="synthetic"):
        """The command of a job of packages on it, with the backend of the ps."""
        gpu = [] if self.backend == "cuda" and not self.kit.emulated else ["--gpu", "off"]
        return [self.kit.need("bin/trainer"), "packages", "--input", data, "--spawn", "--server", self.url, "--backend", self.backend, *gpu,
                "--job", name, "--json", *arguments]


def index(path, packages):
    """Writes an index of made-up packages as large as Debian's: words of a description tell the section, by and large."""
    draw = random.Random(1)
    with open(path, "w", encoding="ascii") as f:
        for i in range(packages):
            section = int(58 * draw.random() ** 2)
            words = " ".join("w%d" % (40000 * draw.random() ** 4 if draw.random() < 0.7 else 40000 + section * 50 + 50 * draw.random()) for _ in range(14))
            f.write("Package: p%d\nVersion: 1\nArchitecture: all\nDescription: %s\nSection: s%d\nTag: synthetic\n\n" % (i, words, section))
    return path


def sample(line):
    """Name, labels and value of a line of Prometheus's text format."""
    found = re.fullmatch(r'([a-zA-Z_:]+)(?:\{(.*)\})? (\S+)(?: \d+)?', line)
    if not found:
        raise Failed("no line of metrics: %s" % line)
    return (found[1], found[2] or ""), float(found[3])


def labels(text):
    """The labels of a sample by name."""
    return dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text))


def result(text):
    """The JSON that a trainer printed last."""
    lines = text.strip().splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError) as e:
        raise Failed("the trainer printed no JSON: %s" % (lines[-1][:160] if lines else "nothing")) from e
