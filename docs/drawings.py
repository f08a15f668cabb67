"""Drawings of the pages, written by ``python docs/drawings.py``.

They are made from lines of text.

A drawing has columns and, from the top down, a line per step: ``site > ledger: reserve`` is an
arrow, ``site: train`` a box, ``--- text`` a rule across all columns. The SVG files are committed,
so that the pages show them on any host; a test compares.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

DRAWINGS = {
    "site-message": """
        coordinator | site's guard | ledger | records
        coordinator > site's guard: model, terms
        site's guard: sizes, types, policy
        site's guard: approved by the operator?
        site's guard > ledger: charge the plan, reserve the round
        site's guard > records: Poisson batches
        records > site's guard: clipped sums + noise
        site's guard > ledger: seal the noisy update
        --- only what is sealed may leave
        site's guard > coordinator: noisy update, or one of four constant codes
    """,
    "server-round": """
        sites | coordinator | strategy | model
        coordinator > sites: model, terms
        sites > coordinator: noisy updates
        coordinator: keys, shapes, finite, norm; bad replies are dropped
        coordinator > strategy: updates that pass
        strategy: estimate each update's noise
        strategy: estimate how far sites differ
        strategy > model: weights, the server's step
        --- checkpoint, journal, test on public records
        model > coordinator: the next round
    """,
    "ledger-life": """
        RESERVED | SEALED | SENT | LOST
        --- before any work: the run's (ε, δ) is charged and the round reserved, on disk
        RESERVED > SEALED: trained, noised, stored
        SEALED > SENT: handed to Flower
        SENT > SENT: asked again: the same bytes
        --- a crash
        RESERVED > LOST: nothing had left; the release stays taken
        SEALED > SENT: after the restart the same bytes leave
    """,
    "containers": """
        superlink | NAME-node | NAME-tasks | NAME-exporter
        --- setup: certificates, keys, profiles and ledgers, once
        NAME-node > superlink: asks for work, with its key
        superlink > NAME-node: app, message
        NAME-node > NAME-tasks: app, message, over the site's own network
        NAME-tasks: the app in the image: records, ledger, noise
        NAME-tasks > NAME-node: noisy update
        NAME-node > superlink: noisy update
        NAME-exporter: reads the ledger, for the site's own dashboard
    """,
}
"""File name → text."""

RUNS_THAT_FIT = {3: (3, 8), 5: (5, 20), 8: (8, 45)}
"""Lifetime ε at δ 1e-5 → runs of (1, 1e-6) that fit: by the sum, and by the Rényi filter."""

_COLUMN, _STEP, _TOP, _SIDE = 210, 44, 70, 20
_FONT = 'font-family="sans-serif" font-size="13"'


def draw(text: str) -> str:
    """Return the SVG of a drawing; raises ``ValueError`` for an unknown column."""
    head, *steps = [line.strip() for line in text.strip().splitlines()]
    columns = [name.strip() for name in head.split("|")]
    width, height = _COLUMN * len(columns) + 2 * _SIDE, _TOP + _STEP * len(steps) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" {_FONT}>',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="#3949ab"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    at = {name: _SIDE + _COLUMN * (i + 0.5) for i, name in enumerate(columns)}
    for name, x in at.items():
        parts += [
            f'<line x1="{x}" y1="44" x2="{x}" y2="{height - 8}" stroke="#bdbdbd"/>',
            f'<rect x="{x - 75}" y="12" width="150" height="32" rx="6" fill="#3949ab"/>',
            _words(x, 33, name, "#ffffff"),
        ]
    for row, step in enumerate(steps):
        parts += _step(step, _TOP + _STEP * row + 22, at, width)
    return "\n".join([*parts, "</svg>", ""])


def draw_runs() -> str:
    """Return the SVG of the runs that fit under each lifetime ε, a square a run."""
    side, left = 13, 150
    width, height = left + 46 * side + 50, 60 + 64 * len(RUNS_THAT_FIT)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" {_FONT}>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _words(
            width / 2, 24, "runs of ε = 1, δ = 1e-6 that fit over the life of a ledger, δ = 1e-5"
        ),
    ]
    for row, (cap, counts) in enumerate(RUNS_THAT_FIT.items()):
        y = 52 + 64 * row
        parts.append(_words(12, y + 22, f"ε = {cap}", anchor="start"))
        for count, name, colour in zip(
            counts, ("sum", "filter"), ("#9fa8da", "#3949ab"), strict=True
        ):
            parts.append(_words(left - 10, y + 11, name, anchor="end"))
            parts += [
                f'<rect x="{left + side * run}" y="{y}" width="{side - 2}" height="{side + 2}" '
                f'fill="{colour}"/>'
                for run in range(count)
            ]
            parts.append(_words(left + side * count + 6, y + 12, f"{count}", anchor="start"))
            y += 22
    return "\n".join([*parts, "</svg>", ""])


def _step(step: str, y: float, at: dict[str, float], width: float) -> list[str]:
    if step.startswith("---"):
        return [
            f'<rect x="{_SIDE}" y="{y - 14}" width="{width - 2 * _SIDE}" height="26" '
            'fill="#fff8e1" stroke="#ffb300"/>',
            _words(width / 2, y + 4, step.removeprefix("---").strip()),
        ]
    who, _, said = step.partition(": ")
    if " > " not in who:
        half = max(80.0, 3.6 * len(said))
        x = min(max(_x(who, at), half + 4), width - half - 4)
        return [
            f'<rect x="{x - half}" y="{y - 14}" width="{2 * half}" height="26" rx="4" '
            'fill="#e8eaf6" stroke="#9fa8da"/>',
            _words(x, y + 4, said),
        ]
    start, end = (_x(name, at) for name in who.split(" > "))
    if start == end:
        path = f"M{start} {y - 8} h46 v16 h-44"
        return [_arrow(path), _words(start + 54, y + 4, said, anchor="start")]
    middle = min(max((start + end) / 2, 3.4 * len(said) + 4), width - 3.4 * len(said) - 4)
    back = f'<rect x="{middle - 3.5 * len(said)}" y="{y - 18}" width="{7 * len(said)}" height="16" '
    return [
        f'{back}fill="#ffffff"/>',
        _arrow(f"M{start} {y} H{end}"),
        _words(middle, y - 5, said),
    ]


def _x(name: str, at: dict[str, float]) -> float:
    if name not in at:
        raise ValueError(f"no column '{name}'")
    return at[name]


def _arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="#3949ab" marker-end="url(#end)"/>'


def _words(x: float, y: float, text: str, fill: str = "#212121", anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    (Path(__file__).parent / "images" / "filter.svg").write_text(draw_runs())
    for _name, _text in DRAWINGS.items():
        (Path(__file__).parent / "images" / f"{_name}.svg").write_text(draw(_text))
