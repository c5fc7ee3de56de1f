"""What the wheel has installed: the program, its metadata, and files as its list has them."""

import base64
import hashlib
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import pytest

import gradbus
import gradbus.ps


@pytest.fixture
def distribution():
    try:
        return importlib.metadata.distribution("gradbus")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("gradbus is imported from a checkout here; make test-python installs its wheel")


def test_files_are_those_of_the_list(distribution):
    files = {str(f): f for f in distribution.files}
    for name in ("gradbus/__init__.py", "gradbus/py.typed", "gradbus/libgradbus.so", "gradbus/bin/ps"):
        assert name in files
    hashed = 0
    for f in files.values():
        if f.hash is None:
            continue
        digest = hashlib.new(f.hash.mode, f.locate().read_bytes()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == f.hash.value, f
        hashed += 1
    assert hashed > 10


def test_platform_is_what_the_files_need(distribution):
    tag = re.search(r"^Tag: py3-none-manylinux_2_(\d+)_", distribution.read_text("WHEEL"), re.M)
    assert tag
    package = pathlib.Path(gradbus.__file__).parent
    for name in ("libgradbus.so", "bin/ps"):
        needed = {int(n) for n in re.findall(rb"\0GLIBC_2\.(\d+)(?=\0)", (package / name).read_bytes())}
        assert needed and max(needed) <= int(tag.group(1)), name


def test_metadata(distribution):
    data = distribution.metadata
    assert data["Version"] == gradbus.__version__
    assert data["License"] == "Apache-2.0"
    assert data["Requires-Python"] == ">=3.9"
    assert distribution.requires == ["torch>=1.13.0a0"]
    assert any(f.name == "LICENSE" for f in distribution.files)


def test_the_program_runs():
    said = subprocess.run([sys.executable, "-m", "gradbus.ps", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"gradbus-ps version {gradbus.__version__}\n")


def test_the_program_has_its_own_status():
    said = subprocess.run([sys.executable, "-m", "gradbus.ps", "--lisen", "x"], capture_output=True, text=True, check=False)
    assert said.returncode == 1
    assert "--lisen" in said.stderr and "Traceback" not in said.stderr


def test_no_program(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gradbus.ps, "__file__", os.fspath(tmp_path / "a" / "gradbus" / "ps.py"))
    with pytest.raises(FileNotFoundError, match="install its wheel"):
        gradbus.ps.program()
    with pytest.raises(SystemExit, match="gradbus-ps: gradbus has no program ps"):
        gradbus.ps.main()
