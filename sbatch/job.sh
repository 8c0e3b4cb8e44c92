# One start of a run's job: its folder, its tools as Slurm steps or plain processes, and what becomes of them; sourced
# after env.sh by scripts that keep tools running.
#
# Reads: SLIME_MAX_RESTARTS (3: starts of one tool again without progress), SLIME_MAX_FRUITLESS (3: starts of a job again
#        without a new checkpoint), SLIME_REQUEUE (0: never put the job back into the queue), SLIME_DRAIN_S (900: how
#        long tools may take to drain when one has failed), SLIME_SILENT_S (600: how long a tool may not be heard of),
#        SLIME_LOOK_S (15: how often that is looked at), SLIME_MPI (pmix: how srun starts ranks)
# shellcheck shell=bash disable=SC2154
# By role: process, starts without progress, progress at the last start, options of the launcher; by note: its last
# text, and when that was new.
declare -A pids=() starts=() lives=() places=() heard=() heard_at=()
code=0
is_asked=0
is_ending=0
timer=

# progress FOLDER NAME: the newest numbered name in a folder of the run that has NAME in it.
progress() {
    local newest=none path
    for path in "$run/$1"/[0-9]*/"$2"; do
        [ -e "$path" ] && newest=${path%/"$2"} && newest=${newest##*/}
    done
    echo "${newest%%.*}"
}

# setting SECTION KEY: a value of the resolved configuration.
setting() { sed -n "/^\[$1\]\$/,/^\[/s/^$2 = \"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" "$run/run.toml"; }

# Makes the folder of this start in $attempts, attempt-0 and on, unless another job works on the run or this one gets nowhere.
begin_attempt() {
    local newest=-1 n other state fruitless=0
    for attempt in "$attempts"/attempt-*; do
        n=${attempt##*-}
        if [ -d "$attempt" ] && [ "$n" -gt "$newest" ] 2>/dev/null; then newest=$n; fi
    done
    checkpoint=$(progress checkpoint COMPLETE)
    if [ "$in_slurm" = 1 ]; then
        other=$(sed -n 's/^SLURM_JOB_ID=//p' "$attempts/attempt-$newest/env.txt" 2>/dev/null || true)
        if [ -n "$other" ] && [ "$other" != "$SLURM_JOB_ID" ]; then
            state=$(squeue -h -j "$other" -o %T 2>/dev/null || true)
            case $state in RUNNING | COMPLETING | SUSPENDED)
                die 73 "job $other is $state on $run" "wait for it, 'scancel $other', or choose another SLIME_RUN_DIR" ;;
            esac
        fi
        for ((n = newest; n >= 0; n--)); do
            grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID" "$attempts/attempt-$n/env.txt" 2>/dev/null || break
            [ "$(cat "$attempts/attempt-$n/checkpoint" 2>/dev/null)" = "$checkpoint" ] || break
            fruitless=$((fruitless + 1))
        done
        if [ "$fruitless" -ge "${SLIME_MAX_FRUITLESS:-3}" ]; then
            echo failed >"$attempts/attempt-$newest/outcome"
            die 75 "$fruitless starts of this job reached no checkpoint after $checkpoint; it is not started again" \
                "a step and its checkpoint must fit into the time limit ($(squeue -h -j "$SLURM_JOB_ID" -o %l 2>/dev/null)): more --time, smaller steps, or a smaller checkpoint.interval"
        fi
    fi
    # Two starts at once get two folders: mkdir makes a name once.
    n=$((newest + 1))
    until mkdir "$attempts/attempt-$n" 2>/dev/null; do
        [ -d "$attempts/attempt-$n" ] || die 73 "cannot make $attempts/attempt-$n" "is the run directory writable from $(hostname)?"
        n=$((n + 1))
    done
    attempt=$attempts/attempt-$n
    mkdir "$attempt/log" "$attempt/rank"
    echo "$checkpoint" >"$attempt/checkpoint"
    env | grep -E '^(SLURM|SLIME|NCCL|CUDA|OMPI|OMP|UCX|FI|HDF5)_[A-Z_0-9]*=' | grep -v -i -E 'token|secret|password|_key=' |
        sort >"$attempt/env.txt" || true
    export SLIME_ATTEMPT_DIR=$attempt
    say "attempt $n of $run, from checkpoint $checkpoint"
}

# launch ROLE: starts (again) what command_of puts into `words`, where places[ROLE] says, in the background.
launch() {
    local role=$1 options words=() record
    for record in "$attempt/failed.$role" "$attempt/failed.$role".*; do
        [ ! -e "$record" ] || mv "$record" "$attempt/log/$(basename "$record").${starts[$role]:-0}"
    done
    starts[$role]=$((${starts[$role]:-0} + 1))
    lives[$role]="$(progress checkpoint COMPLETE) $(progress rollout MANIFEST.json)"
    command_of "$role"
    read -r -a options <<<"${places[$role]:-}"
    for note in "$attempt/rank/$role".*.json; do heard[$note]=old; done
    if [ "$in_slurm" = 1 ]; then
        srun "${options[@]}" "${container_of_step[@]}" --job-name="$role" --output="$attempt/log/$role.log" \
            --open-mode=append --mem=0 --kill-on-bad-exit=1 "${in_image[@]}" "${words[@]}" </dev/null &
    else
        "${options[@]}" "${in_image[@]}" "${words[@]}" </dev/null &
    fi
    pids[$role]=$!
}

# Every tool drains at its next step boundary: they, srun and mpirun all pass USR1 on.
drain() {
    is_asked=1
    [ ${#pids[@]} -eq 0 ] || kill -USR1 "${pids[@]}" 2>/dev/null || true
}

# Whether a code can be cured by starting again: a killed, hanging or unlucky tool, but no wrong input or setting.
is_curable() { case $1 in 69 | 71 | 74 | 124 | 12[89] | 1[3-9][0-9]) return 0 ;; *) return 1 ;; esac; }

# cause ROLE STATUS: the code of the rank that failed first, by its record. A launcher's own code tells little about many
# ranks: it may be that of one that was ended because another had failed. Without a record a rank was killed.
cause() {
    local first
    # shellcheck disable=SC2012
    first=$(ls -tr "$attempt/failed.$1" "$attempt/failed.$1".* 2>/dev/null | head -n 1)
    if [ -n "$first" ]; then
        sed -n '1s/^code //p' "$first"
    elif [ "$1" = trainer ] && [ "$train_ranks" -gt 1 ] && [ "$2" -lt 128 ]; then
        echo 137
    else
        echo "$2"
    fi
}

# ended ROLE STATUS: starts it again, or remembers why the job ends.
ended() {
    local role=$1 status=$2 now
    unset "pids[$role]"
    if [ -e "$run/control/done" ] && [ "$status" -eq 0 ]; then return; fi
    # Ranks drain with 0, and a signal may come before the tool can catch it: nothing was begun, which is a drain too.
    case $status in 0 | $((128 + $(kill -l USR1))) | $((128 + $(kill -l USR2)))) status=75 ;; esac
    if [ "$status" -eq 75 ]; then
        [ "$code" -ne 0 ] || code=75
        [ "$is_asked" = 1 ] || drain # its partners would wait for it
        return
    fi
    status=$(cause "$role" "$status")
    now="$(progress checkpoint COMPLETE) $(progress rollout MANIFEST.json)"
    [ "$now" = "${lives[$role]}" ] || starts[$role]=1
    if [ "$is_asked" = 0 ] && is_curable "$status" && [ "${starts[$role]}" -le "${SLIME_MAX_RESTARTS:-3}" ]; then
        say "$role ended with code $status; starting it again (${starts[$role]} of ${SLIME_MAX_RESTARTS:-3} without progress)"
        launch "$role"
        return
    fi
    say "$role failed with code $status"
    # What crashed or was killed left no word of its own.
    if ! compgen -G "$attempt/failed.$role*" >/dev/null; then
        printf 'code %s\n%s: killed or crashed; see log/%s.log\n' "$status" "$role" "$role" >"$attempt/failed.$role"
    fi
    # A failure says more than the drain of its partners, which without it would wait for ever.
    case $code in 0 | 75) code=$status ;; esac
    is_ending=$SECONDS
    drain
}

