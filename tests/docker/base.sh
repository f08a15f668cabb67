#!/bin/sh
# base.sh NAME: a base image from Debian's packages, for docker/Dockerfile where no image can be had:
# Python, and Prometheus' own program for the containers that stand in for its image.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$folder" \
  http://deb.debian.org/debian
chroot "$folder" sh -c 'cd /tmp && apt-get -q update && apt-get -q download prometheus \
  && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C / ./usr/bin/prometheus'
rm -rf "$folder"/tmp/* "$folder"/var/cache/apt/*.bin "$folder"/var/cache/apt/archives/*.deb \
  "$folder"/var/lib/apt/lists/*
install -d -o 65534 -g 65534 "$folder/prometheus"  # volumes take their owner from it
tar -C "$folder" -c . | docker import - "$1"
