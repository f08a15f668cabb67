"""Bugs of the Rényi filter, and of what returns at the end of a run."""

from __future__ import annotations

from tests.mutants.runner import Mutant

ACCOUNT = "hdpfl_flower/ledger/account.py"
LEDGER = "hdpfl_flower/ledger/ledger.py"
RENYI = "hdpfl_flower/ledger/renyi.py"
MACHINE = "hdpfl_flower/ledger/test_filter_machine.py::test_no_server_passes_the_filter"
RULES = "hdpfl_flower/ledger/test_filter_ledger.py::test_"
NUMBERS = "hdpfl_flower/ledger/test_renyi.py::test_"
MUTANTS = (
    Mutant(
        "an order that the server names",
        LEDGER,
        "plan = frozen or plan.at(account.order)",
        "plan = frozen or plan.at(max(2, request.server_round + 1))",
        MACHINE,
    ),
    Mutant(
        "an order that a raised cap changes",
        ACCOUNT,
        '            if entry.seq == 1:\n                self.order = body.get("order", 0)\n',
        '            self.order = body.get("order", 0)\n',
        RULES + "a_raised_cap_has_more_capacity_at_the_same_order",
    ),
    Mutant(
        "a lost release that is given back",
        ACCOUNT,
        "            if run not in ended or run not in self.plans:\n",
        '            lost = self.releases[run, server_round, kind].status == "lost"\n'
        "            if run not in ended or run not in self.plans or lost:\n",
        MACHINE,
    ),
    Mutant(
        "a rest that is given back while the run is open",
        ACCOUNT,
        "        return self.closed | self.refused\n",
        "        return self.closed | self.refused | set(self.plans)\n",
        MACHINE,
    ),
    Mutant(
        "two runs that are reserved at once",
        ACCOUNT,
        "            found[run] = Fraction(0) if run in ended else reserved(plan.prices)\n",
        "            working = [one for k, one in self.releases.items() if k[0] == run]\n"
        '            working = all(one.status == "reserved" for one in working)\n'
        "            gone = run in ended or working\n"
        "            found[run] = Fraction(0) if gone else reserved(plan.prices)\n",
        MACHINE,
    ),
    Mutant(
        "a run that releases after its end",
        ACCOUNT,
        "        if request.run_id in self.closed:\n",
        "        if False:\n",
        RULES + "at_the_end_what_was_never_reserved_returns[close_run]",
    ),
    Mutant(
        "releases that no price counts",
        LEDGER,
        "            account.check_priced(request, plan)\n",
        "",
        RULES + "no_more_leaves_than_the_plan_has_prices_for",
    ),
    Mutant(
        "a filter of twice its bound",
        RENYI,
        "    return epsilon - _least(order, delta) - _DOWN\n",
        "    return 2 * (epsilon - _least(order, delta)) - _DOWN\n",
        NUMBERS + "what_a_capacity_holds_is_within_epsilon",
    ),
    Mutant(
        "a divergence that is rounded down",
        RENYI,
        "_UP = 1 + 1e-9\n",
        "_UP = 1 - 1e-9\n",
        NUMBERS + "a_step_is_never_below_the_exact_sum",
    ),
    Mutant(
        "one price for a round of two models",
        RENYI,
        'Price("update", 0, of_steps(last, plan.models)',
        'Price("update", 0, of_steps(last, 1)',
        NUMBERS + "choices_of_gumbel_noise_and_two_models_a_round_are_priced",
    ),
    Mutant(
        "a ledger that sends though its divergences do not recount",
        LEDGER,
        "            self.account().check_recount()\n",
        "            self.account()\n",
        RULES + "a_ledger_that_does_not_recount_sends_nothing_and_names_the_run",
    ),
)
