"""What ``hdpfl reproduce`` can run: a file a paper or a topic, a row in this table."""

from __future__ import annotations

from server_app.studies.cluster_noise import CLUSTER_NOISE
from server_app.studies.clusters import LABEL, ROTATION
from server_app.studies.drift import DRIFT
from server_app.studies.fedhdp import FEDHDP_MNIST, FEDHDP_PERSONAL, FEDHDP_SKEWED
from server_app.studies.liars import GUARD_COST, LYING
from server_app.studies.megabytes import MEGABYTES
from server_app.studies.noise_table import NOISE_TABLE
from server_app.studies.pfa import MIXGAUSS
from server_app.studies.robust_hdp import (
    CLIENTS,
    CONVERGENCE,
    DISTRIBUTIONS,
    FALSIFIED,
    LABEL_SKEW,
)
from server_app.studies.study import Study

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
        GUARD_COST,
        FEDHDP_MNIST,
        FEDHDP_SKEWED,
        FEDHDP_PERSONAL,
        CLUSTER_NOISE,
        ROTATION,
        LABEL,
    )
}
"""Every study by its name."""
