"""Registry of the studies of ``hdpfl reproduce``."""

from __future__ import annotations

from studies.fedhdp.table_1 import FEDHDP_MNIST, FEDHDP_PERSONAL, FEDHDP_SKEWED
from studies.framework.study import Study
from studies.intervals.study import INTERVALS
from studies.pfa.mixgauss import MIXGAUSS
from studies.pfa.traffic import MEGABYTES
from studies.r_dpcfl.accuracy import LABEL, ROTATION
from studies.r_dpcfl.noise_multipliers import CLUSTER_NOISE
from studies.robust_hdp.accuracy import (
    CLIENTS,
    CONVERGENCE,
    DISTRIBUTIONS,
    FALSIFIED,
    LABEL_SKEW,
)
from studies.robust_hdp.noise_table import NOISE_TABLE
from studies.scales.study import SCALES
from studies.shared_noise.study import SHARED_NOISE
from studies.splitting.figures import FIGURES
from studies.survival.study import SURVIVAL
from studies.which_rule.study import WHICH_RULE

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        NOISE_TABLE,
        CONVERGENCE,
        DISTRIBUTIONS,
        CLIENTS,
        FALSIFIED,
        LABEL_SKEW,
        MIXGAUSS,
        MEGABYTES,
        FEDHDP_MNIST,
        FEDHDP_SKEWED,
        FEDHDP_PERSONAL,
        CLUSTER_NOISE,
        ROTATION,
        LABEL,
        WHICH_RULE,
        SHARED_NOISE,
        SCALES,
        SURVIVAL,
        INTERVALS,
        *FIGURES,
    )
}
"""All studies by name."""
