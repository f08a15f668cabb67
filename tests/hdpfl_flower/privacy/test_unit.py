"""The unit of a run: which it is, who may propose it, and what its plan is made for."""

from __future__ import annotations

from typing import Any

import pytest

from hdpfl_flower.errors import AccountingError, DataError, Declined, ProfileError
from hdpfl_flower.privacy.accounting import Steps, calibrate
from hdpfl_flower.privacy.plan import OF_A_RECORD, OF_AN_UPDATE, Plan, make_plan
from hdpfl_flower.privacy.policy import check_policy, id_of
from hdpfl_flower.privacy.unit import unit_of
from strategies.core.privacy_statement import describe
from tests.client_app.messages import SCHEMA
from tests.hdpfl_flower.ledger.plans import PROFILE, profile, terms

WARD = 'id = "ward"\n' + SCHEMA
FOLDERS = {"kind": "classification", "shape": "1,8,8", "classes": 2, "id": "folder"}


def data(**more: str) -> dict[str, Any]:
    return {"format": "csv", "path": "records.csv", **more}


@pytest.mark.parametrize(
    ("own", "schema", "allowed"),
    [
        ("", SCHEMA, True), ("ward", WARD, True), ("", "", True), ("", "heart", True),
        ("", WARD, False), ("ward", SCHEMA, False), ("ward", "", False), ("Ward", WARD, False),
        ("patient", WARD, False),
    ],
)  # fmt: skip
def test_a_schema_must_name_the_profiles_id(own: str, schema: str, allowed: bool) -> None:
    site, run = profile(data=data(id=own)), terms(dataset="site", schema=schema)
    if allowed:
        check_policy(site, run)
        return
    with pytest.raises(Declined, match=r"'data\.id'") as caught:
        check_policy(site, run)
    assert "ward" not in str(caught.value).lower()
    assert "coordinator" in str(caught.value)


@pytest.mark.parametrize(
    ("own", "asked", "allowed"),
    [("", "", True), ("folder", "folder", True), ("folder", "", False), ("", "folder", False)],
)
def test_a_task_must_say_whether_a_folder_is_the_unit(own: str, asked: str, allowed: bool) -> None:
    site = profile(data={"format": "images", "path": "images", "id": own})
    run = terms(dataset="site", task={**FOLDERS, "id": asked})
    if allowed:
        check_policy(site, run)
        return
    with pytest.raises(Declined, match=r"'data\.id'.*'task\.id' = 'folder'"):
        check_policy(site, run)


def test_a_column_named_folder_is_no_folder() -> None:
    ward = 'id = "folder"\n' + SCHEMA
    check_policy(profile(data=data(id="folder")), terms(dataset="site", schema=ward))
    with pytest.raises(Declined, match=r"'data\.id'"):
        check_policy(profile(data=data(id="folder")), terms(dataset="site", task=FOLDERS))


def test_a_site_without_data_of_its_own_has_no_id() -> None:
    simulated = profile(simulation={"seed": 1})
    check_policy(simulated, terms(schema=SCHEMA))
    with pytest.raises(Declined, match=r"'data\.id'"):
        check_policy(simulated, terms(schema=WARD))


def test_a_schema_that_is_none_is_no_reason_to_train() -> None:
    with pytest.raises(DataError, match="no built-in"):
        check_policy(profile(data=data()), terms(schema="hart"))


@pytest.mark.parametrize("kind", ["npz", "images"])
def test_an_id_where_records_have_no_columns_is_refused(kind: str) -> None:
    with pytest.raises(ProfileError, match=r"'data.id' names a column.*remove it") as caught:
        profile(data={"format": kind, "path": "records", "id": "patient"})
    assert "'patient'" not in str(caught.value)
    assert profile(data={"format": kind, "path": "records"}).data is not None
    assert profile(data={"format": "parquet", "path": "records", "id": "patient"}).data is not None


def test_an_id_of_control_characters_is_no_schema() -> None:
    with pytest.raises(DataError, match="id"):
        id_of('id = "a\\nb"\n' + SCHEMA)


@pytest.mark.parametrize("noise", ["records", "server", "client"])
@pytest.mark.parametrize("strategy", ["fedavg", "fedhdp"])
@pytest.mark.parametrize("allows", [False, True])
@pytest.mark.parametrize("simulated", [False, True])
def test_noise_needs_the_profile(noise: str, strategy: str, allows: bool, simulated: bool) -> None:
    sections: dict[str, Any] = {"policy": {"client-noise": allows}}
    if simulated:
        sections["simulation"] = {"seed": 1}
    site = profile(**sections)
    run = terms(noise=noise, strategy=strategy, delta=1e-5)
    if noise == "server":
        with pytest.raises(Declined, match="'trust-server'"):
            check_policy(site, run)
    elif noise == "client" and not (allows or simulated):
        with pytest.raises(Declined, match=r"policy\.client-noise = true"):
            check_policy(site, run)
    else:
        check_policy(site, run)


def test_the_policy_is_off_by_default() -> None:
    assert not profile().policy.client_noise
    assert "client-noise" not in PROFILE["policy"]


@pytest.mark.parametrize("noise", ["records", "client"])
@pytest.mark.parametrize("clip_norm", [0.5, 3.0])
def test_the_noise_scales_with_a_units_reach(noise: str, clip_norm: float) -> None:
    plan = make_plan(profile(), terms(noise=noise))
    moves = {"records": OF_A_RECORD, "client": OF_AN_UPDATE}[noise]
    assert (plan.sensitivity, moves) == ((1.0, 1.0) if noise == "records" else (2.0, 2.0))
    assert plan.round(1, clip_norm).noise_std == plan.noise_multiplier * moves * clip_norm
    assert plan.noise_multiplier == calibrate(plan.steps, plan.epsilon, plan.delta)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("wrong", [0.0, 0.5, -1.0, 1.5, float("inf"), float("nan")])
def test_a_plan_without_a_sensitivity_is_none(wrong: float) -> None:
    with pytest.raises(AccountingError, match="sensitivity"):
        Plan(1.0, 1e-5, 1.0, 1.0, (Steps(1.0, 1),), 0.1, 1.0, sensitivity=wrong)


@pytest.mark.parametrize(
    ("noise", "schema", "unit", "relation"),
    [
        ("records", SCHEMA, "one record of one client", "add or remove one"),
        ("records", "", "one record of one client", "add or remove one"),
        ("records", WARD, "under one value of column 'ward'", "add or remove one"),
        ("records", FOLDERS, "all images of one folder at one client", "add or remove one"),
        ("server", WARD, "one client with all of its records", "add or remove one"),
        ("client", WARD, "all records of one client", "change, add or remove any"),
        ("client", "", "all records of one client", "change, add or remove any"),
    ],
)
def test_a_summary_names_the_unit(noise: str, schema: str, unit: str, relation: str) -> None:
    run = terms(noise=noise, **({"task": schema} if schema == FOLDERS else {"schema": schema}))
    facts = describe(run)
    assert unit in facts["unit"]
    assert relation in facts["relation"]
    assert (facts["unit"], facts["relation"]) == (unit_of(run).unit, unit_of(run).relation)