# Ends what has not been heard of for too long, and what does not drain when another tool has failed.
look_after() {
    local role note text
    for role in "${!pids[@]}"; do
        for note in "$attempt/rank/$role".*.json; do
            text=$(cat "$note" 2>/dev/null || true)
            if [ "$text" != "${heard[$note]:-}" ] && [ "${heard[$note]:-}" != old ]; then
                heard[$note]=$text
                heard_at[$note]=$SECONDS
            elif [ "${heard[$note]:-}" != old ] && [ $((SECONDS - ${heard_at[$note]:-$SECONDS})) -ge "${SLIME_SILENT_S:-600}" ]; then
                say "$role has not been heard of for ${SLIME_SILENT_S:-600} s ($(basename "$note")): ending it"
                heard[$note]=old
                kill -KILL "${pids[$role]}" 2>/dev/null || true
            fi
        done
    done
    # A step that was only starting may have missed the wish.
    [ "$is_asked" = 0 ] || drain
    if [ "$is_ending" != 0 ] && [ $((SECONDS - is_ending)) -ge "${SLIME_DRAIN_S:-900}" ]; then
        say "still running after ${SLIME_DRAIN_S:-900} s: ending ${!pids[*]}"
        # The first TERM asks once more, the second ends; srun ends its step at the first.
        kill -TERM "${pids[@]}" 2>/dev/null || true
        kill -TERM "${pids[@]}" 2>/dev/null || true
    fi
}

