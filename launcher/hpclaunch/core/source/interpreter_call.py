"""The command line of a Python interpreter: its program, and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..protocol.values import field, value

RUN_PATH = "runpy.run_path(sys.argv[0]"  # marks code for -c that runs a script with runpy


@value()
class InterpreterCall:
    flags: set[str] = field(default_factory=set)
    extra: list[str] = field(default_factory=list)  # the values of -X
    kind: str = ""  # "c": code, "m": a module, "": a script
    program: str = "-"

    @property
    def runs(self) -> bool:
        """Whether it runs a program, and does not only show its version or its options."""
        return not self.flags & {"h", "?", "V"}


def parse(words: Sequence[str]) -> InterpreterCall:
    """Parse the arguments of the interpreter as CPython does: letters may be joined, and a value
    may be attached to its letter.
    """
    call, left = InterpreterCall(), [*words]
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                left[:1] = []
            else:
                call.flags.add("h")
            continue
        for at, letter in enumerate(word[1:], 2):
            if letter not in "cmWX":
                call.flags.add(letter)
                continue
            value = word[at:] or (left.pop(0) if left else "")
            if letter in "cm":
                call.kind, call.program = letter, value
                if letter == "c" and RUN_PATH in value and left:
                    call.kind, call.program = "", left[0]
                return call
            if letter == "X":
                call.extra.append(value)
            break
    if left:
        call.program = left[0]
    return call


def why_cold(call: InterpreterCall, environ: Mapping[str, str]) -> str:
    """Return why an interpreter must start cold; "" if it may start warm."""
    for letter in "EIS":
        if letter in call.flags:
            return f"the option -{letter} keeps hpclaunch out of the interpreter"
    if "v" in call.flags:
        return "the option -v is to show all imports"
    if any(option.partition("=")[0] == "importtime" for option in call.extra):
        return "the option -X importtime is to measure all imports"
    for name in ("PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME"):
        if environ.get(name):
            return f"{name} is to show all imports"
    return ""
