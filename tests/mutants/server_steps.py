"""Server steps and the reported model."""

from __future__ import annotations

from tests.mutants.runner import Mutant

STEPS = "strategies/server_step/test_steps.py::test_"
REPORTED = (
    "server_app/run/test_reported_model.py"
    "::test_the_mean_is_stored_tested_sent_and_journalled_beside_the_broadcast_model"
)

MUTANTS = (
    Mutant(
        "Adam's squares without their square",
        "strategies/server_step/adaptive.py",
        "self.next_squares(old, here * here)",
        "self.next_squares(old, here)",
        f"{STEPS}adam_and_yogi_are_algorithm_2[adam]",
    ),
    Mutant(
        "Yogi with Adam's squares",
        "strategies/server_step/adaptive.py",
        "squares - (1 - beta) * new * np.sign(squares - new)",
        "beta * squares + (1 - beta) * new",
        f"{STEPS}adam_and_yogi_are_algorithm_2[yogi]",
    ),
    Mutant(
        "momentum of the rated steps",
        "strategies/server_step/momentum.py",
        "return MomentumState(momentum), moved_by(",
        "return MomentumState(rate * momentum), moved_by(",
        f"{STEPS}momentum_is_fedavgms",
    ),
    Mutant(
        "a reported model that stays where the aggregate was",
        "strategies/server_step/step.py",
        "reported=None if ahead is None else update + ahead",
        "reported=outcome.reported",
        f"{STEPS}a_reported_model_stays_as_far_from_the_broadcast_one",
    ),
    Mutant(
        "a tail that begins a round late",
        "strategies/core/reported_model.py",
        "rounds - tail + 1 if",
        "rounds - tail + 2 if",
        f"{STEPS}averages",
    ),
    Mutant(
        "the broadcast model stored in place of the reported one",
        "server_app/run/rounds.py",
        "self._result.arrays = wire.read_own(self._strategy.reported.record(new))",
        "self._result.arrays = wire.read_own(new)",
        f"{REPORTED}[tail-weights0]",
    ),
    Mutant(
        "sites that train from the mean of the rounds",
        "server_app/run/rounds.py",
        "self.model = new\n",
        "self.model = self._strategy.reported.record(new)\n",
        f"{REPORTED}[ergodic-weights1]",
    ),
)
