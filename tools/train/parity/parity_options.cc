#include "tools/train/parity/parity_options.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "pipeline/generate/generate.h"
#include "topology/config/named_enum.h"

namespace tessera::train {
namespace {

// The places of ParityOptions().
enum Place {
  kDp,
  kPp,
  kCp,
  kTp,
  kSchedule,
  kChunks,
  kMicroBatch,
  kRecompute,
  kSequenceParallel,
  kContext,
  kZero,
  kLayout,
  kBucket,
  kPersistence,
  kGatherAhead,
  kMaxGathered,
  kReduce,
  kReplicas,
  kHpz,
  kOffload,
  kTier,
  kLossless,
  kTied,
  kClip,
  kKvHeads,
  kMoments,
};

std::vector<std::string> Schedules() {
  std::vector<std::string> names;
  for (const std::string_view name : pipeline::GeneratorNames()) {
    names.emplace_back(name);
  }
  return names;
}

// Of f32 weights on one tensor rank: the head, the largest window, has 20640,
// and a layer with 6 kv heads 14320. So two layers fit, and the head alone.
constexpr const char* kGatheredLimit = "30000";

std::vector<ParityOption> MakeOptions() {
  const std::vector<std::string> sizes = {"1", "2", "4", "8"};
  const std::vector<std::string> off_on = {"off", "on"};
  return {{"dp", sizes},
          {"pp", sizes},
          {"cp", sizes},
          {"tp", sizes},
          {"schedule", Schedules()},
          {"chunks", {"1", "2", "3"}},
          {"micro_batch", {"1", "2"}},
          {"recompute", {"none", "selective", "full"}},
          {"sequence_parallel", off_on},
          {"context", {"contiguous", "zigzag"}},
          {"zero", {"0", "1", "2", "3"}},
          {"layout", {"chunks", "round_robin", "balanced"}},
          {"bucket_bytes", {"25000000", "700"}},
          {"persistence", {"0", "100"}},
          {"gather_ahead", {"0", "1", "2", "3"}},
          {"max_gathered_bytes", {"0", kGatheredLimit}},
          {"reduce", {"auto", "each", "last"}},
          {"dp_replicate", {"1", "2"}},
          {"hpz", {"0", "2"}},
          {"offload",
           {"none", "optimizer", "gradients", "params", "all", "activations"}},
          {"tier", {"none", "host", "file"}},
          {"lossless", off_on},
          {"tied", off_on},
          {"clip", off_on},
          {"kv_heads", {"1", "2", "3", "6"}},
          {"moments", {"f32", "bf16", "int8"}}};
}

// A row, of which some may not be chosen.
class Chosen {
 public:
  explicit Chosen(const CoveringRow& row) : row_(row) {}

  bool has(Place place) const { return row_[place] != kNotChosen; }
  const std::string& value(Place place) const {
    return ParityOptions()[place].values[static_cast<size_t>(row_[place])];
  }
  bool is(Place place, std::string_view value) const {
    return has(place) && this->value(place) == value;
  }
  bool is_not(Place place, std::string_view value) const {
    return has(place) && this->value(place) != value;
  }
  bool on(Place place) const { return is(place, "on"); }
  // 0 where it is not chosen.
  int64_t number(Place place) const {
    int64_t number = 0;
    return has(place) && absl::SimpleAtoi(value(place), &number) ? number : 0;
  }

