#!/usr/bin/env bash
# The group `ceph` against osds that run already: finds out their figures, builds librados-null, and starts the program.
#
#     bash throughput/ceph.sh CONF [CONF ...] [-- OPTION ...]
#
# Each CONF is the ceph.conf of a cluster with one osd, auth none, osd_max_object_name_len = 100, and a pool `bench` (or
# $POOL) of one placement group. All of them are measured in one run: one whose osd has ms_bind_msgr2 = false and one with
# ms_bind_msgr1 = false compare librados and segchain over the same version, for librados chooses the second where it can.
# Wants ceph (Debian: ceph-common), a C compiler and librados-dev.
set -euo pipefail
pool=${POOL:-bench}
confs=()
while [ $# -gt 0 ]; do
    case $1 in --) shift && break ;; *) confs+=("$(realpath "$1")") && shift ;; esac
done
[ ${#confs[@]} -gt 0 ] || { sed -n '2,10p' "$0" && exit 2; }
cd "$(dirname "$0")/.."

osds=() nonces=() epochs=() pools=() librados=()
for conf in "${confs[@]}"; do
    dump=$(ceph -c "$conf" osd dump 2>/dev/null)
    epoch=$(awk '$1 == "epoch" { print $2 }' <<<"$dump")
    number=$(awk -v name="'$pool'" '$1 == "pool" && $3 == name { print $2 }' <<<"$dump")
    [ -n "$number" ] || { echo "$conf: no pool $pool" >&2 && exit 1; }
    # Of `[v2:IP:PORT/NONCE,v1:IP:PORT/NONCE] [...]` the first list: the public addresses of the first osd.
    public=$(grep -m1 '^osd\.' <<<"$dump" | grep -oE '\[?v[12]:[^] ]+' | head -1)
    for address in $(grep -oE 'v[12]:[^],]+' <<<"$public"); do
        osds+=("$(cut -d: -f2- <<<"${address%/*}")")
        nonces+=("${address##*/}") epochs+=("$epoch") pools+=("$number") librados+=("$conf")
    done
done

mkdir -p target
cc -O2 -o target/librados-null throughput/librados-null.c -lrados
list() { local IFS=, && echo "$*"; }
set -x
exec cargo run --release --example throughput -- --only ceph \
    --osd "$(list "${osds[@]}")" --nonce "$(list "${nonces[@]}")" --epoch "$(list "${epochs[@]}")" \
    --pool "$(list "${pools[@]}")" --librados "$(list "${librados[@]}")" \
    --librados-null target/librados-null --librados-pool "$pool" "$@"
