"""Advice for a coordinator: settings of a run from public numbers, and the best changes.

The noise is the product's own: for a site with N records, an expected batch of b and (ε, δ), z is
``calibrate``'s for T = E·k steps of sampling probability b/N, so that a step adds zC/b to each of
the model's d numbers. Sites are weighed by their inverse variances, as ``mmse`` weighs sites that
learn the same: s² = 1/Σ (b/(zC))². The signal of a step is C, every clipped gradient as long as C
and all of them pointing one way, as ``hdpfl-site plan`` states it. The signal-to-noise ratio

    of a round's aggregate is √k·C/(√d·s), that of the run's sum √E times that.

At a fixed ε, s² grows nearly as T: the run's ratio R is a property of the sites and the model, and
rounds, steps and batches change it by a few per cent once there are enough of them. So the rule is:
the rounds that the coordinator can wait for; a pass of k steps over batches of N/k; the largest
model with an R of at least ``ENOUGH``; and a rate that the server finds.

With ``noise = "shared"`` the n sites' sums, each over its z, have one noise: with t colluders the
run's ratio is √(E·(n − t)/(n·d))·Σ b/z. There a round is one step, best of all records.

It does not know how hard the task is, and how far sites differ. Real signals are a fraction
of C that falls as the model fits; R compares settings, and is no accuracy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hdpfl_flower.config.profile import MIN_DELTA
from hdpfl_flower.config.settings import Value
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.errors import TermsError
from hdpfl_flower.models.networks import size_of
from hdpfl_flower.models.task import Task
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.releases.rounds import rounds_asked
from hdpfl_flower.shared_noise.members import default_colluders
from hdpfl_flower.shared_noise.rules import colluders_of

STEPS = 4
"""Steps of a round, each on a quarter of a site's records."""

ENOUGH = 40.0
"""Least R at which a model larger than a linear one is advised."""

MOST_SHARED = 100
"""Rounds with shared noise at most: more gain nothing, and each is a message."""

LARGER = ("mlp:64", "mlp:32")
"""Advised models above ``logreg``, the largest first."""

LEAST_SITES = 3
"""Sites of shared noise at least: one colluder, and two that hide each other."""

FEATURES = 64
"""Width of the public features whose worth is shown."""


@dataclass(frozen=True, repr=False)
class PlannedSite:
    """Typed numbers of a site; its text shows none of them.

    Attributes:
        records: N.
        epsilon: ε of the whole run; ``inf``: no noise.
        batch_size: b, the expected batch.
    """

    records: int
    epsilon: float
    batch_size: int


@dataclass(frozen=True, repr=False)
class RunSetting:
    """Setting of a run, with its predicted ratios.

    Attributes:
        sites: the sites with their batches.
        delta: their δ.
        rounds: E.
        steps: k of each site.
        model: the network.
        size: d, its numbers.
        colluders: t of shared noise; 0: every site has a noise of its own.
    """

    sites: tuple[PlannedSite, ...]
    delta: float
    rounds: int
    steps: tuple[int, ...]
    model: str
    size: int
    colluders: int = 0

    @property
    def of_run(self) -> float:
        """Signal-to-noise ratio of the sum of all aggregates; ``inf`` without noise."""
        precision, weights = 0.0, 0.0
        for site, steps in zip(self.sites, self.steps, strict=True):
            count = self.rounds * steps
            z = calibrate([Steps(site.batch_size / site.records, count)], site.epsilon, self.delta)
            if not z:
                return math.inf
            precision += count * (site.batch_size / z) ** 2
            weights += site.batch_size / z
        if self.colluders:
            honest = 1 - self.colluders / len(self.sites)
            precision = self.rounds * honest * weights**2
        return math.sqrt(precision / self.size)

    @property
    def noise_terms(self) -> dict[str, Value]:
        """Terms of the noise; empty: of every site's own."""
        return {"noise": "shared", "colluders": self.colluders} if self.colluders else {}

    def shared(self, rounds: int) -> RunSetting:
        """Return the setting with shared noise: steps of all records, a tenth of them spare."""
        return replace(
            self,
            sites=tuple(replace(site, batch_size=site.records) for site in self.sites),
            rounds=min(rounds, MOST_SHARED),
            steps=(1,) * len(self.sites),
            colluders=self.colluders or default_colluders(len(self.sites)),
        )

    @property
    def of_round(self) -> float:
        """Signal-to-noise ratio of a round's aggregate."""
        return self.of_run / math.sqrt(self.rounds)


@dataclass(frozen=True)
class Help:
    """A change that raises the ratio.

    Attributes:
        what: the change in words.
        gain: predicted ratio over the proposal's.
    """

    what: str
    gain: float


