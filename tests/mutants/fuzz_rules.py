"""Changes of a source file by rule: constants, comparisons, conditions, arithmetic, statements.

A change replaces one piece of the text, found by its place in the syntax tree; comments, docstrings
and layout stay. Texts are not changed, but for the fields of an f-string, nor what only people read:
the arguments of a ``raise``, calls of a log, annotations, decorators.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.Add: ("+", ("-",)),
    ast.Sub: ("-", ("+",)),
    ast.Mult: ("*", ("/",)),
    ast.Div: ("/", ("*",)),
    ast.FloorDiv: ("//", ("*",)),
    ast.Mod: ("%", ("*",)),
    ast.Pow: ("**", ("*",)),
    ast.BitAnd: ("&", ("|",)),
    ast.BitOr: ("|", ("&",)),
    ast.LShift: ("<<", (">>",)),
    ast.RShift: (">>", ("<<",)),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil",
         "minimum": "maximum", "maximum": "minimum", "train": "test", "test": "train"}  # fmt: skip
BOUNDS = frozenset({"clamp", "clamp_", "clamp_min", "clamp_max", "clip", "nextafter", "nan_to_num"})
LOGS = frozenset({"log", "logging", "warnings", "typer"})
DROPPED = (ast.Raise, ast.AugAssign, ast.Continue, ast.Break, ast.Delete)


@dataclass(frozen=True)
class Change:
    """One change.

    Attributes:
        file: relative to the repository.
        function: where it lies, such as ``Ledger.reserve``; empty: outside of any function.
        line: of the changed piece.
        lines: first and last line of the statement (of its head, where it has a body).
        rule: its name.
        start: first byte of what is replaced.
        stop: byte after it.
        text: what stands there now.
        old: the lines as they are, blanks squeezed; with ``new`` it names the change.
        new: those lines with the change.
        part: bytes of the whole lines of its function, or of its statement outside of one.
        number: 1, or more for another change of the same name in the same function.
    """

    file: str
    function: str
    line: int
    lines: tuple[int, int]
    rule: str
    start: int
    stop: int
    text: str
    old: str
    new: str
    part: tuple[int, int]
    number: int = 1

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a table of survivors names it by: no line number, so it survives other edits."""
        number = f"#{self.number}" if self.number > 1 else ""
        return self.file, self.function + number, self.old, self.new

    def applied(self, source: str) -> str:
        """Return the source with this change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.stop :]).decode()


def changes_of(file: str, source: str) -> list[Change]:
    """Return every change of a file, in the order of its lines; no two make the same program."""
    data, seen, found = source.encode(), {}, []
    for change in _Walk(file, source).changes():
        start, stop = change.part
        if change.part not in seen:
            seen[change.part] = {_shape(data[start:stop])}
        head, tail = data[start : change.start], data[change.stop : stop]
        shape = _shape(head + change.text.encode() + tail)
        if shape and shape not in seen[change.part]:
            seen[change.part].add(shape)
            found.append(change)
    return _numbered(sorted(found, key=lambda each: (each.line, each.start)))


def _shape(lines: bytes) -> str:
    """Return the syntax tree of whole lines as text; empty where they are no code."""
    try:
        indented = lines[:1] == b" "
        return ast.dump(ast.parse(b"if 1:\n" + lines if indented else lines))
    except SyntaxError:
        return ""


def _numbered(changes: list[Change]) -> list[Change]:
    """Give a second change of the same name, in the same function, the number 2 and so on."""
    times: dict[tuple[str, str, str, str], int] = {}
    named = []
    for change in changes:
        times[change.key] = count = times.get(change.key, 0) + 1
        named.append(replace(change, number=count))
    return named


class _Walk:
    def __init__(self, file: str, source: str) -> None:
        self._file, self._data, self._tree = file, source.encode(), ast.parse(source)
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def changes(self) -> Iterator[Change]:
        self._part = 0, 0
        yield from self._in_body(self._tree.body, "")

    def _in_body(self, body: list[ast.stmt], where: str) -> Iterator[Change]:
        for node in body:
            yield from self._in_statement(node, where)

    def _in_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, where: str
    ) -> Iterator[Change]:
        """Walk a function; a nested one is part of the one around it."""
        outermost = not where or where.endswith(".")
        if outermost:
            self._part = self._whole_lines(node)
        for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]:
            name = "" if outermost else where
            yield from self._in_expression(default, name, (default.lineno,) * 2)
        yield from self._in_body(node.body, where + node.name if outermost else where)

    def _in_statement(self, node: ast.stmt, where: str) -> Iterator[Change]:
        if isinstance(node, ast.ClassDef):
            yield from self._in_body(node.body, f"{where}{node.name}.")
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._in_function(node, where)
            return
        name = where if where and not where.endswith(".") else ""
        lines = (node.lineno, _last_line(node))
        if not name:
            self._part = self._whole_lines(node)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        yield from self._of_statement(node, name, lines)
        for each in _expressions(node):
            yield from self._in_expression(each, name, lines)
        for part in ("body", "orelse", "finalbody"):
            yield from self._in_body(getattr(node, part, []), where)
        for handler in getattr(node, "handlers", []):
            yield from self._in_body(handler.body, where)
        for case in getattr(node, "cases", []):
            yield from self._in_body(case.body, where)

    def _of_statement(self, node: ast.stmt, name: str, lines: tuple[int, int]) -> Iterator[Change]:
        if isinstance(node, DROPPED):
            yield self._change(node, "removed", "pass", name, lines)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
            if not _is_log(node.value):
                yield self._change(node, "removed", "pass", name, lines)
        elif isinstance(node, ast.Assign) and all(
            isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
        ):
            yield self._change(node, "removed", "pass", name, lines)
        elif isinstance(node, ast.Return) and node.value is not None:
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                yield self._change(node.value, "returns None", "None", name, lines)
        elif isinstance(node, ast.If):
            yield from self._of_condition(node.test, name, lines)

    def _of_condition(self, test: ast.expr, name: str, lines: tuple[int, int]) -> Iterator[Change]:
        simple = isinstance(test, ast.Compare) and len(test.ops) == 1
        if not simple and not isinstance(test, ast.UnaryOp):
            yield self._change(test, "negated", f"not ({self._text(test)})", name, lines)
        yield self._change(test, "always", "True", name, lines)
        yield self._change(test, "never", "False", name, lines)

    def _in_expression(self, top: ast.expr, name: str, lines: tuple[int, int]) -> Iterator[Change]:
        waiting: list[ast.AST] = [top]
        while waiting:
            node = waiting.pop(0)
            if isinstance(node, ast.Call) and _is_log(node):
                continue
            yield from self._of_expression(node, name, lines)
            if isinstance(node, ast.JoinedStr):
                continue
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                waiting.append(node.value)
                yield from self._of_index(node.slice, name, lines)
                continue
            waiting += [*ast.iter_child_nodes(node)]

    def _of_expression(self, node: ast.AST, name: str, lines: tuple[int, int]) -> Iterator[Change]:
        match node:
            case ast.Constant(value=value):
                others = _other_constants(value)
                yield from (self._change(node, rule, text, name, lines) for rule, text in others)
            case ast.Compare():
                yield from self._of_compare(node, name, lines)
            case ast.BoolOp():
                yield from self._of_bool(node, name, lines)
            case ast.IfExp():
                yield from self._of_condition(node.test, name, lines)
            case ast.comprehension():
                yield from (c for t in node.ifs for c in self._of_condition(t, name, lines))
            case ast.BinOp():
                yield from self._of_arithmetic(node, name, lines)
            case ast.UnaryOp() | ast.Name() | ast.Attribute():
                yield from self._of_one(node, name, lines)
            case ast.Call():
                yield from self._of_call(node, name, lines)
            case ast.List() | ast.Set() | ast.Dict() | ast.JoinedStr():
                yield from self._of_parts(node, name, lines)

    def _of_parts(
        self,
        node: ast.List | ast.Set | ast.Dict | ast.JoinedStr,
        name: str,
        lines: tuple[int, int],
    ) -> Iterator[Change]:
        """Yield what is made without one of its parts: a digest that leaves it out."""
        if isinstance(node, ast.JoinedStr):
            start, stop = self._span(node)
            for field in re.finditer(rb"(?<!\{)\{[^{}]+\}", self._data[start:stop]):
                place = start + field.start(), start + field.end()
                yield self._replaced(place, "field dropped", "", name, lines)
            return
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            parts = [f"{self._text(k)}: {self._text(v)}" if k else f"**{self._text(v)}"
                     for k, v in pairs]  # fmt: skip
        else:
            parts = [self._text(part) for part in node.elts]
        left, right = "[]" if isinstance(node, ast.List) else "{}"
        for i in range(len(parts) if len(parts) > 1 else 0):
            text = f"{left}{', '.join(parts[:i] + parts[i + 1 :])}{right}"
            yield self._change(node, "element dropped", text, name, lines)

    def _of_call(self, node: ast.Call, name: str, lines: tuple[int, int]) -> Iterator[Change]:
        """Yield a bound that is taken away: one argument of max or min, the base of a clamp."""
        function = node.func
        if isinstance(function, ast.Name) and function.id in ("max", "min"):
            if len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args):
                for argument in node.args:
                    text = f"({self._text(argument)})"
                    yield self._change(node, f"{function.id} of one", text, name, lines)
        elif isinstance(function, ast.Attribute) and function.attr in BOUNDS:
            base = function.value
            if isinstance(base, ast.Name) and base.id in ("np", "torch", "math"):
                base = node.args[0]
            yield self._change(node, f"no {function.attr}", self._text(base), name, lines)

    def _of_one(
        self, node: ast.UnaryOp | ast.Name | ast.Attribute, name: str, lines: tuple[int, int]
    ) -> Iterator[Change]:
        if isinstance(node, ast.UnaryOp):
            constant = isinstance(node.operand, ast.Constant)
            if isinstance(node.op, ast.Not | ast.USub) and not constant:
                yield self._change(node, "sign", f"({self._text(node.operand)})", name, lines)
            return
        word = node.id if isinstance(node, ast.Name) else node.attr
        if word in NAMES:
            text = self._text(node)
            swapped = text[: len(text) - len(word)] + NAMES[word]
            yield self._change(node, f"{word} to {NAMES[word]}", swapped, name, lines)

    def _of_index(self, node: ast.Constant, name: str, lines: tuple[int, int]) -> Iterator[Change]:
        """Yield the neighbours of an index; other ones break the code in the same way."""
        if type(node.value) is int:
            yield self._change(node, "plus 1", repr(node.value + 1), name, lines)
            if node.value:
                yield self._change(node, "minus 1", repr(node.value - 1), name, lines)

    def _of_compare(self, node: ast.Compare, name: str, lines: tuple[int, int]) -> Iterator[Change]:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            old, others = COMPARISONS[type(operator)]
            for other in others:
                change = self._operator(left, right, old, other, name, lines)
                if change:
                    yield change
            left = right

    def _of_bool(self, node: ast.BoolOp, name: str, lines: tuple[int, int]) -> Iterator[Change]:
        word, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        parts = [self._wrapped(value) for value in node.values]
        yield self._change(node, f"{word} to {other}", f"({f' {other} '.join(parts)})", name, lines)
        for i in range(len(parts)):
            rest = f" {word} ".join(parts[:i] + parts[i + 1 :])
            yield self._change(node, "operand dropped", f"({rest})", name, lines)

    def _of_arithmetic(
        self, node: ast.BinOp, name: str, lines: tuple[int, int]
    ) -> Iterator[Change]:
        if type(node.op) not in ARITHMETIC or any(map(_is_text, (node.left, node.right))):
            return
        old, others = ARITHMETIC[type(node.op)]
        for other in others:
            change = self._operator(node.left, node.right, old, other, name, lines)
            if change:
                yield change
        if isinstance(node.op, ast.Mult | ast.Div | ast.Pow):
            yield self._change(node, "half", f"({self._text(node)} * 0.5)", name, lines)

    def _operator(
        self,
        left: ast.expr,
        right: ast.expr,
        old: str,
        new: str,
        name: str,
        lines: tuple[int, int],
    ) -> Change | None:
        start, stop = self._span(left)[1], self._span(right)[0]
        between = re.sub(rb"#[^\n]*", lambda found: b" " * len(found[0]), self._data[start:stop])
        pattern = r"\s+".join(map(re.escape, old.split()))
        found = re.search(pattern.encode(), between)
        if found is None:
            return None
        place = start + found.start(), start + found.end()
        return self._replaced(place, f"{old} to {new}", new, name, lines)

    def _change(
        self, node: ast.AST, rule: str, text: str, name: str, lines: tuple[int, int]
    ) -> Change:
        return self._replaced(self._span(node), rule, text, name, lines)

    def _replaced(
        self, place: tuple[int, int], rule: str, text: str, name: str, lines: tuple[int, int]
    ) -> Change:
        start, stop = place
        line = self._data[:start].count(b"\n") + 1
        first = self._data.rfind(b"\n", 0, start) + 1
        end = self._data.find(b"\n", stop)
        end = len(self._data) if end < 0 else end
        old, new = self._data[first:end], self._data[first:start] + text.encode()
        new += self._data[stop:end]
        squeezed = [" ".join(piece.decode().split()) for piece in (old, new)]
        old_line, new_line = squeezed
        return Change(
            self._file, name, line, lines, rule, start, stop, text, old_line, new_line, self._part
        )

    def _whole_lines(self, node: ast.stmt) -> tuple[int, int]:
        """Return the bytes of a statement's lines, without its decorators."""
        return self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        last = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return first, last

    def _text(self, node: ast.AST) -> str:
        start, stop = self._span(node)
        return self._data[start:stop].decode()

    def _wrapped(self, node: ast.expr) -> str:
        return f"({self._text(node)})"


