"""Bugs of schemas: paths of a server, values of records in public terms or in a run's errors."""

from __future__ import annotations

from tests.mutants.runner import Mutant

SCHEMA, FILE, DRAFT, CHECK, OWN, READER, COLUMNS, PLACES = (
    "hdpfl_flower/data/schema.py",
    "hdpfl_flower/config/schema_file.py",
    "hdpfl_flower/data/schema_draft.py",
    "hdpfl_flower/data/site_check.py",
    "hdpfl_flower/data/own_table.py",
    "hdpfl_flower/data/table_reader.py",
    "hdpfl_flower/data/columns.py",
    "hdpfl_flower/data/placeholders.py",
)
DATA = "hdpfl_flower/data"

MUTANTS = (
    Mutant(
        "a log that is no terminal holds how many lines a table has",
        "hdpfl_flower/system/lines_read.py",
        "    if not sys.stderr.isatty():",
        "    if False:",
        "client_app/commands/test_bad_tables.py::"
        "test_a_long_table_shows_on_a_terminal_how_far_it_is_read",
    ),
    Mutant(
        "a run writes how many lines its table has",
        "hdpfl_flower/system/lines_read.py",
        "default=lambda _: None)",
        'default=lambda n: print(n, "lines", file=sys.stderr))',
        "client_app/commands/test_bad_tables.py::test_a_run_shows_nobody_how_long_its_table_is",
    ),
    Mutant(
        "a rehearsal asks no operator",
        "server_app/simulation/profile_grid.py",
        '    engine = "rehearsal"',
        '    engine = "in-process"',
        "server_app/simulation/test_profile_grid.py::"
        "test_a_run_waits_for_the_operator_and_then_charges_the_sites_ledger",
    ),
    Mutant(
        "a server's schema names a file of the site",
        SCHEMA,
        '    if "=" in name_or_text or "\\n" in name_or_text:\n        return name_or_text\n',
        '    if "=" in name_or_text or "\\n" in name_or_text:\n        return name_or_text\n'
        "    if Path(name_or_text).is_file():\n        return Path(name_or_text).read_text()\n",
        "hdpfl_flower/config/test_schema_file.py::test_terms_of_a_server_open_no_file",
    ),
    Mutant(
        "a schema's path starts at the process's folder",
        "hdpfl_flower/config/run_config.py",
        "with_schema_text(given, path.absolute().parent)",
        "with_schema_text(given, Path.cwd())",
        "hdpfl_flower/config/test_schema_file.py::test_a_run_config_holds_the_text_of_the_file_beside_it",
    ),
    Mutant(
        "a site opens the file that terms name",
        SCHEMA,
        '    if "=" in name_or_text or "\\n" in name_or_text:\n        return name_or_text\n',
        '    if "=" in name_or_text or "\\n" in name_or_text:\n        return name_or_text\n'
        "    if Path(name_or_text).is_file():\n        return Path(name_or_text).read_text()\n",
        "client_app/test_messy_table.py::test_a_site_opens_no_file_that_terms_name",
    ),
    Mutant(
        "the ServerApp sends a path",
        "server_app/app.py",
        "RunConfig.parse(with_schema_text(config, Path.cwd()))",
        "RunConfig.parse(with_schema_text(config, Path.cwd()) and config)",
        "server_app/run/test_schema_path.py::test_the_serverapp_sends_the_text_of_a_schemas_file",
    ),
    Mutant(
        "a run logs the texts that it cannot read",
        "hdpfl_flower/data/table_records.py",
        '    summary.left_out["no known label"]',
        "    import logging\n\n    for each in raw.columns.values():\n"
        "        logging.getLogger('hdpfl.site').info('%s', each.texts().values)  # type: ignore\n"
        '    summary.left_out["no known label"]',
        "client_app/test_messy_table.py::test_a_run_over_a_messy_table_shows_none_of_its_texts",
    ),
    Mutant(
        "a run starts with a schema that is still to be chosen",
        SCHEMA,
        "    refuse_placeholders(data)\n",
        "",
        f"{DATA}/test_schema.py::test_every_value_that_is_still_to_be_chosen_is_named",
    ),
    Mutant(
        "a category to be chosen becomes a category",
        PLACES,
        "        if any(map(_holds, data)):\n            yield key\n            return\n",
        "",
        f"{DATA}/test_schema.py::test_schema_mistakes_are_named_on_one_line",
    ),
    Mutant(
        "a draft holds the range of the records",
        DRAFT,
        "        _as_toml(seen, label, unit),\n",
        '        _as_toml(seen, label, unit) + "".join(f"# {c.note}\\n" for c in seen),\n',
        f"{DATA}/test_schema_draft.py::test_the_draft_does_not_depend_on_the_values",
    ),
    Mutant(
        "a draft holds the number of records",
        DRAFT,
        "    parts = [_HEAD,",
        '    parts = [_HEAD, f"# {seen[0].note}\\n",',
        f"{DATA}/test_schema_draft.py::test_no_text_of_a_record_is_in_the_draft",
    ),
    Mutant(
        "a record becomes the names of a draft",
        DRAFT,
        "        if isinstance(value_key(name), float) or _is_number_or_date(name.encode()):",
        "        if False:",
        f"{DATA}/test_schema_draft.py::test_what_is_no_table_with_a_header_is_refused",
    ),
    Mutant(
        "a draft's refusal shows the cell",
        DRAFT,
        'f"cell {number} of the first line names a column twice; rename one"',
        'f"{name} of the first line names a column twice; rename one"',
        f"{DATA}/test_schema_draft.py::test_what_is_no_table_with_a_header_is_refused",
    ),
    Mutant(
        "a run's error shows the site's name of a column",
        OWN,
        "return Wanted((own,), f\"of 'data.columns.{name}.name' for '{name}'\")",
        "return Wanted((own,), f\"'{own}'\")",
        f"{DATA}/test_own_table.py::test_no_text_of_a_file_is_in_an_error_or_a_warning_of_a_run",
    ),
    Mutant(
        "a run's error shows the header",
        READER,
        "\"line, read in 'data.encoding'), or map it in 'data.columns' of the profile\"",
        "f\"line, read in 'data.encoding'), or map it in 'data.columns'; it has {header}\"",
        f"{DATA}/test_own_table.py::test_no_text_of_a_file_is_in_an_error_or_a_warning_of_a_run",
    ),
    Mutant(
        "a refused mapping shows the site's value",
        OWN,
        "f\"'{key}.values' names a value that '{name}' does not have",
        "f\"'{key}.values' {own.values} names a value that '{name}' does not have",
        f"{DATA}/test_own_table.py::test_a_mapping_against_the_schema_is_refused_without_its_values",
    ),
    Mutant(
        "a unit that overflows warns of a record",
        OWN,
        'with np.errstate(over="ignore", invalid="ignore"):',
        "if True:",
        f"{DATA}/test_own_table.py::test_a_number_that_a_unit_makes_infinite_warns_nobody",
    ),
    Mutant(
        "an infinite number is a feature",
        OWN,
        "np.where(np.isfinite(scaled), scaled, np.nan)",
        "scaled",
        f"{DATA}/test_own_table.py::test_a_number_that_a_unit_makes_infinite_warns_nobody",
    ),
    Mutant(
        "a label is a feature by its own name",
        OWN,
        "            if own.name in taken:",
        "            if False:",
        f"{DATA}/test_own_table.py::test_a_mapping_against_the_schema_is_refused_without_its_values",
    ),
    Mutant(
        "two columns are one by their aliases",
        READER,
        "        if len(found) > 1:",
        "        if False:",
        f"{DATA}/test_own_table.py::test_an_alias_is_found_and_two_of_them_are_refused",
    ),
    Mutant(
        "the unit comes before the mark of a missing value",
        OWN,
        "        missing = cells.missing((*marks, *self.missing, *own.missing))\n",
        "        cells = replace(cells, numbers=cells.numbers * own.factor)\n"
        "        missing = cells.missing((*marks, *self.missing, *own.missing))\n",
        f"{DATA}/test_own_table.py::test_a_mark_is_looked_up_before_the_unit",
    ),
    Mutant(
        "an age is counted before the birthday",
        OWN,
        "later - year - (on < day)",
        "later - year",
        f"{DATA}/test_own_table.py::test_a_messy_export_reads_as_the_schema_says",
    ),
    Mutant(
        "an age is negative",
        OWN,
        "np.where(known & (at >= born), ages, np.nan)",
        "np.where(known, ages, np.nan)",
        f"{DATA}/test_own_table.py::test_a_messy_export_reads_as_the_schema_says",
    ),
    Mutant(
        "a point is read beside a decimal comma",
        COLUMNS,
        '            if b"." in text:\n                return math.nan\n',
        "",
        f"{DATA}/test_own_table.py::test_numbers_are_those_of_the_notation",
    ),
    Mutant(
        "any digits are groups of thousands",
        COLUMNS,
        "            if not re.fullmatch(grouped % (re.escape(group), re.escape(point)), text):",
        "            if False:",
        f"{DATA}/test_own_table.py::test_numbers_are_those_of_the_notation",
    ),
    Mutant(
        "two patients are one by a decimal point",
        "hdpfl_flower/data/table_records.py",
        "texts.ids(own.form.notation)",
        "texts.ids()",
        f"{DATA}/test_own_table.py::test_a_patients_number_keeps_its_groups_of_digits",
    ),
    Mutant(
        "a bad byte stops the table",
        READER,
        'errors = "surrogateescape" if form.encoding == "utf-8" else "replace"',
        'errors = "strict"',
        f"{DATA}/test_own_table.py::test_a_byte_that_the_encoding_does_not_have_stays_in_its_cell",
    ),
    Mutant(
        "a column of nonsense is well",
        CHECK,
        "        if summary.unreadable[name] > MOST_UNREADABLE * held:",
        "        if summary.unreadable[name] > 1.1 * held:",
        f"{DATA}/test_site_check.py::test_more_than_a_fifth_unreadable_is_an_error_with_the_texts",
    ),
    Mutant(
        "missing cells hide those that cannot be read",
        CHECK,
        "    return rows - gone\n",
        "    return rows\n",
        f"{DATA}/test_site_check.py::test_more_than_a_fifth_unreadable_is_an_error_with_the_texts",
    ),
    Mutant(
        "labels of no use are a warning",
        CHECK,
        '"error: no record can be used',
        '"warning: no record can be used',
        f"{DATA}/test_site_check.py::test_arrays_without_a_label_are_an_error",
    ),
    Mutant(
        "every column of a check shows its texts",
        CHECK,
        "bad = filled & ~missing",
        "bad = filled | ~missing",
        f"{DATA}/test_site_check.py::test_more_than_a_fifth_unreadable_is_an_error_with_the_texts",
    ),
    Mutant(
        "a run that does not fit is planned with status 0",
        "client_app/commands/plan.py",
        "    if run.run_id not in view.account.plans and not _runs(site, view, made):\n"
        "        raise typer.Exit(1)\n",
        "",
        "client_app/commands/test_plan.py::test_a_run_that_does_not_fit",
    ),
    Mutant(
        "a budget that does not fit is a warning of the check",
        "client_app/commands/profile.py",
        '        findings.error(\n            "ledger: another run does not fit',
        '        findings.warning(\n            "ledger: another run does not fit',
        "client_app/commands/test_profile.py::test_a_budget_that_is_used_up",
    ),
)
