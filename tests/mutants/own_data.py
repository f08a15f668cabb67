"""Bugs of users' own data: paths and modules of a server's terms, records of no task."""

from __future__ import annotations

from tests.mutants.runner import Mutant

SITE, STATED, TARGETS, LOSSES = (
    "client_app/site/site.py",
    "hdpfl_flower/data/stated_task.py",
    "hdpfl_flower/data/array_targets.py",
    "hdpfl_flower/models/losses.py",
)
SURVIVAL = "hdpfl_flower/data/test_survival_table.py::"
HAZARD = "hdpfl_flower/models/test_hazard.py::"
GUARD = "if is_own(terms.dataset) and not may_draw(context):"
DEPLOYED = (
    "client_app/test_own_records.py::test_a_deployed_site_opens_and_imports_nothing_that_terms_name"
)

MUTANTS = (
    Mutant(
        "a deployed site reads the file or imports the module that terms name",
        SITE,
        GUARD,
        "if False and is_own(terms.dataset):",
        DEPLOYED,
    ),
    Mutant(
        "a profile that says it is simulated lets a server name files",
        SITE,
        GUARD,
        "if is_own(terms.dataset) and not (may_draw(context) or profile and profile.simulated):",
        DEPLOYED,
    ),
    Mutant(
        "the ServerApp sends deployed sites the path of a file",
        "server_app/app.py",
        'if engine_of(grid) == "deployment":',
        'if engine_of(grid) == "nowhere":',
        "server_app/run/test_own_data_path.py::test_own_data_is_of_simulations",
    ),
    Mutant(
        "terms state a record of any size",
        STATED,
        "if not 1 <= math.prod(shape) <= MAX_NUMBERS:",
        "if not 1 <= math.prod(shape):",
        "hdpfl_flower/data/test_stated_task.py::test_terms_that_state_no_task_are_refused",
    ),
    Mutant(
        "a label beyond the classes is trained on",
        TARGETS,
        "(values >= 0) & (values < below)",
        "(values >= 0)",
        "client_app/test_own_records.py::test_labels_outside_of_the_classes_stop_no_run",
    ),
    Mutant(
        "the hazard's gradient is NaN where an output after the last interval is",
        LOSSES,
        "torch.where(at_risk, hazard - event.to(outputs.dtype), 0.0)",
        "at_risk * (hazard - event.to(outputs.dtype))",
        HAZARD + "test_what_is_not_finite_after_the_last_interval_counts_for_nothing",
    ),
    Mutant(
        "a censored record is at risk after it was seen last",
        LOSSES,
        "return interval <= last, ",
        "return interval <= last + 1, ",
        HAZARD + "test_the_gradient_is_that_of_the_loss_and_zero_after_the_last_interval",
    ),
    Mutant(
        "a package's table may name anything",
        "hdpfl_flower/data/federations/restricted_pickle.py",
        "if (plain, name) not in _TYPES:",
        "if not name:",
        "hdpfl_flower/data/federations/test_restricted_pickle.py"
        "::test_what_is_more_than_a_table_runs_nothing[a command]",
    ),
    Mutant(
        "every year of a person is a record",
        "hdpfl_flower/data/federations/read.py",
        "read = records_of(raw, schema, own)",
        "read = records_of(raw, schema, own, every_record=True)",
        "hdpfl_flower/data/federations/test_read.py::test_a_person_is_one_record_of_its_site",
    ),
    Mutant(
        "whoever is censored survives the whole interval: hazards are too low",
        TARGETS,
        'np.searchsorted(middles, times, side="right") - 1',
        'np.searchsorted(ends, times, side="left").clip(max=len(ends) - 1)',
        SURVIVAL + "test_hazards_of_exponential_times_are_found_under_censoring",
    ),
    Mutant(
        "an event at a negative time is trained on",
        "hdpfl_flower/data/table_records.py",
        "found: Mask = numbers >= 0",
        "found: Mask = ~np.isnan(numbers)",
        SURVIVAL + "test_what_is_no_time_or_event_is_left_out_alone",
    ),
    Mutant(
        "a feature may be the column of the event",
        "hdpfl_flower/data/own_table.py",
        "self.wanted(one.column, one.aliases).names for one in outcomes(schema)",
        "self.wanted(one.column, one.aliases).names for one in [schema.label]",
        SURVIVAL + "test_a_site_writes_times_and_events_its_own_way",
    ),
)
