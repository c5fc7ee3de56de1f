"""Read a data frame out of a database of R's, in which Debian's r-cran-dslabs has 100,004 ratings. R is not needed.

base.rdx lists where in base.rdb each object lies; both are R's serialized form in XDR, compressed. Package
examples/movielens/rdata reads the same in Go and says more about the form. Here files are those of a package that apt
has checked: what is odd is an error, and nothing is bounded.
"""
import gzip
import pathlib
import struct
import zlib

__all__ = ["load"]

SYMBOL, PAIRS, CHARS, LOGICAL, INTS, REALS, TEXTS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
ALTREP, ATTRIBUTE_PAIRS, GLOBAL, NULL, REFERENCE = 238, 239, 253, 254, 255
HAS_ATTRIBUTES, HAS_TAG = 1 << 9, 1 << 10


class Value:
    """An object of R: the values of a vector, and its attributes by name."""

    def __init__(self, values=(), attributes=None):
        self.values, self.attributes = values, attributes or {}

    def named(self):
        """The elements of a list by their names."""
        names = self.attributes.get("names")
        return dict(zip(names.values, self.values)) if names else {}


class Decoder:
    """Reads one serialized object."""

    def __init__(self, data):
        self.data, self.at, self.symbols = data, 0, []
        if self.take(2) != b"X\n":
            raise ValueError("no header of R's XDR form")
        version = self.int()
        self.take(8)  # the versions of R that wrote it, and that can read it
        if version == 3:
            self.chars()  # the native encoding
        elif version != 2:
            raise ValueError(f"version {version} of R's form: want 2 or 3")

    def take(self, n):
        if self.at + n > len(self.data):
            raise ValueError(f"cut at byte {len(self.data)}")
        self.at += n
        return self.data[self.at - n:self.at]

    def int(self):
        return struct.unpack(">i", self.take(4))[0]

    def numbers(self, letter, size):
        n = self.int()
        return struct.unpack(f">{n}{letter}", self.take(n * size))

    def chars(self):
        n = self.int()
        return "NA" if n < 0 else self.take(n).decode("utf-8", "replace")

    def item(self):
        """An object with its attributes: a Value, or the text of a symbol."""
        flags = self.int()
        kind = flags & 0xFF
        if kind in (NULL, GLOBAL):
            return Value()
        if kind == SYMBOL:
            self.symbols.append(self.item())
            return self.symbols[-1]
        if kind == CHARS:
            return self.chars()
        if kind == REFERENCE:
            return self.symbols[(flags >> 8 or self.int()) - 1]
        if kind in (PAIRS, ATTRIBUTE_PAIRS):
            return self.pairs(flags)
        if kind == ALTREP:
            return self.compact()
        if kind in (LOGICAL, INTS):
            value = Value(self.numbers("i", 4))
        elif kind == REALS:
            value = Value(self.numbers("d", 8))
        elif kind in (TEXTS, LIST):
            value = Value([self.item() for _ in range(self.int())])
        else:
            raise ValueError(f"an object of type {kind} at byte {self.at}: want numbers, texts or a list")
        if flags & HAS_ATTRIBUTES:
            value.attributes = self.item().attributes
        return value

    def pairs(self, flags):
        """A list of pairs, whose values become attributes by their tags; those without one are "0", "1" and so on."""
        found = {}
        while flags & 0xFF in (PAIRS, ATTRIBUTE_PAIRS):
            if flags & HAS_ATTRIBUTES:
                self.item()
            tag = self.item() if flags & HAS_TAG else str(len(found))
            found[tag] = self.item()
            flags = self.int()
        return Value(attributes=found)

    def compact(self):
        """A vector in one of R's compact forms: a sequence, or another vector with notes on it."""
        kind, state, attributes = self.item(), self.item(), self.item()
        name = kind.attributes["0"]
        if name == "compact_intseq":
            n, first, step = state.values
            return Value([int(first + i * step) for i in range(int(n))], attributes.attributes)
        if not name.startswith("wrap_"):
            raise ValueError(f"compact form {name}")
        inner = state.values[0] if state.values else state.attributes["0"]
        return Value(inner.values, attributes.attributes or inner.attributes)


def load(base, name):
    """The columns of data frame `name` of base.rdx and base.rdb, by their names; a factor is its numbers.

    Raises FileNotFoundError where there is no database, and ValueError where it is something else or has no such
    object.
    """
    packed = pathlib.Path(f"{base}.rdx").read_bytes()
    index = Decoder(gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else zlib.decompress(packed)).item()
    places = index.named()["variables"].named()
    if name not in places:
        raise ValueError(f"{base}.rdx: no object {name}; there are {', '.join(sorted(places))}")
    offset, length = places[name].values
    with open(f"{base}.rdb", "rb") as f:
        f.seek(offset)
        object_ = f.read(length)
    return {column: value.values for column, value in Decoder(zlib.decompress(object_[4:])).item().named().items()}
