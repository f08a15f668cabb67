"""``hdpfl-site profile new``: from a table to a profile that 'profile check' takes."""

from __future__ import annotations

from hdpfl_flower.config.profile import Profile
from tests.hdpfl_tools.site.commands.conftest import SCHEMA, SiteFolder

ENOUGH = ("--records", 40, "--epsilon", 2, "--cap", 8)


def test_it_is_ready_for_the_check(site: SiteFolder) -> None:
    table = (site.folder / "records.csv").read_text().replace(",", ";").replace("PATIENT-123", "")
    (site.folder / "records.csv").write_text(table, encoding="latin-1")
    site.profile_path.unlink()
    made = site.bare("profile", "new", "--to", site.profile_path, "--data",
                     site.folder / "records.csv", *ENOUGH)  # fmt: skip
    assert made.code == 0, made.err
    assert site.profile_path.stat().st_mode & 0o777 == 0o600
    text = site.profile_path.read_text()
    assert 40 < len(text.splitlines()) < 60
    assert 'path = "records.csv"' in text, "of the profile's folder, wherever that moves"
    found = site.profile
    assert (found.run.epsilon, found.budget.epsilon) == (2, 8)
    assert found.budget.delta == 10 * found.run.delta < 1 / 40
    assert (found.disclose, found.approval) == (("declared-records",), "each-run")
    assert found.data is not None and found.data.delimiter == ";"
    assert site("ledger", "--init").code == 0
    checked = site("profile", "check", "--terms", site.terms_path)
    assert checked.code == 0, checked.out


def test_names_of_a_runs_schema_are_looked_up(site: SiteFolder) -> None:
    """Those of the header need no line; the others are to be chosen."""
    site.write_terms(schema='id = "who"\n' + SCHEMA.replace('"c"', '"colour"'))
    rows = "".join(f"{i},{i % 2},<{i % 9},x,{i % 28 + 1:02}.03.2020\n" for i in range(60))
    (site.folder / "t.csv").write_text(f"No,y,a,shade,born\n{rows}")
    made = site.bare("profile", "new", "--to", site.folder / "p.toml", "--id", "No", "--data",
                     site.folder / "t.csv", "--terms", site.terms_path, *ENOUGH)  # fmt: skip
    assert made.code == 0, made.err
    data, text = Profile.load(site.folder / "p.toml").data, (site.folder / "p.toml").read_text()
    assert data is not None and data.id == "who"
    assert {name: (one.name, one.below_limit) for name, one in data.columns.items()} == {
        "who": ("No", ""), "a": ("", "half"),
    }  # fmt: skip
    assert '# [data.columns."colour"]\n# name = "<choose>"\n' in text
    assert '# Other columns here: "shade", "born"' in text
