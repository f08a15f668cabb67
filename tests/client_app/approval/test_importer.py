"""The importer: one process holds the imports, a child of it answers each message."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.abc import SourceLoader
from pathlib import Path
from typing import cast

import pytest

from client_app.approval import importer
from tests.e2e.canaries import memory_of

PROGRAM = Path(__file__).with_name("program.py")
WANT, END = "importer.want(True)", "importer.want(False)"
PLACE = "print(os.getpid(), os.getppid())"
pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux 5.3 or later")


class Site:
    """A folder of launchers, importers, and nothing else."""

    def __init__(self, home: Path) -> None:
        self.home, self.started = home, list[subprocess.Popen[str]]()
        (home / "lib").mkdir()
        source = cast(SourceLoader, importer.__loader__).get_source(importer.__name__)
        (home / "lib" / "importer.py").write_text(source or "")
        self.more: dict[str, str] = {}
        self.children: list[int] = []

    def start(self, code: str) -> subprocess.Popen[str]:
        """Start a launcher whose message is ``code``."""
        pipe = subprocess.PIPE
        made = subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM), code], text=True, cwd=self.home,
            env={**os.environ, "HDPFL_TEST_HOME": str(self.home), **self.more},
            stdin=pipe, stdout=pipe, stderr=pipe,
        )  # fmt: skip
        self.started.append(made)
        return made

    def start_child(self, code: str) -> tuple[subprocess.Popen[str], int]:
        """Start a launcher; return it and the process that answers, once ``code`` has begun."""
        made = self.start(f"print(os.getpid(), flush=True); {code}")
        assert made.stdout is not None
        self.children.append(int(made.stdout.readline()))
        return made, self.children[-1]

    def ask(self, code: str, text: str = "") -> tuple[int, str, str]:
        """Return status, output and errors of a launcher whose message is ``code``."""
        made = self.start(code)
        out, err = made.communicate(text, timeout=15)
        return made.returncode, out.strip(), err

    def importers(self) -> list[int]:
        """Return the importers that live."""
        try:
            known = (self.home / "importers").read_text().split()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in known if lives(int(pid))]

    def importer(self) -> int:
        """Return the one importer, once it is there."""
        until(lambda: len(self.importers()) == 1)
        return self.importers()[0]

    def sockets(self) -> list[Path]:
        found = (self.home / "importer").iterdir()
        return [path for path in found if path.name != importer.ERRORS]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail("it never held")
        time.sleep(0.01)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for pid in filter(lives, [*made.importers(), *made.children]):
        os.kill(pid, signal.SIGKILL)
    for process in made.started:
        process.kill()
        process.communicate()


def test_a_child_of_the_importer_answers_as_the_launcher_would(site: Site) -> None:
    first = site.ask(f"{WANT}; {PLACE}")
    own = site.importer()
    assert first[1] != "" and str(own) not in first[1]
    code = (
        "import json; print(json.dumps([sys.argv[2:], os.getcwd(), sys.stdin.read(), os.getppid(),"
        "dict(os.environ)])); print('so', file=sys.stderr); sys.exit(7)"
    )
    status, out, err = site.ask(code, "what it reads")
    assert (status, err) == (7, "so\n")
    argv, folder, read, parent, environment = json.loads(out)
    assert (argv, folder, read, parent) == ([], str(site.home), "what it reads", own)
    alone = Site.ask(site, f"{code.replace('sys.exit(7)', '')}")
    assert json.loads(alone[1])[4] == environment
    assert site.importers() == [own]


def test_statuses_are_those_of_python(site: Site) -> None:
    site.ask(WANT)
    site.importer()
    assert site.ask("sys.exit('a reason')")[::2] == (1, "a reason\n")
    assert site.ask("sys.exit()")[0] == 0
    status, _, err = site.ask("1 / 0")
    assert status == 1
    assert err.endswith("ZeroDivisionError: division by zero\n")
    assert site.ask("os.kill(os.getpid(), 9)")[0] == 128 + 9


def test_nothing_of_a_message_stays_in_the_importer(site: Site) -> None:
    """Its memory is searched for what stood in a command line; a child's own memory has it."""
    site.ask(WANT)
    own = site.importer()
    word = "to" + "ken-" + "4711"
    holder = site.start(f"word = {word!r}; print(os.getpid(), flush=True); sys.stdin.read()")
    assert holder.stdout is not None
    said = holder.stdout.readline()
    assert not holds(own, word.encode())
    child = int(said)
    assert child != holder.pid
    assert holds(child, word.encode()), "the search finds it where it is"
    assert holder.communicate("")[0] == ""
    assert not holds(own, word.encode()), "nor when it has ended"


