"""Terms that an earlier version recorded: in ledgers, beside models, in messages.

Terms of format 0 carry no number and hold keys that sites have nothing to do with; such a key is
retired: it is ignored in records of format 0, and refused anywhere else. The law is in
``docs/reference/formats.md``.
"""

from __future__ import annotations

import json

from hdpfl_flower.config.terms import RunTerms

_KEYS_OF_FORMAT_0 = frozenset({
    "batch-sizes", "bit-noise", "calibration", "clip-ceiling", "clip-floor", "clip-lr",
    "clip-norm", "clip-quantile", "cluster-map", "clusters", "data-dir", "dataset", "delta",
    "epsilon-cap", "epsilons", "estimator", "evaluation", "first-batch", "fraction",
    "frozen-after", "groups", "guard", "join-timeout", "learning-rate", "level-ratio",
    "levels", "local-epochs", "local-steps", "max-liars", "min-sites", "model", "noise",
    "noise-floor", "noise-multiplier", "participations", "partition", "personal-lambda",
    "personal-noise", "prox-lambda", "public-split", "quorum", "require-public",
    "round-timeout", "rounds", "run-id", "runs-dir", "schema", "seed",
    "selection-mechanism", "selection-share", "selections", "server-learning-rate",
    "server-schedule", "strategy", "subspace", "subspace-rank", "subspace-scope",
    "torch-threads", "weights",
})  # fmt: skip


def recorded_terms(text: str, number: int) -> RunTerms:
    """Return the terms in ``text``, the JSON of a record of format ``number``.

    Raises:
        TermsError: a key is unknown to that format, or a value is wrong.
    """
    if number > 0:
        return RunTerms.from_json(text)
    return RunTerms.from_json(_without_retired(text))


def _without_retired(text: str) -> str:
    try:
        data = json.loads(text)
    except ValueError:
        return text
    retired = _KEYS_OF_FORMAT_0.difference(RunTerms.keys())
    if not isinstance(data, dict) or not retired.intersection(data):
        return text
    return json.dumps({key: value for key, value in data.items() if key not in retired})
