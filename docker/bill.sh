#!/bin/sh
# What is installed: a CycloneDX SBOM, and each package's licence and address.
set -eu
cd /srv/hdpfl
cyclonedx-py environment --output-reproducible --output-file sbom.cdx.json venv
pip-licenses --python venv/bin/python --with-urls --with-system --from mixed > licences.txt
chmod a+r sbom.cdx.json licences.txt
