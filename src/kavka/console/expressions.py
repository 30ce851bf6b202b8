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

Values of different types are neither equal nor ordered. A text compared with `timestamp` is parsed
as a time. `key` and `value` without a path are the displayed text.

Every value selected by `[*]` and every comparison is charged to the message's budget (`limits.py`),
longer texts in proportion to their length. A message above the budget raises TooLarge. Evaluation
raises nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, Protocol

from kavka.common.regex import Pattern, PatternError
from kavka.common.times import milliseconds_of
from kavka.console.limits import Budget

MAX_LENGTH = 2000
MAX_DEPTH = 40
MAX_STEPS = 30
CHARACTERS_PER_STEP = 256
"""The number of characters that a comparison processes per step of work."""
INSTRUCTIONS_PER_STEP = 4096
"""The number of program instructions that a regular expression runs per step of work. In its
slowest mode RE2 runs the whole program for each character."""

NAMES = ("key", "value", "offset", "partition", "timestamp", "size", "headers")
WORD_OPERATORS = ("contains", "startswith", "endswith", "matches", "in")
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")


class BadExpression(ValueError):
    """A syntax error; `str()` is the reason and the position."""


class Subject(Protocol):
    """A message that an expression is evaluated on. The work is charged to `budget`."""

    budget: Budget

    def text_of(self, name: str) -> str | None:
        """The displayed text of `key` or `value`."""

    def data_of(self, name: str) -> Any:
        """The decoded value of a name in `NAMES`."""


Test = Callable[[Subject], bool]


class Token(NamedTuple):
    """A token of an expression."""

    kind: str
    """name, number, text, operator, end."""
    text: str
    value: Any
    position: int


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
            position = len(text) - len(text[position:].lstrip())
            problem = "unterminated text" if text[position] in "\"'" else f"unexpected {text[position]!r}"
            raise BadExpression(f"{problem} at {position + 1}")
        kind = match.lastgroup or ""
        lexeme = match.group(kind)
        value: Any = lexeme
        if kind == "number":
            value = float(lexeme) if re.search(r"[.eE]", lexeme) else int(lexeme)
        elif kind == "text":
            value = _ESCAPE.sub(_unescaped, lexeme[1:-1])
        yield Token(kind, lexeme, value, match.start(kind))
        position = match.end()
    yield Token("end", "", None, len(text))


def _unescaped(match: re.Match[str]) -> str:
    escape = match.group(1)
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPES.get(escape, escape)


def compile_expression(text: str) -> Test:
    """Return a function that tests a message. Raises BadExpression for an invalid expression."""
    if len(text) > MAX_LENGTH:
        raise BadExpression(f"the expression has {len(text)} characters, the limit is {MAX_LENGTH}")
    return _Parser(text).parse()


class Path(NamedTuple):
    """A name and steps. A step is a text for a member, a number for an element, or None for any
    element."""

    name: str
    steps: tuple[str | int | None, ...]

    def values(self, subject: Subject) -> list[Any]:
        if not self.steps and self.name in ("key", "value"):
            return [subject.text_of(self.name)]
        return follow(subject.data_of(self.name), self.steps, subject.budget)


def follow(data: Any, steps: tuple[str | int | None, ...], budget: Budget) -> list[Any]:
    """Return the values at the end of the steps, or [None] if there are none."""
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
        next_values: list[Any] = []
        for value in values:
            if step is None:
                elements = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
                budget.spend_work(1 + len(elements))
                next_values.extend(elements)
            elif isinstance(step, int):
                if isinstance(value, list) and -len(value) <= step < len(value):
                    next_values.append(value[step])
            elif isinstance(value, dict) and step in value:
                next_values.append(value[step])
        budget.spend_work(len(values))
        values = next_values
        if not values:
            return [None]
    return values


