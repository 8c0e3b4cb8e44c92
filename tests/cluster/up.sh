#!/usr/bin/env bash
# Brings up a real Slurm on this one machine: one controller, a daemon for each of several pretended nodes, munge.
#
#   bash tests/cluster/up.sh DIR [NODES [GPUS]]     then: export SLURM_CONF=DIR/slurm.conf
#
# Everything lies below DIR; `down.sh DIR` ends it and leaves nothing. Nodes are pretended: 64 cores each whatever the
# machine has, GPUs that are null devices, own host names and a folder DIR/local that each
# has for itself (namespaces), all on the loopback.
# Needs:  root; slurmctld, slurmd, munged (Debian: slurm-wlm, munge)
# Exit:   0, 69 when something is missing or does not come up
set -euo pipefail
dir=${1:?usage: up.sh DIR [NODES [GPUS]]} num_nodes=${2:-4} num_gpus=${3:-0}
die() { echo "up: error: $1" >&2; exit 69; }
[ "$(id -u)" -eq 0 ] || die "only root can start slurmd for other users' jobs"
for program in slurmctld slurmd munged sbatch unshare; do command -v "$program" >/dev/null || die "no $program"; done

mkdir -p "$dir"/{log,pid,state,dev,local}
chmod 755 "$dir"
# The ports of a controller and its nodes, below those the kernel hands out.
port=$((16000 + $$ % 80 * 100))
host=$(hostname -s)
cat >"$dir/slurm.conf" <<CONF
ClusterName=pretended
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# Credentials that live short let a requeued job start at once.
AuthInfo=socket=$dir/munge.socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
# Each node its own: the PMIx plug-in makes a folder of one name for a step there.
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/pid/slurmctld
SlurmdPidFile=$dir/pid/slurmd-%n
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/jobs
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=5
MinJobAge=3600
MailProg=/bin/true
NodeName=node[1-$num_nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1))-$((port + num_nodes)) CPUs=64 RealMemory=64000 State=UNKNOWN$([ "$num_gpus" -eq 0 ] || echo " Gres=gpu:$num_gpus")
PartitionName=main Nodes=ALL Default=YES MaxTime=1-0 DefaultTime=30 PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=1-0 DefaultTime=30 PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
CONF
: >"$dir/gres.conf"
echo "# no control groups: the nodes are pretended" >"$dir/cgroup.conf"
for ((n = 1; n <= num_nodes; n++)); do
    mkdir -p "$dir/spool/node$n" "$dir/tmp/node$n"
    chmod 1777 "$dir/tmp/node$n"
    for ((gpu = 0; gpu < num_gpus; gpu++)); do mknod "$dir/dev/node$n-gpu$gpu" c 1 3; done
    [ "$num_gpus" -eq 0 ] || echo "NodeName=node$n Name=gpu File=$dir/dev/node$n-gpu[0-$((num_gpus - 1))]" >>"$dir/gres.conf"
done
export SLURM_CONF=$dir/slurm.conf

(umask 077 && head -c 128 /dev/urandom >"$dir/munge.key")
munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/pid/munged" \
    --log-file="$dir/log/munged" --seed-file="$dir/munge.seed" || die "munged: see $dir/log/munged"
slurmctld || die "slurmctld: see $dir/log/slurmctld"
for ((n = 1; n <= num_nodes; n++)); do
    unshare --uts --mount sh -c "hostname node$n && mount -t tmpfs local '$dir/local' && exec slurmd -N node$n" || die "slurmd: see $dir/log/slurmd-node$n"
done
for ((look = 0; look < 300; look++)); do
    if [ "$(sinfo -h -N -p main -t idle -o %N 2>/dev/null | wc -l)" -eq "$num_nodes" ]; then exit 0; fi
    sleep 0.1
done
sinfo -N >&2 || true
die "not all nodes came up; see $dir/log"
