"""Bugs of the table of plans and of the cache of noise multipliers."""

from __future__ import annotations

from tests.mutants.runner import Mutant

TABLE = "hdpfl_flower/privacy/test_plan_table.py::test_"
CACHE = "hdpfl_flower/privacy/test_calibration_cache.py::test_"
_TABLE, _BOOK = "hdpfl_flower/privacy/plan_table.py", "hdpfl_flower/privacy/calibration_cache.py"
_LOCKS = "hdpfl_flower/system/locks.py"
MUTANTS = (
    Mutant(
        "a plan of the table that nothing confirmed",
        _TABLE,
        "found = confirmed(schedule, epsilon, delta, guess, slope)",
        "found = guess",
        TABLE + "a_wrong_table_costs_time_and_no_privacy",
    ),
    Mutant(
        "a plan accepted above its epsilon",
        "hdpfl_flower/privacy/accounting.py",
        "if value <= epsilon and missing >= -_TOLERANCE:",
        "if abs(missing) <= _TOLERANCE:",
        TABLE + "a_wrong_table_costs_time_and_no_privacy",
    ),
    Mutant(
        "a plan confirmed on the coarse grid",
        "hdpfl_flower/privacy/accounting.py",
        "_confirm(_cost_on(1, schedule, epsilon, delta, ()), epsilon, z, slope)",
        "_confirm(_cost_on(0.1, schedule, epsilon, delta, ()), epsilon, z, slope)",
        TABLE + "what_is_confirmed_is_confirmed_on_the_grid_of_its_epsilon",
    ),
    Mutant(
        "releases beside the steps left out of a plan of the table",
        _TABLE,
        "if not merged or beside or not 0 < epsilon < math.inf:",
        "if not merged or not 0 < epsilon < math.inf:",
        TABLE + "a_plan_with_other_releases_is_searched_for_by_itself",
    ),
    Mutant(
        "a table shared by other deltas",
        _TABLE,
        'cached_in_book(_key("table", schedule, delta), epsilon, compute)',
        'cached_in_book(_key("table", schedule, 0.0), epsilon, compute)',
        TABLE + "every_delta_has_a_table_of_its_own",
    ),
    Mutant(
        "two processes that compute one plan",
        _LOCKS,
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        CACHE + "of_two_processes_one_computes_and_the_other_reads",
    ),
    Mutant(
        "a lock that another has removed",
        _LOCKS,
        "if _is_file(descriptor, path):",
        "if True:",
        CACHE + "who_waited_for_a_removed_lock_takes_a_new_one",
    ),
    Mutant(
        "a line of the cache that is not compared",
        _BOOK,
        "return value if text == _entry(key, value) else None",
        "return value",
        CACHE + "a_damaged_line_is_computed_again",
    ),
    Mutant(
        "a site's noise read from disk",
        "hdpfl_flower/privacy/accounting.py",
        "    return _search(schedule, epsilon, delta, beside)\n",
        "    from hdpfl_flower.privacy import calibration_cache\n\n"
        "    search = lambda: _search(schedule, epsilon, delta, beside)\n"
        "    return calibration_cache.cached_in_book(str((schedule, delta)), epsilon, search)\n",
        CACHE + "no_site_reads_its_noise_from_disk",
    ),
    Mutant(
        "a deployed site planned as a simulated one",
        "hdpfl_flower/privacy/plan.py",
        "        if profile.simulated:\n            find",
        "        if True:\n            find",
        CACHE + "no_site_reads_its_noise_from_disk",
    ),
    Mutant(
        "a planted file written to in the place of a new one",
        "hdpfl_flower/system/files.py",
        "        part.unlink(missing_ok=True)\n        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL ",
        "        with os.fdopen(os.open(part, os.O_CREAT | os.O_TRUNC ",
        "hdpfl_flower/system/test_files.py::"
        "test_what_lies_in_the_place_of_the_part_is_not_written_to",
    ),
    Mutant(
        "a cache that another user owns",
        _BOOK,
        "return found.st_uid == os.geteuid() and not found",
        "return not found",
        CACHE + "a_number_that_another_user_could_have_written_is_computed",
    ),
    Mutant(
        "a cache that another user may write to",
        _BOOK,
        "found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)",
        "found.st_mode & 0",
        CACHE + "a_number_that_another_user_could_have_written_is_computed",
    ),
    Mutant(
        "a link in the place of the cache",
        _BOOK,
        "found = folder.lstat()",
        "found = folder.stat()",
        CACHE + "a_number_that_another_user_could_have_written_is_computed",
    ),
    Mutant(
        "a link in the place of a file of the cache",
        _BOOK,
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK",
        "os.O_RDONLY | os.O_NONBLOCK",
        CACHE + "a_number_that_another_user_could_have_written_is_computed",
    ),
    Mutant(
        "a file of the cache believed, whoever owns it",
        _BOOK,
        "if not _is_own(os.fstat(opened)):",
        "if False:",
        CACHE + "a_number_that_another_user_could_have_written_is_computed",
    ),
    Mutant(
        "a plan for every client that joins",
        "client_app/app.py",
        'noise = "noise-std" in disclose and (site.asked is None or "noise-std" in site.asked)',
        'noise = "noise-std" in disclose',
        "server_app/in_process/test_many_clients.py::"
        "test_only_sampled_clients_are_planned_and_built",
    ),
)
