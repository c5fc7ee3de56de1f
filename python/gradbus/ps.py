"""The program `ps`, which serves shards: where it is, and how a shell starts it.

    gradbus-ps --listen 127.0.0.1:4222
    python -m gradbus.ps status

Both become the program that the wheel carries; its own `--help` lists what it can do.
"""
import os
import pathlib
import sys

__all__ = ["main", "program"]


def program() -> str:
    """The path of the program: that of the wheel, or of a checkout in which `make` has built it.

    Raises FileNotFoundError where there is neither.
    """
    here = pathlib.Path(__file__).resolve().parent
    places = (here / "bin" / "ps", here.parent.parent / "bin" / "ps")
    for place in places:
        if place.is_file():
            return str(place)
    raise FileNotFoundError(f"gradbus has no program ps ({places[0]}): install its wheel, or run make in its checkout")


def main() -> None:
    """Become the program, with the arguments of this process: signals and the status are then its own."""
    try:
        path = program()
        os.execv(path, ["gradbus-ps", *sys.argv[1:]])
    except OSError as err:
        sys.exit(f"gradbus-ps: {err}")


if __name__ == "__main__":
    main()
