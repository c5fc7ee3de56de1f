#!/usr/bin/env python3
"""Write build/dist/gradbus-VERSION-py3-none-PLATFORM.whl: the package of python/, the library, and the program ps.

    scripts/wheel.py [--library FILE] [--program FILE] [--out FOLDER]

A wheel is a zip with a list of its files (PEP 427), so this needs no build back end, no network and nothing beyond a
python3, objdump and strip. Equal inputs give equal bits with one zlib: names are sorted, and the time is the commit's.

The platform is manylinux_2_NN where both files need nothing but what every distribution with that glibc has (PEP 600).
NN is read from the versions of their symbols: it is what they need, not what this machine has. A file that needs
another library is refused.
"""
import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What a wheel may take from the machine: libraries of the C and C++ runtimes.
ALLOWED = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libstdc++.so.6", "libgcc_s.so.1",
           "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}

# The C++ runtime of distributions with each glibc: the newest GLIBCXX_3.4.N that all of them have. These are those of
# RHEL 7, 8 and 9, Ubuntu 20.04, 22.04 and 24.04, and Debian 13.
CXX_OF_GLIBC = ((17, 19), (28, 25), (31, 28), (34, 29), (35, 30), (39, 33), (41, 33))

# Debian's PyTorch 1.13 calls itself 1.13.0a0: ">=1.13" would not count it, and pip would fetch another one over it.
TORCH = "torch>=1.13.0a0"

METADATA = """\
Metadata-Version: 2.1
Name: gradbus
Version: {version}
Summary: Embedding tables of any size for PyTorch: exact parameter-server training over NATS
License: Apache-2.0
License-File: LICENSE
Keywords: pytorch,embedding,recommender,parameter-server,distributed-training
Classifier: Development Status :: 3 - Alpha
Classifier: Intended Audience :: Developers
Classifier: Intended Audience :: Science/Research
Classifier: License :: OSI Approved :: Apache Software License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Typing :: Typed
Requires-Python: >=3.9
Requires-Dist: {torch}
Description-Content-Type: text/markdown

{readme}"""

ENTRY_POINTS = """\
[console_scripts]
gradbus-ps = gradbus.ps:main
"""


def fail(text):
    sys.exit(f"wheel: {text}")


def output(*command):
    """What a command prints, in English."""
    said = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
    if said.returncode != 0:
        fail(f"{' '.join(command)}: {said.stderr.strip()}")
    return said.stdout


def needs(path):
    """The libraries that an ELF file names, and the newest GLIBC_2.N and GLIBCXX_3.4.N of its symbols."""
    said = output("objdump", "-p", str(path))
    libraries = set(re.findall(r"^\s+NEEDED\s+(\S+)$", said, re.M))
    references = said.partition("Version References:")[2]
    glibc = max((int(n) for n in re.findall(r"\bGLIBC_2\.(\d+)", references)), default=0)
    cxx = max((int(n) for n in re.findall(r"\bGLIBCXX_3\.4\.(\d+)", references)), default=0)
    return libraries, glibc, cxx


def platform_tag(paths):
    """The platform that runs all of these files: "manylinux_2_34_x86_64"."""
    least = 17  # older ones have no manylinux_2_NN
    for path in paths:
        libraries, glibc, cxx = needs(path)
        if libraries - ALLOWED:
            others = ", ".join(sorted(libraries - ALLOWED))
            fail(f"{path} needs {others}, which other machines may not have: link it statically")
        runtime = next((g for g, c in CXX_OF_GLIBC if c >= cxx), None)
        if runtime is None:
            fail(f"{path} needs GLIBCXX_3.4.{cxx}: add to CXX_OF_GLIBC which glibc its distributions have")
        least = max(least, glibc, runtime)
    return f"manylinux_2_{least}_{platform.machine()}"


def stripped(path, folder):
    """An ELF file without what only a debugger reads, a third of it. Traces of Go keep their names and lines."""
    copy = pathlib.Path(folder) / path.name
    output("strip", "--strip-debug", "-o", str(copy), str(path))
    return copy.read_bytes()


def commit_time():
    """The time of the commit, SOURCE_DATE_EPOCH, or the first that a zip can have."""
    at = os.environ.get("SOURCE_DATE_EPOCH")
    if at is None:
        git = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
        at = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "0"
    return max(time.gmtime(int(at))[:6], (1980, 1, 1, 0, 0, 0))


def package_files():
    """The Python files of the package and py.typed, by their names in the wheel."""
    package = ROOT / "python" / "gradbus"
    found = [f for f in package.rglob("*") if f.suffix == ".py" or f.name == "py.typed"]
    if package / "__init__.py" not in found or package / "py.typed" not in found:
        fail(f"no package in {package}")
    return {f.relative_to(package.parent).as_posix(): f.read_bytes() for f in found}


def record(files, name):
    """The list of all files with their hashes, which pip checks and uninstalls by."""
    lines = []
    for path, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{name},,\n"


def write(path, files, programs):
    """The zip, whole or not at all. Files in programs may be run."""
    part = path.with_suffix(".part")
    at = commit_time()
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as out:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, at)
            entry.create_system = 3  # Unix: the modes count
            entry.external_attr = (0o100755 if name in programs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            out.writestr(entry, data)
    os.replace(part, path)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--library", default="build/capi/libgradbus.so", help="what make capi built")
    p.add_argument("--program", default="bin/ps", help="what make built")
    p.add_argument("--out", default="build/dist", help="folder of the wheel; earlier wheels there go")
    a = p.parse_args()
    library, program, out = (ROOT / x for x in (a.library, a.program, a.out))
    for file in library, program:
        if not file.exists():
            fail(f"no {file}: run make python, which builds it")
    source = (ROOT / "gradbus.go").read_text(encoding="utf-8")
    version = re.search(r'^const Version = "(.*)"$', source, re.M).group(1)
    tag = f"py3-none-{platform_tag([library, program])}"
    info = f"gradbus-{version}.dist-info"
    files = package_files()
    with tempfile.TemporaryDirectory() as folder:
        files["gradbus/libgradbus.so"] = stripped(library, folder)
        files["gradbus/bin/ps"] = stripped(program, folder)
    readme = (ROOT / "python" / "README.md").read_text(encoding="utf-8")
    # What describes the wheel comes last (PEP 427), and of that RECORD, which lists the rest.
    described = {
        f"{info}/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{info}/METADATA": METADATA.format(version=version, torch=TORCH, readme=readme).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: gradbus\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        f"{info}/entry_points.txt": ENTRY_POINTS.encode(),
    }
    files = dict(sorted(files.items())) | described
    files[f"{info}/RECORD"] = record(files, f"{info}/RECORD").encode()
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"gradbus-{version}-{tag}.whl"
    for old in out.glob("gradbus-*.whl"):
        old.unlink()
    write(path, files, {"gradbus/bin/ps", "gradbus/libgradbus.so"})
    print(f"wheel: {path.relative_to(ROOT)}, {path.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
