"""Bugs of bounds: a server's text that makes a site allocate or compute without end."""

from __future__ import annotations

from tests.mutants.runner import Mutant

MODELS, SITES = "hdpfl_flower/models/networks.py", "client_app/site/test_model_bounds.py::test_"
NAMES, WORK = (
    "hdpfl_flower/models/test_network_bounds.py::test_",
    "hdpfl_flower/privacy/test_work_bounds.py::test_",
)
MUTANTS = (
    Mutant(
        "a network built before its size is known",
        "client_app/site/site.py",
        "    if megabytes_of(spec, task) > profile.policy.max_payload_mb:\n",
        "    if megabytes_of(spec, task) > 1e9 * profile.policy.max_payload_mb:\n",
        SITES + "a_model_above_the_policy_is_built_on_meta_alone",
    ),
    Mutant(
        "a size that takes the memory it measures",
        MODELS,
        '        with torch.random.fork_rng(devices=[]), torch.device("meta"):\n',
        '        with torch.random.fork_rng(devices=[]), torch.device("cpu"):\n',
        SITES + "a_model_above_the_policy_is_built_on_meta_alone",
    ),
    Mutant(
        "a width of any number of digits",
        MODELS,
        '_WIDTH = re.compile("[1-9][0-9]{0,6}")',
        '_WIDTH = re.compile("[1-9][0-9]*")',
        NAMES + "an_absurd_name_is_one_short_line",
    ),
    Mutant(
        "a width in any script's digits",
        MODELS,
        '_WIDTH = re.compile("[1-9][0-9]{0,6}")',
        r'_WIDTH = re.compile(r"[^\W\D_]{1,7}")',
        NAMES + "an_absurd_name_is_one_short_line",
    ),
    Mutant(
        "layers without end",
        MODELS,
        "    if len(widths) > MAX_WIDTHS or not",
        "    if not",
        NAMES + "an_absurd_name_is_one_short_line",
    ),
    Mutant(
        "no largest model at the server",
        MODELS,
        "    if megabytes_of(spec, task) > MAX_MODEL_MB:\n",
        "    if False:\n",
        NAMES + "what_is_too_large_is_built_on_meta_alone",
    ),
    Mutant(
        "a network of an earlier call, without numbers",
        MODELS,
        "    if any(p.is_meta for p in model.parameters()):\n",
        "    if False:\n",
        NAMES + "a_users_function_that_keeps_its_network_is_refused",
    ),
    Mutant(
        "steps counted after they are accounted",
        "hdpfl_flower/privacy/plan.py",
        "    check_work(profile, terms)\n    divisor, sensitivity",
        "    divisor, sensitivity",
        WORK + "millions_of_steps_are_declined_before_any_is_accounted",
    ),
    Mutant(
        "steps of one model where a run trains two",
        "hdpfl_flower/privacy/plan.py",
        "    return models_of(terms) * (rounds * of_a_round + first) + terms.tuning_steps\n",
        "    return rounds * of_a_round + first + terms.tuning_steps\n",
        WORK + "a_plan_has_no_more_steps_than_were_counted",
    ),
)