def holds(pid: int, word: bytes) -> bool:
    return any(word in region for region in memory_of(pid))


def test_no_two_children_draw_the_same_numbers(site: Site) -> None:
    """Of every generator that a fork copies, and in two that live at once."""
    site.more = {
        "HDPFL_TEST_IMPORTS": "random numpy torch", "OPENBLAS_NUM_THREADS": "1",
        "HDPFL_TEST_PATH": ":".join(path for path in sys.path if path.endswith("-packages")),
    }  # fmt: skip
    site.ask(WANT)
    own = site.importer()
    code = (
        "import random, numpy, torch; print(os.getppid(), random.random(), numpy.random.rand(),"
        "torch.rand(1, dtype=float).item(), os.urandom(8).hex())"
    )
    both = [site.start(code) for _ in range(2)]
    drawn = [process.communicate(timeout=15)[0].split() for process in both]
    assert [words[0] for words in drawn] == [str(own)] * 2
    assert [a == b for a, b in zip(*drawn, strict=True)] == [True] + 4 * [False]


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_child_ends_with_its_launcher(site: Site, stop: signal.Signals) -> None:
    site.ask(WANT)
    own = site.importer()
    code = "print(os.getpid(), flush=True); import time; time.sleep(600)"
    asked, other = site.start(code), site.start(code)
    assert asked.stdout is not None and other.stdout is not None
    child, second = int(asked.stdout.readline()), int(other.stdout.readline())
    assert lives(child) and child != asked.pid
    asked.send_signal(stop)
    until(lambda: not lives(child))
    assert asked.wait(10) == (-9 if stop == signal.SIGKILL else 128 + 15)
    assert lives(second) and lives(own), "nobody else's"


def test_a_child_may_end_in_order_when_its_launcher_is_asked_to(site: Site) -> None:
    site.ask(WANT)
    site.importer()
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5));"
        "print('ready', flush=True); time.sleep(600)"
    )
    asked = site.start(code)
    assert asked.stdout is not None
    asked.stdout.readline()
    asked.terminate()
    assert asked.wait(10) == 5


def test_a_killed_importer_takes_its_children_along_and_is_replaced(site: Site) -> None:
    site.ask(WANT)
    own = site.importer()
    asked, child = site.start_child("import time; time.sleep(600)")
    os.kill(own, signal.SIGKILL)
    until(lambda: not lives(child))
    until(lambda: asked.poll() is not None)
    assert asked.returncode == 1, "not a second time by the launcher: the task may be half done"
    left = site.sockets()
    status, out, _ = site.ask(f"{WANT}; {PLACE}")
    assert (status, out.split()[1]) == (0, str(os.getpid()))
    assert site.importer() != own
    assert site.sockets() == left, "the same socket's name"
    assert site.ask(PLACE)[1].split()[1] == str(site.importer())


def test_it_ends_with_what_started_the_launcher(site: Site) -> None:
    """That is flower-superexec; here a process between."""
    words = [sys.executable, "-I", str(PROGRAM), WANT]
    between = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({words!r}); input()"],
        env={**os.environ, "HDPFL_TEST_HOME": str(site.home)}, stdin=subprocess.PIPE, text=True,
    )  # fmt: skip
    own = site.importer()
    between.communicate("\n")
    until(lambda: not lives(own))
    assert site.sockets() == []


