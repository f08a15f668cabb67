"""Simulated privacy settings: ε and expected batch size per site.

Real sites are not affected: their ε stand in their profiles. Every draw depends only on the seed,
and site i draws before site i + 1, so more sites do not change the settings of the first ones.

Sources of the named distributions:

* ``dist1`` … ``dist9``: Robust-HDP (thesis table 3.3); the lists used by its code are in
  ``published_budgets.py``.
* ``mixgauss1`` … ``mixgauss4``: PFA's text (its code files the same names in another order).

The second number of a normal is its standard deviation. The papers write N(0.2, 0.01) without
saying which; in the published list of 60 clients under Dist2 the 13 values near 0.2 have standard
deviation 0.009 and the 41 near 1, from N(1, 0.1), have 0.125: variances would give 0.1 and 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hdpfl_flower.errors import TermsError
from hdpfl_flower.system.paths import expanded
from hdpfl_tools.simulation.scenarios import published_budgets as published

FLOOR = 0.05
"""Least ε of a normal; lower values are drawn again.

A normal reaches 0 and below (2.3 % of Dist1, N(2, 1)).
"""

Law = Callable[[np.random.Generator], float]
"""Draw of one site's ε."""


def draw_epsilons(spec: str, num_sites: int, seed: int) -> npt.NDArray[np.float64]:
    """Return every site's ε, float64, shape ``(num_sites,)``.

    ``inf`` means that the site opts out.

    Args:
        spec: ``dist1`` … ``dist9``, ``dist1-published`` …, ``mixgauss1`` … ``mixgauss4``,
            ``uniform:A:B``, ``normal:MEAN:STD`` (drawn again below ``FLOOR``),
            ``pareto:SCALE:SHAPE`` (SCALE is the smallest value; PFA's code has 0.5 and 1),
            ``levels:E:E:…`` (a menu, each value is equally likely), ``file:PATH`` (an ε a
            line), a list ``0.5,1,inf`` (an ε a site), or one number for all. Any of them may be
            followed by ``+opt-out:SHARE``: that share of the sites, drawn by the seed, has ``inf``.
        num_sites: number of sites.
        seed: seed of the simulation.

    Raises:
        TermsError: the text names no distribution, its numbers are out of range, or a list does
            not fit the number of sites.

    >>> draw_epsilons("0.5,inf", 2, seed=1)
    array([0.5, inf])
    """
    spec, plus, share = spec.strip().partition("+opt-out:")
    if plus:
        return _with_opt_outs(draw_epsilons(spec, num_sites, seed), share, seed)
    name, _, rest = spec.strip().partition(":")
    if name == "file":
        return _fitting(_read(rest), num_sites, f"the file {rest}")
    if spec.strip() in _PUBLISHED:
        return np.array(published.epsilons(_PUBLISHED[spec.strip()], num_sites))
    law = _law(name, rest.split(":") if rest else [])
    if law is not None:
        # The word separates this stream from others of the same seed.
        generator = np.random.default_rng([seed, *b"epsilons"])
        return np.array([law(generator) for _ in range(num_sites)])
    values = [_epsilon(text) for text in spec.split(",")]
    if len(values) == 1:
        return np.full(num_sites, values[0])
    return _fitting(values, num_sites, "the list")


def _with_opt_outs(
    epsilons: npt.NDArray[np.float64], share: str, seed: int
) -> npt.NDArray[np.float64]:
    """Return ``epsilons`` with ``inf`` at a drawn share of sites, rounded."""
    try:
        opted_out = float(share)
    except ValueError:
        opted_out = math.nan
    if not 0 <= opted_out <= 1:
        raise TermsError(
            f"'epsilons': '+opt-out:{share}' is not a share; write a number from 0 to 1"
        )
    generator = np.random.default_rng([seed, *b"opt-out"])
    drawn = epsilons.copy()
    drawn[generator.permutation(len(drawn))[: round(opted_out * len(drawn))]] = math.inf
    return drawn


def draw_batch_sizes(spec: str, num_sites: int, seed: int) -> npt.NDArray[np.int64]:
    """Return every site's expected batch size, int64, shape ``(num_sites,)``.

    Args:
        spec: a list ``16,32,64,128`` to draw from, each value equally likely; one number for all;
            ``all`` records; ``each:B:B…``: one for each site, in their order; or ``published``:
            the list that Robust-HDP ran with 20, 40 or 60 clients.
        num_sites: number of sites.
        seed: seed of the simulation.

    Raises:
        TermsError: not a list of whole numbers of at least 1, not one for each site, or no
            published list for that many.

    >>> draw_batch_sizes("32", 3, seed=1), draw_batch_sizes("each:8:64:64", 3, seed=1)
    (array([32, 32, 32]), array([ 8, 64, 64]))
    """
    if spec.strip() == "all":  # capped by the records
        return np.full(num_sites, np.iinfo(np.int64).max)
    if spec.strip() == "published":
        return np.array(published.batch_sizes(num_sites), dtype=np.int64)
    name, _, rest = spec.strip().partition(":")
    is_each = name == "each"
    choices = [text.strip() for text in (rest.split(":") if is_each else spec.split(","))]
    are_sizes = all(text.isdecimal() and int(text) >= 1 for text in choices)
    if not are_sizes or (is_each and len(choices) != num_sites):
        raise TermsError(
            f"'batch-sizes' is '{spec}' for {num_sites} sites; write whole numbers of at least 1 "
            "to draw from (16,32,64,128), one number, all, each:B:B… with one for each site, or "
            "published"
        )
    if is_each:
        return np.array([int(text) for text in choices], dtype=np.int64)
    generator = np.random.default_rng([seed, *b"batch-sizes"])
    drawn = generator.integers(len(choices), size=num_sites)
    return np.array([int(text) for text in choices], dtype=np.int64)[drawn]


