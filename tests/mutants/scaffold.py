"""Bugs of offsets at sites and of control variates at the server."""

from __future__ import annotations

from tests.mutants.runner import Mutant

SITE = "client_app/training/test_dpsgd_offset.py::test_"
SERVER = "strategies/splitting/test_scaffold.py::test_"
DPSGD, TRAINER = "client_app/training/dpsgd.py", "client_app/training/trainer.py"
SCAFFOLD = "strategies/splitting/scaffold.py"
_ADDED = "                        engine.theta.add_(drift.to(device))\n"
_APART = SITE + "clipping_and_noise_do_not_touch_the_offset"
_DECLINED = SITE + "what_cannot_follow_an_offset_is_declined_before_a_release"
_ESTIMATE = SERVER + "a_full_round_moves_by_the_control_variate_estimate[mmse+scaffold]"

MUTANTS = (
    Mutant("an offset dropped", DPSGD, _ADDED, "                        pass\n", _APART),
    Mutant("an offset k times", DPSGD, "offset / np.float32(steps)", "offset", _APART),
    Mutant(
        "an offset inside the clipped sum",
        DPSGD,
        "                    noisy = add_noise(total[place],",
        "                    if drift is not None:\n"
        "                        total -= drift * (plan.divisor / learning_rate)\n"
        "                        total *= min(1.0, plan.clip_norm / (1e-9 + float(total.norm())))\n"
        "                        drift = drift * 0\n"
        "                    noisy = add_noise(total[place],",
        _APART,
    ),
    Mutant(
        "an offset drawn from the noise's stream",
        DPSGD,
        "            streams.noise.draw_ahead(",
        "            if drift is not None:\n"
        "                streams.noise.bytes(8)\n"
        "            streams.noise.draw_ahead(",
        SITE + "batches_and_noise_are_the_same_with_and_without",
    ),
    Mutant(
        "an offset only where records were drawn",
        DPSGD,
        "                    if drift is not None:  # after",
        "                    if drift is not None and len(rows):  # after",
        _APART,
    ),
    Mutant(
        "a site that ignores an offset",
        TRAINER,
        "flatten(self.models[1]) if instructions.use == wire.OFFSET else None",
        "None",
        SITE + "a_site_follows_an_offset_and_seals_its_bytes",
    ),
    Mutant(
        "an offset of a model of which a part stays",
        TRAINER,
        "        if self._offset is not None and self._personal is not None:",
        "        if self._personal is not None:\n            self._offset = None\n        if False:",
        _DECLINED + "[updates of its own]",
    ),
    Mutant(
        "an offset ignored under noise = client",
        "client_app/training/client_level.py",
        "        if instructions.use == wire.OFFSET:",
        "        if False:",
        _DECLINED + "[noise of the client]",
    ),
    Mutant(
        "an offset ignored in a test",
        "client_app/app.py",
        "            if instructions.use == wire.OFFSET and handler is not train:",
        "            if False:",
        _DECLINED + "[a test]",
    ),
    Mutant(
        "own parts that still hold the displacement",
        SCAFFOLD,
        "                np.subtract(rows[i, block], sent, out=own[i, block])",
        "                own[i, block] = rows[i, block]",
        SERVER + "fedavg_stops_where_its_closed_form_says_and_scaffold_at_the_optimum",
    ),
    Mutant(
        "a displacement the wrong way",
        SCAFFOLD,
        "    moved: Row = aim - (part if factor == 1 else np.float32(factor) * part)",
        "    moved: Row = (part if factor == 1 else np.float32(factor) * part) - aim",
        SERVER + "fedavg_stops_where_its_closed_form_says_and_scaffold_at_the_optimum",
    ),
    Mutant(
        "the sum of the own parts in place of the updates'",
        SCAFFOLD,
        "    if len(found) == len(state.variates) and np.allclose(",
        "    if len(found) > 0 or np.allclose(",
        _ESTIMATE,
    ),
    Mutant(
        "control variates of rounds, not of steps",
        SCAFFOLD,
        "part, factor = variate.part[block], variate.steps / variate.middle",
        "part, factor = variate.part[block], 1.0",
        SERVER + "unequal_steps_that_are_disclosed_have_the_optimum_as_fixed_point",
    ),
    Mutant(
        "clients that are absent lose their control variate",
        SCAFFOLD,
        "            if site not in updates.sites\n        }",
        "            if site in ()\n        }",
        SERVER + "clients_that_are_drawn_do_not_move_the_fixed_point",
    ),
    Mutant(
        "a mean of this round's clients alone",
        SCAFFOLD,
        "            _add(mean, one.share / one.middle, one.part)\n",
        "            pass\n",
        SERVER + "clients_that_are_drawn_do_not_move_the_fixed_point",
    ),
    Mutant(
        "control variates beyond the memory",
        SCAFFOLD,
        "        if not state.variates and len(start.sites) > self._room(size):",
        "        if False:",
        SERVER + "control_variates_without_room_are_refused_before_round_1",
    ),
    Mutant(
        "a late control variate beyond the memory",
        SCAFFOLD,
        "        kept |= np.cumsum(~kept) <= room - kept.sum()",
        "        kept[:] = True",
        SERVER + "a_site_that_joins_later_without_room_trains_without_one",
    ),
    Mutant(
        "steps counted twice",
        SCAFFOLD,
        'for fact, column in updates.disclosed.items() if fact != "batch-size"}',
        "for fact, column in updates.disclosed.items()}",
        SERVER + "weights_by_noise_count_unequal_steps_once",
    ),
    Mutant(
        "guards beside control variates",
        "strategies/composition.py",
        'issubclass(strategy, Scaffold) and config.server.guard != "none"',
        "False",
        "strategies/server_step/test_steps.py::test_every_key_of_the_table_is_refused",
    ),
)