def _expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a statement's head that are looked into."""
    if isinstance(node, ast.Raise | ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
    ):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "targets", "type_params", "body", "orelse", "finalbody"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield each
            elif isinstance(each, ast.withitem):
                yield each.context_expr


def _last_line(node: ast.stmt) -> int:
    """Return the last line of a statement, or of its head where it has a body."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return node.end_lineno or node.lineno
    first = body[0]
    line = first.lineno if isinstance(first, ast.stmt) else first.pattern.lineno
    return max(node.lineno, line - 1)


def _other_constants(value: object) -> list[tuple[str, str]]:
    if isinstance(value, bool):
        return [("flipped", repr(not value))]
    if not isinstance(value, int | float) or isinstance(value, bool):
        return []
    halved = value // 2 if isinstance(value, int) else value / 2
    others = {
        "plus 1": value + 1,
        "minus 1": value - 1,
        "doubled": value * 2,
        "halved": halved,
        "zero": 0 * value,
        "negated": -value,
    }
    found: dict[object, str] = {}
    for rule, other in others.items():
        if other != value and other not in found:
            found[other] = rule
    return [(rule, f"({other!r})" if other < 0 else repr(other)) for other, rule in found.items()]  # type: ignore[operator]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _is_log(node: ast.expr) -> bool:
    if isinstance(node, ast.Await):
        node = node.value
    base = node.func if isinstance(node, ast.Call) else node
    while isinstance(base, ast.Attribute):
        base = base.value
    return isinstance(base, ast.Name) and base.id in LOGS