def _law(name: str, arguments: list[str]) -> Law | None:
    """Return the distribution named by a text, or None."""
    if name in _NAMED and not arguments:
        return _NAMED[name]
    if name == "levels":
        menu = [_epsilon(text) for text in arguments]
        return lambda generator: menu[int(generator.integers(len(menu)))]
    if name not in _WITH_ARGUMENTS:
        return None
    law, pattern, rule = _WITH_ARGUMENTS[name]
    try:
        first, second = (float(text) for text in arguments)
    except ValueError:
        first = second = math.nan
    if not (math.isfinite(first) and math.isfinite(second) and rule(first, second)):
        raise TermsError(f"'epsilons' is '{':'.join([name, *arguments])}'; write {pattern}")
    return law(first, second)


def _uniform(low: float, high: float) -> Law:
    return lambda generator: generator.uniform(low, high)


def _pareto(scale: float, shape: float) -> Law:
    # NumPy draws a Lomax: with 1 added it is a Pareto of smallest value 1.
    return lambda generator: scale * (1 + generator.pareto(shape))


def _mixture(*components: tuple[float, float, float]) -> Law:
    """Return a mixture of normals ``(weight, mean, std)``, at least ``FLOOR``."""
    shares = np.cumsum([weight for weight, _, _ in components])

    def draw(generator: np.random.Generator) -> float:
        while True:
            which = int(np.searchsorted(shares[:-1], generator.random(), side="right"))
            value: float = generator.normal(*components[which][1:])
            # Rejected as a whole: the component is also drawn again.
            if value >= FLOOR:
                return value

    return draw


_PAPERS: dict[str, Law] = {
    "dist1": _mixture((1.0, 2, 1)),
    "dist2": _mixture((0.2, 0.2, 0.01), (0.6, 1, 0.1), (0.2, 5, 1)),
    "dist3": _uniform(0.2, 5),
    "dist4": _mixture((0.2, 0.2, 0.01), (0.6, 0.5, 0.1), (0.2, 2, 1)),
    "dist5": _uniform(0.2, 2),
    "dist6": _mixture((0.3, 0.2, 0.01), (0.5, 0.5, 0.1), (0.2, 1, 0.1)),
    "dist7": _uniform(0.2, 1),
    "dist8": _mixture((0.6, 0.2, 0.01), (0.4, 0.5, 0.1)),
    "dist9": _uniform(0.2, 0.5),
}
"""Robust-HDP's nine distributions."""

_PUBLISHED = {f"{name}-published": number for number, name in enumerate(_PAPERS, 1)}

_NAMED: dict[str, Law] = _PAPERS | {
    "mixgauss1": _mixture((0.9, 0.1, 0.01), (0.1, 10, 0.1)),
    "mixgauss2": _mixture((0.9, 0.5, 0.01), (0.1, 10, 0.1)),
    "mixgauss3": _mixture((0.9, 1, 0.1), (0.1, 10, 0.1)),
    "mixgauss4": _mixture((0.5, 0.1, 0.01), (0.4, 1, 0.1), (0.1, 10, 1)),
}

_WITH_ARGUMENTS: dict[
    str, tuple[Callable[[float, float], Law], str, Callable[[float, float], bool]]
] = {
    "uniform": (_uniform, "uniform:A:B with 0 < A ≤ B", lambda low, high: 0 < low <= high),
    "normal": (
        lambda mean, std: _mixture((1.0, mean, std)),
        f"normal:MEAN:STD with MEAN ≥ {FLOOR} (lower values are drawn again) and STD ≥ 0",
        lambda mean, std: mean >= FLOOR and std >= 0,
    ),
    "pareto": (
        _pareto,
        "pareto:SCALE:SHAPE with both above 0",
        lambda scale, shape: min(scale, shape) > 0,
    ),
}
"""Distributions with two numbers: law, notation and condition."""


def _epsilon(text: str, where: str = "") -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise TermsError(
            f"'epsilons': '{text.strip()}'{where} is neither an ε above 0 nor a distribution; "
            "write numbers (inf opts out), dist1…dist9, dist1-published…, mixgauss1…4, "
            "uniform:A:B, normal:MEAN:STD, pareto:SCALE:SHAPE, levels:E:E or file:PATH"
        )
    return value


def _read(path: str) -> list[float]:
    """Return the ε in a file, one per line; skip blanks and ``# …``."""
    try:
        lines = expanded(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise TermsError(
            f"'epsilons' names the file {path or '(none)'}, which cannot be read as text; write "
            "file:PATH with an absolute path"
        ) from None
    texts = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    return [_epsilon(text, f" in line {number} of {path}") for number, text in texts if text]


def _fitting(values: list[float], num_sites: int, source: str) -> npt.NDArray[np.float64]:
    if len(values) != num_sites:
        raise TermsError(
            f"'epsilons': {source} has {len(values)} values for {num_sites} sites; give one ε per "
            "site, or run as many sites as it has"
        )
    return np.array(values)
