"""The fuzz changes what it says and nothing that only people read; its verdicts can be each of three."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.mutants.fuzz import FILES, Verdicts, changes_in, classified
from tests.mutants.fuzz_rules import changes_of
from tests.mutants.fuzz_session import Fate
from tests.mutants.runner import ROOT


def news(code: str) -> list[str]:
    """The changed lines of a piece of code."""
    return [change.new for change in changes_of("a.py", textwrap.dedent(code))]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 5", {"x = 6", "x = 4", "x = 10", "x = 2", "x = 0", "x = (-5)"}),
        ("x = .5", {"x = 1.5", "x = (-0.5)", "x = 1.0", "x = 0.25", "x = 0.0"}),
        ("x = True", {"x = False"}),
        ("a < b", {"a <= b", "a >= b"}),
        ("a <= b", {"a < b", "a > b"}),
        ("a == b", {"a != b"}),
        ("a in b", {"a not in b"}),
        ("a not in b", {"a in b"}),
        ("a is not b", {"a is b"}),
        ("x = a and b", {"x = ((a) or (b))", "x = ((b))", "x = ((a))"}),
        ("x = a + b", {"x = a - b"}),
        ("x = a * b", {"x = a / b", "x = (a * b * 0.5)"}),
        ("x = max(a, b)", {"x = min(a, b)", "x = (a)", "x = (b)"}),
        ("x = a.clamp(b)", {"x = a"}),
        ("x = np.clip(a, b, c)", {"x = a"}),
        ("x = not a", {"x = (a)"}),
        ("x = a[1]", {"x = a[2]", "x = a[0]"}),
        ("x = site.train", {"x = site.test"}),
        ("x = f'{a} and {b}'", {"x = f' and {b}'", "x = f'{a} and '"}),
        ("x = [a, b]", {"x = [b]", "x = [a]"}),
        ("x = {'a': b, **c}", {"x = {**c}", "x = {'a': b}"}),
        ("def f():\n  return a", {"return None"}),
        ("def f():\n  raise A('5' + b)", {"pass"}),
        ("f(a)", {"pass"}),
        ("a.b = c", {"pass"}),
        ("x += a", {"pass"}),
        ("while a:\n  continue", {"pass"}),
        ("if f(a):\n  x", {"if not (f(a)):", "if True:", "if False:"}),
        ("x = a if b else c", {"x = a if not (b) else c", "x = a if True else c",
                               "x = a if False else c"}),
        ("x = [a for a in b if a]", {"x = [a for a in b if not (a)]",
                                     "x = [a for a in b if True]", "x = [a for a in b if False]"}),
    ],
)  # fmt: skip
def test_every_rule(code: str, expected: set[str]) -> None:
    assert set(news(code)) == expected


@pytest.mark.parametrize(
    "code",
    [
        '"""Text 5."""',
        'x = "text 5"',
        'def f(a: Literal[5]) -> Literal[5]:\n  """Text 5 < 6."""',
        "@cache(maxsize=5)\ndef f(): ...",
        "x: Annotated[int, 5]",
        "log.warning('%s', 5)",
        "typer.echo(f'{a}')",
        "if TYPE_CHECKING:\n  x = 5",
        "__all__ = [a, b]",
        "import a",
    ],
)
def test_what_only_people_read_stays(code: str) -> None:
    assert news(code) == []


def test_a_message_of_a_raise_stays() -> None:
    assert news("def f():\n  raise A(f'{a + 5}')") == ["pass"]


def test_a_change_replaces_its_place_alone_whatever_letters_stand_before_it() -> None:
    code = "ε = 'δ'; x = a < 5  # < 5\n"
    assert "ε = 'δ'; x = a < 6 # < 5" in news(code)
    assert "ε = 'δ'; x = a <= 5 # < 5" in news(code)


def test_a_function_is_named_with_its_class_and_holds_what_is_inside_it() -> None:
    code = """
    LEVEL = 5
    class A:
        level = 5
        def f(self, level=5):
            def g():
                return a < b
    """
    found = {(c.function, c.line) for c in changes_of("a.py", textwrap.dedent(code))}
    assert found == {("", 2), ("", 4), ("", 5), ("A.f", 7)}


def test_the_order_and_the_names_are_the_same_every_time() -> None:
    for file in ("hdpfl_flower/ledger/ledger.py", "hdpfl_flower/privacy/policy.py"):
        once, again = changes_in(file), changes_in(file)
        assert once == again
        assert [c.line for c in once] == sorted(c.line for c in once)


def test_every_change_is_code() -> None:
    file = "hdpfl_flower/ledger/account.py"
    source = (ROOT / file).read_text()
    for change in changes_in(file):
        changed = change.applied(source)
        assert changed != source
        compile(changed, file, "exec", dont_inherit=True)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("hdpfl_flower/privacy/policy.py", "if not profile.trust_server:", "if False:"),
        ("hdpfl_flower/wire.py", r'asked.update(f"\n{use}\n{model_digest(other)}".encode())',
         r'asked.update(f"\n\n{model_digest(other)}".encode())'),
    ],
)  # fmt: skip
def test_bugs_that_a_stranger_put_in_are_among_the_changes(file: str, old: str, new: str) -> None:
    found = [(change.old, change.new) for change in changes_in(file)]
    assert (old, new) in found


def test_the_table_of_survivors_fits_the_code() -> None:
    """An entry whose change is no longer made would hide nothing, and help nobody."""
    made = {change.key for file in FILES for change in changes_in(file)}
    assert [key for key in classified() if key not in made] == []
    assert all(len(why) > 10 and "\n" not in why for why in classified().values())


def test_every_file_and_its_tests_are_there() -> None:
    for file, tests in FILES.items():
        assert (ROOT / file).is_file()
        assert tests
        assert all((ROOT / "tests" / test).is_file() for test in tests)


def test_a_verdict_counts_until_the_source_or_its_tests_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "hdpfl_flower/privacy/policy.py"
    monkeypatch.setattr("tests.mutants.fuzz.KEPT", tmp_path)
    one, other, third = changes_in(file)[:3]
    verdicts = Verdicts(file)
    killer = f"tests/{FILES[file][0]}::test"
    verdicts.note(one, Fate("killed", killer))
    verdicts.note(other, Fate("survived"))
    assert Verdicts(file).known == {one.key: Fate("killed", killer), other.key: Fate("survived")}
    assert Verdicts(file, fresh=True).known == {}
    kept = next(tmp_path.iterdir())
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    lines[1][1] = "another digest of the tests"
    kept.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(Verdicts(file).known) == [one.key]
    lines[0][0] = "another digest of the source"
    kept.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Verdicts(file).known == {}
    assert third.key not in verdicts.known


JUDGE = """
import json, sys
from pathlib import Path
from tests.mutants import fuzz_session
from tests.mutants.fuzz import changes_in
from tests.mutants.runner import import_heavy
import_heavy()
file = "hdpfl_flower/privacy/policy.py"
found = []
why = fuzz_session.judge_file(
    file, sys.argv[1:], changes_in(file), lambda c, fate: found.append((c.old, c.new, fate.fate)))
