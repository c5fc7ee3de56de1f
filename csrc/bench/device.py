"""Where a comparison's tensors lie, how ours is called on them, and how two contenders are timed in turn."""
import ctypes
import math
import statistics
import time

import torch

import gradbus

DTYPES = {torch.float32: "GB_FLOAT32", torch.float16: "GB_FLOAT16", torch.bfloat16: "GB_BFLOAT16", torch.int32: "GB_INT32",
          torch.int64: "GB_INT64", torch.uint8: "GB_UINT8"}


class Device:
    """One opened backend with memory that both contenders use. Close it after its tensors."""

    def __init__(self, library, name, threads):
        self.library, self.name = library, name
        self.backend = library.open(name, threads=threads)
        self.stream = self.backend.stream_open() if name == "cuda" else None
        self.report = library.args("gb_report")
        if self.stream:  # a stream writes its reports after the call, into memory that the backend gave
            size = ctypes.sizeof(self.report)
            self._pinned = (self.backend.alloc(size), size)
            self.report = type(self.report).from_address(self._pinned[0])
            self.report.size = size
        self._owned = []

    def close(self):
        for address, size in self._owned:
            self.backend.free(address, size)
        if self.stream:
            self.backend.stream_close(self.stream)
            self.backend.free(*self._pinned)
        self.backend.__exit__()

    def empty(self, *shape, dtype=torch.float32):
        """A tensor on the GPU, or on huge pages that the library mapped. Freed with release."""
        if self.name == "cuda":
            return torch.empty(*shape, dtype=dtype, device="cuda")
        n = math.prod(shape)
        size = max(n, 1) * torch.empty(0, dtype=dtype).element_size()
        address = self.backend.alloc(size)
        self._owned.append((address, size))
        return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype, count=n).view(*shape)

    def put(self, tensor):
        to = self.empty(*tensor.shape, dtype=tensor.dtype)
        to.copy_(tensor)
        return to

    def noise(self, *shape):
        """Standard normal values, repeated after 2^20 of them: tables are large and their values matter little."""
        some = torch.randn(1 << 20, generator=torch.Generator().manual_seed(7))
        to = self.empty(*shape)
        flat = to.view(-1)
        for at in range(0, flat.numel(), some.numel()):
            part = flat[at:at + some.numel()]
            part.copy_(some[:part.numel()])
        return to

    def release(self, *tensors):
        """Frees the memory of tensors from empty, which must not be used afterwards. PyTorch frees a GPU's."""
        gone = {t.data_ptr() for t in tensors}
        for address, size in [o for o in self._owned if o[0] in gone]:
            self.backend.free(address, size)
            self._owned.remove((address, size))

    def vector(self, kind, tensor, n=None):
        if not tensor.is_contiguous():
            raise ValueError("a tensor of %s is not contiguous" % (tuple(tensor.shape),))
        return self.library.new(kind, data=tensor.data_ptr(), n=tensor.numel() if n is None else n,
                                dtype=self.library.of[DTYPES[tensor.dtype]])

    def read(self, tensor):
        return self.vector("gb_in", tensor)

    def write(self, tensor):
        return self.vector("gb_out", tensor)

    def sgd(self, momentum, lr, slot=None, after=None):
        """The optimizer; it must be kept while it is used."""
        new = self.library.new
        hyper = new("gb_sgd", lr=lr, momentum=momentum)
        o = new("gb_optimizer", kind=self.library.of["GB_SGD"], hyper_bytes=ctypes.sizeof(hyper), hyper=ctypes.addressof(hyper))
        o.keep = [hyper]
        if slot is not None:
            s = new("gb_slot", name=b"momentum", before=self.read(slot), after=self.write(slot if after is None else after))
            o.slots, o.slots_n = ctypes.addressof(s), 1
            o.keep.append(s)
        return o

    def prepare(self, entry, op, args):
        """A function that makes the call, queued where there is a stream."""
        need = self.backend.workspace(op, args)
        room = self.empty(max(need, 1), dtype=torch.uint8)
        call = self.backend.prepare(entry, args, (room.data_ptr(), need), self.stream, self.report)
        call.room = room
        return call

    def run(self, call):
        """Makes the call and gives its report once its outputs are written."""
        self.wait()
        call()
        self.wait()
        self.backend.check("a queued call", self.report)
        return self.report

    def wait(self):
        if self.stream:
            torch.cuda.synchronize()
            self.backend.stream_wait(self.stream)


def in_turn(device, ours, theirs, seconds, rest):
    """Median seconds of a call of each. They alternate, several calls at a time where one is short; in between both rest, so
    that threads of the one that still spin do not take a core from the other: those of libgomp do for some 20 ms."""
    def burst(f, calls):
        device.wait()
        start = time.perf_counter()
        for _ in range(calls):
            f()
        device.wait()
        return (time.perf_counter() - start) / calls

    least = 5e-3 if device.stream else 1e-3
    for f in (ours, theirs):  # the first calls warm up and are not counted
        burst(f, 1)
    calls = [max(1, math.ceil(least / burst(f, 1))) for f in (ours, theirs)]
    found, until = ([], []), time.perf_counter() + seconds
    while len(found[0]) < 5 or (time.perf_counter() < until and len(found[0]) < 200):
        for i, f in enumerate((ours, theirs)):
            time.sleep(rest)
            found[i].append(burst(f, calls[i]))
    return statistics.median(found[0]), statistics.median(found[1]), len(found[0])
