"""Weights depend on lanes, and on neither trainers, shards nor servers: several processes, and programs ps."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from typing import Any, Iterator, List, Tuple

import pytest

import gradbus.ps

PROGRAM = pathlib.Path(__file__).with_name("lanes_program.py")
DEADLINE = 60.0


@contextlib.contextmanager
def servers(directory: pathlib.Path, n: int = 1, *flags: str) -> Iterator[str]:
    """n programs ps, which know each other where they are several; gives the address of the first."""
    running: List[subprocess.Popen[Any]] = []
    urls: List[str] = []
    token = directory / "token"
    token.write_text("a-token-of-the-servers-among-each-other\n")
    token.chmod(0o600)
    try:
        for i in range(n):
            ports = directory / f"ports{i}"
            command = [
                gradbus.ps.program(),
                "--listen",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
                "--port-file",
                str(ports),
                *flags,
            ]
            if n > 1:
                command += ["--control-token-file", str(token)]
            if urls:
                command += ["--nats", urls[0]]
            log = open(directory / f"ps{i}.log", "w")
            running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=directory))
            end = time.monotonic() + DEADLINE
            while not ports.exists() or not ports.read_text().strip():
                assert running[-1].poll() is None and time.monotonic() < end, (directory / f"ps{i}.log").read_text()
                time.sleep(0.01)
            urls.append(ports.read_text().split()[0])
        yield urls[0]
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(DEADLINE)


def start(server: str, trainers: int, lanes: int = 4, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(PROGRAM), server, str(trainers), str(lanes), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def train(server: str, trainers: int, lanes: int = 4, *more: str) -> List[str]:
    """What each of so many processes prints."""
    processes = [start(server, trainers, lanes, *more) for _ in range(trainers)]
    lines = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=DEADLINE)
            assert process.returncode == 0, err
            lines.append(out.strip())
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return lines


@pytest.fixture(scope="module")
def alone() -> str:
    """What one trainer prints, with shards within its process."""
    return train("local", 1)[0]


def test_local_shards(alone: str) -> None:
    digest, batch, loss = alone.split()
    assert len(digest) == 64 and batch == "10" and 0 < float(loss) < 0.69
    assert train("local", 1, 4, "--shards", "3") == [alone]
    assert train("local", 1, 8)[0].split()[0] != digest  # other lanes are another sum


@pytest.mark.parametrize("trainers", [1, 2, 4])
def test_trainers(alone: str, trainers: int, tmp_path: pathlib.Path) -> None:
    with servers(tmp_path) as url:
        assert train(url, trainers) == [alone] * trainers


def test_two_servers(alone: str, tmp_path: pathlib.Path) -> None:
    with servers(tmp_path, 2) as url:
        assert train(url, 2) == [alone] * 2


@pytest.mark.parametrize("lanes, seeds, says", [((4, 8), (1, 1), "lanes"), ((4, 4), (1, 2), "start")])
def test_trainers_that_differ(
    tmp_path: pathlib.Path, lanes: Tuple[int, int], seeds: Tuple[int, int], says: str
) -> None:
    """Whoever comes second, with other lanes or another model, is refused and told what differs; the first waits on."""
    with servers(tmp_path) as url:
        processes = [start(url, 2, n, "--seed", str(seed)) for n, seed in zip(lanes, seeds)]
        try:
            end = time.monotonic() + DEADLINE
            while all(process.poll() is None for process in processes):
                assert time.monotonic() < end
                time.sleep(0.01)
            refused = next(process for process in processes if process.poll() is not None)
            error = refused.communicate()[1].splitlines()[-1]
            assert refused.returncode == 1 and "JobError" in error and says in error, error
        finally:
            for process in processes:
                process.kill()
                process.communicate()
