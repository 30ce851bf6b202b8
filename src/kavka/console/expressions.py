"""A small filter language for messages. A parser compiles it to closures, which can access nothing
but the message.

value.user.id == 42 and not (key startswith "test-")
headers.trace contains "abc" or partition in (0, 3)
timestamp >= "2026-01-31T12:00:00Z" and size > 1000
value.items[*].sku matches "A-[0-9]+"

- Names: `key`, `value`, `offset`, `partition`, `timestamp` (milliseconds), `size` (bytes of key and
  value), `headers`. `.name`, `[0]` and `["any name"]` select members of the decoded value; `[*]`
  selects any element. A missing member is `null`.
- Literals: numbers, "text" or 'text' (with \\" \\\\ \\n \\t \\uXXXX), true, false, null, and lists
  in parentheses.
- `==` `!=` `<` `<=` `>` `>=`, `contains`, `startswith`, `endswith`, `matches` (an RE2 regular
  expression for the whole text), `in`, `and`, `or`, `not` (also `&&`, `||`, `!`), parentheses. A
  name alone tests that the value exists and is not false.

Values of different types are neither equal nor ordered. A text compared with `timestamp` is a time.
`key` and `value` alone are the displayed text.

Every value that a path visits and every comparison is charged to the subject's budget
(`limits.py`), longer texts in proportion to their length. A message above the budget raises
TooLarge; evaluation raises nothing else.
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
"""The characters that a comparison processes per step of work."""
PATTERN_STEP = 4096
"""The same for a regular expression, multiplied by its program size, which RE2 runs for each
character in its slowest mode."""

NAMES = ("key", "value", "offset", "partition", "timestamp", "size", "headers")
WORDS = ("contains", "startswith", "endswith", "matches", "in")
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")


class BadExpression(ValueError):
    """A syntax error; `str()` is the reason and the position."""


class Subject(Protocol):
    """The message that an expression is evaluated on. The work is charged to `budget`."""

    budget: Budget

    def text_of(self, name: str) -> str | None:
        """The displayed text of `key` or `value`."""

    def data_of(self, name: str) -> Any:
        """The decoded value of a name, with lists and mappings."""


Test = Callable[[Subject], bool]


class Token(NamedTuple):
    """A token of an expression, at the offset `at`."""

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
            problem = "a text without its end" if text[at] in "\"'" else repr(text[at])
            raise BadExpression(f"{problem} at {at + 1} is not understood")
        kind = match.lastgroup or ""
        lexeme = match.group(kind)
        at = match.start(kind)
        value: Any = lexeme
        if kind == "number":
            value = float(lexeme) if re.search(r"[.eE]", lexeme) else int(lexeme)
        elif kind == "text":
            value = _ESCAPE.sub(_unescaped, lexeme[1:-1])
        yield Token(kind, lexeme, value, at)
        position = match.end()
    yield Token("end", "", None, len(text))


def _unescaped(match: re.Match[str]) -> str:
    escape = match.group(1)
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPES.get(escape, escape)


def compile_expression(text: str) -> Test:
    if len(text) > MAX_LENGTH:
        raise BadExpression(f"an expression of {len(text)} characters; more than {MAX_LENGTH} are not taken")
    return _Parser(text).whole()


class Path(NamedTuple):
    """A name, then steps: a text for a member, a number for an element, None for any element."""

    name: str
    steps: tuple[str | int | None, ...]

    def values(self, subject: Subject) -> list[Any]:
        if not self.steps and self.name in ("key", "value"):
            return [subject.text_of(self.name)]
        return follow(subject.data_of(self.name), self.steps, subject.budget)


def follow(data: Any, steps: tuple[str | int | None, ...], budget: Budget) -> list[Any]:
    """The values at the end of the steps, [None] if there are none."""
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
    """A recursive descent parser of one expression."""

    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._at = 0
        self._depth = 0

    # --- tokens

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
        actual = "the end" if token.kind == "end" else f"'{token.text}' at {token.at + 1}"
        raise BadExpression(f"{expected} is expected, not {actual}")

    def _expect_end(self) -> None:
        if self._peek().kind != "end":
            self._wrong("the end, or 'and' or 'or',")

    # --- grammar

    def whole(self) -> Test:
        if self._peek().kind == "end":
            raise BadExpression("there is no expression")
        test = self._or()
        self._expect_end()
        return test

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
                test = self._or()
                self._expect(")")
                return test
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
        items = [self._literal()]
        while self._take(","):
            items.append(self._literal())
        self._expect(")")
        return items

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
    """An operand with a constant value."""

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


def _with_times(operand: Path | _Literal, other: Path | _Literal) -> Path | _Literal:
    """Parse a text that is compared with `timestamp` as a time."""
    if isinstance(operand, _Literal) and isinstance(operand.value, str) and other == Path("timestamp", ()):
        try:
            return _Literal(milliseconds_of(operand.value))
        except (ValueError, OverflowError) as error:
            raise BadExpression(str(error)) from None
    return operand


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Comparison = Callable[[Any, Any, Budget], bool]
"""The caller has charged the two values; a comparison of their contents charges more."""


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
    # JSON may contain lone surrogates, which have no UTF-8.
    return pattern.matches(value.encode("utf-8", "replace").decode())


def _equal(a: Any, b: Any, budget: Budget) -> bool:
    """Compare without Python's recursive comparison of lists and objects, which charges nothing."""
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