# Waits until all tools have ended; `code` says how.
supervise() {
    local role status
    while [ ${#pids[@]} -gt 0 ]; do
        if [ -z "$timer" ] || ! kill -0 "$timer" 2>/dev/null; then
            [ -z "$timer" ] || look_after
            sleep "${SLIME_LOOK_S:-15}" &
            timer=$!
        fi
        wait -n "${pids[@]}" "$timer" 2>/dev/null || true # a trapped signal ends this wait too
        for role in "${!pids[@]}"; do
            if kill -0 "${pids[$role]}" 2>/dev/null; then continue; fi
            status=0
            wait "${pids[$role]}" || status=$?
            ended "$role" "$status"
        done
    done
    kill "$timer" 2>/dev/null || true
}

# Says how the attempt ended, puts a drained job back into the queue, and ends the script.
end_attempt() {
    local outcome failure
    if [ -e "$run/control/done" ]; then
        outcome="done" code=0
    elif [ "$code" -eq 75 ] || [ "$code" -eq 0 ]; then
        outcome=drained code=75
        # Somebody wanted it so: the job has done what it should.
        if [ -e "$run/control/stop" ]; then outcome=stopped code=0; fi
    else
        outcome=failed
        for failure in "$attempt"/failed.*; do
            [ -e "$failure" ] && say "$(basename "$failure"): $(tr '\n' ' ' <"$failure")"
        done
    fi
    printf '%s\n' "$outcome" >"$attempt/.outcome.tmp" && mv "$attempt/.outcome.tmp" "$attempt/outcome"
    say "outcome: $outcome"
    # A job that is being cancelled, or that Slurm puts back by itself, is not RUNNING any more.
    if [ "$outcome" = drained ] && [ "$in_slurm" = 1 ] && [ "${SLIME_REQUEUE:-1}" != 0 ] && [ "${is_terminated:-0}" = 0 ] &&
        [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T 2>/dev/null)" = RUNNING ]; then
        say "back into the queue"
        scontrol requeue "$SLURM_JOB_ID" || say "the queue does not take it; 'sbatch' again goes on from here"
    fi
    exit "$code"
}
