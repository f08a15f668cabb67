"""Bugs of simulations: clients mixed up in a stack, work that is another's, a ledger that forgets."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_STACKED = "client_app/training/test_stacked_sgd.py::test_each_client_ends_where_it_ends_alone"
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
)
"""As ``table.MUTANTS``."""
