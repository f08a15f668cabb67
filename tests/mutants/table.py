"""The bugs that a private federation must not have, each with the test that finds it."""

from __future__ import annotations

from tests.mutants import (
    budgets,
    clusters,
    estimators,
    guards,
    one_number,
    operations,
    resuming,
    studies,
    together,
)
from tests.mutants.fedhdp import FEDHDP
from tests.mutants.runner import Mutant

REPLAY, GUARD = "privacy/test_replay.py::test_", "privacy/test_guard.py::test_"
APP, ACCOUNTING = "client_app/test_app.py::test_", "hdpfl_flower/test_accounting.py::test_"
LEDGER, DAMAGE = "hdpfl_flower/test_ledger.py::test_", "hdpfl_flower/test_ledger_damage.py::test_"
NOISE, BATCHES = "hdpfl_flower/test_noise.py::test_", "hdpfl_flower/test_noise_batches.py::test_"

_NOISE = "the_noise_is_that_of_the_plan_that_was_charged"
_LESS = "one_record_less_changes_nothing_but_sums_by_its_own_gradient[logreg-linear]"
_MORE = "one_record_more_may_hold_anything[cnn-vmap-3e+38]"

MUTANTS = (
    # --- the noise ---------------------------------------------------------------------------
    Mutant(
        "half the noise",
        "client_app/dpsgd.py",
        "add_noise(total, plan.noise_std, streams.noise)",
        "add_noise(total, plan.noise_std / 2, streams.noise)",
        REPLAY + _NOISE,
    ),
    Mutant(
        "noise of std z, whatever C",
        "hdpfl_flower/mechanism.py",
        "noise_std = self.noise_multiplier * clip_norm",
        "noise_std = self.noise_multiplier * min(clip_norm, 0.05)",
        REPLAY + _NOISE,
    ),
    Mutant(
        "one seed for all releases",
        "hdpfl_flower/noise.py",
        "return cls(RandomStream(os.urandom(32)), RandomStream(os.urandom(32)))",
        "return cls(RandomStream(os.urandom(32)), RandomStream(bytes(32)))",
        REPLAY + _NOISE,
    ),
    Mutant(
        "torch's generator, seeded alike in every process",
        "hdpfl_flower/noise.py",
        "        result = torch.empty(count, dtype=torch.float64)\n",
        "        result = torch.empty(count, dtype=torch.float64)\n"
        "        if not hasattr(self, 'torch'):\n"
        "            self.torch = torch.Generator()\n"
        "        return result.normal_(generator=self.torch)\n",
        REPLAY + _NOISE,
    ),
    Mutant(
        "the same noise in every step",
        "client_app/dpsgd.py",
        "            noisy = add_noise(total, plan.noise_std, streams.noise)\n",
        "            from hdpfl_flower.noise import RandomStream\n"
        "            noisy = add_noise(total, plan.noise_std, RandomStream(b'k' * 32))\n",
        REPLAY + _NOISE,
    ),
    Mutant(
        "the same noise in two layers",
        "hdpfl_flower/noise.py",
        "noise = stream.normal(total.numel()).to(total.device)",
        "noise = stream.normal(-(-total.numel() // 2)).repeat(2)[: total.numel()]",
        REPLAY + _NOISE,
    ),
    Mutant(
        "one key for batches and noise",
        "hdpfl_flower/noise.py",
        "return cls(RandomStream(os.urandom(32)), RandomStream(os.urandom(32)))",
        "key = os.urandom(32)\n        return cls(RandomStream(key), RandomStream(key))",
        NOISE + "a_fresh_release_draws_two_keys_from_the_system",
    ),
    Mutant(
        "normals of float32",
        "hdpfl_flower/noise.py",
        "uniform = words.bitwise_and_(2**53 - 1).double().add_(1).mul_(2.0**-53)",
        "uniform = words.bitwise_and_(2**24 - 1).double().add_(1).mul_(2.0**-24)",
        NOISE + "the_tail_goes_beyond_that_of_float32",
    ),
    Mutant(
        "low-order bits left in",
        "hdpfl_flower/noise.py",
        "return noise.round_().mul_(grid)",
        "return noise.mul_(grid)",
        NOISE + "noise_has_its_std_and_lies_on_the_public_grid",
    ),
    Mutant(
        "a seed in production",
        "client_app/site.py",
        "return ReleaseStreams.fresh()",
        'return ReleaseStreams.simulated(self.terms.seed, "site", server_round, kind)',
        APP + "two_sites_never_send_the_same_noise",
    ),
    # --- the batches and the sums ------------------------------------------------------------
    Mutant(
        "shuffled batches in place of Poisson's",
        "hdpfl_flower/noise.py",
        "        return np.flatnonzero(words < threshold)",
        "        return np.sort(np.argsort(words)[: round(probability * count)])",
        BATCHES + "batches_are_poisson",
    ),
    Mutant(
        "a probability rounded up",
        "hdpfl_flower/noise.py",
        "threshold = math.floor(probability * 2**32)",
        "threshold = math.ceil(probability * 2**32)",
        BATCHES + "a_probability_is_rounded_down",
    ),
    Mutant(
        "an empty batch skipped",
        "client_app/dpsgd.py",
        "            total.zero_()\n",
        "            if not len(rows):\n                continue\n            total.zero_()\n",
        REPLAY + "an_empty_batch_is_noised_like_any_other",
    ),
    Mutant(
        "division by the actual batch",
        "client_app/dpsgd.py",
        "alpha=learning_rate / plan.divisor)",
        "alpha=learning_rate / max(1, len(rows)))",
        REPLAY + _LESS,
    ),
    Mutant(
        "steps from the number of records",
        "client_app/dpsgd.py",
        "for _ in range(plan.steps.count):",
        "for _ in range(max(1, len(records) // 12)):",
        REPLAY + "the_number_of_records_is_no_public_quantity",
    ),
    Mutant(
        "q from the number of records",
        "client_app/dpsgd.py",
        "engine.theta.device, plan.steps.sampling_prob",
        "engine.theta.device, min(1.0, plan.divisor / max(1, len(records)))",
        REPLAY + _LESS,
    ),
    Mutant(
        "no clipping",
        "client_app/engines.py",
        "(clip_norm * squared_norm.rsqrt()).clamp(max=1.0)",
        "torch.ones_like(squared_norm)",
        REPLAY + _LESS,
    ),
    Mutant(
        "clipping twice as loose",
        "client_app/engines.py",
        "(clip_norm * squared_norm.rsqrt()).clamp(max=1.0)",
        "(2 * clip_norm * squared_norm.rsqrt()).clamp(max=1.0)",
        REPLAY + _LESS,
    ),
    Mutant(
        "the bias left out of the norm",
        "client_app/engines.py",
        "return torch.addcmul(deltas, deltas, inputs) if bias else deltas * inputs.add_(1e-34)",
        "return deltas * inputs.add_(1e-34)",
        REPLAY + _LESS,
    ),
    Mutant(
        "filled-up rows counted",
        "client_app/engines.py",
        "    factor[count:] = 0\n",
        "",
        "client_app/test_engines.py::test_rows_after_the_count_add_nothing",
    ),
    Mutant(
        "0 · NaN in the sum",
        "client_app/engines.py",
        "    finite = torch.isfinite(squared_norm)\n",
        "    finite = torch.ones_like(squared_norm, dtype=torch.bool)\n",
        REPLAY + _MORE,
    ),
    Mutant(
        "layers that mix records",
        "hdpfl_flower/models.py",
        "    refuse_mixing_layers(model)\n",
        "",
        "client_app/test_engine_choice.py::test_batch_statistics_are_refused",
    ),
    # --- the plan and the accountant ---------------------------------------------------------
    Mutant(
        "terms that change in mid-run",
        "hdpfl_flower/mechanism.py",
        "    if changed:\n",
        "    if False:\n",
        APP + "rounds_beyond_the_plan_and_terms_that_change_are_declined",
    ),
    Mutant(
        "more rounds than were paid for",
        "client_app/app.py",
        "    if not plan.covers(instructions.server_round):\n",
        "    if False:\n",
        APP + "rounds_beyond_the_plan_and_terms_that_change_are_declined",
    ),
    Mutant(
        "a plan made anew each round",
        "client_app/site.py",
        "        if frozen is not None:\n",
        "        if False:\n",
        GUARD + "a_run_keeps_the_plan_that_was_charged",
    ),
    Mutant(
        "work under a plan that was not charged",
        "hdpfl_flower/ledger.py",
        "            elif frozen != plan:",
        "            elif False:",
        LEDGER + "work_follows_the_plan_that_was_charged_and_no_other",
    ),
    Mutant(
        "calibration to twice the ε",
        "hdpfl_flower/mechanism.py",
        "return calibrate(schedule, epsilon, delta), None",
        "return calibrate(schedule, 2 * epsilon, delta), None",
        GUARD + "what_runs_costs_what_was_charged",
    ),
    Mutant(
        "a noise multiplier rounded down",
        "hdpfl_flower/accounting.py",
        "    return _narrow(fine, epsilon, low, high, _TOLERANCE)[1]",
        "    return _narrow(fine, epsilon, low, high, _TOLERANCE)[0]",
        ACCOUNTING + "full_batch_steps_are_one_gaussian",
    ),
    Mutant(
        "a fixed PLD interval",
        "hdpfl_flower/accounting.py",
        "    return 1e-4 * epsilon * min(1.0, 200 / math.sqrt(max(steps, 1)))",
        "    return 1e-3",
        ACCOUNTING + "a_fixed_interval_is_a_trap",
    ),
    # --- the ledger --------------------------------------------------------------------------
    Mutant(
        "an accountant that forgets earlier runs",
        "hdpfl_flower/ledger.py",
        "charges = [*account.plans.values(), plan]",
        "charges = [plan]",
        APP + "the_lifetime_budget_pays_for_two_runs_and_not_for_three",
    ),
    Mutant(
        "a replay answered with fresh noise",
        "hdpfl_flower/ledger.py",
        '            if known.status in ("sealed", "sent") and not (again and not self._keeps):\n',
        "            if False:\n",
        APP + "the_same_request_gets_the_same_bytes_and_no_new_noise",
    ),
    Mutant(
        "another request for the same release",
        "hdpfl_flower/ledger.py",
        "            if known.request != request.digest:\n",
        "            if False:\n",
        APP + "another_model_for_a_round_that_was_answered_is_declined",
    ),
    Mutant(
        "a digest that leaves the model out",
        "hdpfl_flower/wire_arrays.py",
        "        digest.update(array.data)  # by itself: the two together would be a copy of it\n",
        "",
        APP + "another_model_for_a_round_that_was_answered_is_declined",
    ),
    Mutant(
        "release before the seal",
        "client_app/app.py",
        "        payload = taken.seal(work())\n",
        "        payload = work()\n"
        "        try:\n            taken.seal(payload)\n"
        "        except BaseException:\n            return payload\n",
        GUARD + "what_is_not_sealed_is_not_sent",
    ),
    Mutant(
        "a refund after a crash",
        "hdpfl_flower/account.py",
        "            release.status = entry.kind\n",
        "            release.status = entry.kind\n"
        '            if entry.kind == "lost":\n                self.plans.clear()\n',
        LEDGER + "work_that_fails_loses_its_release",
    ),
    Mutant(
        "a lost release worked on again",
        "hdpfl_flower/ledger.py",
        "            if not again:\n",
        "            if False:\n",
        LEDGER + "a_killed_process_leaves_a_lost_release",
    ),
    Mutant(
        "a release given to two workers",
        "hdpfl_flower/ledger.py",
        '            raise Declined("replay: the release is being worked on") from None\n',
        "            return\n",
        LEDGER + "a_release_being_worked_on_is_not_given_twice",
    ),
    Mutant(
        "entries believed unread",
        "hdpfl_flower/chain.py",
        "if seq != self._last + 1 or digest != right:",
        "if seq != self._last + 1:",
        DAMAGE + "a_changed_entry_is_found_out",
    ),
    Mutant(
        "an old copy taken for the newest",
        "hdpfl_flower/chain.py",
        "        if ((_FIRST,) if seq == 0 else row) != (digest,):\n",
        "        if False:\n",
        DAMAGE + "an_old_copy_is_found_out_by_the_anchor",
    ),
    # --- what crosses the wire ---------------------------------------------------------------
    Mutant(
        "an exception's text sent",
        "hdpfl_flower/wire.py",
        "Message(Error(code, _REASONS[code]), reply_to=request)",
        "Message(Error(code, repr(__import__('sys').exc_info()[1])), reply_to=request)",
        APP + "a_broken_site_says_nothing_but_a_constant",
    ),
    Mutant(
        "a guard with a hole",
        "client_app/app.py",
        "except BaseException as reason:  # what counts and waits",
        "except Exception as reason:  # what counts and waits",
        APP + "nothing_passes_where_a_reply_is_held_back",
    ),
    Mutant(
        "num-examples sent",
        "client_app/app.py",
        "    return wire.write_update(payload, trainer.size, choice)",
        "    reply = wire.write_update(payload, trainer.size)\n"
        "    from flwr.app import MetricRecord\n"
        "    reply['metrics'] = MetricRecord({'num-examples': len(trainer._records)})\n"
        "    return reply",
        REPLAY + _LESS,
    ),
    Mutant(
        "metrics sent undisclosed",
        "client_app/app.py",
        '    if "metrics" not in site.profile.disclose:\n',
        "    if False:\n",
        APP + "metrics_leave_only_where_the_profile_discloses_them",
    ),
    Mutant(
        "ε sent undisclosed",
        "client_app/app.py",
        '    if "epsilon" in disclose:\n',
        "    if True:\n",
        APP + "a_site_says_of_itself_only_what_it_discloses",
    ),
    Mutant(
        "a hostile model trained on",
        "hdpfl_flower/wire_arrays.py",
        "    if not np.isfinite(values).all():\n",
        "    if False:\n",
        APP + "whatever_a_server_sends_gets_a_constant_and_costs_nothing",
    ),
    Mutant(
        "a deployed node that plays a simulated one",
        "client_app/simulation.py",
        "    return bool(ray and ray.is_initialized())",
        "    return True",
        APP + "a_deployed_node_without_a_profile_refuses",
    ),
    Mutant(
        "a policy that nobody asks",
        "client_app/app.py",
        "            check_policy(site.profile, instructions.terms)\n",
        "",
        GUARD + "declining_never_depends_on_records",
    ),
    Mutant(
        "a profile that prints itself",
        "hdpfl_flower/profile.py",
        '        return f"{type(self).__name__}(<private>)"',
        "        return str(self.__dict__)",
        "hdpfl_flower/test_profile.py::test_no_value_shows_in_any_text",
    ),
    Mutant(
        "an unknown label that ends a run",
        "hdpfl_flower/site_data.py",
        "        known = (y >= 0) & (y < task.classes) & (y == np.floor(y))\n",
        "        known = np.full(len(y), True)\n",
        REPLAY + "a_label_that_the_task_does_not_know_tells_nothing",
    ),
    *budgets.MUTANTS,
    *clusters.MUTANTS,
    *estimators.MUTANTS,
    *guards.MUTANTS,
    *one_number.MUTANTS,
    *operations.MUTANTS,
    *resuming.MUTANTS,
    *studies.MUTANTS,
    *together.MUTANTS,
    # --- privacy of whole clients ------------------------------------------------------------
    *FEDHDP,
)
"""``file``, the text that is changed, what it becomes, and the test that says no."""
