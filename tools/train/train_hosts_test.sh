#!/bin/bash
# Trains on two simulated hosts: network namespaces connected only by a virtual cable, with a launcher in each. Files are shared,
# as on a network file system. The test is skipped if this user may not create such namespaces or Gloo is not built.
#
# With arguments it measures instead how much of the weight gathers and gradient reductions overlaps with computation, with one rank
# per host, over a cable with each of the given rates (in tc's syntax, or "unshaped" for no limit). Arguments that start with -- are
# flags of //tools/train. The machine should be idle otherwise.
#
#   bazel run -c opt //tools/train:train_hosts_test -- 500mbit 1gbit unshaped --gather_ahead=2
set -u
source base/skip_test.sh
train=$PWD/$1
launch=$PWD/$2
two_hosts=$PWD/$3
cable=$PWD/$4
shift 4
unset RATE RANKS BUILD_WORKING_DIRECTORY
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/hosts.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
fail() {
  echo "FAILED: $*" >&2
  exit 1
}

for i in $(seq 300); do echo "a rank holds $((i * i % 97)) shards of the model"; done >text.txt
common="--data=text.txt --model=llama-1m --length=32 --batch=8 --steps=6 --sample_tokens=0 --quiet"

cat >job.sh <<'END'
# job.sh RUN MESH [FLAG...]: runs a launcher on each host in the background; output goes to RUN.out0 and so on.
run=$1 mesh=$2
shift 2
for node in 0 1; do
  ip netns exec host$node "$LAUNCH" --np=${RANKS:-2} --nnodes=2 --node_rank=$node --master_addr=10.77.0.1 --output=raw -- \
    "$TRAIN" $COMMON --engine=$ENGINE --mesh=$mesh --run_dir=$run "$@" >$run.out$node 2>$run.err$node &
  nodes[node]=$!
done
if [ -e cut_the_cable ]; then  # Cuts the cable after two steps.
  for i in $(seq 600); do
    [ "$(wc -l <$run/metrics.jsonl 2>/dev/null || echo 0)" -ge 2 ] && break
    sleep 0.05
  done
  ip -n host1 link set cable1 down
fi
for node in 0 1; do
  wait "${nodes[node]}"
  echo $? >$run.code$node
done
END
export LAUNCH=$launch TRAIN=$train COMMON=$common ENGINE=auto
export TESSERA_JOB_SECRET=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
between_hosts() { timeout 200 unshare -Urnm --kill-child bash "$two_hosts" bash job.sh "$@"; }

"$train" $common --engine=gloo --mesh=dp1 --steps=1 --run_dir=gloo >out 2>err || {
  grep -q "was built where no\|not built" err || fail "gloo: $(cat err)"
  skip_test "built without Gloo"
}
# measure RATE: prints the means of both ranks, from the second step on.
measure() {
  local rate=$1
  [ "$rate" = unshaped ] || export RATE=$rate
  export RANKS=1
  export COMMON="--data=text.txt --model=llama-10m --length=256 --batch=16 --micro_batch=4 --steps=7 --sample_tokens=0 --zero=3
    --offload=none --report --quiet ${flags[*]}"
  between_hosts "at_$rate" dp2 >between 2>&1
  [ "$(cat "at_$rate.code0" "at_$rate.code1" 2>/dev/null)" = $'0\n0' ] ||
    fail "$rate: $(cat between "at_$rate.err0" "at_$rate.err1" 2>/dev/null)"
  unset RATE
  grep " overlap " "at_$rate.out0"
  python3 - "$rate" "at_$rate/metrics.jsonl" <<'END'
import json, sys
rate, path = sys.argv[1:]
steps = [json.loads(line) for line in open(path)][1:]
total = {name: sum(step[name] * step["seconds"] for step in steps)
         for name in ("compute", "state_traffic", "state_hidden")}
print(f"{rate}: step {sum(step['seconds'] for step in steps) / len(steps):.2f} s, "
      f"computation / traffic {total['compute'] / total['state_traffic']:.2f}, "
      f"hidden {100 * total['state_hidden'] / total['state_traffic']:.0f} %")
END
}
if [ $# -gt 0 ]; then
  flags=() rates=()
  for argument in "$@"; do
    case $argument in
      --*) flags+=("$argument") ;;
      *) rates+=("$argument") ;;
    esac
  done
  for rate in "${rates[@]}"; do measure "$rate"; done
  exit 0
fi

"$train" $common --mesh=dp1 --zero=0 --offload=none --run_dir=alone >out 2>err || fail "one rank: $(cat err)"
# together RUN ENGINE MESH: trains on both hosts.
together() {
  ENGINE=$2 between_hosts "$1" "${@:3}" >between 2>&1
  local code=$?
  if [ $code != 0 ] && [ ! -e "$1.code0" ]; then
    skip_test "no network namespaces: $(cat between)"
  fi
  [ "$(cat "$1.code0" "$1.code1")" = $'0\n0' ] || fail "two hosts: $(cat "$1.err0" "$1.err1")"
  grep -q "6 steps of 256 tokens" "$1.out0" && [ ! -s "$1.out1" ] || fail "output: $(cat "$1.out0" "$1.out1")"
  python3 - "$1" <<'END' || fail "two hosts have other losses than one rank"
import json, sys
a, b = ([json.loads(line)["loss"] for line in open(run + "/metrics.jsonl")] for run in (sys.argv[1], "alone"))
assert len(a) == len(b) == 6
assert all(abs(x - y) <= 1e-5 * y for x, y in zip(a, b)), (a, b)
END
}
together over_gloo gloo dp2,tp2
together over_auto auto dp2,tp2
together across_hosts auto tp4
together encrypted auto dp2,tp2 --encrypt_data
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }
[ "$(losses encrypted)" = "$(losses over_auto)" ] || fail "encryption changes losses"
TESSERA_ENCRYPT_DATA=1 together encrypted_gloo gloo dp2,tp2

# A cable that records what it carries and forges a packet after two steps. Weights of norms are ones before the first step.
cat >forge.sh <<'END'
# forge.sh RUN [FLAG...]
run=$1
shift
{
  echo "{\"record\": \"$run.wire\"}"
  for node in 0 1; do
    printf '{"host": %d, "output": "%s", "command": ["bash", "-c", "%s"]}\n' $node $run.err$node \
      "$LAUNCH --np=1 --nnodes=2 --node_rank=$node --master_addr=10.77.0.1 --output=raw -- \
       $TRAIN $COMMON --engine=auto --mesh=dp2 --persistence_threshold=0 --offload=none --run_dir=$run $*"
  done
  for i in $(seq 600); do
    [ "$(cat $run/metrics.jsonl 2>/dev/null | wc -l)" -ge 2 ] && break
    sleep 0.05
  done
  [ ! -e forge ] || echo '{"forge": true}'
} | python3 "$CABLE" >$run.codes
END
export CABLE=$cable
over_cable() { timeout 200 unshare -Urnm --kill-child bash "$two_hosts" bash forge.sh "$@" >between 2>&1; }
has_ones() { python3 -c "import sys; sys.exit(b'\0\0\x80\x3f' * 16 not in open('$1.wire', 'rb').read())"; }
if unshare -Urnm bash "$two_hosts" ip tuntap add mode tap name wire >between 2>&1; then
  over_cable clear || fail "the cable: $(cat between)"
  over_cable sealed --encrypt_data || fail "the cable: $(cat between)"
  [ "$(cat clear.codes sealed.codes)" = $'[0, 0]\n[0, 0]' ] || fail "recorded: $(cat between ./*.codes clear.err? sealed.err?)"
  has_ones clear || fail "the cable shows no weights without encryption"
  has_ones sealed && fail "the cable shows weights in spite of encryption"
  touch forge
  over_cable forged --encrypt_data --steps=100000
  grep -q "[1-9].*[1-9]" forged.codes || fail "forged: $(cat between forged.codes)"
  cat forged.err? | grep -q "a message of rank [01] (host .*, pid [0-9]*) is not authentic: it was changed" ||
    fail "forged: $(cat forged.err?)"
else
  echo "without the cable's tests: $(cat between)" >&2
fi

# A command on each host starts its ranks. A host is lost, with its command and its cable: the other starts its ranks from copies in
# memory, and the weights are those of an undisturbed run without encryption.
cat >nodes.sh <<'END'
# nodes.sh RUN [FLAG...]: runs the command on both hosts; with the file lose_host, host 1 is lost after six steps.
run=$1
shift
for node in 0 1; do
  ip netns exec host$node "$TRAIN" $COMMON --engine=auto --mesh=dp2,tp2 --run_dir=$run --nnodes=2 --node_rank=$node \
    --master_addr=10.77.0.1 "$@" >$run.out$node 2>$run.err$node &
  nodes[node]=$!
done
if [ -e lose_host ]; then
  while [ "$(cat $run/metrics.jsonl 2>/dev/null | wc -l)" -lt 6 ] && kill -0 ${nodes[0]}; do sleep 0.05; done
  kill -9 ${nodes[1]}
  ip -n host1 link set cable1 down
fi
for node in 0 1; do
  wait "${nodes[node]}"
  echo $? >$run.code$node
done
END
on_nodes() { timeout 200 unshare -Urnm --kill-child bash "$two_hosts" bash nodes.sh "$@"; }
export COMMON="--data=text.txt --model=llama-1m --length=32 --batch=8 --steps=20 --sample_tokens=0"
copies="--max_restarts=2 --snapshot_every=1 --hang_timeout=5s --timeout_seconds=10"
on_nodes calm $copies >between 2>&1
[ "$(cat calm.code0 calm.code1)" = $'0\n0' ] || fail "nodes: $(cat between calm.err0 calm.err1)"
touch lose_host
on_nodes lost $copies --encrypt_data >between 2>&1
[ "$(cat lost.code0 lost.code1)" = $'0\n137' ] || fail "a lost host: $(cat between lost.err0 lost.err1)"
grep -q "^train: the node of rank 2, 3 has been silent for 5s" lost.err0 &&
  grep -q "^train: continues after step [0-9]* from copies in memory" lost.err0 || fail "a lost host: $(cat lost.err0)"
for file in calm/checkpoints/step-00000020/*.state; do
  cmp "$file" "lost/${file#calm/}" || fail "a lost host changes the weights"
done
[ ! -e lost/.ranks ] || fail "files are left"
grep -q "^train: data between hosts is not encrypted, on the network of address 10.77.0.1; --encrypt_data encrypts it" calm.err0 ||
  fail "no note: $(cat calm.err0)"
export COMMON=$common

# If a host disappears, the other ends within the deadline and names the lost rank.
touch cut_the_cable
start=$SECONDS
between_hosts cut dp4 --steps=100000 --timeout_seconds=5 >between 2>&1
[ "$(cat cut.code0)" = 1 ] || fail "after the cable was cut: $(cat between cut.err0)"
[ $((SECONDS - start)) -lt 90 ] || fail "the loss of a host took $((SECONDS - start)) s"
[ "$(wc -l <cut/metrics.jsonl)" -ge 2 ] || fail "it had not begun: $(cat cut.err0)"
grep -q "^train: rank 0: .*no sign of life from .*rank [23]" cut.err0 || fail "the host that is gone is not named: $(cat cut.err0)"
exit 0
