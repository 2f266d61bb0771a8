#!/bin/bash
# Tests that a tiny run under MPI, started by the command itself and by mpirun, gives the losses of a run over shared memory.
# train_mpi_test.sh FLAVOR TRAIN
set -uo pipefail
flavor=$1 train=$PWD/$2
work=$TEST_TMPDIR
# Open MPI creates sockets in TMPDIR, and their path must be short.
TMPDIR=$(mktemp -d /tmp/mpi.XXXXXX)
export TMPDIR HOME=${HOME:-$work} XDG_CACHE_HOME=$work/cache
trap 'rm -rf "$TMPDIR"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# Jobs in sandboxes with separate pid namespaces would share one file in /dev/shm.
export OMPI_MCA_btl_vader_backing_directory=$TMPDIR
cd "$work"
mkdir -p model
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
cat >model/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "vocab_size": 264, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false}
END
for i in $(seq 3000); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt
tiny="--model=$PWD/model --data=$PWD/text.txt --length=32 --batch=8 --strategy=all_reduce --sample_tokens=8 --mesh=dp2,tp2
  --steps=4 --warmup_steps=1"
case $flavor in
  openmpi) run=(mpirun.openmpi --mca btl self,vader,tcp -n 4) ;;
  mpich) run=(mpiexec.mpich -n 4) ;;
  *) echo "unknown MPI: $flavor"; exit 1 ;;
esac
compare() {
  python3 - "$@" <<'END' || fail "losses differ: $*"
import json, sys
a, b = ([json.loads(line) for line in open(name + "/metrics.jsonl")] for name in sys.argv[1:3])
assert [x["step"] for x in a] == [x["step"] for x in b] == [0, 1, 2, 3], (a, b)
assert all(abs(x["loss"] - y["loss"]) <= 1e-5 * abs(y["loss"]) for x, y in zip(a, b)), (a, b)
END
}

"$train" $tiny --run_dir=reference >out 2>err || fail "shared memory: $(cat err)"
"${run[@]}" "$train" $tiny --engine=mpi --run_dir=under_mpirun --verify >out 2>err || fail "mpirun: $(cat out err)"
compare under_mpirun reference
[ "$(grep -c '4 steps of 256 tokens' out)" = 1 ] || fail "rank 0 alone prints: $(cat out)"
grep -q "^verified" out || fail "no verification: $(cat out)"
"$train" $tiny --engine=mpi --run_dir=by_itself >out 2>err || fail "mpi by itself: $(cat out err)"
compare by_itself reference
# mpirun forwards SIGUSR1, after which the run ends with a checkpoint.
env --default-signal "$train" $tiny --engine=mpi --steps=100000 --run_dir=preempted >out 2>err &
pid=$!
while [ "$(wc -l 2>/dev/null <preempted/metrics.jsonl || echo 0)" -lt 2 ] && kill -0 $pid; do sleep 0.1; done
kill -TERM $pid
wait $pid
[ $? = 143 ] && grep -q "^train: ended by SIGTERM after the checkpoint $PWD/preempted/" err || fail "preempted: $(cat err)"
"${run[@]}" "$train" $tiny --engine=mpi --mesh=dp8 --run_dir=wrong >out 2>err && fail "4 ranks for a mesh of 8"
grep -q -- "--mesh=dp8: it has 8 ranks" err || fail "wrong mesh: $(cat err)"
exit $((failures > 0))
