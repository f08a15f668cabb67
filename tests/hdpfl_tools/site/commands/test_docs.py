"""The example of ``docs/how-to/site.md`` is a profile, and the numbers of its plan are true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from hdpfl_flower.config.profile import Profile
from hdpfl_flower.config.terms import RunTerms
from hdpfl_flower.privacy.plan import make_plan
from hdpfl_tools.site.new_profile import NewProfile

TEXT = (Path(__file__).parents[4] / "docs" / "how-to" / "site.md").read_text()


def example(tmp_path: Path) -> Profile:
    """Return the profile that the guide's command writes."""
    (words,) = re.findall(r"\$ hdpfl-site profile new (.*)", TEXT)
    given = shlex.split(words)
    options = dict(zip(given[::2], given[1::2], strict=True))
    path = tmp_path / "profile.toml"
    text = NewProfile(
        f'[data]\nformat = "csv"\npath = "{options["--data"]}"',
        int(options["--records"]),
        float(options["--epsilon"]),
        float(options["--cap"]),
    ).text()
    path.write_text(text)
    path.chmod(0o600)
    return Profile.load(path)


def test_the_plan_of_the_example_is_as_the_guide_says(tmp_path: Path) -> None:
    terms = RunTerms.parse({"rounds": 10, "local-epochs": 2, "dataset": "site"})
    plan = make_plan(example(tmp_path), terms)
    found = re.search(
        r"probability q +([\d.]+) .*?, (\d+) steps in all\nnoise multiplier z +([\d.]+)",
        TEXT,
        re.DOTALL,
    )
    assert found
    assert {round(steps.sampling_prob, 4) for steps in plan.schedule} == {float(found[1])}
    assert sum(steps.count for steps in plan.schedule) == int(found[2])
    assert 0 <= float(found[3]) - plan.noise_multiplier < 0.001
