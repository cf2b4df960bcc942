"""The language of ``where=``: from text to a tree, with errors that point at the character.

    expression := term {"or" term}
    term       := factor {"and" factor}
    factor     := "not" factor | "(" expression ")" | predicate
    predicate  := column
                | operand ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") operand
                | column ["not"] "in" "(" literal {"," literal} ")"
                | column ["not"] "between" literal "and" literal
                | column "is" ["not"] "null"

A column is a name or a path of names separated by dots, optionally in double quotes; a literal is a
number, a text in single quotes, ``true`` or ``false``. Keywords may be in any case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from headrace.errors import BadArgumentError

MAX_LETTERS: Final = 8192
"""The most characters of an expression, which limits the parsing that a caller can cause
(arbitrary).
"""
_MAX_DEPTH = 50
_MAX_PREDICATES = 64
"""Each takes a pass over the column: 400 took a server five times as long as one (arbitrary)."""
_SHOWN_LETTERS = 60


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of one, by its name.

    Attributes:
        name: The name as written, without quotes.
        at: Where it starts in the text.
        is_quoted: Whether it is in double quotes.
    """

    name: str
    at: int
    is_quoted: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    """A value.

    Attributes:
        value: A number, a text or a truth value.
        text: The value as written.
        at: Where it starts in the text.
    """

    value: int | float | str | bool
    text: str
    at: int


Operand: TypeAlias = Column | Literal


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two operands with ``=``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``."""

    operator: str
    left: Operand
    right: Operand
    at: int


@dataclass(frozen=True, slots=True)
class Among:
    """A test whether a column has one of several values."""

    column: Column
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Null:
    """A test whether a column is null."""

    column: Column


@dataclass(frozen=True, slots=True)
class Truth:
    """A boolean column used as a condition."""

    column: Column


@dataclass(frozen=True, slots=True)
class Negation:
    """A negation."""

    of: Node


@dataclass(frozen=True, slots=True)
class Conjunction:
    """A conjunction of several conditions."""

    of: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Disjunction:
    """A disjunction of several conditions."""

    of: tuple[Node, ...]


Node: TypeAlias = Comparison | Among | Null | Truth | Negation | Conjunction | Disjunction


@dataclass(frozen=True, slots=True)
class _Word:
    kind: str
    text: str
    at: int


_KEYWORDS = frozenset(["and", "or", "not", "in", "is", "null", "between", "true", "false"])
_OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">"} | {
    ">=": ">="
}
_MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WORDS = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,15})?)(?![\w.])
    | (?P<text>'(?:[^']|'')*')
    | (?P<name>(?:[^\W\d]\w*|"(?:[^"]|"")+")(?:\.(?:\w+|"(?:[^"]|"")+"))*)
    | (?P<operator><>|==|!=|<=|>=|=|<|>)
    | (?P<sign>[(),])
    )""",
    re.VERBOSE,
)


def parse(text: str) -> Node:
    """Return the tree of an expression.

    Raises:
        BadArgumentError: It is not an expression; the message shows where.
    """
    if len(text) > MAX_LETTERS:
        raise BadArgumentError(
            f"where has {len(text)} characters, expected at most {MAX_LETTERS}; write a column "
            "that says which samples to keep, and filter by that",
            field="where",
        )
    parser = _Parser(text)
    return parser.whole()


