#!/usr/bin/env python3
"""Provokes an XID: a kernel that writes to an address that is not its own, by the driver's own interface.

The driver ends this process's context, and no other. Status 0 where the fault came, 1 where the driver answered otherwise.
"""

import ctypes
import sys

PTX = b""".version 6.3
.target sm_75
.address_size 64
.visible .entry wild() {
  .reg .u64 %a;
  .reg .u32 %v;
  mov.u64 %a, 0xdead0000;
  mov.u32 %v, 1;
  st.global.u32 [%a], %v;
  ret;
}
\0"""
FAULTS = {700: "illegal address", 702: "timeout", 716: "misaligned address", 719: "launch failure", 999: "unknown error"}


def main():
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status:
            sys.exit("xid.py: %s answered %d" % (name, status))

    device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"wild")
    call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    status = cuda.cuCtxSynchronize()
    print("cuCtxSynchronize answered %d, %s" % (status, FAULTS.get(status, "no fault")))
    sys.exit(0 if status in FAULTS else 1)


if __name__ == "__main__":
    main()
