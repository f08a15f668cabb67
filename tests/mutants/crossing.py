"""Bugs of what crosses the wire, and of what a site says, shows or believes."""

from __future__ import annotations

from tests.mutants.runner import Mutant

REPLAY = "privacy/test_replay.py::test_"
GUARD = "privacy/test_guard.py::test_"
APP = "client_app/test_app.py::test_"
_LESS = "one_record_less_changes_nothing_but_sums_by_its_own_gradient[logreg-linear]"
MUTANTS = (
    Mutant(
        "an exception's text sent",
        "hdpfl_flower/wire.py",
        "Message(Error(code, REASONS[code]), reply_to=request)",
        "Message(Error(code, repr(__import__('sys').exc_info()[1])), reply_to=request)",
        APP + "a_broken_site_says_nothing_but_a_constant",
    ),
    Mutant(
        "a guard with a hole",
        "client_app/app.py",
        "except BaseException as reason:  # counting and waiting",
        "except Exception as reason:  # counting and waiting",
        APP + "nothing_passes_where_a_reply_is_held_back",
    ),
    Mutant(
        "num-examples sent",
        "client_app/app.py",
        "    return wire.write_update(released.payload, trainer.size, choice, terms.upload)",
        "    reply = wire.write_update(released.payload, trainer.size)\n"
        "    from flwr.app import MetricRecord\n"
        "    reply['metrics'] = MetricRecord({'num-examples': len(site.training_records())})\n"
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
        "hdpfl_flower/wire.py",
        "    if not np.isfinite(values).all():\n",
        "    if False:\n",
        APP + "whatever_a_server_sends_gets_a_constant_and_costs_nothing",
    ),
    Mutant(
        "a deployed node that plays a simulated one",
        "client_app/site/simulated.py",
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
        "hdpfl_flower/config/redacted.py",
        '        return f"{type(self).__name__}(<private>)"',
        "        return str(self.__dict__)",
        "hdpfl_flower/config/test_profile.py::test_no_value_shows_in_any_text",
    ),
    Mutant(
        "an unknown label that ends a run",
        "hdpfl_flower/data/array_targets.py",
        "        known = _is_whole(y, task.classes)\n",
        "        known = np.full(len(y), True)\n",
        REPLAY + "a_label_that_the_task_does_not_know_tells_nothing",
    ),
)
