# the tools run from an image: SLIME_CONTAINER through apptainer, drained and requeued
# shellcheck shell=bash disable=SC1010,SC2012,SC2015,SC2016,SC2154
# slow
command -v apptainer >/dev/null || PATH=$here/shim:$PATH
image=${SLIME_TEST_IMAGE:-}
if [ -z "$image" ]; then
    [ -e "$SLIME_HOME/modules/rootfs.sh" ] && [ "$(id -u)" -eq 0 ] || skip "SLIME_TEST_IMAGE names no image"
    image=$PWD/root
    bash "$SLIME_HOME/modules/rootfs.sh" "$image"
fi
tiny run run.num_steps=1000000
(
    unset SLIME_BIN # the image has its own tools
    export PATH SLIME_CONTAINER=$image SLIME_BINDS=$PWD:$PWD
    command sbatch --parsable --time=20 --output="$PWD/%x-%j.out" "$sbatch/loop.sh" "$config" >job.txt
)
job=$(cat job.txt)
jobs+=("$job")
until_true 120 "a step" step_is_committed 2
grep -q "$image" "$run/attempt-0/env.txt" || fail "not from the image"
scancel --signal=USR2 "$job"
until_true 120 "the next start" test -d "$run/attempt-1"
outcome 0 drained
touch "$run/control/stop"
ends "$job" COMPLETED
outcome 1 stopped
