"""A small language for finding messages: read by a parser of its own, run by closures, with no way to anything else.

    value.user.id == 42 and not (key startswith "test-")
    headers.trace contains "abc" or partition in (0, 3)
    timestamp >= "2026-01-31T12:00:00Z" and size > 1000
    value.items[*].sku matches "A-[0-9]+"

- Names: `key`, `value`, `offset`, `partition`, `timestamp` (milliseconds), `size` (bytes of key and value), `headers`.
  `.name`, `[0]`, `["any name"]` go into what was decoded; `[*]` is any of the elements. What is not there is `null`.
- Literals: numbers, "text" or 'text' (with \\" \\\\ \\n \\t \\uXXXX), true, false, null, and lists in parentheses.
- `==` `!=` `<` `<=` `>` `>=`, `contains`, `startswith`, `endswith`, `matches` (a regular expression of RE2, for the
  whole text), `in`, and `and`, `or`, `not` (also `&&`, `||`, `!`), parentheses. A name alone asks whether it is there,
  and not false.

Values of different kinds are never equal, nor less or more than each other; a text beside `timestamp` is a time.
`key` and `value` by themselves are the text that is shown.

Every value that a path visits and every comparison is paid for from the subject's budget (`limits.py`), longer texts in
proportion to their length. A message that costs more raises TooLarge; nothing else raises while messages are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from kavka.common.regex import BadPattern, Pattern
from kavka.common.times import milliseconds_of
from kavka.console.limits import Budget

MAX_LENGTH = 2000
MAX_DEPTH = 40
MAX_STEPS = 30
TEXT_STEP = 256
"""Characters that a comparison looks at in one step of work."""
PATTERN_STEP = 4096
"""The same for a regular expression, times the size of its program: RE2 in its slowest mode runs all of it for each
character."""

NAMES = ("key", "value", "offset", "partition", "timestamp", "size", "headers")
WORDS = ("contains", "startswith", "endswith", "matches", "in")
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")


class BadExpression(ValueError):
    """It cannot be read; `str()` says what is wrong and where."""


class Subject(Protocol):
    """A message, as far as expressions look at it. `budget` pays for the work on it."""

    budget: Budget

    def text_of(self, name: str) -> str | None:
        """What is shown of `key` or `value`."""

    def data_of(self, name: str) -> Any:
        """What was decoded: the value of a name, with lists and mappings in it."""


Test = Callable[[Subject], bool]
Operand = Callable[[Subject], list[Any]]
"""The values that an operand has: one, or with [*] any number."""


class Token(NamedTuple):
    kind: str
    """name, number, text, operator, end."""
    text: str
    value: Any
    at: int


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<name>[A-Za-z_$][\w$-]*)
    | (?P<operator>==|!=|<=|>=|&&|\|\||[<>!()\[\].,*=])
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def tokens(text: str) -> Iterator[Token]:
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            at = position + len(text[position:]) - len(text[position:].lstrip())
            said = "a text without its end" if text[at] in "\"'" else repr(text[at])
            raise BadExpression(f"{said} at {at + 1} is not understood")
        kind = match.lastgroup or ""
        found = match.group(kind)
        at = match.start(kind)
        value: Any = found
        if kind == "number":
            value = float(found) if re.search(r"[.eE]", found) else int(found)
        elif kind == "text":
            value = _ESCAPE.sub(_unescaped, found[1:-1])
        yield Token(kind, found, value, at)
        position = match.end()
    yield Token("end", "", None, len(text))


def _unescaped(match: re.Match[str]) -> str:
    found = match.group(1)
    return chr(int(found[1:], 16)) if len(found) == 5 else _ESCAPES.get(found, found)


def compile_expression(text: str) -> Test:
    if len(text) > MAX_LENGTH:
        raise BadExpression(f"an expression of {len(text)} characters; more than {MAX_LENGTH} are not taken")
    return _Parser(text).whole()


class Path(NamedTuple):
    """Where to look: a name, then steps: text for a member, a number for an element, None for any element."""

    name: str
    steps: tuple[str | int | None, ...]

    def values(self, subject: Subject) -> list[Any]:
        if not self.steps and self.name in ("key", "value"):
            return [subject.text_of(self.name)]
        return follow(subject.data_of(self.name), self.steps, subject.budget)


def follow(data: Any, steps: tuple[str | int | None, ...], budget: Budget) -> list[Any]:
    """What the steps lead to; [None] where they lead to nothing."""
    if None not in steps:
        for step in steps:
            if isinstance(step, str):
                if not isinstance(data, dict):
                    return [None]
                data = data.get(step)
            elif isinstance(data, list) and isinstance(step, int) and -len(data) <= step < len(data):
                data = data[step]
            else:
                return [None]
        return [data]
    values = [data]
    for step in steps:
        deeper: list[Any] = []
        for value in values:
            if step is None:
                inside = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
                budget.spend_work(1 + len(inside))
                deeper.extend(inside)
            elif isinstance(step, int):
                if isinstance(value, list) and -len(value) <= step < len(value):
                    deeper.append(value[step])
            elif isinstance(value, dict) and step in value:
                deeper.append(value[step])
        budget.spend_work(len(values))
        values = deeper
        if not values:
            return [None]
    return values


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._at = 0
        self._depth = 0

    # --- the tokens

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _take(self, *texts: str) -> bool:
        token = self._peek()
        if token.kind in ("operator", "name") and token.text in texts:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self._wrong(f"'{text}'")

    def _wrong(self, expected: str) -> None:
        token = self._peek()
        found = "the end" if token.kind == "end" else f"'{token.text}' at {token.at + 1}"
        raise BadExpression(f"{expected} is expected, not {found}")

    def _expect_end(self) -> None:
        if self._peek().kind != "end":
            self._wrong("the end, or 'and' or 'or',")

    # --- the grammar

    def whole(self) -> Test:
        if self._peek().kind == "end":
            raise BadExpression("there is no expression")
        found = self._or()
        self._expect_end()
        return found

    def _or(self) -> Test:
        parts = [self._and()]
        while self._take("or", "||"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else lambda subject: any(part(subject) for part in parts)

    def _and(self) -> Test:
        parts = [self._not()]
        while self._take("and", "&&"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else lambda subject: all(part(subject) for part in parts)

    def _not(self) -> Test:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadExpression(f"more than {MAX_DEPTH} parentheses and 'not' inside of each other")
        try:
            if self._take("not", "!"):
                inner = self._not()
                return lambda subject: not inner(subject)
            if self._take("("):
                found = self._or()
                self._expect(")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Test:
        left = self._operand()
        token = self._peek()
        if token.kind == "operator" and token.text in (*COMPARISONS, "="):
            self._next()
            return _compared(left, "==" if token.text == "=" else token.text, self._operand())
        if token.kind == "name" and token.text in WORDS:
            self._next()
            return self._word(left, token.text)
        if isinstance(left, _Literal):
            self._wrong("a comparison")
        values = left.values
        return lambda subject: any(value is not None and value is not False for value in values(subject))

    def _word(self, left: Path | _Literal, word: str) -> Test:
        values = left.values
        if word == "in":
            choices = self._list()
            return lambda subject: _any_pair(_equal, values(subject), choices, subject.budget)
        if word == "matches":
            token = self._next()
            if token.kind != "text":
                self._at -= token.kind != "end"
                self._wrong("a text with a regular expression")
            try:
                pattern = Pattern(token.value)
            except BadPattern as error:
                raise BadExpression(f"the regular expression at {token.at + 1}: {error}") from None
            return lambda subject: any(_matches(pattern, a, subject.budget) for a in values(subject))
        right = self._operand().values
        test = _WORDS[word]
        return lambda subject: _any_pair(test, values(subject), right(subject), subject.budget)

    def _list(self) -> list[Any]:
        self._expect("(")
        found = [self._literal()]
        while self._take(","):
            found.append(self._literal())
        self._expect(")")
        return found

    def _operand(self) -> Path | _Literal:
        token = self._peek()
        if token.kind == "name" and token.text in NAMES:
            return self._path()
        return _Literal(self._literal())

    def _literal(self) -> Any:
        token = self._peek()
        if token.kind in ("number", "text"):
            return self._next().value
        if token.kind == "name" and token.text in _CONSTANTS:
            self._next()
            return _CONSTANTS[token.text]
        return self._wrong(f"a number, a text or one of {', '.join(NAMES)}")

    def _path(self) -> Path:
        name = self._next().text
        steps: list[str | int | None] = []
        while True:
            if self._take("."):
                token = self._next()
                if token.text == "*" and token.kind == "operator":
                    steps.append(None)
                elif token.kind == "name":
                    steps.append(token.text)
                else:
                    self._at -= token.kind != "end"
                    self._wrong("a name")
            elif self._take("["):
                token = self._next()
                if token.text == "*" and token.kind == "operator":
                    steps.append(None)
                elif token.kind == "text" or isinstance(token.value, int):
                    steps.append(token.value)
                else:
                    self._at -= token.kind != "end"
                    self._wrong("a number, a text or *")
                self._expect("]")
            else:
                break
            if len(steps) > MAX_STEPS:
                raise BadExpression(f"a path of more than {MAX_STEPS} steps")
        return Path(name, tuple(steps))


class _Literal(NamedTuple):
    value: Any

    def values(self, subject: Subject) -> list[Any]:
        return [self.value]


_CONSTANTS = {"true": True, "false": False, "null": None}


def _compared(left: Path | _Literal, operator: str, right: Path | _Literal) -> Test:
    left, right = _with_times(left, right), _with_times(right, left)
    a, b = left.values, right.values
    if operator == "!=":
        return lambda subject: not _any_pair(_equal, a(subject), b(subject), subject.budget)
    test = _COMPARISONS[operator]
    return lambda subject: _any_pair(test, a(subject), b(subject), subject.budget)


def _with_times(one: Path | _Literal, other: Path | _Literal) -> Path | _Literal:
    """A text beside `timestamp` is a time."""
    if isinstance(one, _Literal) and isinstance(one.value, str) and other == Path("timestamp", ()):
        try:
            return _Literal(milliseconds_of(one.value))
        except (ValueError, OverflowError) as error:
            raise BadExpression(str(error)) from None
    return one


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Comparison = Callable[[Any, Any, Budget], bool]
"""The caller has paid for the two values; a comparison that looks into them pays for that."""


def _any_pair(test: Comparison, lefts: list[Any], rights: list[Any], budget: Budget) -> bool:
    for left in lefts:
        cost = 1 + (len(left) // TEXT_STEP if isinstance(left, str) else 0)
        for right in rights:
            budget.spend_work(cost)
            if test(left, right, budget):
                return True
    return False


def _matches(pattern: Pattern, value: Any, budget: Budget) -> bool:
    if not isinstance(value, str):
        budget.spend_work()
        return False
    budget.spend_work(1 + len(value) * pattern.size // PATTERN_STEP)
    # JSON may name halves of surrogate pairs, which have no UTF-8.
    return pattern.matches(value.encode("utf-8", "replace").decode())


def _equal(a: Any, b: Any, budget: Budget) -> bool:
    """Python's own comparison of lists and objects would recurse, and would not be paid for."""
    pairs = [(a, b)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            budget.spend_work(len(a))
            pairs.extend(zip(a, b, strict=True))
        elif isinstance(a, dict) and isinstance(b, dict):
            if len(a) != len(b):
                return False
            budget.spend_work(len(a))
            if a.keys() != b.keys():
                return False
            pairs.extend((value, b[name]) for name, value in a.items())
        elif _is_number(a) and _is_number(b):
            if a != b:
                return False
        elif type(a) is not type(b) or a != b:
            return False
    return True


def _ordered(test: Callable[[Any, Any], bool]) -> Comparison:
    def compare(a: Any, b: Any, budget: Budget) -> bool:
        if (_is_number(a) and _is_number(b)) or (isinstance(a, str) and isinstance(b, str)):
            return test(a, b)
        return False

    return compare


def _contains(a: Any, b: Any, budget: Budget) -> bool:
    if isinstance(a, str):
        return isinstance(b, str) and b in a
    if isinstance(a, list):
        return _any_pair(_equal, a, [b], budget)
    return isinstance(a, dict) and isinstance(b, str) and b in a


def _text_test(test: Callable[[str, str], bool]) -> Comparison:
    return lambda a, b, budget: isinstance(a, str) and isinstance(b, str) and test(a, b)


_COMPARISONS: dict[str, Comparison] = {
    "==": _equal,
    "<": _ordered(lambda a, b: a < b),
    "<=": _ordered(lambda a, b: a <= b),
    ">": _ordered(lambda a, b: a > b),
    ">=": _ordered(lambda a, b: a >= b),
}
_WORDS: dict[str, Comparison] = {
    "contains": _contains,
    "startswith": _text_test(str.startswith),
    "endswith": _text_test(str.endswith),
}
