"""Bugs of frozen backbones and of public starts."""

from __future__ import annotations

from tests.mutants.runner import Mutant

BACKBONES = "hdpfl_flower/models/backbones.py"
POLICY = "hdpfl_flower/privacy/policy.py"
WEIGHTS = "hdpfl_flower/models/public_weights.py"
TESTS = "hdpfl_flower/models/test_backbones.py::test_"
SITE = "client_app/site/test_backbone_site.py::test_"
DECLINES = SITE + "a_site_without_them_declines_and_charges_nothing"
MUTANTS = (
    Mutant(
        "weights that no operator listed",
        POLICY,
        "    if backbone.weights and backbone.weights not in profile.policy.weights:\n",
        "    if False:\n",
        DECLINES + "[other weights]",
    ),
    Mutant(
        "code that no operator listed",
        POLICY,
        "    if backbone.code and backbone.code not in profile.policy.models:\n",
        "    if False:\n",
        DECLINES + "[other code]",
    ),
    Mutant(
        "weights that changed in their file",
        "hdpfl_flower/system/weight_files.py",
        "    if digest_of(content) != digest:\n",
        "    if not content:\n",
        TESTS + "a_changed_file_and_an_absent_one_are_not_read",
    ),
    Mutant(
        "a pickle that is run",
        WEIGHTS,
        "weights_only=True",
        "weights_only=False",
        TESTS + "what_is_no_file_of_tensors_is_refused_and_not_run",
    ),
    Mutant(
        "a backbone that mixes records",
        BACKBONES,
        "    if float((first[0] - second[0]).abs().max()) > 1e-4 * scale:\n",
        "    if False:\n",
        TESTS + "what_is_no_function_of_a_record_is_refused",
    ),
    Mutant(
        "batches whose size is that of the records",
        BACKBONES,
        "                batch = np.zeros((_BATCH, *features.shape[1:]), np.float32)\n",
        "                batch = np.zeros((len(rows), *features.shape[1:]), np.float32)\n",
        TESTS + "outputs_are_the_networks_own_and_of_each_record_alone",
    ),
    Mutant(
        "outputs of other records from memory",
        "client_app/site/site.py",
        "sha256(repr(self.embedding).encode() + features.tobytes())",
        "sha256(repr(self.embedding).encode())",
        SITE + "outputs_are_computed_once_a_run_and_kept_encrypted",
    ),
    Mutant(
        "outputs in the clear on the disk",
        "client_app/site/site.py",
        "cipher.encrypt(nonce, found.tobytes(), digest)",
        "found.tobytes() + bytes(16)",
        SITE + "outputs_are_computed_once_a_run_and_kept_encrypted",
    ),
    Mutant(
        "a new last layer from the file",
        "strategies/core/model_record.py",
        'if terms.start_parts == "body" else frozenset()',
        'if terms.start_parts == "none" else frozenset()',
        TESTS + "a_run_starts_from_the_file",
    ),
)
