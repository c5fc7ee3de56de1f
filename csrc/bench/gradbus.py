"""The C interface of gradbus from Python, for measurements: no part of the product.

The structs, numbers and signatures are read from include/gradbus.h itself, so that no second copy of them can go stale:
the header is plain C of one shape (typedef struct, enum, functions as fields), and whatever the reader below does not know
stops it with the line. Nothing here is fast; what is measured is one call.

    lib = Library("build/libgradbus.so")
    with lib.open("cpu", threads=2) as backend:
        args = lib.args("gb_copy_args", to=a.data_ptr(), bytes=4 * n, **{"from": b.data_ptr()})
        backend.call("copy", "GB_OP_COPY", args)
"""
import ctypes
import os
import re

HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "include", "gradbus.h")
SCALARS = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
           "float": ctypes.c_float, "int": ctypes.c_int, "char": ctypes.c_char}


class Header:
    """gradbus.h: types by name (ctypes), and numbers by name."""

    def __init__(self, path=HEADER):
        with open(path, encoding="utf-8") as f:
            text = re.sub(r"/\*.*?\*/", " ", f.read(), flags=re.S)
        self.types = dict(SCALARS)
        self.numbers = {"GB_ABI": int(re.search(r"#define GB_ABI (\d+)u", text).group(1))}
        self.statuses = {}
        pattern = (r"typedef struct (?P<struct>\w+) \{(?P<fields>.*?)\} \w+;|typedef struct (?P<opaque>\w+) \w+;"
                   r"|typedef (?P<base>\w+) (?P<alias>\w+);|enum \{(?P<enum>.*?)\};")
        for m in re.finditer(pattern, text, flags=re.S):
            if m["struct"]:
                fields = [f for part in m["fields"].split(";") if part.strip() for f in self._fields(" ".join(part.split()))]
                self.types[m["struct"]] = type(m["struct"], (ctypes.Structure,), {"_fields_": fields})
            elif m["alias"]:
                self.types[m["alias"]] = self.types[m["base"]]
            elif m["enum"]:
                of = {name.strip(): int(number) for name, number in (part.split("=") for part in m["enum"].split(","))}
                self.numbers.update(of)
                if "GB_OK" in of:
                    self.statuses = {number: name for name, number in of.items()}

    def _type(self, text):
        """The ctypes type of a parameter or field; every pointer is an address."""
        if "*" in text:
            return ctypes.c_void_p
        name = text.replace("const ", "").split()[0]
        if name not in self.types:
            raise ValueError("gradbus.h: what is %r?" % text)
        return self.types[name]

    def _fields(self, text):
        function = re.fullmatch(r"(const )?(\w+)( ?\*)? ?\(\*(\w+)\)\((.*)\)", text)
        if function:
            result = None if function[2] == "void" else ctypes.c_char_p if function[3] else self._type(function[2])
            return [(function[4], ctypes.CFUNCTYPE(result, *[self._type(p.strip()) for p in function[5].split(",")]))]
        declared = re.fullmatch(r"(.*?[ *])(\w+(?:, \w+)*)", text)
        if not declared:
            raise ValueError("gradbus.h: what is %r?" % text)
        kind = ctypes.c_char_p if declared[1].replace(" ", "") == "constchar*" else self._type(declared[1])
        return [(name, kind) for name in declared[2].split(", ")]


class Failed(RuntimeError):
    """A call answered something else than GB_OK."""


class Library:
    def __init__(self, path):
        self.header = Header()
        self.of = self.header.numbers
        self._library = ctypes.CDLL(os.path.abspath(path))
        self._api = self.header.types["gb_api"]

    def new(self, name, /, **fields):
        """A struct by its C name, zero but for the fields given."""
        s = self.header.types[name]()
        for field, value in fields.items():
            if not hasattr(s, field):
                raise AttributeError("%s has no %s" % (name, field))
            setattr(s, field, value)
        return s

    def args(self, name, /, **fields):
        """As new, for structs that begin with their size."""
        return self.new(name, size=ctypes.sizeof(self.header.types[name]), **fields)

    def open(self, name, threads=1, isa=""):
        entry = getattr(self._library, "gb_backend" if name == "cpu" else "gb_cuda_backend")
        entry.restype, entry.argtypes = ctypes.POINTER(self._api), [ctypes.c_uint32]
        api = entry(self.of["GB_ABI"])
        if not api:
            raise Failed("the library has no backend %s of ABI %d" % (name, self.of["GB_ABI"]))
        return Backend(self, api.contents, threads, isa)


class Backend:
    """An opened backend. Memory that it gave must be freed, and streams closed, before it is."""

    def __init__(self, library, api, threads, isa):
        self._library, self._api = library, api
        self._report = library.args("gb_report")
        self._context = ctypes.c_void_p()
        self._at = ctypes.byref(self._report)
        args = library.args("gb_open_args", threads=threads, isa=isa.encode())
        self._check("open", api.open(ctypes.byref(args), ctypes.byref(self._context), self._at), self._report)
        self.name, self.isa, self.threads = api.name.decode(), api.isa(self._context).decode(), threads

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._context:
            self._api.close(self._context)
            self._context = None

    def _check(self, what, status, report):
        if status != self._library.of["GB_OK"]:
            text = (report.message or b"").decode()
            raise Failed("%s: %s %s (position %d, value %d, limit %d)" % (
                what, self._library.header.statuses.get(status, status), text, report.position, report.value, report.limit))

    def alloc(self, size):
        """Zeroed memory that host and device can read: its address."""
        memory = ctypes.c_void_p()
        self._check("alloc", self._api.alloc(self._context, size, ctypes.byref(memory), self._at), self._report)
        return memory.value

    def free(self, address, size):
        self._api.free(self._context, address, size)

    def workspace(self, op, args):
        return self._api.workspace(self._context, self._library.of[op], ctypes.byref(args))

    def prepare(self, entry, args, workspace, stream=None, report=None):
        """A function of no arguments that makes this call and checks its status; args, workspace and report are kept."""
        function = getattr(self._api, entry)
        room = self._library.new("gb_workspace", data=workspace[0], bytes=workspace[1])
        report = self._report if report is None else report
        at_args, at_report, context = ctypes.byref(args), ctypes.byref(report), self._context

        def call():
            status = function(context, stream, at_args, room, at_report)
            if status:
                self._check(entry, status, report)
            return report

        call.keeps = (args, room, report)
        return call

    def stream_open(self):
        stream = ctypes.c_void_p()
        self._check("stream_open", self._api.stream_open(self._context, ctypes.byref(stream), self._at), self._report)
        return stream

    def stream_wait(self, stream):
        self._check("stream_wait", self._api.stream_wait(self._context, stream, self._at), self._report)

    def stream_close(self, stream):
        self._api.stream_close(self._context, stream)

    def check(self, what, report):
        """Raises where a report that a stream wrote says that its call was refused."""
        self._check(what, report.status, report)