print(json.dumps([why, found]))
"""


def judged(*tests: str) -> tuple[str, list[list[str]]]:
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, *tests],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    why, found = json.loads(done.stdout.splitlines()[-1])
    return why, found


def test_the_fuzz_kills_what_a_test_notices_and_no_more(tmp_path: Path) -> None:
    """Of a test that trusts nobody and asks for no noise of the server's."""
    notices = tmp_path / "test_notices.py"
    notices.write_text(
        "from hdpfl_flower.privacy.policy import check_trust\n"
        "from tests.hdpfl_flower.ledger.plans import profile, terms\n"
        "def test_records():\n"
        "    check_trust(profile(), terms())\n"
    )
    why, found = judged(str(notices))
    fates = {(old, new): fate for old, new, fate in found}
    asked = 'if terms.noise != "server":'
    assert why == ""
    assert fates[asked, "if False:"] == "killed"
    assert fates[asked, "if True:"] == "survived"
    assert fates["if not profile.trust_server:", "if False:"] == "not run"


def test_a_test_that_fails_already_is_told(tmp_path: Path) -> None:
    fails = tmp_path / "test_fails.py"
    fails.write_text("def test_fails():\n    raise AssertionError\n")
    why, found = judged(str(fails))
    assert "a test fails on the code as it is" in why
    assert found == []


def test_changes_have_a_name_each() -> None:
    """Two changes of one name would share a verdict."""
    code = "def f():\n    if a:\n        return b\n    return b\n"
    keys = [change.key for change in changes_of("a.py", code) if change.old == "return b"]
    assert [key[1] for key in keys] == ["f", "f#2"]
    made = changes_in("hdpfl_flower/ledger/account.py")
    assert len({change.key for change in made}) == len(made)
