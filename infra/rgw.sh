#!/usr/bin/env bash
# A real S3 server for tests: Ceph's RADOS Gateway on loopback, all of it in memory, gone when its caller is.
#
#   infra/rgw.sh DIRECTORY [SECONDS_OF_A_LIFECYCLE_DAY]
#
# Prints the server's address once it answers to the keys "testing" / "testing", and runs until it is terminated or its
# standard input is closed, whichever comes first: no server outlives its test run. DIRECTORY has to be new or empty; logs
# are in it. With a second argument a day of lifecycle rules lasts so many seconds (5 is reliable).
#
# Needs ceph-mon, ceph-osd, radosgw and ceph-common (Debian 12: Ceph 16.2; Debian 13: 18.2). Works as root, without systemd.
set -euo pipefail

for program in ceph ceph-mon ceph-osd monmaptool radosgw radosgw-admin; do
    if ! command -v $program >/dev/null; then
        echo "$0 needs $program: apt-get install ceph-mon ceph-osd radosgw ceph-common" >&2
        exit 1
    fi
done

directory=$(mkdir -p "$1" && cd "$1" && pwd)
day=${2:--1} # -1: days are days
here=127.0.0.1

# A port below those that the system hands out to clients, so that nobody gets it by chance.
free_port() {
    python3 - <<'PYTHON'
import random, socket
while True:
    port = random.randrange(20_000, 32_000)
    with socket.socket() as it:
        try:
            it.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
PYTHON
}
monitor=$here:$(free_port)
port=$(free_port)
cluster=$(cat /proc/sys/kernel/random/uuid)

# Why what is not a default:
#   auth_* none         nothing but loopback reaches it; radosgw then hangs for ever unless ms_mon_client_mode is crc
#   paxos_propose_...   the default second makes the start slow
#   osd_pg_log_*, pool  a log of a few entries and pools of four groups without replicas: else the osd takes 800 MB
#   memstore            objects live in memory
#   tcp_nodelay         without it a body waits 40 ms for the acknowledgement of its head
cat >"$directory/ceph.conf" <<CONF
[global]
fsid = $cluster
mon_host = v2:$monitor
mon_data = $directory/mon
osd_data = $directory/osd
admin_socket =
pid_file =
run_dir = $directory
log_file = $directory/\$name.log
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
auth_supported = none
ms_bind_ipv4 = true
ms_bind_ipv6 = false
ms_bind_msgr1 = false
ms_mon_client_mode = crc
public_addr = $here
cluster_addr = $here
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
mon_data_avail_crit = 1
mon_osd_full_ratio = .99
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
rgw_rados_pool_pg_num_min = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = 4294967296
osd_min_pg_log_entries = 10
osd_max_pg_log_entries = 20
osd_pg_log_dups_tracked = 10
osd_class_load_list = *
osd_class_default_list = *
rgw_frontends = beast endpoint=$here:$port tcp_nodelay=1
rgw_lc_debug_interval = $day
rgw_enable_usage_log = false
rgw_enable_ops_log = false
debug_ms = 0
CONF
ceph=(ceph --conf "$directory/ceph.conf" --connect-timeout 20)

processes=()
stop() {
    trap - EXIT
    kill -KILL "${processes[@]}" 2>/dev/null || true # nothing of theirs is to be kept
    wait 2>/dev/null || true
}
trap stop EXIT
trap 'exit 143' TERM INT HUP

monmaptool --create --addv a "[v2:$monitor]" --fsid "$cluster" "$directory/monmap" >/dev/null
mkdir -p "$directory/mon" "$directory/osd"
ceph-mon --mkfs -i a --conf "$directory/ceph.conf" --monmap "$directory/monmap"
ceph-mon -f -i a --conf "$directory/ceph.conf" >"$directory/mon.out" 2>&1 &
processes+=($!)

osd=$(cat /proc/sys/kernel/random/uuid)
"${ceph[@]}" osd new "$osd" >/dev/null
ceph-osd -i 0 --mkfs --osd-uuid "$osd" --conf "$directory/ceph.conf" >"$directory/mkfs.out" 2>&1
ceph-osd -f -i 0 --conf "$directory/ceph.conf" >"$directory/osd.out" 2>&1 &
processes+=($!)

radosgw -f -n client.rgw --conf "$directory/ceph.conf" >"$directory/rgw.out" 2>&1 &
gateway=$!
processes+=("$gateway")

until (exec 3<>"/dev/tcp/$here/$port") 2>/dev/null; do
    if ! kill -0 "$gateway" 2>/dev/null || ((SECONDS > 60)); then
        tail -n 20 "$directory"/rgw.out "$directory"/*.log >&2
        exit 1
    fi
    sleep 0.05
done
radosgw-admin --conf "$directory/ceph.conf" -n client.rgw user create --uid=testing --display-name=testing \
    --access-key=testing --secret=testing >"$directory/user.out" 2>&1
echo "http://$here:$port"

# Until standard input ends, which it does with whoever holds its other end.
while read -r _; do :; done
