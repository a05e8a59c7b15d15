"""The formulas of a sheet: `=A1+B2*3`, `=SUM(A1:A5)`, brackets, AVG, MIN, MAX, COUNT. A parser of its own, no eval.

    evaluate([["2", "=A1*3"]])  ->  [["2", "6"]]

Whatever cannot be worked out is #ERR: a typing error, text where a number is needed, a division by zero, a circle of
references. An empty cell counts as 0; in a range, cells that are not numbers are left out.
"""

import re
from collections.abc import Collection
from decimal import Context, Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from functools import lru_cache
from typing import TypeAlias

COLUMNS = "ABCDE"
ROWS = 12
ERROR = "#ERR"
LONGEST = 60  # characters of a formula
DEEPEST = 70  # sums within sums, be it by brackets or because a cell needs a cell that needs a cell
EXACT = Context(prec=28, Emax=60, Emin=-60, traps=[DivisionByZero, InvalidOperation, Overflow])
Cells: TypeAlias = list[list[str]]

_SUMS = {"+": EXACT.add, "-": EXACT.subtract}
_PRODUCTS = {"*": EXACT.multiply, "/": EXACT.divide}
_TOKEN = re.compile(r"\s*(\d+\.?\d*|\.\d+|[A-Za-z]+\d*|\S)", re.ASCII)
_NUMBER = re.compile(r"-?(\d{1,15}\.?\d{0,10}|\.\d{1,10})", re.ASCII)
_CELL = re.compile(r"([A-Z])(\d{1,2})", re.ASCII)


class FormulaError(Exception):
    """A cell whose value cannot be worked out."""


@lru_cache(maxsize=1024)
def number(text: str) -> Decimal | None:
    """The number that a cell's text is; None if it is none."""
    return Decimal(text.strip()) if _NUMBER.fullmatch(text.strip()) else None


def cell_name(row: int, column: int) -> str:
    return f"{COLUMNS[column]}{row + 1}"


def cell_place(name: str) -> tuple[int, int]:
    """(row, column) of "B3", counted from 0; FormulaError outside of the sheet."""
    match = _CELL.fullmatch(name.upper())
    if not match or match[1] not in COLUMNS or not 1 <= int(match[2]) <= ROWS:
        raise FormulaError(name)
    return int(match[2]) - 1, COLUMNS.index(match[1])


def evaluate(texts: Cells) -> Cells:
    """What each cell shows."""
    book = _Book(texts)
    return [[book.shown(r, c) for c in range(len(row))] for r, row in enumerate(texts)]


class _Book:
    """Works cells out on demand, each once."""

    def __init__(self, texts: Cells) -> None:
        self.texts = texts
        self.values: dict[tuple[int, int], Decimal | None] = {}  # of formulas; None: an error, or begun and not done
        self.blocks: dict[tuple[str, str], list[Decimal]] = {}
        self.depth = 0

    def shown(self, row: int, column: int) -> str:
        text = self.texts[row][column]
        return _shown(self.formula(row, column)) if text.startswith("=") else text

    def formula(self, row: int, column: int) -> Decimal | None:
        place = (row, column)
        if place not in self.values:
            self.values[place] = None  # a circle of references meets this
            depth = self.depth
            try:
                self.values[place] = _Formula(self, self.texts[row][column][1:]).result()
            except (FormulaError, DecimalException):
                pass
            finally:
                self.depth = depth
        return self.values[place]

    def value(self, name: str) -> Decimal:
        """The number in a cell that a formula names."""
        row, column = cell_place(name)
        text = self.texts[row][column]
        value = self.formula(row, column) if text.startswith("=") else number(text) if text.strip() else Decimal(0)
        if value is None:
            raise FormulaError(name)
        return value

    def block(self, first: str, last: str) -> list[Decimal]:
        """The numbers in a range of cells, to be read only."""
        if (first, last) in self.blocks:
            return self.blocks[first, last]
        (row, column), (last_row, last_column) = cell_place(first), cell_place(last)
        numbers: list[Decimal] = []
        for r in range(min(row, last_row), max(row, last_row) + 1):
            for c in range(min(column, last_column), max(column, last_column) + 1):
                text = self.texts[r][c]
                value = self.formula(r, c) if text.startswith("=") else number(text)
                if value is not None:
                    numbers.append(value)
                elif text.startswith("="):
                    raise FormulaError(text)
        self.blocks[first, last] = numbers
        return numbers


class _Formula:
    """Recursive descent: a sum of products of signed numbers, cells, function calls and brackets."""

    def __init__(self, book: _Book, text: str) -> None:
        if len(text) > LONGEST:
            raise FormulaError("too long")
        self.book = book
        self.tokens: list[str] = [token.upper() for token in _TOKEN.findall(text.rstrip())]
        self.at = 0

    def result(self) -> Decimal:
        value = self.sum()
        if self.at < len(self.tokens):
            raise FormulaError(self.tokens[self.at])
        return value

    def take(self, expected: Collection[str]) -> str:
        """The next token if it is one of these, else nothing."""
        if self.at < len(self.tokens) and self.tokens[self.at] in expected:
            self.at += 1
            return self.tokens[self.at - 1]
        return ""

    def need(self, expected: str) -> None:
        if not self.take(expected):
            raise FormulaError(expected)

    def sum(self) -> Decimal:
        self.book.depth += 1
        if self.book.depth > DEEPEST:  # Python's stack has an end
            raise FormulaError("too deep")
        value = self.product()
        while operator := self.take(_SUMS):
            value = _SUMS[operator](value, self.product())
        self.book.depth -= 1
        return value

    def product(self) -> Decimal:
        value = self.factor()
        while operator := self.take(_PRODUCTS):
            value = _PRODUCTS[operator](value, self.factor())
        return value

    def factor(self) -> Decimal:
        signs = 0
        while self.take("-"):
            signs += 1
        value = self.operand()
        return EXACT.minus(value) if signs % 2 else value

    def operand(self) -> Decimal:
        if self.take("("):
            value = self.sum()
            self.need(")")
            return value
        if self.at >= len(self.tokens):
            raise FormulaError("unfinished")
        token = self.tokens[self.at]
        self.at += 1
        if token[0] in "0123456789" or (token[0] == "." and token != "."):
            return Decimal(token)
        if self.take("("):
            return self.call(token)
        return self.book.value(token)

    def call(self, name: str) -> Decimal:
        numbers = [*self.argument()]
        while self.take(","):
            numbers += self.argument()
        self.need(")")
        total = Decimal(0)
        for value in numbers:
            total = EXACT.add(total, value)
        match name:
            case "SUM":
                return total
            case "COUNT":
                return Decimal(len(numbers))
            case "AVG" if numbers:
                return EXACT.divide(total, Decimal(len(numbers)))
            case "MIN" | "MAX" if numbers:
                return min(numbers) if name == "MIN" else max(numbers)
        raise FormulaError(name)

    def argument(self) -> list[Decimal]:
        """A range of cells, or one number."""
        if self.at + 2 < len(self.tokens) and self.tokens[self.at + 1] == ":":
            first, last = self.tokens[self.at], self.tokens[self.at + 2]
            self.at += 3
            return self.book.block(first, last)
        return [self.sum()]


def _shown(value: Decimal | None) -> str:
    """At most four decimals and no exponent; what is too long for a cell is an error."""
    if value is None or abs(value) >= Decimal(10) ** 12:
        return ERROR
    text = f"{value.quantize(Decimal('0.0001'), context=EXACT):f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