def fail(text: str, at: int, problem: str) -> NoReturn:
    """Refuse an expression, and show where.

    Raises:
        BadArgumentError: Always.
    """
    start = max(0, at - _SHOWN_LETTERS // 2)
    shown = text[start : start + _SHOWN_LETTERS]
    line = "".join(letter if letter.isprintable() else " " for letter in shown)
    raise BadArgumentError(
        f"where, character {at + 1}: {problem}\n  {line}\n  {' ' * (at - start)}^",
        field="where",
    )


class _Parser:
    """Parse an expression from left to right, with one word of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = list(_words(text))
        self._next = 0
        self._depth = 0
        self._predicates = 0

    def whole(self) -> Node:
        """Return the tree of the whole expression."""
        if self._peek().kind == "end":
            fail(self._text, 0, "there is no expression; expected one such as label < 10")
        node = self._any()
        word = self._peek()
        if word.kind != "end":
            hint = "; put a name with spaces in double quotes" if word.kind == "name" else ""
            self._fail(word, "expected 'and', 'or' or the end" + hint)
        return node

    def _any(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(self._peek(), f"nested more than {_MAX_DEPTH} levels deep")
        parts = [self._all()]
        while self._took("or"):
            parts.append(self._all())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Disjunction(tuple(parts))

    def _all(self) -> Node:
        parts = [self._factor()]
        while self._took("and"):
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else Conjunction(tuple(parts))

    def _factor(self) -> Node:
        count = 0
        while self._took("not"):
            count += 1
        word = self._peek()
        if word.text == "(" and word.kind == "sign":
            self._take()
            node = self._any()
            self._expect(")", "expected ')' to close the one before")
        else:
            node = self._predicate()
        return Negation(node) if count % 2 else node

    def _predicate(self) -> Node:
        self._predicates += 1
        if self._predicates > _MAX_PREDICATES:
            problem = f"there are more than {_MAX_PREDICATES} conditions"
            self._fail(self._peek(), f"{problem}; test many values of a column with in (…)")
        left = self._operand()
        word = self._peek()
        if word.kind == "operator":
            self._take()
            return self._comparison(word, left, self._operand())
        if isinstance(left, Literal):
            self._fail(word, "expected a comparison such as = or <")
        if self._took("is"):
            is_not = self._took("not")
            self._expect("null", "expected 'null' after 'is'")
            return _inverted(Null(left), is_not)
        is_not = self._took("not")
        if self._took("in"):
            return _inverted(Among(left, self._values()), is_not)
        if self._took("between"):
            return _inverted(self._between(left), is_not)
        if is_not:
            self._fail(self._peek(), "expected 'in' or 'between' after 'not'")
        return Truth(left)

    def _comparison(self, word: _Word, left: Operand, right: Operand) -> Comparison:
        operator = _OPERATORS[word.text]
        if isinstance(left, Literal):
            if isinstance(right, Literal):
                fail(self._text, word.at, "two values are compared; expected a column on one side")
            return Comparison(_MIRRORED[operator], right, left, word.at)
        return Comparison(operator, left, right, word.at)

    def _values(self) -> tuple[Literal, ...]:
        self._expect("(", "expected '(' and values after 'in'")
        values = [self._literal()]
        while self._took(","):
            values.append(self._literal())
        self._expect(")", "expected ',' or ')'")
        return tuple(values)

    def _between(self, column: Column) -> Node:
        low = self._literal()
        self._expect("and", "expected 'and' and the upper value of 'between'")
        high = self._literal()
        return Conjunction(
            (
                Comparison(">=", column, low, low.at),
                Comparison("<=", column, high, high.at),
            )
        )

    def _operand(self) -> Operand:
        word = self._peek()
        if word.kind != "name":
            return self._literal()
        self._take()
        return Column(_unquoted(word.text), word.at, word.text.startswith('"'))

    def _literal(self) -> Literal:
        word = self._take()
        if word.kind == "number":
            return Literal(_number(word.text), word.text, word.at)
        if word.kind == "text":
            return Literal(word.text[1:-1].replace("''", "'"), word.text, word.at)
        if word.kind == "keyword" and word.text in {"true", "false"}:
            return Literal(word.text == "true", word.text, word.at)
        if word.text == "null":
            self._fail(word, "nothing is equal to null; expected 'is null' or 'is not null'")
        hint = ", texts in single quotes" if word.kind == "name" else ", or a column"
        return self._fail(word, f"expected a value{hint}")

    def _peek(self) -> _Word:
        return self._words[self._next]

    def _take(self) -> _Word:
        word = self._words[self._next]
        self._next = min(self._next + 1, len(self._words) - 1)
        return word

    def _took(self, text: str) -> bool:
        word = self._peek()
        if word.text == text and word.kind in {"keyword", "sign"}:
            self._take()
            return True
        return False

    def _expect(self, text: str, problem: str) -> None:
        if not self._took(text):
            self._fail(self._peek(), problem)

    def _fail(self, word: _Word, problem: str) -> NoReturn:
        found = "the end" if word.kind == "end" else repr(word.text[:_SHOWN_LETTERS])
        fail(self._text, word.at, f"found {found}; {problem}")


def _words(text: str) -> Iterator[_Word]:
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _WORDS.match(text, at, end)
        if match is None:
            _refuse(text, at + len(text[at:]) - len(text[at:].lstrip()))
        kind = str(match.lastgroup)
        word, start = match[kind], match.start(kind)
        if kind == "name" and word.lower() in _KEYWORDS:
            kind, word = "keyword", word.lower()
        yield _Word(kind, word, start)
        at = match.end()
    yield _Word("end", "", end)


def _refuse(text: str, at: int) -> NoReturn:
    if text[at] == "'":
        fail(text, at, "a text starts here but does not end; expected another '")
    if text[at] == '"':
        fail(text, at, 'a name starts here but does not end; expected another "')
    if text[at].isdigit():
        fail(text, at, "this is neither a number nor a name; put names in double quotes")
    fail(text, at, f"found {text[at]!r}, which is not part of the language")


def _unquoted(text: str) -> str:
    parts = re.findall(r'"((?:[^"]|"")+)"|([^."]+)', text)
    return ".".join(quoted.replace('""', '"') or plain for quoted, plain in parts)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _inverted(node: Node, is_not: bool) -> Node:  # noqa: FBT001 - what was read of the text
    return Negation(node) if is_not else node


def canonical(node: Node) -> str:
    """Write a tree in normal form, so that expressions that differ only in spelling are equal."""
    match node:
        case Comparison(operator, left, right):
            return f"{_operand_text(left)} {operator} {_operand_text(right)}"
        case Among(column, values):
            return f"{_operand_text(column)} in ({_list_text(values)})"
        case Null(column):
            return f"{_operand_text(column)} is null"
        case Truth(column):
            return _operand_text(column)
        case Negation(of):
            return f"not ({canonical(of)})"
        case Conjunction(of) | Disjunction(of):
            word = " and " if isinstance(node, Conjunction) else " or "
            return word.join(_grouped(each) for each in of)


def columns_of(node: Node) -> Iterator[Column]:
    """Yield the columns of a tree, once for each occurrence."""
    match node:
        case Comparison(_, left, right):
            yield from (each for each in (left, right) if isinstance(each, Column))
        case Among(column) | Null(column) | Truth(column):
            yield column
        case Negation(of):
            yield from columns_of(of)
        case Conjunction(of) | Disjunction(of):
            for each in of:
                yield from columns_of(each)


def _grouped(node: Node) -> str:
    return (
        f"({canonical(node)})" if isinstance(node, Conjunction | Disjunction) else canonical(node)
    )


_PLAIN_NAME = re.compile(r"[^\W\d]\w*(\.\w+)*")


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, Column):
        name = operand.name
        if _PLAIN_NAME.fullmatch(name) and name.lower() not in _KEYWORDS:
            return name
        return '"' + name.replace('"', '""') + '"'
    if isinstance(operand.value, str):
        return operand.text
    return operand.text.lower().removeprefix("+")


def _list_text(values: Sequence[Literal]) -> str:
    return ", ".join(sorted({_operand_text(value) for value in values}))
