"""The plain constants in a pickle, read from its operations.

Nothing is ever unpickled: whoever can write a file must not be able to run code in our processes,
nor to use up their time or memory. So no nested objects are built, the number of operations is
limited, and no regular expression repeats a group without a limit, since the engine stores each
repetition.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from pickletools import OpcodeInfo

MOST_OPERATIONS = 2_000_000  # operations of a pickle, which take some seconds
MOST_PIECES = 1 << 22
MOST_NUMBERS = 4096  # numbers in a list
LONGEST_NAME = 128  # characters that are kept of a module's or a class's name

Pieces = dict[str, list[tuple[int, int]]]  # by file: (start, length) in bytes

_GET = rb"(?:h.|j....)"
_INT = (
    rb"(?:K.|M..|J....|\x8a(?:\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
)
_TEXT = rb"\x8c(?:" + b"|".join(re.escape(bytes((n,))) + b".{%d}" % n for n in range(256)) + b")"
_FRAME = rb"(?:\x95.{8})?"  # may stand between any two operations
# Any operation of protocol 4 that metadata have, each from its first byte to its last.
_OPERATION = (
    rb"[\x94(012NRabde}lost)uQ\]\x81\x85-\x89\x8f-\x93\x97\x98]|\x80.|[G\x95].{8}|"
    + rb"|".join((_GET, _INT, _TEXT))
)


def _sequence(*operations: bytes) -> bytes:
    return b"".join(_FRAME + operation for operation in operations)


# The state of one _StorageInfo; its keys are fetched from the memo but for the first time.
_FIRST = re.compile(
    _sequence(
        rb"\x8c\x0drelative_path", rb"\x94", rb"(?P<name>" + _TEXT + rb")", rb"\x94",
        rb"(?:" + _GET + rb"|(?P<a>\x8c\x06offset\x94))", rb"(?P<start>" + _INT + rb")",
        rb"(?:" + _GET + rb"|(?P<b>\x8c\x06length\x94))", rb"(?P<length>" + _INT + rb")",
    ),
    re.DOTALL,
)  # fmt: skip
# Between two of them stands the key of the next one, a MetadataIndex: nearly always in this form,
# which is quick to match, and puts a known number of things into the memo.
_INTS = b"|".join((_INT + rb"\x85", _INT * 2 + rb"\x86", _INT * 3 + rb"\x87"))
_SIZE = _GET + rb"(?:" + _INTS + rb")\x94\x85\x94R\x94"
_KEY = (
    rb"ub(?:u\()?" + _GET + rb"\)\x81\x94\}\x94\("
    + _GET + rb"(?:" + _GET + rb"|(?P<tensor>" + _TEXT + rb"\x94))"
    + _GET + rb"(?:N|" + _INT + rb"|(?P<a>" + _SIZE + rb")|" + _GET + rb")"
    + _GET + rb"(?:N|" + _INT + rb"|(?P<b>" + _SIZE + rb")|" + _GET + rb")"
    + rb"ub" + _GET + rb"\)\x81\x94"
)  # fmt: skip
_NEXT = re.compile(
    rb"(?:" + _KEY + rb"|(?P<gap>(?:" + _OPERATION + rb"){0,1000}?))"
    + _sequence(
        rb"\}", rb"\x94", rb"\(", rb"(?P<key>" + _GET + rb")",
        rb"(?:(?P<get>" + _GET + rb")|(?P<name>" + _TEXT + rb")\x94)",
        _GET, rb"(?P<start>" + _INT + rb")", _GET, rb"(?P<length>" + _INT + rb")",
    ),
    re.DOTALL,
)  # fmt: skip
_RUN = re.compile(rb"(?:" + _OPERATION + rb"){1,1000}", re.DOTALL)
_EACH = re.compile(_OPERATION, re.DOTALL)
# Where \x94 may not be an operation but a part of one.
_UNCLEAR = re.compile(
    rb"[Kh\x8c\x80]\x94|M.?\x94|[Jj].{0,3}\x94|[\x8a\x95G].{0,8}\x94|[\xc2-\xf4][\x80-\xbf]",
    re.DOTALL,
)


def pieces(data: bytes) -> Pieces:
    """The files that the metadata of torch.distributed.checkpoint name, and in them a piece for
    each part of a tensor: an object with a relative_path, an offset and a length (_StorageInfo in
    torch's checkpoint/filesystem.py). Raises ValueError when they are not whole.
    """
    found = _pieces_fast(data)
    return _pieces_of_any(data) if found is None else found


def _pieces_fast(data: bytes) -> Pieces | None:
    """A regular expression takes each operation whole, from the first _StorageInfo on; None for
    what it does not know. What was said before is in the pickle's memo: it is counted from there.
    """
    at = data.find(b"\x8c\x0drelative_path\x94")
    match = _FIRST.match(data, at) if at >= 0 and data[:1] == b"\x80" else None
    if match is None:
        return None
    name = match["name"][2:].decode(errors="replace")
    found: Pieces = defaultdict(list)
    found[name].append((_number(match["start"]), _number(match["length"])))
    names = {1: name}  # by their place in the memo, from that of the text "relative_path"
    count = 2 + (match["a"] is not None) + (match["b"] is not None)
    by_get: dict[bytes, str] = {}
    base, key = None, b""
    parts = 1
    while following := _NEXT.match(data, match.end()):
        match = following
        if (parts := parts + 1) > MOST_PIECES:
            raise ValueError(f"it names more than {MOST_PIECES} parts")
        tensor, a, b, gap, this, get, text, start, length = match.groups()
        if gap is None:
            count += 3 + (tensor is not None) + 3 * (a is not None) + 3 * (b is not None)
        else:
            count += _memoized(gap)
        count += 1
        if base is None:
            base, key = _index(this), this
        if get is None:
            name = names[count] = text[2:].decode(errors="replace")
            count += 1
        elif get in by_get:
            name = by_get[get]
        else:
            name = by_get[get] = names.get(_index(get) - base, "")
        if this != key or not name:
            return None
        found[name].append((_number(start), _number(length)))
    at = match.end()
    while run := _RUN.match(data, at):
        at = run.end()
    return dict(found) if data[at:] == b"." else None


def _memoized(operations: bytes) -> int:
    """How many things they put into the memo."""
    if _UNCLEAR.search(operations):
        return _EACH.findall(operations).count(b"\x94")
    return operations.count(b"\x94")


def _index(operation: bytes) -> int:
    return int.from_bytes(operation[1:], "little")


def _pieces_of_any(data: bytes) -> Pieces:
    """Of a pickle of any protocol, slowly."""
    found: Pieces = defaultdict(list)
    words: list[str | int | None] = []
    wanted = 0
    for word in _words(data):
        if wanted:
            words.append(word)
            wanted -= 1
            if not wanted:
                match words:
                    case [str(name), "offset", int(start), "length", int(length)]:
                        found[name].append((start, length))
        elif word == "relative_path":
            words, wanted = [], 5
    return dict(found)


def _words(data: bytes) -> Iterator[str | int | None]:
    """The texts and numbers in it, in order."""
    memo: dict[int, str | int | None] = {}
    last: Any = None
    for op, value, _ in operations(data):
        name = op.name
        if name == "MEMOIZE":
            memo[len(memo)] = last
        elif "PUT" in name:
            memo[int(value or 0)] = last
        elif name not in ("PROTO", "FRAME"):
            last = memo.get(int(value or 0)) if "GET" in name else value
            if isinstance(last, (str, int)) or name == "NONE":
                yield last


class TooLongError(ValueError):
    """A pickle has more than MOST_OPERATIONS operations."""


def operations(source: bytes | BinaryIO) -> Iterator[tuple[OpcodeInfo, Any, int | None]]:
    """Yield the operations of a pickle. A stream is left at its end. Raises ValueError if it is no
    pickle, or too long."""
    import pickletools

    try:
        for number, operation in enumerate(pickletools.genops(source)):
            if number == MOST_OPERATIONS:
                raise TooLongError(f"its pickle has more than {MOST_OPERATIONS} operations")
            yield operation
    except DeprecationWarning as e:  # an invalid escape, where the user turns warnings into errors
        raise ValueError(str(e)) from e


def _number(text: bytes) -> int:
    if text[:1] in b"KM":
        return int.from_bytes(text[1:], "little")
    return int.from_bytes(text[2:] if text[:1] == b"\x8a" else text[1:], "little", signed=True)


_AFTER_KEY = re.compile(
    rb"(?:q.|r....|\x94)?(?:(?P<int>" + _INT + rb")|(?P<none>N)|(?P<yes>\x88)|(?P<no>\x89))",
    re.DOTALL,
)


def constant(data: bytes, key: str) -> int | bool | None:
    """The number or truth value that follows the text `key` where it first stands, as a value
    follows its key in a dictionary. Raises KeyError where neither does; None is a value too."""
    for at in _after(data, key):
        if found := _AFTER_KEY.match(data, at):
            match found.lastgroup:
                case "int":
                    return _number(found["int"])
                case "none":
                    return None
                case kind:
                    return kind == "yes"
    raise KeyError(key)


_MEMO = rb"(?:q.|r....|\x94)?"
_MANY = rb"(?:" + _INT + rb"){1,%d}" % MOST_NUMBERS
_NUMBERS = re.compile(
    _MEMO + rb"\]" + _MEMO + rb"(?P<all>(?:" + _INT + rb")a|\(" + _MANY + rb"e)", re.DOTALL
)
_EACH_NUMBER = re.compile(_INT, re.DOTALL)


def numbers(data: bytes, key: str) -> list[int]:
    """Those in the list that follows the text `key` where it first stands; [] where none does."""
    for at in _after(data, key):
        if found := _NUMBERS.match(data, at):
            return [_number(n) for n in _EACH_NUMBER.findall(found["all"].removeprefix(b"(")[:-1])]
    return []


def _after(data: bytes, key: str) -> Iterator[int]:
    """Where the text `key` ends for the first time, in either form that a text has."""
    text = key.encode()
    for length in (b"X" + len(text).to_bytes(4, "little"), b"\x8c" + bytes((len(text) & 255,))):
        if (at := data.find(length + text)) >= 0:
            yield at + len(length) + len(text)


def storages(stream: BinaryIO) -> dict[str, tuple[str, int]]:
    """The storages that a pickle of torch.save refers to: (type, number of elements) by key. The
    stream is left where the pickle ends."""
    found: dict[str, tuple[str, int]] = {}
    stack: list[object] = []
    memo: dict[int, object] = {}
    mark = object()
    for op, value, _ in operations(stream):
        if "PUT" in op.name or op.name == "MEMOIZE":
            memo[len(memo) if op.name == "MEMOIZE" else int(value or 0)] = stack[-1]
        elif "GET" in op.name:
            stack.append(memo[int(value or 0)])
        elif op.name == "MARK":
            stack.append(mark)
        else:
            taken = _take(stack, op.stack_before, mark)
            if op.name == "BINPERSID":
                match taken:
                    case [("storage", str(kind), str(key), _, int(count), *_)]:
                        found[key] = kind.rpartition(" ")[2], count
            made: object = value
            if op.name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
                # Drop inner tuples: nested twice at each level, the tree would grow exponentially.
                made = tuple(None if isinstance(each, tuple) else each for each in taken)
            elif op.name == "STACK_GLOBAL":
                match taken:
                    case [str(module), str(name)]:
                        made = f"{module[:LONGEST_NAME]} {name[:LONGEST_NAME]}"
                    case _:
                        raise ValueError("a global that has no name")
            stack += [made] * len(op.stack_after)
    return found


def _take(stack: list[object], wanted: Sequence[object], mark: object) -> list[object]:
    if any(getattr(w, "name", "") == "mark" for w in wanted):
        at = len(stack) - 1
        while stack[at] is not mark:  # IndexError where there is none
            at -= 1
        below = [getattr(w, "name", "") for w in wanted].index("mark")
        taken = stack[at + 1 :]
        del stack[at - below :]
        return taken
    count = len(wanted)
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken
