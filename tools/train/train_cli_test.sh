#!/bin/bash
# Tests the command line on a tiny model: output, exit codes, one line per error, ranks that die, signals, and that
# no process or file remains.
set -uo pipefail
train=$PWD/$1 launch=$PWD/$2
cd "$TEST_TMPDIR"
export XDG_CACHE_HOME=$TEST_TMPDIR/cache TMPDIR=$TEST_TMPDIR/tmp
mkdir -p cache tmp model
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

cat >model/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 32,
 "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "vocab_size": 264, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
 "tie_word_embeddings": false}
END
for i in $(seq 3000); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt
tiny="--model=$PWD/model --data=$PWD/text.txt --length=32 --batch=8 --strategy=all_reduce --sample_tokens=8 --warmup_steps=1"

# Prints the rank processes of a run directory. (grep does not match its own arguments.)
ranks_of() { grep -lz -- "$PWD/$1/[.]ranks" /proc/[0-9]*/cmdline 2>/dev/null | grep -o '[0-9]*'; }
expect_no_ranks() {
  [ -z "$(ranks_of "$1")" ] || fail "$1: ranks are left"
  [ ! -e "$1/.ranks" ] || fail "$1: files of ranks are left"
  ls "$1"/checkpoints/*.writing >/dev/null 2>&1 && fail "$1: half a checkpoint is left"
}
# Waits for a command to succeed while process $pid runs.
await() {
  local i
  for i in $(seq 600); do
    "$@" && return
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
  done
  fail "never: $*"
}
steps_in() { [ "$(wc -l <"$1/metrics.jsonl" 2>/dev/null || echo 0)" -ge "$2" ]; }
has_ranks() { [ "$(ranks_of "$1" | wc -l)" -ge "$2" ]; }
messages() { grep -c "^train: " err; }
losses() { grep -o '"loss": *[^,}]*' "$1/metrics.jsonl"; }
compare() {  # losses of two runs, within a relative tolerance
  python3 - "$@" <<'END' || fail "losses differ: $*"
import json, sys
a, b = ([json.loads(line) for line in open(name + "/metrics.jsonl")] for name in sys.argv[1:3])
assert [x["step"] for x in a] == [x["step"] for x in b] and a, (len(a), len(b))
worst = max(abs(x["loss"] - y["loss"]) / abs(y["loss"]) for x, y in zip(a, b))
assert worst <= float(sys.argv[3]), worst
END
}

# A run with all axes, ZeRO 3 and an offloaded optimizer: its output and files.
"$train" $tiny --strategy=adaptive --steps=8 --run_dir=whole >out 2>err || fail "a run: $(cat err)"
[ "$(messages)" = 1 ] || fail "on stderr: $(cat err)"
grep -q "^ *8/8 " err || fail "no table: $(cat err)"
grep -q "8 steps of 256 tokens" out || fail "no summary: $(cat out)"
grep -q "^checkpoint *$PWD/whole/checkpoints/step-00000008" out || fail "no checkpoint: $(cat out)"
grep -q "^The " out || fail "no sample: $(cat out)"
[ "$(wc -l <whole/metrics.jsonl)" = 8 ] || fail "metrics"
python3 - <<'END' || fail "result.json"
import json
result = json.load(open("whole/result.json"))
assert len(result["ranks"]) == 8 and len(result["steps"]) == 8
assert result["steps"][-1]["loss"] < result["steps"][0]["loss"]
END
expect_no_ranks whole

# The same run from its configuration gives the same bits with every engine and strategy.
"$train" --config=whole/config.json --run_dir=again --quiet >out 2>err || fail "again: $(cat err)"
[ ! -s err ] || fail "quiet, on stderr: $(cat err)"
[ "$(losses whole)" = "$(losses again)" ] || fail "the same mesh has other losses"
"$train" --config=whole/config.json --run_dir=threads --engine=in_process --verify >out 2>err ||
  fail "in_process: $(cat err)"
compare threads whole 0
grep -q "^verified: the losses of 8 steps on one rank differ by at most" out || fail "verify: $(cat out)"

# Prompts, which are random digits, are masked from the loss, so that only completions are learned. Without the mask the
# loss includes the prompts, which cannot be learned.
RANDOM=1
for i in $(seq 600); do
  printf '{"prompt": "%05d%05d%05d=", "completion": "always the same"}\n' $RANDOM $RANDOM $RANDOM
done >pairs.jsonl
pairs="--data=$PWD/pairs.jsonl --length=48 --learning_rate=0.006 --lr_schedule=constant --validation_fraction=0.1 --eval_batches=1"
"$train" $tiny $pairs --steps=8 --document_attention --verify --run_dir=pairs >out 2>err || fail "prompts on one rank: $(cat err)"
"$train" $tiny $pairs --steps=3 --document_attention --packing=whole --mesh=dp2,cp2 --verify --run_dir=whole_pairs >out 2>err || fail "whole pairs: $(cat err)"
"$train" $tiny $pairs --length=20 --steps=1 --packing=whole --run_dir=cut >out 2>err || fail "cut pairs: $(cat err)"
grep -q "600 of 600 documents have more than --length=20 tokens" err || fail "cut pairs are not counted: $(cat err)"
"$train" $tiny $pairs --steps=40 --eval_every=40 --run_dir=masked >out 2>err || fail "prompts: $(cat err)"
"$train" $tiny $pairs --steps=40 --eval_every=40 --mask_prompts=false --run_dir=unmasked >out 2>err || fail "without masks: $(cat err)"
# One more step, including prompts, from the weights that have learned only completions.
"$train" $tiny $pairs --steps=41 --mask_prompts=false --resume=masked/checkpoints --run_dir=shown >out 2>err || fail "resumed: $(cat err)"
"$train" $tiny $pairs --steps=42 --resume=masked/checkpoints --run_dir=longer --mesh=cp2,tp2 >out 2>err || fail "longer: $(cat err)"
python3 - <<'END' || fail "the losses of prompts and completions"
import json
masked, unmasked, shown, longer = ([json.loads(line) for line in open(name + "/metrics.jsonl")]
                                   for name in ("masked", "unmasked", "shown", "longer"))
losses = {"first": masked[0]["loss"], "masked": masked[-1]["loss"], "masked eval": masked[-1]["eval_loss"],
          "unmasked": unmasked[-1]["loss"], "unmasked eval": unmasked[-1]["eval_loss"], "shown": shown[0]["loss"],
          "longer": longer[0]["loss"]}
print(losses)
assert losses["masked"] < 0.3 and losses["masked eval"] < 0.3 and losses["longer"] < 0.3
assert losses["unmasked"] > 1 and losses["unmasked eval"] > 1
assert losses["shown"] > 1.5 * losses["unmasked"]
END

# A dry run only predicts.
"$train" $tiny --dry_run --run_dir=never >out 2>err || fail "dry run: $(cat err)"
[ -s out ] && [ ! -e never ] || fail "a dry run makes nothing but output"

# Bad usage: exit code 2, one line that names the flag, and no files.
expect_usage_error() {
  local named=$1
  shift
  "$train" $tiny --run_dir=never "$@" >out 2>err
  local code=$?
  [ $code = 2 ] || fail "$* exits with $code, not 2: $(cat err)"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr: $(cat err)"
  grep -qF -- "for example: ./bazelw run //tools/train -- --mesh=" err || fail "$* gave no example"
  grep -qF -- "$named" err || fail "$* did not name $named: $(cat err)"
  [ ! -e never ] || fail "$* made a run directory"
}
for bad in --mesh=dp2,xx2 --mesh=dp0 --batch=7 --engine=tin_cans --schedule=none --zero=4 --steps=x --strategy=hope \
    --offload=everything --model=nothing --data=missing.txt --dtype=fp4 --steps=-1 --unknown=1 --config=missing.json; do
  expect_usage_error "${bad%%=*}" "$bad"
done
expect_usage_error "--mesh" --mesh=tp3
expect_usage_error "--encrypt_data=true: encrypts the connections of Gloo; use --engine=auto" --encrypt_data
TESSERA_ENCRYPT_DATA=1 expect_usage_error "does not encrypt, as TESSERA_ENCRYPT_DATA=1 demands; use --engine=auto" --engine=mpi
TESSERA_ENCRYPT_DATA=yes expect_usage_error "TESSERA_ENCRYPT_DATA=yes: use 1 to encrypt" --engine=auto
expect_usage_error "--order=tp-dp" --mesh=dp2,pp2,tp2 --order=tp-dp
expect_usage_error "--eval_batches=1000" --eval_every=2 --validation_fraction=0.1 --eval_batches=1000
expect_usage_error "--resume" --resume=nowhere
expect_usage_error "--spike_factor=2: returns to checkpoints" --spike_factor=2
printf '{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "a", "chosen": "b"}\n' >pairs.jsonl
expect_usage_error "--data=pairs.jsonl: data file \"pairs.jsonl\", line 2: expected an object with the strings \"prompt\", \"chosen\"" \
  --objective=dpo --data=pairs.jsonl --mesh=dp1 --micro_batch=2
expect_usage_error "--objective=dpo: requires an even --micro_batch" --objective=dpo --mesh=dp1
expect_usage_error "--param_groups=norm:decay=0: the pattern \"norm\" matches no parameter; there are embedding.weight, head.norm.weight" \
  --param_groups=norm:decay=0
expect_usage_error "--batch_warmup=3:10: the first batch must be a divisor of --batch=8" --batch_warmup=3:10
printf '{"text": "a"}\n{"prompt": "b"}\n' >half.jsonl
expect_usage_error "--data=half.jsonl: data file \"half.jsonl\", line 2: expected the strings \"prompt\" and \"completion\"" \
  --data=half.jsonl
printf '{"messages": []}\n' >chat.jsonl
expect_usage_error "chat.jsonl\", line 1: \"messages\" need the template of a chat" --data=chat.jsonl
"$train" $tiny --engine=gloo --mesh=dp2 --steps=1 --run_dir=gloo1 >gloo.out 2>gloo.err && has_gloo=yes || has_gloo=
# More memory than any current machine has.
expect_usage_error "bytes) are available of the" --model=llama-70b --mesh=dp8 --batch=2048 --length=4096 --micro_batch=16
expect_usage_error "--force" --model=llama-70b --mesh=dp8 --batch=2048 --length=4096 --micro_batch=16
if [ -n "$has_gloo" ]; then
  RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=1 \
    expect_usage_error "its rank on this machine needs" --engine=gloo --model=llama-70b --mesh=dp2 --batch=2048 --length=4096 --micro_batch=16
  RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 \
    "$train" $tiny --engine=gloo --model=llama-70b --mesh=dp2 --batch=2048 --length=4096 --micro_batch=16 --run_dir=never >out 2>err
  [ $? = 2 ] && [ ! -s err ] && [ ! -e never ] || fail "only one rank of a host says that it has no room: $(cat err)"
fi
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 expect_usage_error "--mesh" --mesh=dp4
RANK=0 WORLD_SIZE=8 LOCAL_RANK=0 expect_usage_error "--max_restarts" --max_restarts=1
RANK=0 WORLD_SIZE=8 LOCAL_RANK=0 expect_usage_error "--engine" --engine=in_process
RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 expect_usage_error "--launcher=none" --mesh=dp4
RANK=0 WORLD_SIZE=2 expect_usage_error "TESSERA_LAUNCHER=none" --mesh=dp2
expect_usage_error "--launcher=pbs" --launcher=pbs
# Variables of an outer job that are not about this process.
alone() {
  local name=$1
  shift
  "$@" "$train" $tiny --mesh=dp2 --steps=1 --run_dir="outer_$name" >out 2>err || fail "$name: $(cat err)"
}
alone none env RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 TESSERA_LAUNCHER=none
alone shell env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1
alone batch env SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NNODES=1 SLURM_TASKS_PER_NODE=4
alone pty env SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=1
alone pod env RANK=0 WORLD_SIZE=1 MASTER_ADDR=pod-0 MASTER_PORT=23456 PET_NNODES=1 PET_NPROC_PER_NODE=auto PET_NODE_RANK=0
RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 "$train" $tiny --mesh=dp2 --steps=1 --launcher=none --run_dir=outer_flag >out 2>err ||
  fail "--launcher=none: $(cat err)"
"$train" $tiny --resume=latest >out 2>err
[ $? = 2 ] && grep -q -- "--run_dir" err || fail "the latest of nothing: $(cat err)"
cp -r again earlier
"$train" $tiny --run_dir=earlier >out 2>err
[ $? = 2 ] && grep -q -- "--resume=latest" err || fail "a directory with checkpoints: $(cat err)"
"$train" $tiny --seed=2 --steps=9 --resume=again/checkpoints --run_dir=never2 >out 2>err
[ $? = 2 ] && grep -q seed err && [ "$(wc -l <err)" = 1 ] || fail "a checkpoint of another run: $(cat err)"

# A failed run: exit code 1 and one line.
"$train" $tiny --run_dir=/proc/never >out 2>err
[ $? = 1 ] && grep -q -- "--run_dir=/proc/never" err && [ "$(wc -l <err)" = 1 ] || fail "unwritable: $(cat err)"
"$train" $tiny --engine=nccl >out 2>err
[ $? = 1 ] && grep -q "computes on the CPU" err && [ "$(wc -l <err)" = 1 ] || fail "nccl: $(cat err)"
"$train" $tiny --device=cuda >out 2>err
[ $? = 1 ] && grep -q -- "--device=cuda" err && [ "$(wc -l <err)" = 1 ] || fail "--device=cuda: $(cat err)"
expect_usage_error "--device" --device=cuda:x
# A prediction for GPUs does not need a GPU.
"$train" $tiny --device=cuda --dry_run >out 2>err || fail "a dry run for GPUs: $(cat err)"
grep -q "device memory of .*: .*\(no GPU is here to compare with\|has free: it fits\)" out &&
  grep -q "host memory of the .* that the .* has left: it fits" out || fail "a dry run for GPUs: $(cat out)"
"$train" $tiny --steps=3 --run_dir=eventless --tensorboard=/proc/never >out 2>err
[ $? = 1 ] && [ "$(grep -c -- "--tensorboard: /proc/never" err)" = 1 ] || fail "unwritable events: $(cat err)"
expect_no_ranks eventless

# kill -9 of a rank: all ranks end and one line names the killed rank.
"$train" $tiny --steps=100000 --run_dir=killed >out 2>err &
pid=$!
await steps_in killed 2
victim=$(ranks_of killed | shuf -n 1)
start=$SECONDS
kill -9 "$victim"
wait $pid
[ $? = 1 ] || fail "a killed rank is not 1"
[ $((SECONDS - start)) -le 5 ] || fail "a killed rank is noticed after $((SECONDS - start)) s"
grep -Eq "^train: rank [0-7] \(pid $victim\) was killed by SIGKILL after .*all ranks were ended" err ||
  fail "the killed rank is not named: $(cat err)"
[ "$(messages)" = 2 ] || fail "more than one message: $(cat err)"
expect_no_ranks killed

# With a restart the run continues from the checkpoint, with the losses of an undisturbed run.
"$train" $tiny --steps=100 --checkpoint_every=20 --run_dir=calm --quiet >out 2>err || fail "calm: $(cat err)"
"$train" $tiny --steps=100 --checkpoint_every=20 --keep_checkpoints=0 --run_dir=restarted --max_restarts=1 >out 2>err &
pid=$!
await test -e restarted/checkpoints/step-00000020
kill -9 "$(ranks_of restarted | shuf -n 1)"
wait $pid || fail "restart: $(cat err)"
grep -q "SIGKILL.*restart 1 of 1 on dp2,pp2,tp2 from $PWD/restarted/checkpoints/step-000000" err ||
  fail "no word of the restart: $(cat err)"
compare restarted calm 0
expect_no_ranks restarted

# A job with --min_dp that is killed before its first step (it measures costs first, for a second) continues with fewer
# data-parallel ranks and the same losses.
XDG_CACHE_HOME=$TEST_TMPDIR/cold "$train" $tiny --strategy=adaptive --steps=8 --run_dir=elastic --max_restarts=1 --min_dp=1 >out 2>err &
pid=$!
await has_ranks elastic 8
kill -9 "$(ranks_of elastic | shuf -n 1)"
wait $pid || fail "elastic: $(cat err)"
grep -q "restart 1 of 1 on pp2,tp2 from the beginning" err || fail "elastic: $(cat err)"
compare elastic whole 1e-5

# Resumes the run on other meshes after step 20.
"$train" $tiny --steps=30 --checkpoint_every=20 --run_dir=thirty --quiet >out 2>err || fail "thirty: $(cat err)"
for mesh in tp4 dp8 dp1; do
  mkdir -p "on_$mesh"
  cp thirty/metrics.jsonl "on_$mesh/"
  "$train" $tiny --mesh=$mesh --steps=30 --resume=thirty/checkpoints/step-00000020 --run_dir="on_$mesh" >out 2>err ||
    fail "resume on $mesh: $(cat err)"
  grep -q "10 steps of 256 tokens.*after step 20" out || fail "resume on $mesh: $(cat out)"
  compare "on_$mesh" thirty 1e-5
done
"$train" $tiny --steps=30 --run_dir=on_tp4 --resume=latest >out 2>err || fail "nothing left to do: $(cat err)"
# The same mesh gives the same bits, also in fp8, whose scales follow earlier steps.
for dtype in fp32 fp8; do
  "$train" $tiny --mesh=dp2,pp2,tp2 --dtype=$dtype --steps=9 --checkpoint_every=4 --keep_checkpoints=0 --run_dir=through_$dtype >out 2>err || fail "$dtype: $(cat err)"
  "$train" $tiny --mesh=dp2,pp2,tp2 --dtype=$dtype --steps=9 --resume=through_$dtype/checkpoints/step-00000004 --run_dir=resumed_$dtype \
    >out 2>err || fail "$dtype: $(cat err)"
  for file in through_$dtype/checkpoints/step-00000009/*.state; do
    cmp "$file" "resumed_${file#through_}" || fail "$dtype: a resumed run has other weights"
  done
done
# Without --dtype a run has the type of its checkpoint; another type is converted, and a line says so. Changed moments are refused before
# ranks start, and a changed learning rate is said.
"$train" $tiny --dtype=bf16 --steps=4 --run_dir=narrow >out 2>err || fail "narrow: $(cat err)"
"$train" $tiny --steps=6 --resume=narrow --run_dir=follows >out 2>err || fail "dtype of the checkpoint: $(cat err)"
grep -q '"dtype": *"bf16"' follows/config.json || fail "dtype of the checkpoint: $(grep dtype follows/config.json)"
grep -q "weights of .* are bf16" err && fail "nothing is converted: $(cat err)"
grep -q "the learning rate of step 5 is .* it would be " err || fail "learning rate: $(cat err)"
"$train" $tiny --dtype=fp32 --steps=4 --resume=narrow --run_dir=wide >out 2>err || fail "converted weights: $(cat err)"
grep -q -- "--dtype=fp32: the weights of .*narrow/checkpoints/step-00000004 are bf16; .*nothing is rounded" err || fail "converted: $(cat err)"
"$train" $tiny --moments=int8 --steps=6 --resume=narrow --run_dir=never3 >out 2>err
[ $? = 2 ] && grep -q "its moments are f32.*give --moments=f32" err && [ ! -e never3 ] || fail "other moments: $(cat err)"
# Metrics as CSV, and for TensorBoard, of a run that is resumed.
outputs="--metrics=$PWD/table.csv --tensorboard=$PWD/events --checkpoint_every=2 --run_dir=outputs"
"$train" $tiny $outputs --mesh=dp2 --steps=3 >out 2>err || fail "outputs: $(cat err)"
"$train" $tiny $outputs --mesh=dp2 --steps=5 --resume=outputs/checkpoints/step-00000002 >out 2>err || fail "resumed outputs: $(cat err)"
[ "$(cut -d, -f1 table.csv | tr '\n' ' ')" = "step 0 1 2 3 4 " ] || fail "CSV: $(cat table.csv)"
[ "$(ls events | grep -c '^events[.]out[.]tfevents[.]')" = 2 ] || fail "event files: $(ls events)"
# The file for Prometheus: while the run goes on, after a short run, and where it cannot be written.
mkdir collected
collected=$PWD/collected/train.prom
env --default-signal "$train" $tiny --mesh=dp2 --steps=100000 --run_dir=scraped --prometheus_file="$collected" >out 2>err &
pid=$!
await grep -qs "^tessera_train_loss [0-9]" "$collected"
kill -TERM $pid
wait $pid
[ $? = 143 ] || fail "SIGTERM of a run with a file for Prometheus: $(cat err)"
mkdir collected2
"$train" $tiny --mesh=dp2 --steps=2 --run_dir=scraped2 --prometheus_file=collected2/train.prom >out 2>err || fail "Prometheus: $(cat err)"
grep -q "^tessera_train_steps_done 2$" collected2/train.prom || fail "the file for Prometheus: $(cat collected2/train.prom)"
[ "$(ls collected2)" = train.prom ] || fail "files beside that for Prometheus: $(ls collected2)"
for bad in none/train.prom /proc/train.prom; do
  expect_usage_error "--prometheus_file=$bad: cannot make a new file beside" --prometheus_file="$bad"
  grep -qF "; give a file in an existing, writable directory" err || fail "--prometheus_file=$bad: $(cat err)"
done
expect_usage_error "--prometheus_file=train.txt: must end in .prom" --prometheus_file=train.txt
# Outputs that cannot be written are found before the run, which may write them last.
for flag in metrics html trace; do
  expect_usage_error "--$flag=none/file: cannot make a new file beside" --$flag=none/file
  expect_usage_error "--$flag=collected: is a directory; give a file" --$flag=collected
done
expect_usage_error "--tensorboard=text.txt/events: \"$PWD/text.txt\" is not a directory" --tensorboard=text.txt/events
"$train" $tiny --mesh=dp2 --steps=1 --run_dir=inside/run --metrics=inside/run/m.jsonl --html=inside/run/../run/page.html >out 2>err ||
  fail "outputs in a new run directory: $(cat err)"
[ -s inside/run/m.jsonl ] && [ -s inside/run/page.html ] || fail "outputs in a new run directory: $(ls inside/run)"
# Names that are not UTF-8 reach all ranks, and what is JSON stays valid.
name=$(printf 'caf\351 50%%')
mkdir "$name"
cp text.txt "$name/text.txt"
"$train" $tiny --data="$name/*.txt" --mesh=dp2 --steps=2 --run_dir="$name/run" --metrics="$name/m.jsonl" --save_hf="$name/hf" \
  --format=json >out 2>err || fail "a name that is not UTF-8: $(cat err)"
"$train" --config="$name/run/config.json" --resume=latest --steps=3 --save_hf= --sample_tokens=0 --format=json >resumed 2>err ||
  fail "a resumed run whose name is not UTF-8: $(cat err)"
[ -s "$name/hf/model.safetensors" ] && [ "$(wc -l <"$name/m.jsonl")" = 3 ] || fail "outputs whose name is not UTF-8: $(ls "$name")"
python3 - out resumed "$name/run/config.json" "$name/run/result.json" <<'END' || fail "JSON of a run whose name is not UTF-8"
import json, sys
for file in sys.argv[1:]:
    json.load(open(file, encoding="utf-8"))
END
held="--eval_every=2 --eval_batches=1 --validation_fraction=0.1"
"$train" $tiny $held --steps=2 --checkpoint_every=2 --run_dir=held >out 2>err || fail "validation: $(cat err)"
"$train" $tiny $held --mesh=dp2 --order=auto --steps=4 --run_dir=held --resume=latest >out 2>err ||
  fail "resume with validation: $(cat err)"
grep -q "^validation loss .* after step 4" out || fail "resume with validation: $(cat out)"

# An emulated device gives the losses of the processor, bit for bit, and the same checkpoint.
for device in cpu emulated; do
  "$train" $tiny --mesh=dp2,pp2,tp2 --steps=4 --checkpoint_every=2 --keep_checkpoints=0 --device=$device --run_dir=device_$device >out 2>err ||
    fail "--device=$device: $(cat err)"
done
python3 - <<'END' || fail "an emulated device has other losses"
import json
runs = [[json.loads(line) for line in open(f"device_{device}/metrics.jsonl")] for device in ("cpu", "emulated")]
assert len(runs[0]) == 4 and all(a["loss"] == b["loss"] and a["grad_norm"] == b["grad_norm"] for a, b in zip(*runs)), runs
END
for file in device_cpu/checkpoints/step-*/*.state; do
  cmp "$file" "device_emulated/${file#device_cpu/}" || fail "an emulated device has another checkpoint"
done

# Signals: the exit code is 128 + n, and only complete checkpoints remain.
for signal in INT TERM; do
  env --default-signal "$train" $tiny --steps=100000 --checkpoint_every=5 --run_dir=sig$signal >out 2>err &
  pid=$!
  await test -e sig$signal/checkpoints/step-00000005
  kill -$signal $pid
  wait $pid
  code=$?
  [ $code = $((128 + $(kill -l $signal))) ] || fail "SIG$signal gives $code"
  grep -q "train: ended by SIG$signal" err && grep -q -- "--resume=latest" err || fail "SIG$signal: $(cat err)"
  expect_no_ranks sig$signal
  ls -d sig$signal/checkpoints/step-000* >/dev/null || fail "SIG$signal took the checkpoints"
done
# If there is no checkpoint, no temporary directory remains either.
rm -rf tmp/*
env --default-signal "$train" $tiny --steps=100000 >out 2>err &
pid=$!
await grep -q "tokens/s" err
kill -INT $pid
wait $pid
[ -z "$(ls tmp)" ] || fail "SIGINT leaves $(ls tmp)"
# After kill -9 of the command, its ranks end too.
"$train" $tiny --steps=100000 --run_dir=orphans >out 2>err &
pid=$!
await steps_in orphans 1
{ kill -9 $pid; wait $pid; } 2>/dev/null
for i in $(seq 50); do [ -z "$(ranks_of orphans)" ] && break; sleep 0.1; done
[ -z "$(ranks_of orphans)" ] || fail "kill -9 of the command leaves ranks"

# Simulates two hosts: two launchers, torchrun's variables, and sockets between all ranks.
if [ -n "$has_gloo" ]; then
  export TESSERA_JOB_SECRET=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  port=$((20000 + RANDOM % 20000))
  for node in 0 1; do
    "$launch" --np=2 --nnodes=2 --node_rank=$node --master_addr=127.0.0.1 --master_port=$port --output=raw -- \
      "$train" $tiny --engine=gloo --mesh=dp2,tp2 --steps=8 --run_dir=hosts >out$node 2>err$node &
    nodes[$node]=$!
  done
  wait "${nodes[0]}" && wait "${nodes[1]}" || fail "two hosts: $(cat err0 err1)"
  unset TESSERA_JOB_SECRET
  grep -q "8 steps of 256 tokens" out0 && [ ! -s out1 ] || fail "two hosts print: $(cat out0 out1)"
  compare hosts whole 1e-5
else
  grep -q "was built where no\|not built" gloo.err || fail "gloo: $(cat gloo.err)"
fi
exit $((failures > 0))
