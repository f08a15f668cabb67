"""Bugs of what is measured: whose records a model is tested on, and which sites a mean counts."""

from __future__ import annotations

from tests.mutants.runner import Mutant

PLOTS = "server_app/test_plots.py::test_"
MUTANTS = (
    Mutant(
        "metrics of a poor model dropped",
        "hdpfl_flower/wire.py",
        "if not all(map(math.isfinite, numbers.values())):",
        "if not all(math.isfinite(n) and n >= 0 for n in numbers.values()):",
        "hdpfl_flower/test_wire.py::test_a_poor_models_metrics_are_read",
    ),
    Mutant(
        "metrics that are not finite counted",
        "hdpfl_flower/wire.py",
        "if not all(map(math.isfinite, numbers.values())):",
        "if not numbers:",
        "hdpfl_flower/test_wire.py::test_metrics_are_finite_numbers",
    ),
    Mutant(
        "negative facts of a site taken",
        "hdpfl_flower/wire.py",
        "if not value >= 0 or (math.isinf(value)",
        "if (math.isinf(value)",
        "hdpfl_flower/test_wire.py::test_facts_of_a_site_are_not_negative",
    ),
    Mutant(
        "every site tested on the pooled test set",
        "hdpfl_flower/scenarios/site_tests.py",
        "(shares * means).sum(1).tolist() for name, means in known.items()}",
        "(shares * 0 + means).mean(1).tolist() for name, means in known.items()}",
        "hdpfl_flower/scenarios/test_site_tests.py::test_a_drawn_sites_test_has_the_sites_shares_of_the_classes",
    ),
    Mutant(
        "a natural site tested by its classes",
        "hdpfl_flower/scenarios/site_tests.py",
        '_KEEPS_OWNERS = ("natural", "contiguous")',
        "_KEEPS_OWNERS = ()",
        "hdpfl_flower/scenarios/test_site_tests.py::test_a_site_of_one_owner_is_tested_on_that_owners_records_alone",
    ),
    Mutant(
        "sites missing from a mean go unnamed",
        "strategies/core/site_metrics.py",
        "len(found) + len(missing),",
        "len(found),",
        "strategies/core/test_site_metrics.py::test_a_poor_site_counts_and_who_is_not_counted_is_named",
    ),
    Mutant(
        "weights drawn from round 0, metrics from round 1",
        "server_app/plots.py",
        "        extent=(first - 0.5, last + 0.5, len(sites) - 0.5, -0.5),\n",
        "",
        PLOTS + "the_panels_of_a_run_have_the_same_rounds_and_a_scale_a_unit",
    ),
    Mutant(
        "accuracy and loss on one axis",
        "server_app/plots.py",
        'units = {unit: [n for n in shown if unit in n.split("-")] for unit in METRICS}',
        "units = {unit: list(shown) for unit in METRICS}",
        PLOTS + "the_panels_of_a_run_have_the_same_rounds_and_a_scale_a_unit",
    ),
    Mutant(
        "the best tenth called the worst",
        "hdpfl_flower/models/site_summary.py",
        "ordered[-number:] if is_error(metric) else ordered[:number]",
        "ordered[:number] if is_error(metric) else ordered[-number:]",
        "hdpfl_flower/models/test_site_summary.py::test_the_worst_tenth_is_the_low_end_but_of_an_error",
    ),
)
