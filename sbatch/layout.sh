# Where each role of the loop runs: fills `places` with the options of srun, or of mpirun on a workstation; sourced by
# loop.sh. A replica is a world of its own; the trainer is one world.
# shellcheck shell=bash disable=SC2154,SC2034
train_ranks=${SLIME_TRAIN_RANKS:-}
# An engine may be over several ranks; who replays recorded responses or asks servers has none.
replica_ranks=$(setting rollout tp)
replica_ranks=${replica_ranks:-1}
case $(setting data kind) in prompts | "") ;; *) replica_ranks=1 ;; esac
[ ${#engines[@]} -eq 0 ] || replica_ranks=1
if [ "$in_slurm" = 0 ]; then
    train_ranks=${train_ranks:-1}
    if [ "$train_ranks" -gt 1 ]; then
        command -v mpirun >/dev/null || die 69 "SLIME_TRAIN_RANKS is $train_ranks, but there is no mpirun" "'module load openmpi', or 1"
        places[trainer]="mpirun -n $train_ranks"
    fi
    if [ "$replica_ranks" -gt 1 ]; then
        command -v mpirun >/dev/null || die 69 "rollout.tp is $replica_ranks, but there is no mpirun" "'module load openmpi', or 1"
    fi
    # Of several GPUs the trainer's ranks take the first, replicas the last.
    num_gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)
    for ((i = 0; i < num_replicas; i++)); do
        place=
        if [ "$num_gpus" -gt 1 ] && [ -z "${CUDA_VISIBLE_DEVICES:-}" ]; then
            devices=()
            for ((j = 0; j < replica_ranks; j++)); do devices+=($((num_gpus - 1 - (i * replica_ranks + j) % num_gpus))); done
            place="env CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${devices[*]}")"
        fi
        if [ "$replica_ranks" -gt 1 ]; then place="$place mpirun -n $replica_ranks"; fi
        places[replica.$i]=$place
    done
    if [ "$num_replicas" = 1 ]; then places[builder.0]=${places[replica.0]}; fi
    return 0
fi

