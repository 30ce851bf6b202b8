"""Regular expressions that clients send: matched in time that grows with the text, never with what a pattern provokes.

Python's own `re` goes back and forth, and a pattern of a few characters can keep it busy for years; the one event
loop of a broker must not run what a client writes there. Kafka uses RE2, which walks over the text once with the set of
all places in the pattern that it could be at. So does this. A pattern becomes a list of steps; the sets of steps that
come up are remembered (an automaton that is built as it is needed), so matching many names costs one look-up for each
character. What building it may cost is bounded, and so are the pattern's length, its nesting and its repetitions;
a pattern beyond that is refused.

Syntax: that of RE2 but for the names of most scripts. Backreferences and looking around are not in it. A pattern
matches a text as a whole.

A set of characters is an integer with a bit for each character of ASCII, and a test for all the others.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

MAX_LENGTH = 10_000
MAX_NESTING = 100
MAX_REPEAT = 1_000
MAX_STEPS = 20_000
# What building the automaton may cost: steps looked at, in all, and in addition for every text that is matched.
WORK_LIMIT = 200_000
WORK_PER_TEXT = 50
MAX_STATES = 5_000

EVERY = (1 << 128) - 1


class BadPattern(ValueError):
    """It is not a pattern, or would cost too much. `str()` says in one line what is wrong."""


def _mask(test: Callable[[str], bool]) -> int:
    return sum(1 << code for code in range(128) if test(chr(code)))


class CharSet(NamedTuple):
    mask: int
    others: Callable[[str], bool] | None = None

    def has(self, c: str) -> bool:
        code = ord(c)
        if code < 128:
            return bool(self.mask >> code & 1)
        return self.others is not None and self.others(c)

    def __or__(self, more: CharSet) -> CharSet:
        first, second = self.others, more.others
        if first is None or second is None:
            return CharSet(self.mask | more.mask, first or second)
        return CharSet(self.mask | more.mask, lambda c: first(c) or second(c))

    def negated(self) -> CharSet:
        others = self.others
        return CharSet(EVERY & ~self.mask, _always if others is None else lambda c: not others(c))

    def in_both_cases(self) -> CharSet:
        mask = self.mask | (self.mask & LOWER.mask) >> 32 | (self.mask & UPPER.mask) << 32
        others = self.others
        if others is None:
            return CharSet(mask)
        return CharSet(mask, lambda c: any(len(one) == 1 and others(one) for one in (c, c.lower(), c.upper())))


def _always(_: str) -> bool:
    return True


def _of(test: Callable[[str], bool]) -> CharSet:
    return CharSet(_mask(test))


def _only(c: str) -> CharSet:
    return CharSet(1 << ord(c)) if ord(c) < 128 else CharSet(0, c.__eq__)


def _between(low: str, high: str) -> CharSet:
    mask = _mask(lambda c: low <= c <= high)
    return CharSet(mask, (lambda c: low <= c <= high) if ord(high) >= 128 else None)


@lru_cache(maxsize=64)
def _category(name: str) -> CharSet:
    def test(c: str) -> bool:
        return unicodedata.category(c).startswith(name)

    return CharSet(_mask(test), test)


def _script(prefix: str) -> CharSet:
    return CharSet(0, lambda c: unicodedata.name(c, "").startswith(prefix))


NO_CHARS = CharSet(0)
ANY = CharSet(EVERY, _always)
DIGIT = _of(lambda c: "0" <= c <= "9")
LOWER = _of(lambda c: "a" <= c <= "z")
UPPER = _of(lambda c: "A" <= c <= "Z")
WORD = DIGIT | LOWER | UPPER | _only("_")
NEWLINE = _only("\n")
PERL = {"d": DIGIT, "s": _of(lambda c: c in "\t\n\f\r "), "w": WORD}
POSIX = {
    "alnum": DIGIT | LOWER | UPPER,
    "alpha": LOWER | UPPER,
    "ascii": CharSet(EVERY),
    "blank": _of(lambda c: c in "\t "),
    "cntrl": _of(lambda c: ord(c) < 32 or ord(c) == 127),
    "digit": DIGIT,
    "graph": _of(lambda c: 33 <= ord(c) <= 126),
    "lower": LOWER,
    "print": _of(lambda c: 32 <= ord(c) <= 126),
    "punct": _of(lambda c: 33 <= ord(c) <= 126 and not c.isalnum()),
    "space": _of(lambda c: c in "\t\n\v\f\r "),
    "upper": UPPER,
    "word": WORD,
    "xdigit": _of(lambda c: c in "0123456789abcdefABCDEF"),
}
ESCAPES = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
SCRIPTS = {
    "Any": ANY,
    "Latin": LOWER | UPPER | _script("LATIN "),
    "Han": _script("CJK "),
    **{name: _script(f"{name.upper()} ") for name in ("Arabic", "Cyrillic", "Greek", "Hebrew", "Thai")},
    **{name: _script(f"{name.upper()} ") for name in ("Hangul", "Hiragana", "Katakana")},
}
CATEGORIES = frozenset(
    letter + more
    for kinds in ("Ccfos", "Llmotu", "Mcen", "Ndlo", "Pcdefios", "Sckmo", "Zlps")
    for letter in kinds[0]
    for more in ("", *kinds[1:])
)

# Nodes of a parsed pattern: ("set", CharSet) ("cat", nodes) ("alt", nodes) ("rep", node, low, high) ("at", kind)
Node = tuple[Any, ...]


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.fold = False
        self.dot_all = False
        self.nesting = 0

    def fail(self, message: str) -> NoReturn:
        raise BadPattern(f"{message} at position {self.at}")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, expected: str) -> bool:
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def parse(self) -> Node:
        node = self.alternatives()
        if self.at < len(self.text):
            self.fail("there is a ) too many")
        return node

    def alternatives(self) -> Node:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            self.fail("it is nested too deeply")
        flags = self.fold, self.dot_all
        ways = [self.sequence()]
        while self.take("|"):
            ways.append(self.sequence())
        self.fold, self.dot_all = flags
        self.nesting -= 1
        return ways[0] if len(ways) == 1 else ("alt", tuple(ways))

    def sequence(self) -> Node:
        nodes: list[Node] = []
        while (c := self.peek()) and c not in "|)":
            start = self.at
            node = self.atom()
            if node is not None:
                nodes.append(self.repeated(node))
            elif self.peek() in ("*", "+", "?") and self.peek():
                self.at = start
                self.fail("there is nothing to repeat")
        return nodes[0] if len(nodes) == 1 else ("cat", tuple(nodes))

    # ---- one thing, and how often

    def atom(self) -> Node | None:
        c = self.peek()
        if c in "*+?":
            self.fail("there is nothing to repeat")
        self.at += 1
        if c == "(":
            return self.group()
        if c == "[":
            return ("set", self.char_class())
        if c == ".":
            return ("set", ANY if self.dot_all else NEWLINE.negated())
        if c == "^":
            return ("at", "start")
        if c == "$":
            return ("at", "end")
        if c == "\\":
            return self.escape()
        return self.literal(c)

    def literal(self, c: str) -> Node:
        return ("set", self.folded(_only(c)))

    def folded(self, chars: CharSet) -> CharSet:
        return chars.in_both_cases() if self.fold else chars

    def repeated(self, node: Node) -> Node:
        times = 0
        while True:
            bounds = self.bounds()
            if bounds is None:
                return node
            times += 1
            if times > 1:
                self.fail("a repetition is repeated")
            self.take("?")
            low, high = bounds
            node = ("rep", node, low, high)

    def bounds(self) -> tuple[int, int | None] | None:
        if self.take("*"):
            return 0, None
        if self.take("+"):
            return 1, None
        if self.take("?"):
            return 0, 1
        if self.peek() != "{":
            return None
        end = self.text.find("}", self.at)
        if end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        if not _is_number(low) or (high and not _is_number(high)):
            return None
        self.at = end + 1
        least = int(low)
        most = (int(high) if high else None) if comma else least
        if least > MAX_REPEAT or (most is not None and (most > MAX_REPEAT or most < least)):
            self.fail("a number of repetitions is not possible")
        return least, most

    def group(self) -> Node | None:
        if not self.take("?"):
            node = self.alternatives()
        else:
            looks_behind = self.text.startswith(("<=", "<!"), self.at)
            if self.take("P<") or (not looks_behind and self.take("<")):
                name, closed, _ = self.text[self.at :].partition(">")
                if not closed or not name.isidentifier() or not name.isascii():
                    self.fail("a group has no proper name")
                self.at += len(name) + 1
                node = self.alternatives()
            else:
                before = self.fold, self.dot_all
                if self.flags():
                    return None
                node = self.alternatives()
                self.fold, self.dot_all = before
        if not self.take(")"):
            self.fail("a ) is missing")
        return node

    def flags(self) -> bool:
        """`(?i)`: True, they hold up to the end of the group around. `(?i:`: they hold inside of it."""
        value = True
        seen = False
        while True:
            c = self.peek()
            self.at += 1
            if c == "i":
                self.fold = value
            elif c == "s":
                self.dot_all = value
            elif c == "-" and value:
                value = False
                seen = False
                continue
            elif c == ":" and (seen or value):
                return False
            elif c == ")" and seen:
                return True
            elif c not in ("m", "U") or not c:
                self.at -= 1
                self.fail("a group of this kind is not known")
            seen = True

    # ---- escapes and classes

    def escape(self) -> Node | None:
        c = self.peek()
        if c == "Q":
            self.at += 1
            text, _, _ = self.text[self.at :].partition("\\E")
            self.at = min(self.at + len(text) + 2, len(self.text))
            nodes = [self.literal(one) for one in text]
            if not nodes:
                return None
            # What follows repeats the last character only.
            return ("cat", (*nodes[:-1], self.repeated(nodes[-1])))
        at = {"A": "start", "z": "end", "b": "boundary", "B": "inside"}.get(c)
        if at is not None:
            self.at += 1
            return ("at", at)
        chars = self.class_escape()
        if chars is not None:
            return ("set", self.folded(chars))
        return self.literal(self.escaped())

    def class_escape(self) -> CharSet | None:
        """After a backslash: the set where it names one."""
        c = self.peek()
        if c.lower() in PERL and c:
            self.at += 1
            chars = PERL[c.lower()]
            return chars if c.islower() else chars.negated()
        if c not in ("p", "P") or not c:
            return None
        self.at += 1
        negated = c == "P"
        if self.take("{"):
            name, closed, _ = self.text[self.at :].partition("}")
            if not closed:
                self.fail("a } is missing")
            self.at += len(name) + 1
        else:
            name = self.peek()
            self.at += 1
        if name.startswith("^"):
            negated = not negated
            name = name[1:]
        if name in SCRIPTS:
            chars = SCRIPTS[name]
        elif name in CATEGORIES:
            chars = _category(name)
        else:
            self.fail(f"the class {name!r} is not known")
        return chars.negated() if negated else chars

    def escaped(self) -> str:
        """After a backslash: the character that it stands for."""
        c = self.peek()
        self.at += 1
        if c in ESCAPES:
            return chr(ESCAPES[c])
        if c == "x":
            return chr(self.hex_code())
        if c and c in "01234567":
            digits = c
            while len(digits) < 3 and (more := self.peek()) and more in "01234567":
                digits += more
                self.at += 1
            if c != "0" and len(digits) == 1:
                self.fail("references to groups are not possible")
            return chr(int(digits, 8))
        if not c or (c.isascii() and c.isalnum()):
            self.at -= 1
            self.fail("this escape is not known")
        return c

    def hex_code(self) -> int:
        if self.take("{"):
            digits, closed, _ = self.text[self.at :].partition("}")
            self.at += len(digits) + 1
        else:
            digits = self.text[self.at : self.at + 2]
            closed = "}" if len(digits) == 2 else ""
            self.at += 2
        if not closed or not digits or len(digits) > 6 or any(d not in "0123456789abcdefABCDEF" for d in digits):
            self.fail("this is not the number of a character")
        code = int(digits, 16)
        if code > 0x10FFFF:
            self.fail("there is no such character")
        return code

    def char_class(self) -> CharSet:
        negated = self.take("^")
        chars = NO_CHARS
        first = True
        while True:
            if not self.peek():
                self.fail("a ] is missing")
            if self.peek() == "]" and not first:
                self.at += 1
                break
            first = False
            chars |= self.class_item()
        chars = self.folded(chars)
        return chars.negated() if negated else chars

    def class_item(self) -> CharSet:
        if self.text.startswith("[:", self.at) and (end := self.text.find(":]", self.at)) > 0:
            name = self.text[self.at + 2 : end]
            known = POSIX.get(name.removeprefix("^"))
            if known is None:
                self.fail(f"the class {name!r} is not known")
            self.at = end + 2
            return known.negated() if name.startswith("^") else known
        if self.peek() == "\\":
            self.at += 1
            chars = self.class_escape()
            if chars is not None:
                return chars
            self.at -= 1
        low = self.class_char()
        if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            high = self.class_char()
            if high < low:
                self.fail("a range of characters is the wrong way round")
            return _between(low, high)
        return _only(low)

    def class_char(self) -> str:
        if self.take("\\"):
            return self.escaped()
        c = self.peek()
        if not c:
            self.fail("a ] is missing")
        self.at += 1
        return c


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 9 and text.isascii() and text.isdigit()


# Steps of a compiled pattern, by their index: (SET, CharSet, next) (SPLIT, next, other) (AT, kind, next) (MATCH,)
SET, SPLIT, AT, MATCH = range(4)
NO_CHAR, IS_WORD, NO_WORD = range(3)


class _Compiler:
    """Written from the end to the start: each piece is told the step that follows it."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = [(MATCH,)]
        self.writes = 0

    def add(self, *step: Any) -> int:
        if len(self.steps) >= MAX_STEPS:
            raise BadPattern("it is too large")
        self.steps.append(step)
        return len(self.steps) - 1

    def write(self, node: Node, after: int) -> int:
        # Repetitions of nothing add no steps, yet they take their time.
        self.writes += 1
        if self.writes > 2 * MAX_STEPS:
            raise BadPattern("it is too large")
        kind = node[0]
        if kind == "set":
            return self.add(SET, node[1], after)
        if kind == "at":
            return self.add(AT, node[1], after)
        if kind == "cat":
            for part in reversed(node[1]):
                after = self.write(part, after)
            return after
        if kind == "alt":
            ways = [self.write(way, after) for way in node[1]]
            first = ways[-1]
            for way in reversed(ways[:-1]):
                first = self.add(SPLIT, way, first)
            return first
        _, inner, low, high = node
        if high is None:
            loop = self.add(SPLIT, after, after)
            self.steps[loop] = (SPLIT, self.write(inner, loop), after)
            start = loop
        else:
            start = after
            for _ in range(high - low):
                start = self.add(SPLIT, self.write(inner, start), after)
        for _ in range(low):
            start = self.write(inner, start)
        return start


