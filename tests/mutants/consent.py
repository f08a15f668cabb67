"""Bugs of consent: a run that its operator did not approve, or not like this."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_SITE = "client_app/site/test_consent.py::test_"
_LEDGER = "hdpfl_flower/ledger/test_decisions.py::test_"
_SERVER = "strategies/core/test_approvals.py::test_"
_COMMAND = "client_app/commands/test_requests.py::test_"

MUTANTS = (
    Mutant(
        "a run that nobody approved is answered",
        "client_app/app.py",
        "            check_consent(site, ask=handler is not finish)\n",
        "",
        _SITE + "an_unapproved_run_reads_charges_and_discloses_nothing",
    ),
    Mutant(
        "a run without approval is asked about after its records were read",
        "client_app/app.py",
        "            check_consent(site, ask=handler is not finish)\n",
        "            if site.profile.data is not None:\n"
        "                site.training_records()\n"
        "            check_consent(site, ask=handler is not finish)\n",
        _SITE + "an_unapproved_run_reads_charges_and_discloses_nothing",
    ),
    Mutant(
        "an approval of a run's name, whatever its terms become",
        "client_app/site/inbox.py",
        "json.dumps([bound, app], sort_keys=True)",
        "json.dumps([terms.run_id, app], sort_keys=True)",
        _SITE + "changed_terms_need_a_new_approval",
    ),
    Mutant(
        "an approval whatever app asks under it",
        "client_app/site/inbox.py",
        "json.dumps([bound, app], sort_keys=True)",
        "json.dumps(bound, sort_keys=True)",
        _SITE + "an_approval_for_another_app_is_none",
    ),
    Mutant(
        "a refused run that may ask again",
        "client_app/site/consent.py",
        "    if terms.run_id in account.refused:\n",
        "    if covering_digests(terms, app_digest()) & set(account.refused):\n",
        _SITE + "a_refused_run_stays_refused_under_whatever_terms",
    ),
    Mutant(
        "an approval of a cap that is one of any cap, and of none",
        "client_app/site/inbox.py",
        "if key not in FREE_TERMS}",
        'if key not in FREE_TERMS | {"epsilon-cap"}}',
        _SITE + "changed_terms_need_a_new_approval",
    ),
    Mutant(
        "a refusal that an approval outweighs",
        "client_app/site/consent.py",
        "    if terms.run_id in account.refused:\n",
        "    if terms.run_id in account.refused - set(account.approved):\n",
        _SITE + "an_approval_can_be_withdrawn",
    ),
    Mutant(
        "a release of a run that was refused meanwhile",
        "hdpfl_flower/ledger/account.py",
        "        if request.run_id in self.refused:\n",
        "        if request.digest in self.refused:\n",
        _LEDGER + "nothing_follows_a_refusal_and_other_runs_go_on",
    ),
    Mutant(
        "an approval after a refusal",
        "hdpfl_flower/ledger/ledger.py",
        "            if approval.run_id in self._account.refused:\n",
        "            if approval.request in self._account.refused:\n",
        _LEDGER + "nothing_follows_a_refusal_and_other_runs_go_on",
    ),
    Mutant(
        "a refusal that an earlier version does not see",
        "hdpfl_flower/ledger/ledger.py",
        "                self._chain.raise_format()\n"
        '                self._append(REFUSED, {"run_id": run_id, "by": by})\n',
        '                self._append(REFUSED, {"run_id": run_id, "by": by})\n',
        _LEDGER + "an_earlier_ledger_is_numbered_anew",
    ),
    Mutant(
        "a standing approval without an end",
        "client_app/site/consent.py",
        "        and (bounds.until is None or today <= bounds.until)\n",
        "",
        _SITE + "a_standing_approval_ends_at_its_bounds",
    ),
    Mutant(
        "a file of requests that a server can fill the disk with",
        "client_app/site/inbox.py",
        "        db.execute(_MAKE_ROOM, (MOST_RUNS,))\n",
        "",
        _SITE + "a_flood_of_runs_leaves_a_bounded_file_and_the_newest",
    ),
    Mutant(
        "a refusal that the coordinator takes for pending",
        "client_app/app.py",
        "{Pending: wire.PENDING, Refused: wire.REFUSED}",
        "{Pending: wire.PENDING, Refused: wire.PENDING}",
        _SITE + "a_refused_run_stays_refused_under_whatever_terms",
    ),
    Mutant(
        "the run's terms at the time of the decision, not those that were listed",
        "client_app/commands/requests.py",
        "request.digest.startswith(name.lower())",
        "bool(name)",
        _COMMAND + "terms_that_changed_between_the_list_and_the_decision_are_not_approved",
    ),
    Mutant(
        "a site is sent the model before its operator approved",
        "strategies/core/roster.py",
        "        return [site for site in self.nodes if site not in self.undecided]\n",
        "        return list(self.nodes)\n",
        _SERVER + "after_the_timeout_it_goes_on_without_those_who_did_not_approve",
    ),
    Mutant(
        "a pending site that does not answer counts as one that approved",
        "strategies/core/roster.py",
        "        if silent is None or silent.code in WAITING:\n"
        "            self._note_decision(site, silent.code if silent else None)\n",
        "        waits = silent is not None and silent.code in WAITING\n"
        "        self._note_decision(site, silent.code if silent and waits else None)\n",
        _SERVER + "a_pending_site_that_does_not_answer_stays_pending",
    ),
)
