"""Bugs of the doors for any Flower app, and of one private training."""

from __future__ import annotations

from tests.mutants.runner import Mutant

_MOD = "client_app/private_updates.py"
_TESTS = "client_app/test_private_updates.py"
_WRAPPER = "strategies/noise_aware/around_flower.py"
_WRAPPED = "strategies/noise_aware/test_around_flower.py"

MUTANTS = (
    Mutant(
        "any app: an update without noise",
        _MOD,
        "add_noise(clipped, std, ReleaseStreams",
        "add_noise(clipped, 0.0 * std, ReleaseStreams",
        f"{_TESTS}::test_the_reply_is_the_clipped_update_with_the_noise_of_all_rounds",
    ),
    Mutant(
        "any app: noise for one round's (ε, δ), as LocalDpMod has it",
        _MOD,
        "        plan = make_plan(self._profile, terms)\n",
        "        plan = make_plan(self._profile, terms.updated(rounds=1))\n",
        f"{_TESTS}::test_the_reply_is_the_clipped_update_with_the_noise_of_all_rounds",
    ),
    Mutant(
        "any app: an update that is not clipped",
        _MOD,
        "torch.from_numpy(clip_update(update, clip_norm))",
        "torch.from_numpy(clip_update(update, 1e9))",
        f"{_TESTS}::test_an_update_beyond_the_bound_is_clipped",
    ),
    Mutant(
        "any app: metrics leave with the update",
        _MOD,
        '                "metrics": MetricRecord({self._weight_key: 1}),\n',
        '                "metrics": MetricRecord({self._weight_key: len(start) % 7}),\n',
        f"{_TESTS}::test_the_reply_is_the_clipped_update_with_the_noise_of_all_rounds",
    ),
    Mutant(
        "any app: evaluations are answered",
        _MOD,
        'if message.metadata.message_type.split(".")[0] != "train":',
        'if message.metadata.message_type == "none":',
        f"{_TESTS}::test_measurements_are_declined",
    ),
    Mutant(
        "any app: rounds that no plan pays for",
        _MOD,
        "            if not plan.covers(server_round):\n",
        "            if not plan.covers(max(1, min(server_round, plan.rounds))):\n",
        f"{_TESTS}::test_no_other_round_is_answered",
    ),
    Mutant(
        "any app: a clip norm that changes in mid-run",
        _MOD,
        "            if frozen.terms != terms.to_json():\n",
        "            if not frozen.terms:\n",
        f"{_TESTS}::test_terms_that_change_in_mid_run_are_declined",
    ),
    Mutant(
        "any app: the digest leaves out the model",
        _MOD,
        'asked = f"{server_round}\\n{wire.model_digest(arrays)}".encode()',
        'asked = f"{server_round}".encode()',
        f"{_TESTS}::test_a_round_is_answered_once_and_charged_once",
    ),
    Mutant(
        "NoiseAware: replies keep the weights that they state",
        _WRAPPER,
        "record[self.strategy.weighted_by_key] = ",
        "_ = ",
        f"{_WRAPPED}::test_the_error_is_near_that_of_the_best_weights",
    ),
    Mutant(
        "NoiseAware: a reply that is not finite",
        _WRAPPER,
        "return update if len(update) and np.isfinite(update).all() else None",
        "return update",
        f"{_WRAPPED}::test_a_reply_that_is_no_model_is_left_out",
    ),
    Mutant(
        "dp_sgd: noise of another budget",
        "client_app/dp_sgd.py",
        "    plan = RoundPlan(schedule[0], clip_norm, z * clip_norm, float(batch_size))\n",
        "    plan = RoundPlan(schedule[0], clip_norm, z / 2 * clip_norm, float(batch_size))\n",
        "client_app/test_dp_sgd.py::test_the_update_has_the_noise_of_the_plan",
    ),
)
