#!/bin/bash
# Runs a command on a machine with two simulated hosts: the network namespaces host0 (10.77.0.1) and host1 (10.77.0.2), connected
# only by a virtual cable whose ends are called cable0 and cable1. RATE limits it (in tc's syntax). `ip netns exec host0 ...`
# runs something on a host. Ends with 99 if this user may not create namespaces.
#
#   unshare -Urnm --kill-child bash two_hosts.sh COMMAND...
export PATH=$PATH:/usr/sbin:/sbin
mount -t tmpfs none /run && mkdir /run/netns && ip netns add host0 && ip netns add host1 || exit 99
# So that lookups of names need no server.
printf '127.0.0.1 localhost\n10.77.0.1 host0\n10.77.0.2 host1\n' >/run/hosts && mount --bind /run/hosts /etc/hosts || exit 99
ip link add cable0 netns host0 type veth peer name cable1 netns host1 || exit 99
for i in 0 1; do
  ip -n host$i addr add 10.77.0.$((i + 1))/24 dev cable$i && ip -n host$i link set cable$i up &&
    ip -n host$i link set lo up || exit 99
  [ -z "${RATE:-}" ] || tc -n host$i qdisc add dev cable$i root tbf rate "$RATE" burst 256kb latency 100ms || exit 99
done
exec "$@"
