"""Registry of the studies of ``hdpfl reproduce``."""

from __future__ import annotations

from studies.advise.study import ADVISE
from studies.fedhdp.table_1 import FEDHDP_MNIST, FEDHDP_PERSONAL, FEDHDP_SKEWED
from studies.flamby.study import FLAMBY
from studies.framework.study import Study
from studies.guards.guards import GUARD_STUDY
from studies.natural.school import SCHOOL
from studies.natural.spend import SPEND
from studies.natural.study import LEADERBOARD
from studies.personal.dsu import DSU
from studies.pfa.mixgauss import MIXGAUSS
from studies.pfa.traffic import MEGABYTES
from studies.public_start.study import PUBLIC_START
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
from studies.splitting.figures import FIGURES
from studies.which_rule.few_sites import FEW_SITES
from studies.which_rule.found_rate import FOUND_RATE
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
        GUARD_STUDY,
        FEDHDP_MNIST,
        FEDHDP_SKEWED,
        FEDHDP_PERSONAL,
        CLUSTER_NOISE,
        ROTATION,
        LABEL,
        DSU,
        WHICH_RULE,
        FEW_SITES,
        FOUND_RATE,
        ADVISE,
        PUBLIC_START,
        LEADERBOARD,
        FLAMBY,
        SCHOOL,
        SPEND,
        *FIGURES,
    )
}
"""All studies by name."""
