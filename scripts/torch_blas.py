#!/usr/bin/env python3
"""Print the version of this python's torch and the BLAS it multiplies with: "1.13.0 OpenBLAS".

The names are OpenBLAS, MKL, BLIS, reference (the plain one that Debian's python3-torch brings alone, three to four times slower
than OpenBLAS) and unknown. The status is 1 where this python has no torch.
"""
import sys

try:
    import torch
except ImportError:
    sys.exit(1)

torch.mm(torch.ones(64, 64), torch.ones(64, 64))
if torch.backends.mkl.is_available():
    blas = "MKL"
else:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        loaded = {line.split()[-1].rsplit("/", 1)[-1] for line in maps if ".so" in line}
    known = {"libopenblas": "OpenBLAS", "libmkl": "MKL", "libblis": "BLIS", "libblas": "reference"}
    blas = next((name for prefix, name in known.items() if any(lib.startswith(prefix) for lib in loaded)), "unknown")
print(torch.__version__, blas)
