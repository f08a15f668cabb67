"""Bugs of the process that holds a site's imports: what children share, who gets one, when it ends."""

from __future__ import annotations

from tests.mutants.runner import Mutant

IMPORTER = "client_app/approval/importer.py"
LAUNCHER = "client_app/approval/launcher.py"
TEST = "client_app/approval/test_importer.py::test_"
APPROVE = "client_app/commands/test_approve.py::test_"
MUTANTS = (
    Mutant(
        "a request that is read before the fork",
        IMPORTER,
        "            process = os.fork()\n",
        "            peer.send(_FORKED)\n"
        "            self.read = peer.recv(_MAX_REQUEST)\n"
        "            process = os.fork()\n",
        TEST + "nothing_of_a_message_stays_in_the_importer",
    ),
    Mutant(
        "children that draw the same numbers",
        IMPORTER,
        "        seed_generators()\n",
        "",
        TEST + "no_two_children_draw_the_same_numbers",
    ),
    Mutant(
        "children that draw the same numbers of torch alone",
        IMPORTER,
        "        torch.seed()\n",
        "        torch.initial_seed()\n",
        TEST + "no_two_children_draw_the_same_numbers",
    ),
    Mutant(
        "a child that outlives its launcher",
        IMPORTER,
        "signal.SIGKILL if gone else signal.SIGTERM",
        "0 if gone else signal.SIGTERM",
        TEST + "a_child_ends_with_its_launcher",
    ),
    Mutant(
        "a child that is killed where it should end in order",
        IMPORTER,
        "signal.SIGKILL if gone else signal.SIGTERM",
        "signal.SIGKILL",
        TEST + "a_child_may_end_in_order_when_its_launcher_is_asked_to",
    ),
    Mutant(
        "a child that outlives the importer",
        IMPORTER,
        "        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)\n",
        "",
        TEST + "a_killed_importer_takes_its_children_along_and_is_replaced",
    ),
    Mutant(
        "a message answered twice where its child was killed",
        IMPORTER,
        "            return 1\n    return status if",
        "            return None\n    return status if",
        TEST + "a_killed_importer_takes_its_children_along_and_is_replaced",
    ),
    Mutant(
        "an importer that outlives what started it",
        IMPORTER,
        "if source in (self.parent, self.wake):",
        "if source == self.wake:",
        TEST + "it_ends_with_what_started_the_launcher",
    ),
    Mutant(
        "an app that was withdrawn and still answers",
        IMPORTER,
        "if not _is_same_user(peer) or not self.still_approved():",
        "if not _is_same_user(peer):",
        TEST + "where_the_app_is_withdrawn_it_ends_and_the_launcher_answers",
    ),
    Mutant(
        "a fork beside a thread",
        IMPORTER,
        'if len(os.listdir("/proc/self/task")) != 1:',
        'if len(os.listdir("/proc/self/task")) > 99:',
        TEST + "with_a_thread_it_does_not_fork",
    ),
    Mutant(
        "an importer that fails at every message",
        IMPORTER,
        "if _has_failed(place) or not _listen(own, place):",
        "if not _listen(own, place):",
        TEST + "with_a_thread_it_does_not_fork",
    ),
    Mutant(
        "an importer that the profile did not ask for",
        IMPORTER,
        "if place is None or not wanted:",
        "if place is None:",
        TEST + "without_the_profiles_word_there_is_none",
    ),
    Mutant(
        "an importer that stays where the profile says no",
        IMPORTER,
        "            os.kill(os.getppid(), signal.SIGTERM)\n",
        "            pass\n",
        TEST + "it_ends_where_the_profile_says_so",
    ),
    Mutant(
        "an importer for another user",
        IMPORTER,
        "if not _is_same_user(peer) or not self.still_approved():",
        "if not self.still_approved():",
        TEST + "another_user_gets_no_child",
    ),
    Mutant(
        "a launcher that trusts another user's importer",
        IMPORTER,
        "if not _is_same_user(peer) or peer.recv(1) != _FORKED:",
        "if peer.recv(1) != _FORKED:",
        TEST + "a_launcher_trusts_no_other_users_importer",
    ),
    Mutant(
        "a folder of sockets that others may enter",
        IMPORTER,
        "if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:",
        "if found.st_uid != os.geteuid():",
        TEST + "a_folder_that_is_not_this_users_alone_is_not_used",
    ),
    Mutant(
        "a folder of sockets that is another user's",
        IMPORTER,
        "if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:",
        "if stat.S_IMODE(found.st_mode) != 0o700:",
        TEST + "a_folder_that_is_not_this_users_alone_is_not_used",
    ),
    Mutant(
        "a folder of sockets that a link leads to",
        IMPORTER,
        "os.O_DIRECTORY | os.O_NOFOLLOW",
        "os.O_DIRECTORY",
        TEST + "a_folder_that_is_not_this_users_alone_is_not_used",
    ),
    Mutant(
        "an importer without a limit on its memory",
        IMPORTER,
        "        self._limit_memory()\n",
        "",
        TEST + "its_memory_is_limited_and_its_childrens_is_not",
    ),
    Mutant(
        "an event of a child that ended taken for a launcher",
        IMPORTER,
        "elif self.listener is not None and source == self.listener.fileno():",
        "elif self.listener is not None:",
        TEST + "an_event_of_a_child_that_ended_is_nobodys",
    ),
    Mutant(
        "modules of one app taken for another's",
        LAUNCHER,
        "if not problem and imported not in (None, folder):",
        "if False:",
        APPROVE + "a_process_that_has_an_apps_modules_runs_no_other_app",
    ),
    Mutant(
        "an importer beside two approved apps",
        LAUNCHER,
        "if len(found) == 1 else None",
        "if found else None",
        APPROVE + "imports_are_held_of_the_only_app",
    ),
)