 private:
  const CoveringRow& row_;
};

constexpr int64_t kMostRanks = 8;
constexpr int64_t kBatch = 8;

bool RanksArePossible(const Chosen& chosen) {
  int64_t ranks = 1;
  for (const Place place : {kDp, kPp, kCp, kTp}) {
    ranks *= std::max<int64_t>(chosen.number(place), 1);
  }
  const int64_t tp = chosen.number(kTp), kv = chosen.number(kKvHeads);
  const bool heads = tp == 0 || kv == 0 || kv >= tp || tp % kv == 0;
  const bool batch = chosen.number(kDp) * chosen.number(kMicroBatch) <= kBatch;
  return ranks <= kMostRanks && heads && batch;
}

// Data ranks are of whole replicas, and second copies of weights need sharded
// ones, over as many ranks. What is not chosen may still become any size that
// the ranks allow.
bool ReplicasArePossible(const Chosen& chosen) {
  if (chosen.is(kHpz, "2") && chosen.is_not(kZero, "3")) return false;
  int64_t ranks = 1;
  for (const Place place : {kDp, kPp, kCp, kTp}) {
    ranks *= std::max<int64_t>(chosen.number(place), 1);
  }
  const int64_t more = kMostRanks / ranks;
  const int64_t dp = chosen.has(kDp) ? chosen.number(kDp) : more;
  const int64_t cp = std::max<int64_t>(chosen.number(kCp), 1);
  const int64_t replicas = std::max<int64_t>(chosen.number(kReplicas), 1);
  if (dp < replicas) return false;
  const int64_t most =
      chosen.has(kDp) && !chosen.has(kCp) ? dp * more : dp * cp;
  return most / replicas >= std::max<int64_t>(chosen.number(kHpz), 1);
}

// Weights are gathered at stage 3, and gradients have a time to be reduced from
// stage 2 on. Under a limit the distance of gathers is chosen.
bool ParameterActionsSaySomething(const Chosen& chosen) {
  const bool gathers = chosen.is_not(kGatherAhead, "1");
  const bool limits = chosen.is_not(kMaxGathered, "0");
  if (gathers && limits) return false;
  if (!chosen.has(kZero)) return true;
  const int64_t stage = chosen.number(kZero);
  if (stage < 2 && chosen.is_not(kReduce, "auto")) return false;
  return stage == 3 || !(gathers || limits);
}

int64_t LargestOtherAxis(const Chosen& chosen) {
  return std::max({chosen.number(kDp), chosen.number(kCp), chosen.number(kTp)});
}

// These stand for all schedules where other axes have more than two ranks, or
// there is one pipeline rank alone: what a schedule changes for other axes is
// the order of their calls, which is the same for any of their sizes.
bool IsOneOfMany(std::string_view schedule) {
  return schedule == "1f1b" || schedule == "interleaved_1f1b" ||
         schedule == "zb_v";
}

bool SaysSomething(const Chosen& chosen) {
  if (!chosen.has(kSchedule) || IsOneOfMany(chosen.value(kSchedule))) {
    return true;
  }
  return LargestOtherAxis(chosen) <= (chosen.is(kPp, "1") ? 1 : 2);
}

bool ScheduleIsPossible(const Chosen& chosen) {
  if (!chosen.has(kSchedule)) return true;
  for (const pipeline::Generator& generator : pipeline::Generators()) {
    if (generator.name != chosen.value(kSchedule)) continue;
    const int64_t ranks = chosen.number(kPp), chunks = chosen.number(kChunks);
    if (generator.even_ranks && ranks % 2 != 0) return false;
    return generator.chunks == 0 || chunks == 0 || chunks == generator.chunks;
  }
  return false;
}

bool OffloadIsPossible(const Chosen& chosen) {
  const int64_t least_stage =
      chosen.is(kOffload, "gradients")                              ? 2
      : chosen.is(kOffload, "params") || chosen.is(kOffload, "all") ? 3
                                                                    : 0;
  if (chosen.has(kZero) && chosen.number(kZero) < least_stage) return false;
  if (chosen.is(kOffload, "none") && chosen.is_not(kTier, "none")) return false;
  if (chosen.is_not(kOffload, "none") && chosen.is(kTier, "none")) return false;
  const bool nothing = chosen.is(kOffload, "none") || chosen.is(kTier, "none");
  return !(nothing && chosen.on(kLossless));
}

// A tensor rank rounds the moments of its slice by blocks and places of the
// slice, one rank by those of the whole parameter.
bool MomentsAreComparable(const Chosen& chosen) {
  return !(chosen.is_not(kMoments, "f32") && chosen.is_not(kTp, "1"));
}

tensor_parallel::Recompute RecomputeNamed(std::string_view name) {
  using tensor_parallel::Recompute;
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    if (tensor_parallel::RecomputeName(recompute) == name) return recompute;
  }
  return Recompute::kNone;
}

}  // namespace

const std::vector<ParityOption>& ParityOptions() {
  static const auto& options = *new std::vector<ParityOption>(MakeOptions());
  return options;
}

CoveringProblem ParityProblem() {
  CoveringProblem problem;
  for (const ParityOption& option : ParityOptions()) {
    problem.levels.push_back(static_cast<int>(option.values.size()));
  }
  problem.allowed = [](const CoveringRow& row) {
    return IsPossible(row) && SaysSomething(Chosen(row));
  };
  problem.seed = 16;  // Of forty the one with the fewest rows.
  return problem;
}

bool IsPossible(const CoveringRow& row) {
  const Chosen chosen(row);
  return RanksArePossible(chosen) && ReplicasArePossible(chosen) &&
         ParameterActionsSaySomething(chosen) && ScheduleIsPossible(chosen) &&
         OffloadIsPossible(chosen) && MomentsAreComparable(chosen);
}

int OptionNumber(const std::string& name) {
  const auto& options = ParityOptions();
  const auto found =
      std::find_if(options.begin(), options.end(),
                   [&](const ParityOption& o) { return o.name == name; });
  return static_cast<int>(found - options.begin());
}

int ValueNumber(const std::string& option, const std::string& value) {
  const auto& values =
      ParityOptions()[static_cast<size_t>(OptionNumber(option))].values;
  return static_cast<int>(std::find(values.begin(), values.end(), value) -
                          values.begin());
}

ParityCase CaseOf(const CoveringRow& row) {
  const Chosen chosen(row);
  return {
      .mesh = {.dp = chosen.number(kDp),
               .pp = chosen.number(kPp),
               .cp = chosen.number(kCp),
               .tp = chosen.number(kTp),
               .dp_replicate = chosen.number(kReplicas)},
      .schedule = chosen.value(kSchedule),
      .chunks = chosen.number(kChunks),
      .micro_batch = chosen.number(kMicroBatch),
      .recompute = RecomputeNamed(chosen.value(kRecompute)),
      .sequence_parallel = chosen.on(kSequenceParallel),
      .zigzag = chosen.is(kContext, "zigzag"),
      .stage = static_cast<int>(chosen.number(kZero)),
      .layout = *topology::ParseEnum<zero3::LayoutKind>(chosen.value(kLayout)),
      .bucket_bytes = chosen.number(kBucket),
      .persistence_threshold = chosen.number(kPersistence),
      .gather_ahead = chosen.number(kGatherAhead),
      .max_gathered_bytes = chosen.number(kMaxGathered),
      .reduce = chosen.value(kReduce),
      .hpz_partition_size = chosen.number(kHpz),
      .offload = chosen.value(kOffload),
      .tier = chosen.value(kTier),
      .lossless = chosen.on(kLossless),
      .tied = chosen.on(kTied),
      .clip = chosen.on(kClip),
      .kv_heads = chosen.number(kKvHeads),
      .moments = chosen.value(kMoments)};
}

}  // namespace tessera::train
