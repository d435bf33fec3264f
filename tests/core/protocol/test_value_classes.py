"""The dataclass of values does what that of the standard library does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field

import pytest

from hpclaunch.core.protocol import value_classes

ABOUT = "A value."


def made(dataclass):
    """Return classes of all kinds that there are, with one of the two decorators."""

    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    @dataclass(frozen=True, slots=True)
    class One:
        """A value."""

        codes: tuple[int, ...]

    @dataclass(frozen=True, slots=True)
    class Several:
        number: int
        name: str = ""
        seen: dict[str, int] = field(default_factory=dict)

        @property
        def twice(self) -> int:
            return 2 * self.number

    @dataclass(frozen=True, slots=True)
    class Checked:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("a negative number")

        def __repr__(self) -> str:
            return "checked"

    return Nothing, One, Several, Checked


OURS, THEIRS = made(value_classes.dataclass), made(dataclasses.dataclass)
Nothing, One, Several, Checked = OURS
Pickled = value_classes.dataclass(frozen=True, slots=True)(
    type("Pickled", (), {"__annotations__": {"a": int, "b": str}, "__module__": __name__})
)
ARGUMENTS = [
    [((), {})],
    [(((1, 2),), {}), ((), {"codes": ()}), (((),), {})],
    [((1,), {}), ((1, "a"), {}), ((), {"number": 1, "name": "a", "seen": {"b": 2}})],
    [((1,), {}), ((2,), {})],
]
PAIRS = [
    (ours, theirs, arguments)
    for ours, theirs, arguments in zip(OURS, THEIRS, ARGUMENTS, strict=True)
]


@pytest.mark.parametrize(("ours", "theirs", "arguments"), PAIRS)
def test_values_are_made_shown_and_compared_alike(ours, theirs, arguments):
    names = [each.name for each in dataclasses.fields(ours)]
    assert names == [each.name for each in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert ours.__slots__ == theirs.__slots__
    for args, named in arguments:
        value, other = ours(*args, **named), theirs(*args, **named)
        assert repr(value) == repr(other)
        assert dataclasses.astuple(value) == dataclasses.astuple(other)
        assert value == ours(*args, **named)
        assert value != other
        for more, more_named in arguments:
            same = other == theirs(*more, **more_named)
            assert (value == ours(*more, **more_named)) == same


@pytest.mark.parametrize(("kind", "number"), [(Nothing, 0), (One, 1), (Checked, 1)])
def test_equal_values_have_equal_hashes(kind, number):
    args = [(1,)] * number if kind is One else [1] * number
    assert hash(kind(*args)) == hash(kind(*args))
    assert {kind(*args): "a"}[kind(*args)] == "a"


def test_what_cannot_be_hashed():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Several(1))


def test_each_value_has_a_container_of_its_own():
    first, second = Several(1), Several(1)
    first.seen["a"] = 1
    assert second.seen == {}
    assert first != second


@pytest.mark.parametrize("name", ["number", "another"])
def test_nothing_can_be_changed(name):
    value = Several(1)
    with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
        setattr(value, name, 2)
    with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
        delattr(value, name)
    assert value.number == 1


@pytest.mark.parametrize(
    ("args", "named"), [((), {}), ((1, "a", {}, 4), {}), ((1,), {"another": 2})]
)
def test_wrong_arguments(args, named):
    errors = []
    for kind in (Several, THEIRS[2]):
        with pytest.raises(TypeError) as caught:
            kind(*args, **named)
        errors.append(str(caught.value).rpartition("__init__")[2])
    assert errors[0] == errors[1]


def test_another_value_with_some_fields_replaced():
    value = dataclasses.replace(Several(1, "a"), name="b")
    assert (value.number, value.name, value.twice) == (1, "b", 2)
    with pytest.raises(ValueError, match="a negative number"):
        dataclasses.replace(Checked(1), number=-1)


def test_a_pattern():
    match Several(1, "a"):
        case Several(number, name=name):
            assert (number, name) == (1, "a")


def test_copies():
    value = Several(1, "a", {"b": 2})
    for one in (copy.copy(value), copy.deepcopy(value)):
        assert one == value
    assert copy.deepcopy(value).seen is not value.seen
    assert pickle.loads(pickle.dumps(Pickled(1, "a"))) == Pickled(1, "a")


def test_what_says_what_it_is():
    assert One.__doc__ == ABOUT
    assert Nothing.__doc__ == "Nothing"


@pytest.mark.parametrize(
    "how",
    [{"compare": False}, {"repr": False}, {"hash": False}, {"init": False}, {"kw_only": True}],
)
def test_fields_of_another_kind_are_refused(how):
    with pytest.raises(AssertionError, match="number "):

        @value_classes.dataclass(frozen=True, slots=True)
        class Odd:
            number: int = field(default=1, **how)