def test_where_the_app_is_withdrawn_it_ends_and_the_launcher_answers(site: Site) -> None:
    site.ask(WANT)
    own = site.importer()
    (site.home / "withdrawn").touch()
    assert site.ask(PLACE)[1].split()[1] == str(os.getpid())
    until(lambda: not lives(own))


@pytest.mark.parametrize(("says", "stays"), [(END, False), ("importer.want(None)", True)])
def test_it_ends_where_the_profile_says_so(site: Site, says: str, stays: bool) -> None:
    site.ask(WANT)
    own = site.importer()
    assert site.ask(f"{says}; {PLACE}")[1].split()[1] == str(own)
    if stays:
        assert site.ask(PLACE)[1].split()[1] == str(own)
    else:
        until(lambda: not lives(own))
        assert site.sockets() == []


@pytest.mark.parametrize("says", [END, "pass"])
def test_without_the_profiles_word_there_is_none(site: Site, says: str) -> None:
    site.ask(says)
    site.ask(says)
    assert site.sockets() == []


def test_with_a_thread_it_does_not_fork(site: Site) -> None:
    """It says why, and is not tried again for every message: its imports take seconds."""
    (site.home / "thread").touch()
    site.ask(WANT)
    until(lambda: (site.home / "importers").exists() and not site.importers())
    assert site.ask(f"{WANT}; {PLACE}")[1].split()[1] == str(os.getpid())
    assert "the imports started a thread" in (site.home / "importer" / importer.ERRORS).read_text()
    time.sleep(0.3)
    assert len((site.home / "importers").read_text().split()) == 1


def test_launchers_at_once_start_one_importer(site: Site) -> None:
    for asked in [site.start(WANT) for _ in range(6)]:
        assert asked.wait(15) == 0
    own = site.importer()
    assert {site.ask(PLACE)[1].split()[1] for _ in range(3)} == {str(own)}
    assert (site.home / "importers").read_text().split() == [str(own)]


def test_its_memory_is_limited_and_its_childrens_is_not(site: Site) -> None:
    site.ask(WANT)
    own = site.importer()
    mine = site.ask("import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])")
    assert int(mine[1]) == importer.resource.getrlimit(importer.resource.RLIMIT_DATA)[0]
    limits = Path(f"/proc/{own}/limits").read_text().splitlines()
    (soft,) = (line.split()[3] for line in limits if line.startswith("Max data size"))
    assert soft != "unlimited"
    assert importer.MORE_MEMORY < int(soft) < importer.MORE_MEMORY + 200 * 2**20


def test_another_environment_is_another_importer(site: Site) -> None:
    """A child has the environment of its importer."""
    site.ask(WANT)
    own = site.importer()
    site.more = {"HDPFL_MORE": "1"}
    assert site.ask(PLACE)[1].split()[1] == str(os.getpid())
    assert site.importers() == [own]


@pytest.mark.parametrize("fault", ["others", "link", "owner"])
def test_a_folder_that_is_not_this_users_alone_is_not_used(tmp_path: Path, fault: str) -> None:
    place = importer.find_place(str(tmp_path), "app")
    assert place is not None
    os.close(place.folder)
    folder = tmp_path / "importer"
    assert folder.stat().st_mode & 0o777 == 0o700
    if fault == "others":
        folder.chmod(0o750)
    elif fault == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        if os.geteuid() != 0:
            pytest.skip("only the superuser makes a folder another's")
        os.chown(folder, 12345, -1)
    assert importer.find_place(str(tmp_path), "app") is None


