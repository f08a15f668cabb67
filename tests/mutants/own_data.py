"""Bugs of users' own data: paths and modules of a server's terms, records of no task."""

from __future__ import annotations

from tests.mutants.runner import Mutant

SITE, TARGETS, LOSSES = (
    "client_app/site/site.py",
    "hdpfl_flower/data/array_targets.py",
    "hdpfl_flower/models/losses.py",
)
SURVIVAL = "hdpfl_flower/data/test_survival_table.py::"
HAZARD = "hdpfl_flower/models/test_hazard.py::"
ROWS, READER, CHECK, SPELLINGS = (
    "hdpfl_flower/data/site_data.py",
    "hdpfl_flower/data/table_reader.py",
    "hdpfl_flower/data/site_check.py",
    "hdpfl_flower/data/screen/id_spellings.py",
)
DRAWN = "hdpfl_flower/data/test_site_data.py::test_"
LINES = "hdpfl_flower/data/test_table_records_hostile.py::test_"
WRITTEN = LINES + "no_content_of_a_record_that_a_csv_writer_wrote_changes_another"
SPELLED = "hdpfl_flower/data/test_site_check.py::test_"
UNITS = "hdpfl_flower/data/test_unit_records.py::test_training_is_the_"
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
        "hdpfl_flower/config/tasks.py",
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
        "studies/natural/federations/restricted_pickle.py",
        "if (plain, name) not in _TYPES:",
        "if not name:",
        "studies/natural/test_restricted_pickle.py"
        "::test_what_is_more_than_a_table_runs_nothing[a command]",
    ),
    Mutant(
        "every year of a person is a record",
        "studies/natural/federations/read.py",
        "read = records_of(raw, schema, own)",
        "read = records_of(raw, schema, own, every_record=True)",
        "studies/natural/test_federation_tables.py::test_a_person_is_one_record_of_its_site",
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
    Mutant(
        "a server draws the holdout again with each schema",
        ROWS,
        "enumerate(_contents(read.ids, read.digests))",
        "enumerate(read.ids or _encoded(read.records))",
        DRAWN + "no_schema_draws_the_holdout_again",
    ),
    Mutant(
        "the holdout of a CSV is of the columns that a schema wants",
        READER,
        'as_float.sub(b"", line)',
        'as_float.sub(b"", b",".join(cells[at] for at in columns))',
        DRAWN + "no_schema_draws_the_holdout_again",
    ),
    Mutant(
        "the holdout of a Parquet file is of some columns",
        "hdpfl_flower/data/arrow_columns.py",
        "for column in batch.columns for",
        "for column in batch.columns[:2] for",
        DRAWN + "every_column_of_a_row_counts",
    ),
    Mutant(
        "one null draws all rows of a CSV again",
        READER,
        'as_float.sub(b"", line)',
        "line",
        DRAWN + "a_changed_table_draws_new_rows_alone",
    ),
    Mutant(
        "one number draws all rows of a Parquet file again",
        "hdpfl_flower/data/arrow_columns.py",
        "        yield np.where(is_number | blank, np.uint64(0), hashed)",
        "        yield np.where(blank, np.uint64(0), hashed)",
        DRAWN + "a_changed_table_draws_new_rows_alone",
    ),
    Mutant(
        "one record's type draws all rows of an array again",
        ROWS,
        "x[row].astype(np.float64).tobytes()",
        "x[row].tobytes()",
        DRAWN + "one_record_of_another_type_moves_no_array",
    ),
    Mutant(
        "the holdout of images is of what a server has them scaled to",
        ROWS,
        "_digested(file.read_bytes() for file in files)",
        "_digested(_encoded(records))",
        "hdpfl_flower/data/test_image_folder.py"
        "::test_an_image_is_held_out_by_its_file_whatever_a_server_asks_for",
    ),
    Mutant(
        "a carriage return in a cell ends a record",
        READER,
        'newline="\\n") as texts',
        "newline=None) as texts",
        LINES + "a_carriage_return_outside_of_quotes_ends_no_line",
    ),
    Mutant(
        "a line break in a cell makes a record of another person",
        READER,
        "        if is_one or (escaped.fullmatch(record) and not escaped.fullmatch(begun[0])):",
        "        if False:",
        WRITTEN,
    ),
    Mutant(
        "a damaged line takes those after it with it",
        READER,
        "        if is_one or (escaped.fullmatch(record) and not escaped.fullmatch(begun[0])):",
        "        if True:",
        LINES + "damaged_quotes_lose_their_own_line",
    ),
    Mutant(
        "UTF-16, in which one damaged record changes those after it",
        READER,
        "    if first[:2] in _UTF_16:",
        "    if False:",
        "hdpfl_flower/data/test_own_table.py::test_a_file_in_utf_16_is_refused_whatever_its_records",
    ),
    Mutant(
        "a person under two spellings is no warning",
        SPELLINGS,
        "roundings.get(key, same), []",
        "str(name), []",
        SPELLED + "a_person_under_two_spellings_is_a_warning[pair0]",
    ),
    Mutant(
        "every two ids of the same letters are one person",
        SPELLINGS,
        "joined if joined in keys else key",
        "joined",
        SPELLED + "different_persons_are_no_warning",
    ),
    Mutant(
        "a server's mark of a missing value chooses the row of a unit",
        "hdpfl_flower/data/table_records.py",
        "-own.row_days(raw)",
        "-replace(own, missing=schema.missing).row_days(raw)",
        UNITS + "last_record_of_each_unit_by_the_sites_date",
    ),
    Mutant(
        "a test at home is of another row of a unit than training",
        ROWS,
        "np.ones(len(records), dtype=bool) if read.used is None else read.used",
        "np.isin(np.arange(len(units)), np.unique(units, return_index=True)[1])",
        UNITS + "last_record_of_each_unit_by_the_sites_date",
    ),
    Mutant(
        "a row without a date is the last of its unit",
        "hdpfl_flower/data/own_table.py",
        "np.where(missing | ~np.isfinite(days), -np.inf, days)",
        "np.where(missing | ~np.isfinite(days), np.inf, days)",
        UNITS + "last_record_of_each_unit_by_the_sites_date",
    ),
    Mutant(
        "repeated ids stop a site, which then gives each row its own",
        CHECK,
        "f\"warning: {summary.left_out['repeated id']}",
        "f\"error: {summary.left_out['repeated id']}",
        SPELLED + "repeated_ids_are_a_warning_that_says_what_becomes_of_them",
    ),
)
