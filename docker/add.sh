#!/bin/sh
# add.sh LOCK NAME …: installs packages as a lock has them; add.sh LOCK - NAME …: all but those.
# A name may be a pattern; every file is held against its hash.
set -eu
lock=$1 but=0
shift
if [ "$1" = - ]; then but=1 && shift; fi
awk -v but="$but" -v names="$*" 'BEGIN {gsub(" ", "|", names)}
  /^[a-z0-9]/ {name = $0; sub("==.*", "", name); keep = (name ~ "^(" names ")$") != but} keep' \
  "$lock" > /srv/build/part.lock
uv pip install --no-deps --require-hashes -r /srv/build/part.lock
