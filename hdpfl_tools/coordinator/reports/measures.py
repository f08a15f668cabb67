"""Measures of compared runs in words and numbers, for the page and the console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hdpfl_flower.measures.words import WORDS
from hdpfl_flower.models.site_summary import PERSONAL, SITE, WORST
from server_app.run.final_measures import measure_words

Measures = Mapping[str, Mapping[str, float]]
"""Measure → value, low and high."""


def mean_and_sd(values: npt.NDArray[np.float64]) -> str:
    """Return mean over seeds and, for several, standard deviation (n − 1).

    >>> mean_and_sd(np.array([0.25, 0.75])), mean_and_sd(np.array([0.5]))
    ('0.5000 ± 0.3536', '0.5000')
    """
    if np.isnan(values).all():
        return "–"
    text = f"{values.mean():.4f}"
    return text if len(values) < 2 else f"{text} ± {values.std(ddof=1):.4f}"


def metric_words(name: str) -> str:
    """Return the words of a metric of the rounds.

    >>> metric_words("site-accuracy-worst"), metric_words("personal-loss"), metric_words("loss")
    ('accuracy, worst tenth of the sites', 'loss, personal models', 'loss')
    """
    kinds = {SITE: "mean over the sites", PERSONAL: "personal models"}
    kind = next((kind for kind in kinds if name.startswith(kind)), "")
    plain, words = name.removeprefix(kind), [kinds[kind]] if kind else []
    if plain.endswith(WORST):
        plain = plain.removesuffix(WORST)
        words = [*([] if kind == SITE else words), "worst tenth of the sites"]
    if plain.endswith("-variance"):
        plain, words = plain.removesuffix("-variance"), [*words, "variance over the sites"]
    return ", ".join([plain.replace("-", " "), *words])


def final_rows(runs: Mapping[str, Sequence[Measures]]) -> Iterator[tuple[str, ...]]:
    """Yield a row per measure of the final models, with a cell per strategy.

    Of one seed a cell has the interval of 95 %, of several the mean and the standard deviation.

    Args:
        runs: strategy → the measures of each seed's final model.
    """
    names = {name for seeds in runs.values() for measures in seeds for name in measures}
    for name in sorted(names, key=lambda name: [*WORDS, name].index(name)):
        cells = ([seed[name] for seed in seeds if name in seed] for seeds in runs.values())
        yield measure_words(name), *map(_cell, cells)


def _cell(seeds: Sequence[Mapping[str, float]]) -> str:
    if len(seeds) == 1 and None not in seeds[0].values():
        return "{value:.3f} [{low:.3f}, {high:.3f}]".format(**seeds[0])
    return mean_and_sd(np.array([measure["value"] for measure in seeds] or [np.nan]))