# names GROUP: the hosts of a heterogeneous job's component, or of the job.
names() {
    local list=SLURM_JOB_NODELIST_HET_GROUP_$1
    scontrol show hostnames "${!list:-$SLURM_JOB_NODELIST}"
}
mapfile -t nodes < <(names 0)
group=() rollout_group=() reward_group=()
if [ "${SLURM_HET_SIZE:-1}" -gt 1 ]; then
    group=(--het-group=0) rollout_group=(--het-group=1) reward_group=(--het-group=$((SLURM_HET_SIZE > 2 ? 2 : 0)))
    num_train_nodes=${#nodes[@]} first_rollout_node=0
    mapfile -t rollout_nodes < <(names 1)
    num_rollout_nodes=${#rollout_nodes[@]}
    nodes+=("${rollout_nodes[@]}")
    if [ "$SLURM_HET_SIZE" -gt 2 ] && [ "$num_workers" = 0 ]; then
        say "warning: the third component idles: rewards are computed elsewhere (reward.placement = \"separate\" gives it work)"
    fi
elif [ ${#engines[@]} -gt 0 ]; then
    # Servers generate elsewhere: the trainer has all nodes, and who asks them needs little.
    num_train_nodes=${#nodes[@]} num_rollout_nodes=1 first_rollout_node=0
elif [ ${#nodes[@]} -eq 1 ]; then
    num_train_nodes=1 num_rollout_nodes=1 first_rollout_node=0
else
    num_rollout_nodes=${SLIME_ROLLOUT_NODES:-$((${#nodes[@]} / 2))}
    num_train_nodes=$((${#nodes[@]} - num_rollout_nodes)) first_rollout_node=$((${#nodes[@]} - num_rollout_nodes))
    { [ "$num_rollout_nodes" -ge 1 ] && [ "$num_train_nodes" -ge 1 ]; } ||
        die 78 "SLIME_ROLLOUT_NODES is $num_rollout_nodes of ${#nodes[@]} nodes" "leave at least one node for the trainer and one for replicas"
fi
num_gpus=${SLIME_GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-0}}
is_shared=0
if [ ${#nodes[@]} -eq 1 ]; then is_shared=1; fi
replica_gpus=$((num_gpus > 0 && ${#engines[@]} == 0 ? ${SLIME_REPLICA_GPUS:-$replica_ranks} : 0))
replicas_a_node=$(((num_replicas + num_rollout_nodes - 1) / num_rollout_nodes))
engine_ranks_a_node=$((replicas_a_node * replica_ranks))
if [ -z "$train_ranks" ]; then
    if [ "$is_shared" = 1 ]; then train_ranks=1; else train_ranks=$((num_train_nodes * (num_gpus > 0 ? num_gpus : 1))); fi
fi
ranks_a_node=$(((train_ranks + num_train_nodes - 1) / num_train_nodes))
if [ "$num_gpus" -gt 0 ] && [ "${SLIME_COLOCATE:-0}" = 0 ]; then
    wanted=$((replicas_a_node * replica_gpus))
    [ "$is_shared" = 0 ] || wanted=$((wanted + ranks_a_node))
    { [ "$wanted" -le "$num_gpus" ] && [ "$ranks_a_node" -le "$num_gpus" ]; } ||
        die 78 "too few GPUs: a node has $num_gpus, $ranks_a_node ranks of the trainer and $replicas_a_node replicas of $replica_gpus want more" \
            "more --nodes or --gpus-per-node, fewer SLIME_TRAIN_RANKS or rollout.num_replicas, or SLIME_COLOCATE=1"
fi
# A node's cores are shared among its main tasks; where there are too few, or on wish, they take turns.
tasks_a_node=$((is_shared == 1 ? ranks_a_node + engine_ranks_a_node : (ranks_a_node > engine_ranks_a_node ? ranks_a_node : engine_ranks_a_node)))
num_cpus=$((${SLURM_CPUS_ON_NODE:-1} / tasks_a_node))
sharing=(--exact --cpus-per-task="$num_cpus")
if [ "$num_cpus" -lt 1 ] || [ "${SLIME_COLOCATE:-0}" = 1 ]; then
    # Steps that overlap get the same GPUs.
    [ "$num_gpus" -eq 0 ] || [ "${SLIME_COLOCATE:-0}" = 1 ] ||
        die 78 "too few cores: the job has ${SLURM_CPUS_ON_NODE:-1} on a node for $tasks_a_node tasks" "--cpus-per-task=8, or --exclusive"
    sharing=(--overlap --cpus-per-task=1 --overcommit)
fi
gpus() {
    [ "$num_gpus" -gt 0 ] || return 0
    # Ranks of a step see all its GPUs: peers that cannot see each other's talk through memory of the host.
    if [ "$1" -gt 0 ]; then echo "--gpus-per-node=$1 --gpu-bind=none"; else echo --gpus-per-node=0; fi
}
train_gpus=$((ranks_a_node < num_gpus ? ranks_a_node : num_gpus))

mpi=none
if [ "$train_ranks" -gt 1 ]; then mpi=${SLIME_MPI:-pmix}; fi
labels=()
if [ "$train_ranks" -gt 1 ]; then labels=(--label); fi
places[trainer]="${group[*]} --mpi=$mpi ${labels[*]} ${sharing[*]} --relative=0 --nodes=$num_train_nodes --ntasks=$train_ranks --distribution=block $(gpus "$train_gpus")"
rollout_sharing=("${sharing[@]}")
# Who only asks servers takes turns with the ranks of the trainer.
if [ ${#engines[@]} -gt 0 ]; then rollout_sharing=(--overlap --cpus-per-task=1); fi
mpi=none labels=()
if [ "$replica_ranks" -gt 1 ]; then mpi=${SLIME_MPI:-pmix} labels=(--label); fi
for ((i = 0; i < num_replicas; i++)); do
    places[replica.$i]="${rollout_group[*]} --mpi=$mpi ${labels[*]} ${rollout_sharing[*]} --relative=$((first_rollout_node + i % num_rollout_nodes)) --nodes=1 --ntasks=$replica_ranks $(gpus "$replica_gpus")"
done
# The builder and the rewards need no GPU and little time: they run beside the trainer, or where the job has a place.
places[builder.0]="${group[*]} --mpi=none --overlap --cpus-per-task=1 --relative=0 --nodes=1 --ntasks=1 $(gpus 0)"
if [ "$num_replicas" = 1 ]; then places[builder.0]=${places[replica.0]}; fi
for ((i = 0; i < num_workers; i++)); do
    places[reward.$i]="${reward_group[*]} --mpi=none --overlap --cpus-per-task=1 --relative=0 --nodes=1 --ntasks=1 $(gpus 0)"
done
choose_network "${nodes[-1]}"
