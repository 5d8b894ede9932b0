"""
Expressions over label values, matched in time that grows with the value and nothing else.

The whole value must match, as in Prometheus and Alertmanager. The grammar is the part of RE2's that labels need:
literals, ``.``, ``[a-z]``, ``\\d \\w \\s`` (and negated), groups, ``|``, ``* + ?`` and ``{m,n}``. What is missing
(back references, lookaround, flags, anchors inside) is refused when the expression is read: nothing here backtracks,
so that no value, whoever chose it, can hold up the guard.
"""

from __future__ import annotations

import string
from dataclasses import dataclass

LONGEST_EXPRESSION = 512
MOST_STATES = 500
MOST_NESTED = 20
MOST_KNOWN_SETS = 1_000
"""Sets of states remembered per expression: steps after the first visit are look-ups."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_SPACE = frozenset("\t\n\f\r ")
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _SPACE}


class ExpressionError(ValueError):
    """The text is no expression of this grammar; the message says what and where."""


@dataclass(frozen=True, slots=True)
class _Set:
    """Characters that one step takes."""

    characters: frozenset[str]
    ranges: tuple[tuple[str, str], ...] = ()
    negated: bool = False
    without: tuple[frozenset[str], ...] = ()
    """Negated classes inside a bracket: ``[\\D…]``."""

    def takes(self, character: str) -> bool:
        found = (
            character in self.characters
            or any(low <= character <= high for low, high in self.ranges)
            or any(character not in one for one in self.without)
        )
        return found is not self.negated


_ANY = _Set(frozenset("\n"), negated=True)


@dataclass(slots=True)
class _State:
    """Takes a character and goes on, or goes on without (``on`` None)."""

    on: _Set | None = None
    to: tuple[int, ...] = ()


class LabelExpression:
    """
    A compiled expression.

    Raises:
        ExpressionError: ``text`` is none.
    """

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_EXPRESSION:
            raise ExpressionError(f"is longer than {LONGEST_EXPRESSION} characters; write several routes")
        self.text = text
        self._states: list[_State] = []
        parser = _Parser(_unanchored(text), self)
        begin, self._end = parser.whole()
        self._begin = self._closure({begin})
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, value: str) -> bool:
        """Whether all of ``value`` matches."""
        now = self._begin
        for character in value:
            key = (now, character)
            then = self._steps.get(key)
            if then is None:
                then = self._step(now, character)
                if len(self._steps) < MOST_KNOWN_SETS:
                    self._steps[key] = then
            if not then:
                return False
            now = then
        return self._end in now

    def _step(self, now: frozenset[int], character: str) -> frozenset[int]:
        reached: set[int] = set()
        for number in now:
            state = self._states[number]
            if state.on is not None and state.on.takes(character):
                reached.update(state.to)
        return self._closure(reached)

    def _closure(self, numbers: set[int]) -> frozenset[int]:
        found, waiting = set(numbers), list(numbers)
        while waiting:
            state = self._states[waiting.pop()]
            if state.on is None:
                new = [n for n in state.to if n not in found]
                found.update(new)
                waiting += new
        return frozenset(found)

    def add(self, on: _Set | None = None, *to: int) -> int:
        """Add a state; return its number. Raises ExpressionError when there are too many."""
        if len(self._states) >= MOST_STATES:
            raise ExpressionError(f"means more than {MOST_STATES} states; write smaller numbers in {{}}")
        self._states.append(_State(on, to))
        return len(self._states) - 1

    def lead(self, number: int, *to: int) -> None:
        """State ``number`` goes on to ``to``, too."""
        self._states[number].to += to


def _unanchored(text: str) -> str:
    """The anchors around the whole change nothing."""
    text = text.removeprefix("^")
    escaped = (len(text) - 1 - len(text[:-1].rstrip("\\"))) % 2 == 1 if text.endswith("$") else False
    return text[:-1] if text.endswith("$") and not escaped else text


class _Parser:
    """Recursive descent; a part is (first state, last state), the last without a way on."""

    def __init__(self, text: str, into: LabelExpression) -> None:
        self._text, self._at, self._into = text, 0, into
        self._nested = 0

    def whole(self) -> tuple[int, int]:
        part = self._alternatives()
        if self._at < len(self._text):
            raise self._wrong("has a ) too many")
        return part

    def _wrong(self, what: str) -> ExpressionError:
        return ExpressionError(f"{what} (character {self._at + 1})")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> tuple[int, int]:
        first, last = self._into.add(), self._into.add()
        while True:
            begin, end = self._sequence()
            self._into.lead(first, begin)
            self._into.lead(end, last)
            if self._next() != "|":
                return first, last
            self._at += 1

    def _sequence(self) -> tuple[int, int]:
        first = last = self._into.add()
        while (character := self._next()) and character not in "|)":
            begin, end = self._repeated()
            self._into.lead(last, begin)
            last = end
        return first, last

    def _repeated(self) -> tuple[int, int]:
        began = self._at
        part = self._atom()
        ended = self._at
        least, most = self._repetition()
        if (least, most) == (1, 1):
            return part
        if self._next() in ("*", "+", "?") or self._repetition_follows():
            raise self._wrong("repeats a repetition; one of * + ? {} is enough")
        after = self._at
        first = last = self._into.add()
        for number in range(max(least, 1 if most is None else most)):
            if number:
                self._at = began
                part = self._atom()
                assert self._at == ended
            begin, end = part
            following = self._into.add()
            self._into.lead(last, begin)
            self._into.lead(end, following)
            if number >= least:
                self._into.lead(last, following)
            if most is None and number == max(least, 1) - 1:
                self._into.lead(following, begin)
            last = following
        self._at = after
        return first, last

    def _repetition_follows(self) -> bool:
        return self._next() == "{" and self._numbers() is not None

    def _repetition(self) -> tuple[int, int | None]:
        """(least, most); most None: any number."""
        character = self._next()
        if character in ("*", "+", "?") and character:
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        numbers = self._numbers() if character == "{" else None
        if numbers is None:
            return 1, 1
        least, most, self._at = numbers
        if most is not None and most < least:
            raise self._wrong("has {m,n} with n less than m")
        if most == 0:
            raise self._wrong("has {0}, which matches nothing; remove it")
        return least, most

    def _numbers(self) -> tuple[int, int | None, int] | None:
        """What ``{m}``, ``{m,}`` or ``{m,n}`` at this place says, and where it ends; else it is a plain brace."""
        close = self._text.find("}", self._at)
        inner = self._text[self._at + 1 : close] if close > 0 else ""
        low, comma, high = inner.partition(",")
        if not (_number(low) and (not high or _number(high))) or (high and not comma):
            return None
        least = int(low)
        most = least if not comma else int(high) if high else None
        return least, most, close + 1

    def _atom(self) -> tuple[int, int]:
        character = self._next()
        if character == "(":
            return self._group()
        if character in ("*", "+", "?"):
            raise self._wrong(f"has {character} with nothing before it")
        if character in ("^", "$"):
            raise self._wrong(f"has {character} inside; the whole value must match anyway")
        if character == "[":
            return self._take(self._bracket())
        self._at += 1
        if character == ".":
            return self._take(_ANY)
        if character == "\\":
            return self._take(self._escape())
        return self._take(_Set(frozenset(character)))

    def _take(self, characters: _Set) -> tuple[int, int]:
        last = self._into.add()
        return self._into.add(characters, last), last

    def _group(self) -> tuple[int, int]:
        self._at += 1
        if self._next() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise self._wrong("has (?…); only plain groups and (?:…) are known")
            self._at += 2
        self._nested += 1
        if self._nested > MOST_NESTED:
            raise self._wrong(f"has more than {MOST_NESTED} groups in one another")
        part = self._alternatives()
        self._nested -= 1
        if self._next() != ")":
            raise self._wrong("has a ( without its )")
        self._at += 1
        return part

    def _escape(self) -> _Set:
        """What stands after a backslash."""
        character = self._next()
        if not character:
            raise self._wrong("ends with a backslash")
        self._at += 1
        if character.lower() in _CLASSES:
            return _Set(_CLASSES[character.lower()], negated=character.isupper())
        if character in _ESCAPES:
            return _Set(frozenset(_ESCAPES[character]))
        if character.isalnum():
            self._at -= 1
            raise self._wrong(f"has \\{character}, which is not known here; write the characters themselves")
        return _Set(frozenset(character))

    def _bracket(self) -> _Set:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        characters: set[str] = set()
        ranges: list[tuple[str, str]] = []
        without: list[frozenset[str]] = []
        first = True
        while first or self._next() != "]":
            low = self._one(characters, without)
            first = False
            if low is None:
                continue
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._one(set(), without)
                if high is None or high < low:
                    raise self._wrong("has a range in [] that is none")
                ranges.append((low, high))
            else:
                characters.add(low)
        self._at += 1
        return _Set(frozenset(characters), tuple(ranges), negated, tuple(without))

    def _one(self, characters: set[str], without: list[frozenset[str]]) -> str | None:
        """One character of a bracket; None where it was a class, which is added to ``characters`` or ``without``."""
        character = self._next()
        if not character or (character == "[" and self._text[self._at + 1 : self._at + 2] == ":"):
            raise self._wrong("has a [ without its ]" if not character else "has [:…:]; write the characters")
        self._at += 1
        if character != "\\":
            return character
        found = self._escape()
        if found.negated:
            without.append(found.characters)
            return None
        if len(found.characters) > 1:
            characters |= found.characters
            return None
        return next(iter(found.characters))


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4