class _Parser:
    """A recursive descent parser of one expression."""

    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._index = 0
        self._depth = 0

    # --- tokens

    def _peek(self) -> Token:
        return self._tokens[self._index]

    def _next(self) -> Token:
        token = self._tokens[self._index]
        self._index += token.kind != "end"
        return token

    def _accept(self, *texts: str) -> bool:
        """Skip the next token if it is one of `texts`. Returns whether it was."""
        token = self._peek()
        if token.kind in ("operator", "name") and token.text in texts:
            self._index += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            self._fail(f"'{text}'")

    def _fail(self, expected: str) -> NoReturn:
        token = self._peek()
        actual = "the end" if token.kind == "end" else f"'{token.text}' at {token.position + 1}"
        raise BadExpression(f"expected {expected}, not {actual}")

    # --- grammar

    def parse(self) -> Test:
        if self._peek().kind == "end":
            raise BadExpression("the expression is empty")
        test = self._or()
        if self._peek().kind != "end":
            self._fail("'and', 'or' or the end")
        return test

    def _or(self) -> Test:
        tests = [self._and()]
        while self._accept("or", "||"):
            tests.append(self._and())
        return tests[0] if len(tests) == 1 else lambda subject: any(test(subject) for test in tests)

    def _and(self) -> Test:
        tests = [self._not()]
        while self._accept("and", "&&"):
            tests.append(self._not())
        return tests[0] if len(tests) == 1 else lambda subject: all(test(subject) for test in tests)

    def _not(self) -> Test:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadExpression(f"parentheses and 'not' are nested more than {MAX_DEPTH} levels deep")
        try:
            if self._accept("not", "!"):
                inner = self._not()
                return lambda subject: not inner(subject)
            if self._accept("("):
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
            return _comparison_test(left, "==" if token.text == "=" else token.text, self._operand())
        if token.kind == "name" and token.text in WORD_OPERATORS:
            self._next()
            return self._word_test(left, token.text)
        if isinstance(left, _Literal):
            self._fail("a comparison")
        values = left.values
        return lambda subject: any(value is not None and value is not False for value in values(subject))

    def _word_test(self, left: Path | _Literal, word: str) -> Test:
        values = left.values
        if word == "in":
            choices = self._list()
            return lambda subject: _any_pair(_equal, values(subject), choices, subject.budget)
        if word == "matches":
            if self._peek().kind != "text":
                self._fail("a text with a regular expression")
            token = self._next()
            try:
                pattern = Pattern(token.value)
            except PatternError as error:
                raise BadExpression(f"the regular expression at {token.position + 1}: {error}") from None
            return lambda subject: any(_matches(pattern, value, subject.budget) for value in values(subject))
        right_values = self._operand().values
        test = _WORD_COMPARISONS[word]
        return lambda subject: _any_pair(test, values(subject), right_values(subject), subject.budget)

    def _list(self) -> list[Any]:
        self._expect("(")
        items = [self._literal()]
        while self._accept(","):
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
        return self._fail(f"a number, a text or one of {', '.join(NAMES)}")

    def _path(self) -> Path:
        name = self._next().text
        steps: list[str | int | None] = []
        while (is_member := self._accept(".")) or self._accept("["):
            token = self._peek()
            if token.text == "*" and token.kind == "operator":
                steps.append(None)
            elif token.kind == "name" if is_member else token.kind == "text" or isinstance(token.value, int):
                steps.append(token.value)
            else:
                self._fail("a name" if is_member else "a number, a text or *")
            self._next()
            if not is_member:
                self._expect("]")
            if len(steps) > MAX_STEPS:
                raise BadExpression(f"a path has more than {MAX_STEPS} steps")
        return Path(name, tuple(steps))


class _Literal(NamedTuple):
    """An operand with a constant value."""

    value: Any

    def values(self, subject: Subject) -> list[Any]:
        return [self.value]


_CONSTANTS = {"true": True, "false": False, "null": None}


def _comparison_test(left: Path | _Literal, operator: str, right: Path | _Literal) -> Test:
    left, right = _with_time(left, right), _with_time(right, left)
    left_values, right_values = left.values, right.values
    if operator == "!=":
        return lambda subject: not _any_pair(_equal, left_values(subject), right_values(subject), subject.budget)
    test = _COMPARISONS[operator]
    return lambda subject: _any_pair(test, left_values(subject), right_values(subject), subject.budget)


def _with_time(operand: Path | _Literal, other: Path | _Literal) -> Path | _Literal:
    """Return the operand, or its time in milliseconds if it is a text that is compared with
    `timestamp`."""
    if isinstance(operand, _Literal) and isinstance(operand.value, str) and other == Path("timestamp", ()):
        try:
            return _Literal(milliseconds_of(operand.value))
        except (ValueError, OverflowError) as error:
            raise BadExpression(str(error)) from None
    return operand


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Comparison = Callable[[Any, Any, Budget], bool]
"""Compares two values. The caller charges the pair; the comparison charges the elements of lists
and maps."""


def _any_pair(test: Comparison, lefts: list[Any], rights: list[Any], budget: Budget) -> bool:
    for left in lefts:
        cost = 1 + (len(left) // CHARACTERS_PER_STEP if isinstance(left, str) else 0)
        for right in rights:
            budget.spend_work(cost)
            if test(left, right, budget):
                return True
    return False


def _matches(pattern: Pattern, value: Any, budget: Budget) -> bool:
    if not isinstance(value, str):
        budget.spend_work()
        return False
    budget.spend_work(1 + len(value) * pattern.size // INSTRUCTIONS_PER_STEP)
    # JSON may contain lone surrogates, which cannot be encoded as UTF-8.
    return pattern.matches(value.encode("utf-8", "replace").decode())


def _equal(a: Any, b: Any, budget: Budget) -> bool:
    """Return whether two values are equal. Python's comparison of lists and dicts would charge
    nothing to the budget."""
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
_WORD_COMPARISONS: dict[str, Comparison] = {
    "contains": _contains,
    "startswith": _text_test(str.startswith),
    "endswith": _text_test(str.endswith),
}
