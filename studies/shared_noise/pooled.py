"""DP-SGD on pooled records, each with the noise of its own site: the best that sharing can do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from hdpfl_flower.config.run_config import RunConfig
from hdpfl_flower.data.run_task import task_for
from hdpfl_flower.engines.dpsgd import clipped_sum
from hdpfl_flower.engines.engine_choice import engine_for
from hdpfl_flower.models.evaluation import evaluate
from hdpfl_flower.models.networks import flatten, unflatten
from hdpfl_flower.monitoring.journal import Event
from hdpfl_flower.privacy.noise import ReleaseStreams
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_flower.shared_noise.ring import LEAST_NOISE
from hdpfl_flower.system.files import replace_file
from hdpfl_flower.updates import Outcome, RoundUpdates
from hdpfl_tools.simulation.drawn_records import source_of, split_records
from hdpfl_tools.simulation.in_process.comparison import OnRound, RunJob
from hdpfl_tools.simulation.in_process.finished_runs import folder_of
from hdpfl_tools.simulation.own_data.dataset import dataset_of
from hdpfl_tools.simulation.sites import draw_profile
from strategies import check_strategy
from strategies.core.model_record import initial_arrays
from strategies.server_step.found import FoundRate

_NAME = "pooled.json"


def stored_pooled(job: RunJob) -> list[Event] | None:
    """Return the rounds of a finished run, or None."""
    try:
        events: list[Event] = json.loads((folder_of(job) / _NAME).read_text())
    except (OSError, ValueError):
        return None
    return events


def keep_pooled(job: RunJob, on_round: OnRound) -> list[Event]:
    """Run a job on pooled records, and keep its rounds."""
    events = list(_rounds(job, on_round))
    folder = folder_of(job)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / _NAME, json.dumps(events).encode(), mode=0o644)
    return events


def _rounds(job: RunJob, on_round: OnRound) -> Any:
    """Yield the events of all rounds.

    The sites' noise multipliers, records and batches, the first model and the server's rate are
    those of the federated run; the noise is one normal of the standard deviation 1, and nothing is
    rounded or masked.
    """
    config = check_strategy(job.terms.strategy).with_rate(job.config)
    terms, task = config.terms, task_for(config.terms)
    model = initial_arrays(terms, config.simulation.seed)
    engine, theta = engine_for(terms.model, task, "auto", "cpu"), flatten(model)
    sites = [_site(config, index, job.num_sites) for index in range(job.num_sites)]
    step, test = FoundRate(config), dataset_of(terms, config.simulation.data_dir).test
    whole = slice(0, len(theta))
    state, seed = step.initial_state(), config.simulation.seed
    for number in range(1, (job.stop_after or terms.rounds) + 1):
        streams = ReleaseStreams.simulated(seed, "pooled", number, "update")
        total = streams.noise.normal(len(theta)).numpy()
        weight = 0.0
        for records, plan, physical in sites:
            this = plan.round(number, terms.clip_norm)
            noise = max(this.noise_std / terms.clip_norm, LEAST_NOISE)
            part = clipped_sum(engine, theta, records, this, streams.sampling, physical, whole)
            total, weight = total + part / (noise * terms.clip_norm), weight + this.divisor / noise
        update = (-terms.learning_rate * terms.clip_norm / weight * total).astype(np.float32)
        outcome = Outcome(update, np.ones(1))
        state, moved = step.move(state, outcome, RoundUpdates(number, ("",), update[None]))
        theta = theta + moved.update
        arrays = unflatten(theta, model)
        metrics = evaluate(terms.model, task, arrays, test) if test is not None else {}
        on_round()
        yield {"event": "round", "round": number, "metrics": metrics}


def _site(config: RunConfig, index: int, number: int) -> tuple[Any, Any, int]:
    """Return the records of a site, its plan, and its physical batch."""
    torch.set_num_threads(1)
    profile = draw_profile(config, index, number)
    records = split_records(source_of(config, number))[index]
    return records, make_plan(profile, config.terms), profile.training.physical_batch