def asked_setting(
    terms: RunTerms, sites: int, records: str, epsilons: str, delta: float, batch_sizes: str
) -> RunSetting:
    """Return the setting of ``terms`` at sites of these numbers.

    Raises:
        TermsError: an option is no number a site, or the run's noise is not calibrated for records.
        DataError, ModelError: the terms do not name the task, or the model.
    """
    if not terms.source.per_record or terms.noise_multiplier or terms.calibration != "pld":
        raise TermsError(
            "advice is only for noise on records that is calibrated for each site; set 'noise' "
            "to records or shared, and leave out 'noise-multiplier' and 'calibration'"
        )
    if not MIN_DELTA <= delta < 1:
        raise TermsError("--delta: write a number that is at least 1e-10 and below 1")
    columns = (
        spread(records, sites, "--records", whole=True),
        spread(epsilons, sites, "--epsilons"),
        spread(batch_sizes, sites, "--batch-sizes", whole=True),
    )
    planned = tuple(
        PlannedSite(int(n), e, min(int(b), int(n))) for n, e, b in zip(*columns, strict=True)
    )
    steps = tuple(
        terms.local_steps or math.ceil(terms.local_epochs * site.records / site.batch_size)
        for site in planned
    )
    size = size_of(terms.model, task_for(terms))
    if not terms.source.is_summed:
        return RunSetting(planned, delta, rounds_asked(terms), steps, terms.model, size)
    steps, colluders = (1,) * sites, colluders_of(terms, sites)
    return RunSetting(planned, delta, terms.rounds, steps, terms.model, size, colluders)


def propose(asked: RunSetting, task: Task, most_rounds: int) -> RunSetting:
    """Return the proposed setting for the sites of ``asked``.

    The asked model stays where it is neither ``logreg`` nor an ``mlp`` and its R is enough.
    """
    sites = tuple(
        replace(site, batch_size=max(1, round(site.records / STEPS))) for site in asked.sites
    )
    steps = (STEPS,) * len(sites)
    spread_out = replace(asked, sites=sites, rounds=most_rounds, steps=steps)
    if asked.colluders:
        spread_out = asked.shared(most_rounds)
    is_ours = asked.model == "logreg" or asked.model.startswith("mlp:")
    for model in (*(() if is_ours else (asked.model,)), *LARGER):
        larger = replace(spread_out, model=model, size=size_of(model, task))
        if larger.of_run >= ENOUGH:
            return larger
    return replace(spread_out, model="logreg", size=size_of("logreg", task))


def helps(setting: RunSetting, task: Task) -> list[Help]:
    """Return the changes that raise the ratio of ``setting``, the best first."""
    before = setting.of_run
    if math.isinf(before):
        return []
    gains = [Help(what, other.of_run / before) for what, other in _changed(setting, task)]
    return sorted((change for change in gains if change.gain > 1), key=lambda change: -change.gain)


def _changed(setting: RunSetting, task: Task) -> Iterator[tuple[str, RunSetting]]:
    sites, steps = setting.sites, setting.steps
    yield "twice the sites, with the same terms", replace(setting, sites=sites * 2, steps=steps * 2)
    twice = (replace(s, records=2 * s.records, batch_size=2 * s.batch_size) for s in sites)
    yield "twice the records at every site", replace(setting, sites=tuple(twice))
    for site, number in Counter(sites).items():
        index = sites.index(site)
        doubled = replace(site, epsilon=2 * site.epsilon)
        yield (
            f"ε {2 * site.epsilon:g} in place of {site.epsilon:g} at site {index + 1}"
            + (f" (or at another of the {number} sites like it)" if number > 1 else ""),
            replace(setting, sites=(*sites[:index], doubled, *sites[index + 1 :])),
        )
    if not setting.colluders:
        half = (replace(s, batch_size=max(s.batch_size, s.records // 2)) for s in sites)
        yield "batches of half of a site's records", replace(setting, sites=tuple(half))
    if not setting.colluders and len(sites) >= LEAST_SITES:
        shared = setting.shared(setting.rounds)
        yield (
            "noise = 'shared', which the operators of the sites have to allow "
            f"({shared.colluders} of the other sites may collude)",
            shared,
        )
    yield "twice the rounds", replace(setting, rounds=2 * setting.rounds)
    for what, narrow in (
        ("the smaller model logreg", task),
        (
            f"logreg on {FEATURES} public features of a record (backbone)",
            Task((FEATURES,), task.outputs, task.loss),
        ),
    ):
        yield what, replace(setting, model="logreg", size=size_of("logreg", narrow))


def spread(text: str, sites: int, option: str, *, whole: bool = False) -> tuple[float, ...]:
    """Return a number for each site from ``VALUE×COUNT,…``; one value is for all of them.

    Raises:
        TermsError: a value is no positive number, or the counts do not make up the sites.

    >>> spread("0.5×2,8", 3, "--epsilons")
    (0.5, 0.5, 8.0)
    """
    numbers: list[float] = []
    for entry in text.replace("x", "×").split(","):
        value, times, count = entry.strip().partition("×")
        try:
            number, repeat = float(value), int(count) if times else 1
        except ValueError:
            number, repeat = 0.0, 0
        if not number > 0 or not 0 < repeat <= sites or (whole and not number.is_integer()):
            break
        numbers += [number] * repeat
    else:
        if len(numbers) in (1, sites):
            return tuple(numbers if len(numbers) == sites else numbers * sites)
    kind = "whole numbers" if whole else "numbers"
    raise TermsError(
        f"{option}: write positive {kind} with commas between, each as NUMBER or as "
        "NUMBER×SITES; give one for all sites, or one for each of --sites"
    )
