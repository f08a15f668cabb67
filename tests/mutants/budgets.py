"""Bugs of budgets over rounds: participations, a common noise, the papers' formulas."""

from __future__ import annotations

from tests.mutants.runner import Mutant

SITE, LEDGER = (
    "client_app/site/test_budgets.py::test_",
    "hdpfl_flower/ledger/test_ledger_budget.py::test_",
)
PLAN, SAMPLER = (
    "hdpfl_flower/privacy/test_given_noise.py::test_",
    "strategies/core/test_sampler.py::test_",
)
MUTANTS = (
    Mutant(
        "participations that nobody counts",
        "hdpfl_flower/ledger/account.py",
        "        if request.key not in taken and len(taken) >= most:\n",
        "        if False:\n",
        SITE + "a_site_takes_part_as_often_as_it_planned_and_no_more",
    ),
    Mutant(
        "a race past the last participation",
        "hdpfl_flower/ledger/account.py",
        "taken = [key for key in self.releases if (key[0], key[2]) == (request.run_id, request.kind)]",
        "taken = [key for key, other in self.releases.items() if other.status != 'reserved']",
        LEDGER + "two_rounds_asked_at_once_cannot_both_be_the_last",
    ),
    Mutant(
        "a lost release given back",
        "hdpfl_flower/ledger/account.py",
        "taken = [key for key in self.releases if (key[0], key[2]) == (request.run_id, request.kind)]",
        "taken = [key for key, other in self.releases.items() if other.status != 'lost']",
        LEDGER + "a_lost_release_counts",
    ),
    Mutant(
        "one release more than the plan pays for",
        "client_app/app.py",
        "if plan is None else plan.rounds,\n",
        "if plan is None else plan.rounds + 1,\n",
        SITE + "a_site_takes_part_as_often_as_it_planned_and_no_more",
    ),
    Mutant(
        "a common noise charged too little",
        "hdpfl_flower/privacy/affordable_rounds.py",
        "return charge if again <= charge else epsilon",
        "return 0.9 * charge",
        PLAN + "given_noise_pays_for_as_many_rounds_as_fit[3.0-2.5]",
    ),
    Mutant(
        "a paper's formula at a real site",
        "hdpfl_flower/privacy/plan.py",
        '    nominal = nominal_noise if profile.simulated and terms.noise == "records" else None\n',
        "    nominal = nominal_noise\n",
        "hdpfl_flower/privacy/test_plan_rules.py::"
        "test_a_formula_is_for_a_simulation_whose_records_are_noised",
    ),
    Mutant(
        "a plan for the dearest of unlike rounds",
        "hdpfl_flower/privacy/plan.py",
        "        if self.last_round > len(self.steps) and len(set(self.steps)) != 1:\n",
        "        if False:\n",
        PLAN + "a_plan_for_some_of_the_rounds_needs_them_alike",
    ),
    Mutant(
        "a sampler that forgets participations",
        "strategies/core/sampler.py",
        "0 < self.terms.participations <= asked",
        "False",
        SAMPLER + "no_site_is_asked_more_often_than_it_takes_part[0.3-2]",
    ),
    Mutant(
        "the public sites among those drawn",
        "strategies/core/sampler.py",
        "            if public & set(drawn):\n",
        "            if drawn:\n",
        SAMPLER + "who_is_public_is_decided_among_all_and_not_among_those_drawn",
    ),
)