def test_a_launcher_trusts_no_other_users_importer(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the launcher is another user than the importer, or believes so."""
    site.ask(WANT)
    own = site.importer()
    (path,) = site.sockets()
    monkeypatch.setattr(importer.os, "geteuid", lambda: 12345)
    monkeypatch.setattr(importer.signal, "signal", lambda *_: pytest.fail("it sends its request"))
    folder = os.open(path.parent, os.O_RDONLY)
    assert importer.answer(importer.Place(folder, path.name, 0, "")) is None
    os.close(folder)
    assert lives(own)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser becomes another user")
def test_another_user_gets_no_child(site: Site) -> None:
    """Even where the file system lets it through."""
    site.ask(WANT)
    own = site.importer()
    (path,) = site.sockets()
    path.chmod(0o777)
    path.parent.chmod(0o711)
    code = (
        "import os, socket, sys; peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET);"
        "os.setuid(12345); peer.connect(sys.argv[1]); print(peer.recv(1))"
    )
    words = [sys.executable, "-I", "-c", code, path.name]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=path.parent)
    assert done.stdout == "b''\n", done.stderr
    path.parent.chmod(0o700)
    assert site.ask(PLACE)[1].split()[1] == str(own)


def test_a_launcher_that_never_asks_is_not_waited_for(site: Site) -> None:
    """It connects and says nothing; others are answered meanwhile, and it leaves nothing."""
    site.ask(WANT)
    own = site.importer()
    (path,) = site.sockets()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        folder = os.open(path.parent, os.O_RDONLY)  # a socket's path may have 107 bytes
        silent.connect(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
        assert silent.recv(1) == b"+"
        assert site.ask(PLACE)[1].split()[1] == str(own)
        children = Path(f"/proc/{own}/task/{own}/children")
        assert len(children.read_text().split()) == 1
    until(lambda: children.read_text().split() == [])


def test_an_event_of_a_child_that_ended_is_nobodys(site: Site) -> None:
    """Both ends are gone when the importer looks; neither is a launcher that connects."""
    site.ask(WANT)
    own = site.importer()
    code = "print(os.getpid(), flush=True); sys.stdin.read()"
    gone, other = site.start(code), site.start(code)
    assert gone.stdout is not None and other.stdout is not None
    child, second = int(gone.stdout.readline()), int(other.stdout.readline())
    os.kill(own, signal.SIGSTOP)
    until(lambda: ") T " in Path(f"/proc/{own}/stat").read_text())
    os.kill(child, signal.SIGKILL)
    until(lambda: not lives(child))
    gone.kill()
    gone.wait(10)
    os.kill(own, signal.SIGCONT)
    time.sleep(0.5)
    os.kill(second, signal.SIGKILL)
    until(lambda: other.poll() is not None)
    assert other.returncode == 128 + 9


def test_an_importer_ends_at_once_where_its_parent_is_another_process(tmp_path: Path) -> None:
    """The process that started the launcher has ended, and another one got its number."""
    place = importer.find_place(str(tmp_path), "app")
    assert place is not None
    for born, fails in ((place.born, False), (f"{place.born}1", True)):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [place.name, str(place.parent), born, str(place.folder), str(listener.detach())]
        if fails:
            with pytest.raises(ProcessLookupError):
                importer.Importer(words, lambda: True)
        else:
            importer.Importer(words, lambda: True)


def test_each_thing_that_an_importer_depends_on_is_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher of another parent, app, environment or Python has another importer."""

    def name(approved: str = "app") -> str:
        place = importer.find_place(str(tmp_path), approved)
        assert place is not None
        os.close(place.folder)
        return place.name

    names, born = [name(), name("other")], importer._born(os.getppid())
    assert name() == names[0]
    for module, attribute, value in (
        (importer.os, "getppid", os.getpid), (importer, "_born", lambda pid: "1"),
        (importer.sys, "executable", "/other"), (importer.os, "environ", {"A": "b"}),
    ):  # fmt: skip
        with monkeypatch.context() as change:
            if attribute == "getppid":  # born at the same time
                change.setattr(importer, "_born", lambda pid: born)
            change.setattr(module, attribute, value)
            names.append(name())
    assert len(set(names)) == len(names)
