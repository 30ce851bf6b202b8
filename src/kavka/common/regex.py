"""Regular expressions that clients send: matched in time that grows with the text, never with what a pattern provokes.

Python's own `re` goes back and forth, and a pattern of a few characters can keep it busy for years; the one event
loop of a broker must not run what a client writes there. Kafka uses RE2, which walks over the text once with the set of
all places in the pattern that it could be at; so does this, for the part of RE2's syntax that names are matched with:

    x  .  [a-z]  [^x]  \\d \\w \\s \\D \\W \\S  [[:alpha:]]  \\x2e \\x{2e} \\. \\Q...\\E
    xy  x|y  x*  x+  x?  x{n}  x{n,}  x{n,m} (and the lazy forms, which match the same texts)
    (x)  (?:x)  (?P<name>x)  (?i:x)  (?i)  ^  $  \\A  \\z

A pattern matches a text as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

MAX_PATTERN = 1000
MAX_REPEAT = 1000
MAX_STEPS = 2000

Test = Callable[[str], bool]


class BadPattern(ValueError):
    """`str()` says in one line what is wrong."""


# A step of a program: its kind, one or two steps that it leads to, and for _CHAR the test that a character must pass.
_CHAR, _SPLIT, _START, _END, _MATCH = range(5)
Step = tuple[int, int, int, "Test | None"]


class Pattern:
    __slots__ = ("_program", "text")

    def __init__(self, text: str, program: list[Step]) -> None:
        self.text = text
        self._program = program

    def matches(self, text: str) -> bool:
        program = self._program
        current = self._close([0], True, not text)
        last = len(text) - 1
        for position, character in enumerate(text):
            following = []
            for at in current:
                kind, after, _, test = program[at]
                if kind == _CHAR and test is not None and test(character):
                    following.append(after)
            if not following:
                return False
            current = self._close(following, False, position == last)
        return any(program[at][0] == _MATCH for at in current)

    def _close(self, starts: Iterable[int], at_start: bool, at_end: bool) -> set[int]:
        """All steps that can be reached from `starts` without taking a character."""
        program = self._program
        seen: set[int] = set()
        todo = list(starts)
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            kind, first, second, _ = program[at]
            if kind == _SPLIT:
                todo += (first, second)
            elif (kind == _START and at_start) or (kind == _END and at_end):
                todo.append(first)
        return seen


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> Pattern:
    """BadPattern where it is none, or too large."""
    if len(text) > MAX_PATTERN:
        raise BadPattern(f"a pattern may have {MAX_PATTERN} characters, this one has {len(text)}")
    return Pattern(text, _Program(_Parser(text).parse()).steps)


# ---- the parts of a pattern, as nested tuples: ("char", test) ("cat", parts) ("alt", parts) ("^",) ("$",)
# ("repeat", part, low, high)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._ignore_case = False

    def parse(self) -> tuple[object, ...]:
        found = self._alternatives()
        if self._at < len(self._text):
            raise BadPattern(f"a ) without a ( at {self._at}")
        return found

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        found = self._peek()
        if not found:
            raise BadPattern("the pattern ends too early")
        self._at += 1
        return found

    def _accept(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _alternatives(self) -> tuple[object, ...]:
        self._depth += 1
        if self._depth > 100:
            raise BadPattern("groups are nested too deeply")
        outer = self._ignore_case
        parts = [self._sequence()]
        while self._accept("|"):
            parts.append(self._sequence())
        self._ignore_case = outer
        self._depth -= 1
        return ("alt", parts) if len(parts) > 1 else parts[0]

    def _sequence(self) -> tuple[object, ...]:
        parts: list[tuple[object, ...]] = []
        while self._peek() not in ("", "|", ")"):
            if self._accept("\\Q"):
                literal, _, _ = self._text[self._at :].partition("\\E")
                self._at = min(len(self._text), self._at + len(literal) + 2)
                parts += [self._literal(character) for character in literal]
                if parts and literal:
                    parts[-1] = self._repeated(parts[-1])
                continue
            one = self._one()
            if one is not None:
                parts.append(self._repeated(one))
        return ("cat", parts)

    def _one(self) -> tuple[object, ...] | None:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return ("char", self._class())
        if character == ".":
            return ("char", lambda c: c != "\n")
        if character in "^$":
            return (character,)
        if character in "*+?":
            raise BadPattern(f"nothing to repeat before {character}")
        if character != "\\":
            return self._literal(character)
        if self._accept("A"):
            return ("^",)
        if self._accept("z"):
            return ("$",)
        return self._escaped()

    def _group(self) -> tuple[object, ...] | None:
        ignore_case = self._ignore_case
        if self._accept("?"):
            if self._accept("P<") or self._accept("<"):
                name, mark, _ = self._text[self._at :].partition(">")
                if not mark or not name.isidentifier():
                    raise BadPattern("a group's name must be letters, digits and _, up to a >")
                self._at += len(name) + 1
            else:
                while self._peek() not in (":", ")", ""):
                    self._flag(self._take())
                if self._accept(")"):
                    return None
                if not self._accept(":"):
                    raise BadPattern("a group is not closed")
        found = self._alternatives()
        self._ignore_case = ignore_case
        if not self._accept(")"):
            raise BadPattern("a group is not closed")
        return found

    def _flag(self, flag: str) -> None:
        if flag not in "isU":
            raise BadPattern(f"(?{flag} is not known")
        if flag == "i":
            self._ignore_case = True

    def _repeated(self, one: tuple[object, ...]) -> tuple[object, ...]:
        low, high = self._bounds()
        if low < 0:
            return one
        self._accept("?")
        if self._peek() and self._peek() in "*+":
            raise BadPattern(f"nothing to repeat before {self._peek()}")
        return ("repeat", one, low, high)

    def _bounds(self) -> tuple[int, int]:
        """How often the part before may come: (-1, -1) where nothing is said, -1 as the second for no limit."""
        for sign, bounds in (("*", (0, -1)), ("+", (1, -1)), ("?", (0, 1))):
            if self._accept(sign):
                return bounds
        if self._peek() != "{":
            return -1, -1
        inside, mark, _ = self._text[self._at + 1 :].partition("}")
        first, comma, second = inside.partition(",")
        if not mark or not first.isdecimal() or (second and not second.isdecimal()):
            return -1, -1
        self._at += len(inside) + 2
        low = int(first)
        high = int(second) if second else (-1 if comma else low)
        if low > MAX_REPEAT or high > MAX_REPEAT or (0 <= high < low):
            raise BadPattern(f"{{{inside}}} is out of order, or more than {MAX_REPEAT}")
        return low, high

    # ---- characters

    def _literal(self, character: str) -> tuple[object, ...]:
        return ("char", _among(self._both_cases(character)))

    def _both_cases(self, character: str) -> frozenset[str]:
        if self._ignore_case:
            return frozenset((character, character.lower(), character.upper()))
        return frozenset(character)

    def _escaped(self) -> tuple[object, ...]:
        named = _NAMED.get(self._peek())
        if named is not None:
            self._at += 1
            return ("char", named)
        return self._literal(self._escaped_character())

    def _escaped_character(self) -> str:
        character = self._take()
        if character in _CONTROL:
            return _CONTROL[character]
        if character == "x":
            if self._accept("{"):
                digits, mark, _ = self._text[self._at :].partition("}")
                self._at += len(digits) + 1
            else:
                digits, mark = self._text[self._at : self._at + 2], "}"
                self._at += 2
            try:
                return chr(int(digits, 16)) if mark else ""
            except (ValueError, OverflowError):
                raise BadPattern(f"\\x{digits} is no character") from None
        if character.isalnum():
            raise BadPattern(f"\\{character} is not known")
        return character

    def _class(self) -> Test:
        negated = self._accept("^")
        tests: list[Test] = []
        single: set[str] = set()
        first = True
        while first or self._peek() != "]":
            first = False
            if self._accept("[:"):
                name, mark, _ = self._text[self._at :].partition(":]")
                posix = _POSIX.get(name.removeprefix("^"))
                if not mark or posix is None:
                    raise BadPattern(f"[:{name}:] is not known")
                self._at += len(name) + 2
                tests.append(_without(posix) if name.startswith("^") else posix)
                continue
            character = self._take()
            if character == "\\":
                named = _NAMED.get(self._peek())
                if named is not None:
                    self._at += 1
                    tests.append(named)
                    continue
                character = self._escaped_character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                end = self._take()
                if end == "\\":
                    end = self._escaped_character()
                if end < character:
                    raise BadPattern(f"the range {character}-{end} is out of order")
                tests.append(self._range(character, end))
            else:
                single |= self._both_cases(character)
        self._at += 1
        if single:
            tests.append(_among(frozenset(single)))
        return _without(_any_of(tests)) if negated else _any_of(tests)

    def _range(self, low: str, high: str) -> Test:
        if not self._ignore_case:
            return lambda c: low <= c <= high
        return lambda c: low <= c <= high or low <= c.lower() <= high or low <= c.upper() <= high


def _among(characters: frozenset[str]) -> Test:
    return characters.__contains__


def _any_of(tests: list[Test]) -> Test:
    return tests[0] if len(tests) == 1 else lambda c: any(test(c) for test in tests)


def _without(test: Test) -> Test:
    return lambda c: not test(c)


def _ascii(text: str) -> Test:
    return _among(frozenset(text))


_LOWER = "abcdefghijklmnopqrstuvwxyz"
_UPPER = _LOWER.upper()
_DIGITS = "0123456789"
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_NAMED: dict[str, Test] = {
    "d": _ascii(_DIGITS),
    "w": _ascii(_DIGITS + _LOWER + _UPPER + "_"),
    "s": _ascii("\t\n\f\r "),
}
_NAMED |= {name.upper(): _without(test) for name, test in _NAMED.items()}
_POSIX: dict[str, Test] = {
    "alnum": _ascii(_DIGITS + _LOWER + _UPPER),
    "alpha": _ascii(_LOWER + _UPPER),
    "digit": _ascii(_DIGITS),
    "lower": _ascii(_LOWER),
    "upper": _ascii(_UPPER),
    "word": _NAMED["w"],
    "punct": _ascii(_PUNCTUATION),
    "space": _ascii("\t\n\v\f\r "),
    "blank": _ascii("\t "),
    "xdigit": _ascii(_DIGITS + "abcdefABCDEF"),
}


class _Program:
    """The parts as steps, each of which leads to the next."""

    def __init__(self, parts: tuple[object, ...]) -> None:
        self.steps: list[Step] = []
        self._add(parts)
        self._emit(_MATCH)

    def _emit(self, kind: int, test: Test | None = None) -> int:
        if len(self.steps) >= MAX_STEPS:
            raise BadPattern("the pattern is too large when its repetitions are written out")
        at = len(self.steps)
        self.steps.append((kind, at + 1, at + 1, test))
        return at

    def _lead(self, at: int, first: int, second: int) -> None:
        self.steps[at] = (self.steps[at][0], first, second, self.steps[at][3])

    def _add(self, part: tuple[object, ...]) -> None:
        kind = part[0]
        if kind == "char":
            self._emit(_CHAR, part[1])  # type: ignore[arg-type]
        elif kind == "cat":
            for one in part[1]:  # type: ignore[attr-defined]
                self._add(one)
        elif kind == "alt":
            self._add_alternatives(part[1])  # type: ignore[arg-type]
        elif kind == "repeat":
            self._add_repeat(*part[1:])  # type: ignore[arg-type]
        else:
            self._emit(_START if kind == "^" else _END)

    def _add_alternatives(self, parts: list[tuple[object, ...]]) -> None:
        ends = []
        for part in parts[:-1]:
            split = self._emit(_SPLIT)
            self._add(part)
            ends.append(self._emit(_SPLIT))
            self._lead(split, split + 1, len(self.steps))
        self._add(parts[-1])
        for end in ends:
            self._lead(end, len(self.steps), len(self.steps))

    def _add_repeat(self, part: tuple[object, ...], low: int, high: int) -> None:
        for _ in range(low):
            self._add(part)
        if high < 0:
            split = self._emit(_SPLIT)
            self._add(part)
            back = self._emit(_SPLIT)
            self._lead(back, split, split)
            self._lead(split, split + 1, len(self.steps))
            return
        splits = []
        for _ in range(high - low):
            splits.append(self._emit(_SPLIT))
            self._add(part)
        for split in splits:
            self._lead(split, split + 1, len(self.steps))