class _State:
    """The steps that a name may be at, before the next character is known; `before` is the kind of the last one."""

    __slots__ = ("accepts", "before", "next", "steps")

    def __init__(self, steps: frozenset[int], before: int) -> None:
        self.steps = steps
        self.before = before
        self.next: dict[str, _State] = {}
        self.accepts: bool | None = None


class Pattern:
    def __init__(self, text: str) -> None:
        """BadPattern where it is none, or too large."""
        if len(text) > MAX_LENGTH:
            raise BadPattern(f"a pattern may have {MAX_LENGTH} characters, this one has {len(text)}")
        self.text = text
        compiler = _Compiler()
        self._first = compiler.write(_Parser(text).parse(), 0)
        self._steps = compiler.steps
        self._states: dict[tuple[frozenset[int], int], _State] = {}
        self._work = 0
        self._limit = WORK_LIMIT

    def matches(self, text: str) -> bool:
        """BadPattern where the pattern costs too much, by all that it was matched with."""
        self._limit += WORK_PER_TEXT
        state = self._state(frozenset((self._first,)), NO_CHAR)
        for c in text:
            state = state.next.get(c) or self._advance(state, c)
            if not state.steps:
                return False
        if state.accepts is None:
            state.accepts = any(self._steps[step][0] == MATCH for step in self._reach(state, NO_CHAR))
        return state.accepts

    def select(self, texts: Iterable[str]) -> set[str]:
        return {text for text in texts if self.matches(text)}

    def _state(self, steps: frozenset[int], before: int) -> _State:
        state = self._states.get((steps, before))
        if state is None:
            if len(self._states) >= MAX_STATES:
                self._states.clear()
            state = self._states[(steps, before)] = _State(steps, before)
        return state

    def _advance(self, state: _State, c: str) -> _State:
        kind = IS_WORD if WORD.has(c) else NO_WORD
        found = set()
        for index in self._reach(state, kind):
            step = self._steps[index]
            if step[0] == SET and step[1].has(c):
                found.add(step[2])
        after = state.next[c] = self._state(frozenset(found), kind)
        return after

    def _reach(self, state: _State, coming: int) -> set[int]:
        """The steps that can be come to without taking a character."""
        reached = set(state.steps)
        todo = list(reached)
        while todo:
            self._work += 1
            step = self._steps[todo.pop()]
            if step[0] == SPLIT:
                further = step[1:]
            elif step[0] == AT and _holds(step[1], state.before, coming):
                further = step[2:]
            else:
                continue
            for index in further:
                if index not in reached:
                    reached.add(index)
                    todo.append(index)
        if self._work > self._limit:
            raise BadPattern("it costs too much to match")
        return reached


def _holds(kind: str, before: int, coming: int) -> bool:
    if kind == "start":
        return before == NO_CHAR
    if kind == "end":
        return coming == NO_CHAR
    is_boundary = (before == IS_WORD) != (coming == IS_WORD)
    return is_boundary if kind == "boundary" else not is_boundary


@lru_cache(maxsize=256)
def _compiled(text: str) -> Pattern | BadPattern:
    try:
        return Pattern(text)
    except BadPattern as error:
        return error


def compile_pattern(text: str) -> Pattern:
    """BadPattern where it is none, or too large. Both are remembered: to ask again costs nothing."""
    found = _compiled(text)
    if isinstance(found, BadPattern):
        raise BadPattern(str(found))
    return found
