"""Bugs of simulations: clients mixed up in a stack, work that is another's, a ledger that forgets."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_STACKED = "client_app/training/test_stacked_sgd.py::test_each_client_ends_where_it_ends_alone"
_DPSGD = "client_app/training/stacked_dpsgd.py"
_PRIVATE = "client_app/training/test_stacked_dpsgd.py::test_"
_ALONE = _PRIVATE + "each_client_sends_what_it_sends_alone[mlp:8-softmax-None]"
_RECORDS = "client_app/test_stacked_records.py::test_"
_TOGETHER = "client_app/test_in_process.py::test_"
MUTANTS = (
    Mutant(
        "clients mixed up in the stack",
        "client_app/training/stacked_sgd.py",
        "ends.update(zip(some, theta.cpu().numpy(), strict=True))",
        "ends.update(zip(order[first : first + count], theta.cpu().numpy(), strict=True))",
        _STACKED + "[logreg-softmax-None]",
    ),
    Mutant(
        "rows that fill up a batch count",
        "client_app/training/stacked_sgd.py",
        "shares[i, : len(rows)] = 1 / len(rows)",
        "shares[i] = 1 / len(rows)",
        _STACKED + "[mlp:8-softmax-None]",
    ),
    Mutant(
        "one client's pull for all",
        "client_app/training/stacked_sgd.py",
        "own.lerp_(anchors[:k], rates[:k])",
        "own.lerp_(anchors[:k], rates[:1])",
        _STACKED + "[logreg-softmax-0.4]",
    ),
    Mutant(
        "a stacked result left with another node",
        "client_app/in_process.py",
        "for one, end in zip(passes, ends, strict=True):",
        "for one, end in zip(passes, ends[1:] + ends[:1], strict=True):",
        _TOGETHER + "stacked_sites_send_what_they_send_alone[logreg]",
    ),
    Mutant(
        "work done for another request is sent",
        "client_app/training/client_level.py",
        "self._site.trained.pop((self._instructions.digest, UPDATE), None)",
        "next(iter(self._site.trained.values()), None)",
        _TOGETHER + "work_done_for_another_request_is_not_sent",
    ),
    Mutant(
        "phases of a round lost in the stack",
        "client_app/training/stacked_sgd.py",
        "        if any(job.phases for job in jobs):\n",
        "        if False:\n",
        "client_app/training/test_client_level_parts.py::"
        "test_phases_of_other_steps_and_stacks_of_phases_are_refused",
    ),
    Mutant(
        "a deployed site that takes another's work",
        "client_app/site/site.py",
        "    return Site(profile, terms, index, context.state, config=config)\n",
        '    work = context.__dict__.get("_trained", {})\n'
        "    return Site(profile, terms, index, context.state, False, config, work)\n",
        _TOGETHER + "a_deployed_site_takes_no_work_from_anybody",
    ),
    Mutant(
        "a simulated ledger that forgets its file",
        "hdpfl_flower/ledger/in_memory.py",
        "        if path.is_file():\n            with",
        "        if False:\n            with",
        "hdpfl_flower/ledger/test_in_memory.py::test_it_goes_on_where_its_file_ends",
    ),
    Mutant(
        "one client's noise for all",
        "hdpfl_flower/privacy/noise.py",
        "        stream.fill(source[",
        "        streams[0].fill(source[",
        _PRIVATE + "the_noise_of_each_step_is_the_clients_own_at_its_own_scale",
    ),
    Mutant(
        "one client's noise scale for all",
        "hdpfl_flower/privacy/noise.py",
        "    noise.mul_(scale).addcmul_(",
        "    noise.mul_(scale[:1]).addcmul_(",
        _PRIVATE + "the_noise_of_each_step_is_the_clients_own_at_its_own_scale",
    ),
    Mutant(
        "noise left out where all stacked batches are empty",
        _DPSGD,
        "            add_noises(\n",
        "            total.any() and add_noises(\n",
        _PRIVATE + "the_noise_of_each_step_is_the_clients_own_at_its_own_scale",
    ),
    Mutant(
        "stacked records clipped by the largest of their batch",
        _DPSGD,
        "squared_norm.rsqrt()).clamp_(",
        "squared_norm.amax(1, keepdim=True).rsqrt()).clamp_(",
        _ALONE,
    ),
    Mutant(
        "stacked records not clipped",
        _DPSGD,
        "squared_norm.rsqrt()).clamp_(max=1.0)",
        "squared_norm.rsqrt()).clamp_(min=1.0, max=1.0)",
        _PRIVATE + "one_record_more_moves_the_sum_by_its_clip_norm_at_most",
    ),
    Mutant(
        "one client's clip norm for all",
        _DPSGD,
        "self._clip_norms[: len(counted)]",
        "self._clip_norms[:1]",
        _ALONE,
    ),
    Mutant(
        "one client's divisor for all",
        _DPSGD,
        "own.addcmul_(total, rates[:active], value=-1)",
        "own.addcmul_(total, rates[:1], value=-1)",
        _ALONE,
    ),
    Mutant(
        "rows that fill up a stacked batch count",
        _DPSGD,
        "factor = torch.where(counted, factor, 0.0).unsqueeze(2)",
        "factor = factor.unsqueeze(2)",
        _ALONE,
    ),
    Mutant(
        "a stacked sum that goes on from an earlier step's",
        _DPSGD,
        "a, beta=1 - anew)",
        "a)",
        _ALONE,
    ),
    Mutant(
        "a record that is not finite is not looked for",
        _DPSGD,
        "everything = math.isfinite(squared_norm.sum().item())",
        "everything = True",
        _PRIVATE + "a_record_that_is_not_finite_adds_zero_alone[mlp:8]",
    ),
    Mutant(
        "0 · NaN in a stacked sum",
        _DPSGD,
        "            if finite is not None:",
        "            if False:",
        _PRIVATE + "a_record_that_is_not_finite_adds_zero_alone[mlp:8]",
    ),
    Mutant(
        "stacked updates of DP-SGD left with another node",
        "client_app/in_process.py",
        "for each, update in zip(rounds, updates, strict=True):",
        "for each, update in zip(rounds, updates[1:] + updates[:1], strict=True):",
        _RECORDS + "sites_send_what_they_send_alone[more0]",
    ),
    Mutant(
        "stacked sites reserve after the work",
        "client_app/in_process.py",
        "    context.taken[key] = taken\n",
        "    with taken:\n        pass\n",
        _RECORDS + "every_site_reserves_before_the_work_and_seals_after_it",
    ),
    Mutant(
        "a reservation that nobody sealed is forgotten",
        "client_app/in_process.py",
        "            while context.taken:\n",
        "            context.taken.clear()\n            while context.taken:\n",
        _RECORDS + "a_failure_of_the_common_work_loses_every_release_and_sends_nothing",
    ),
    Mutant(
        "a noisy update done for another request is sent",
        "client_app/training/trainer.py",
        "self._site.trained.pop((self._instructions.digest, UPDATE), None)",
        "next(iter(self._site.trained.values()), None)",
        _RECORDS + "work_and_reservations_for_another_request_are_not_used",
    ),
    Mutant(
        "a site that is no simulation is stacked",
        "client_app/training/trainer.py",
        "        if not self._site.simulated or self._personal",
        "        if self._personal",
        _RECORDS + "a_site_that_is_no_simulation_is_never_stacked",
    ),
    Mutant(
        "sites are stacked unasked",
        "client_app/in_process.py",
        'not (private and terms.noise == "records")',
        'terms.noise != "records"',
        _RECORDS + "nothing_is_stacked_unless_it_is_asked_for",
    ),
    Mutant(
        "a deployed run may ask for stacked sites",
        "server_app/app.py",
        "    if given.simulation.stack:\n",
        "    if False:\n",
        "server_app/run/test_stack_refused.py::"
        "test_sites_in_processes_of_their_own_do_not_train_together",
    ),
    Mutant(
        "noise of a scale that is no number is left out",
        "hdpfl_flower/privacy/noise.py",
        "enumerate(stds) if std != 0]",
        "enumerate(stds) if std > 0]",
        "hdpfl_flower/privacy/test_noise_ahead.py::"
        "test_a_scale_that_is_none_is_an_error_and_not_no_noise[nan]",
    ),
    Mutant(
        "low-order bits left in a stack",
        "hdpfl_flower/privacy/noise.py",
        "return noise.round_().mul_(grid)\n\n\ndef _grid",
        "return noise.mul_(grid)\n\n\ndef _grid",
        "hdpfl_flower/privacy/test_noise_ahead.py::"
        "test_noise_of_several_releases_has_the_bits_of_each_alone[13]",
    ),
)
"""As ``table.MUTANTS``."""
