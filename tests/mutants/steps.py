"""Bugs of DP-SGD's steps: their noise, their batches, their sums."""

from __future__ import annotations

from tests.mutants.runner import Mutant

AHEAD = "hdpfl_flower/privacy/test_noise_ahead.py::test_"
BITS = "client_app/training/test_dpsgd_bits.py::test_"
REPLAY = "privacy/test_replay.py::test_"
APP = "client_app/test_app.py::test_"
NOISE = "hdpfl_flower/privacy/test_noise.py::test_"
BATCHES = "hdpfl_flower/privacy/test_noise_batches.py::test_"
_NOISE = "the_noise_is_that_of_the_plan_that_was_charged"
_LESS = "one_record_less_changes_nothing_but_sums_by_its_own_gradient[logreg-linear]"
_MORE = "one_record_more_may_hold_anything[cnn-vmap-3e+38]"
MUTANTS = (
    Mutant(
        "half the noise",
        "client_app/training/dpsgd.py",
        "add_noise(total[place], plan.noise_std, streams.noise)",
        "add_noise(total[place], plan.noise_std / 2, streams.noise)",
        REPLAY + _NOISE,
    ),
    Mutant(
        "noise of std z, whatever C",
        "hdpfl_flower/privacy/plan.py",
        "return self.noise_multiplier * steps.noise_factor * (self.sensitivity * clip_norm)",
        "return self.noise_multiplier * (self.sensitivity * min(clip_norm, 0.05))",
        REPLAY + _NOISE,
    ),
    Mutant(
        "one seed for all releases",
        "hdpfl_flower/privacy/noise.py",
        "return cls(RandomStream(os.urandom(32)), RandomStream(os.urandom(32)))",
        "return cls(RandomStream(os.urandom(32)), RandomStream(bytes(32)))",
        REPLAY + _NOISE,
    ),
    Mutant(
        "torch's generator, seeded alike in every process",
        "hdpfl_flower/privacy/noise.py",
        "        if count == self._count:\n",
        "        import torch\n"
        "        if not hasattr(self, 'torch'):\n"
        "            self.torch = torch.Generator()\n"
        "        return torch.empty(count, dtype=torch.float64).normal_(generator=self.torch)\n"
        "        if count == self._count:\n",
        REPLAY + _NOISE,
    ),
    Mutant(
        "the same noise in every step",
        "client_app/training/dpsgd.py",
        "                    noisy = add_noise(total[place], plan.noise_std, streams.noise)\n",
        "                    from hdpfl_flower.privacy.noise import RandomStream\n"
        "                    noisy = add_noise(\n"
        "                        total[place], plan.noise_std, RandomStream(b'k' * 32))\n",
        REPLAY + _NOISE,
    ),
    Mutant(
        "the same noise in two layers",
        "hdpfl_flower/privacy/noise.py",
        "noise = stream.normal(total.numel()).to(total.device)",
        "noise = stream.normal(-(-total.numel() // 2)).repeat(2)[: total.numel()]",
        REPLAY + _NOISE,
    ),
    Mutant(
        "one key for batches and noise",
        "hdpfl_flower/privacy/noise.py",
        "return cls(RandomStream(os.urandom(32)), RandomStream(os.urandom(32)))",
        "key = os.urandom(32)\n        return cls(RandomStream(key), RandomStream(key))",
        NOISE + "a_fresh_release_draws_two_keys_from_the_system",
    ),
    Mutant(
        "normals of float32",
        "hdpfl_flower/privacy/noise.py",
        "uniform = words.double()",
        "uniform = words.bitwise_or_(2**29 - 1).double()",
        NOISE + "the_tail_goes_beyond_that_of_float32",
    ),
    Mutant(
        "low-order bits left in",
        "hdpfl_flower/privacy/noise.py",
        "return noise.round_().mul_(grid).to(total.dtype)",
        "return noise.mul_(grid).to(total.dtype)",
        NOISE + "noise_has_its_std_and_lies_on_the_public_grid",
    ),
    Mutant(
        "a seed in production",
        "client_app/site/site.py",
        "return ReleaseStreams.fresh()",
        'return ReleaseStreams.simulated(self.terms.seed, "site", server_round, kind)',
        APP + "two_sites_never_send_the_same_noise",
    ),
    Mutant(
        "shuffled batches in place of Poisson's",
        "hdpfl_flower/privacy/noise.py",
        "        return np.flatnonzero(words < threshold)",
        "        return np.sort(np.argsort(words)[: round(probability * count)])",
        BATCHES + "batches_are_poisson",
    ),
    Mutant(
        "a probability rounded up",
        "hdpfl_flower/privacy/noise.py",
        "threshold = math.floor(probability * 2**32)",
        "threshold = math.ceil(probability * 2**32)",
        BATCHES + "a_probability_is_rounded_down",
    ),
    Mutant(
        "an empty batch skipped",
        "client_app/training/dpsgd.py",
        "                    total.zero_()\n",
        "                    if not len(rows):\n                        continue\n"
        "                    total.zero_()\n",
        REPLAY + "an_empty_batch_is_noised_like_any_other",
    ),
    Mutant(
        "division by the actual batch",
        "client_app/training/dpsgd.py",
        "alpha=learning_rate / plan.divisor)",
        "alpha=learning_rate / max(1, len(rows)))",
        REPLAY + _LESS,
    ),
    Mutant(
        "steps from the number of records",
        "client_app/training/dpsgd.py",
        "for _ in range(phase.steps):",
        "for _ in range(max(1, len(records) // 12)):",
        REPLAY + "the_number_of_records_is_no_public_quantity",
    ),
    Mutant(
        "q from the number of records",
        "client_app/training/dpsgd.py",
        "engine.theta.device, plan.steps.sampling_prob",
        "engine.theta.device, min(1.0, plan.divisor / max(1, len(records)))",
        REPLAY + _LESS,
    ),
    Mutant(
        "no clipping",
        "client_app/training/engines.py",
        "(clip_norm * squared_norm.rsqrt()).clamp(max=1.0)",
        "torch.ones_like(squared_norm)",
        REPLAY + _LESS,
    ),
    Mutant(
        "clipping twice as loose",
        "client_app/training/engines.py",
        "(clip_norm * squared_norm.rsqrt()).clamp(max=1.0)",
        "(2 * clip_norm * squared_norm.rsqrt()).clamp(max=1.0)",
        REPLAY + _LESS,
    ),
    Mutant(
        "the bias left out of the norm",
        "client_app/training/engines.py",
        "return torch.addcmul(deltas, deltas, inputs) if bias else deltas * inputs.add_(1e-34)",
        "return deltas * inputs.add_(1e-34)",
        REPLAY + _LESS,
    ),
    Mutant(
        "filled-up rows counted",
        "client_app/training/engines.py",
        "    factor[count:] = 0\n",
        "",
        "client_app/training/test_engines.py::test_rows_after_the_count_add_nothing",
    ),
    Mutant(
        "0 · NaN in the sum",
        "client_app/training/engines.py",
        "    finite = torch.isfinite(squared_norm)\n",
        "    finite = torch.ones_like(squared_norm, dtype=torch.bool)\n",
        REPLAY + _MORE,
    ),
    Mutant(
        "layers that mix records",
        "hdpfl_flower/models/networks.py",
        "    refuse_mixing_layers(model)\n",
        "",
        "client_app/training/test_engine_choice.py::test_batch_statistics_are_refused",
    ),
    Mutant(
        "noise drawn ahead is returned in every step",
        "hdpfl_flower/privacy/noise.py",
        "self._drawn = iter(self._normals(calls, count))",
        "self._drawn = iter(self._normals(1, count).repeat(calls, 1))",
        AHEAD + "numbers_drawn_ahead_have_the_bits_of_those_drawn_one_by_one[650-7]",
    ),
    Mutant(
        "noise of one number more than is asked for",
        "hdpfl_flower/privacy/noise.py",
        "        if count == self._count:\n",
        "        if self._count:\n            count = self._count\n",
        AHEAD + "a_call_for_another_count_takes_other_bytes_and_returns_no_number_twice",
    ),
    Mutant(
        "a model of a class of its own is taken for one that draws nothing",
        "client_app/training/engines.py",
        "        type(module) not in _DRAWLESS\n",
        "        not isinstance(module, tuple(_DRAWLESS))\n",
        BITS + "a_model_that_might_draw_counts_as_one_that_does[<lambda>2]",
    ),
)
