#!/bin/bash
# One jaxdp run over two hosts, started by hand: the same line on both, but for the number.
#
#   first$  bash two-hosts.sh 0 first:29400 train --config 1b --strategy hsdp --run-dir /shared/run
#   second$ bash two-hosts.sh 1 first:29400 train --config 1b --strategy hsdp --run-dir /shared/run
#
# `first` is the first host's name or address as the second one reaches it, 29400 any port that is free there. Each
# process drives all GPUs of its host. Both hosts need the same jaxdp, and for checkpoints a file system they share.
# For more hosts set HOSTS, and number them on.

set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: bash two-hosts.sh NUMBER FIRST_HOST:PORT COMMAND [OPTION ...]" >&2
    exit 2
fi
export JAXDP_PROCESS_ID=$1 JAXDP_COORDINATOR=$2 JAXDP_PROCESSES=${HOSTS:-2}
shift 2

# Firewalls must let the hosts reach each other on that port and on the high ports that NCCL and gloo choose.

# The interface for NCCL's TCP connections: left to itself it may take a container bridge or the slow network.
# `ip -brief address` lists them; a name matches by its beginning, and ^ leaves out: ^docker,lo.
#export NCCL_SOCKET_IFNAME=eth0

# The InfiniBand or RoCE adapters that belong to the GPUs: without it a storage adapter may be used as well.
# `ibdev2netdev` or `ls /sys/class/infiniband` lists them.
#export NCCL_IB_HCA=mlx5_0,mlx5_1

# RoCE only: the address table's entry for RoCE v2, often 3 (`show_gids`). A wrong one ends in timeouts.
#export NCCL_IB_GID_INDEX=3

# Where there are adapters but no working InfiniBand: use TCP, instead of failing at the first collective.
#export NCCL_IB_DISABLE=1

# What NCCL chose, a file for each process: look for "NET/IB" or "NET/Socket" there, and for the interface's name.
#export NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log

# On CPUs gloo listens where the host's own name leads. If that is 127.0.1.1 (see `getent hosts "$(hostname)"`), the
# other host cannot connect: give the name the real address in /etc/hosts.

exec jaxdp "$@"
