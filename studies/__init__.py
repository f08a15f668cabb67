"""What ``hdpfl reproduce`` can run: a file a paper or a topic, a row in this table."""

from __future__ import annotations

from studies.fedhdp.table_1 import FEDHDP_MNIST, FEDHDP_PERSONAL, FEDHDP_SKEWED
from studies.flamby.study import FLAMBY
from studies.framework.study import Study
from studies.guards.guards import GUARD_STUDY
from studies.guards.lying_sites import LYING
from studies.natural.school import SCHOOL
from studies.natural.study import LEADERBOARD
from studies.personal.dsu import DSU
from studies.personal.sharing import PERSONAL
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
from studies.robust_hdp.drift import DRIFT
from studies.robust_hdp.noise_table import NOISE_TABLE
from studies.server_step.found_rate import FOUND_RATE
from studies.server_step.table import SERVER_STEPS
from studies.splitting.figures import FIGURES
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
        DRIFT,
        MIXGAUSS,
        MEGABYTES,
        LYING,
        GUARD_STUDY,
        FEDHDP_MNIST,
        FEDHDP_SKEWED,
        FEDHDP_PERSONAL,
        CLUSTER_NOISE,
        ROTATION,
        LABEL,
        PERSONAL,
        DSU,
        SERVER_STEPS,
        FOUND_RATE,
        WHICH_RULE,
        LEADERBOARD,
        FLAMBY,
        SCHOOL,
        *FIGURES,
    )
}
"""Every study by its name."""
