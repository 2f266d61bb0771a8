#include "tools/train/settings/memory_ladder.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {
namespace {

using topology::MemoryStrategy;

struct Change {
  MemoryStrategy strategy;
  void (*make)(Settings& settings, const std::string& scratch);
  // The saving can only be measured, not predicted.
  bool is_measured = false;
};

void OffloadState(Settings& settings) {
  settings.zero = 3;
  settings.offload = WithActivationsOf(settings.offload, "all");
}

// Sorted from the cheapest in time to the most expensive.
constexpr Change kChanges[] = {
    {MemoryStrategy::kStandard,
     [](Settings& s, const std::string&) { s.reduce = "each"; }},
    {MemoryStrategy::kStandard,
     [](Settings& s, const std::string&) {
       if (s.recompute == "none") s.recompute = "selective";
     }},
    {MemoryStrategy::kStandard,
     [](Settings& s, const std::string&) { s.recompute = "full"; }},
    {MemoryStrategy::kAggressive,
     [](Settings& s, const std::string&) { s.zero = 3; }},
    // --zero=3 allows it.
    {MemoryStrategy::kAggressive,
     [](Settings& s, const std::string&) { s.reduce = "each"; }},
    {MemoryStrategy::kAggressive,
     [](Settings& s, const std::string&) { s.gather_ahead = 0; }},
    {MemoryStrategy::kAggressive,
     [](Settings& s, const std::string&) { OffloadState(s); }},
    {MemoryStrategy::kAggressive,
     [](Settings& s, const std::string&) {
       const bool is_in_memory =
           OffloadChoice::Of(s.offload).gradients && s.offload_dir.empty();
       if (is_in_memory && s.compression == "none") s.compression = "lossless";
     },
     /*is_measured=*/true},
    {MemoryStrategy::kExtreme,
     [](Settings& s, const std::string& scratch) {
       OffloadState(s);
       if (s.offload_dir.empty()) s.offload_dir = scratch;
       s.host_budget = {};
       s.pin_memory = false;
     }},
    {MemoryStrategy::kExtreme,
     [](Settings& s, const std::string&) {
       if (!s.offload_dir.empty()) s.offload = "all,activations";
     }},
};

std::string ChangedFlags(const Settings& from, const Settings& to) {
  std::vector<std::string> flags;
  const auto add = [&](std::string_view flag, const auto& old,
                       const auto& now) {
    if (old != now) flags.push_back(absl::StrCat("--", flag, "=", now));
  };
  add("recompute", from.recompute, to.recompute);
  add("zero", from.zero, to.zero);
  add("reduce", from.reduce, to.reduce);
  add("gather_ahead", from.gather_ahead, to.gather_ahead);
  add("offload", from.offload, to.offload);
  add("offload_dir", from.offload_dir, to.offload_dir);
  add("host_budget", FormatByteLimit(from.host_budget),
      FormatByteLimit(to.host_budget));
  add("pin_memory", from.pin_memory, to.pin_memory);
  add("compression", from.compression, to.compression);
  return absl::StrJoin(flags, " ");
}

// A rung must save 1 %; predictions of file buffers vary by less.
bool Saves(int64_t needed, int64_t before) {
  return needed <= before - before / 100 && needed < before;
}

class Climb {
 public:
  Climb(const Settings& from, LadderUse use, const std::string& scratch,
        PredictNeed predict, absl::FunctionRef<bool(const MemoryRung&)> enough)
      : from_(from),
        use_(use),
        scratch_(scratch),
        predict_(predict),
        is_enough_(enough) {}

  absl::StatusOr<MemoryRung> Run() {
    rung_.settings = from_;
    rung_.strategy = from_.parallel.memory_strategy;
    TESSERA_ASSIGN_OR_RETURN(rung_.needed, predict_(from_));
    rung_.as_given = rung_.needed;
    // A change that saved too little may save enough on a higher rung.
    bool climbs = true;
    while (climbs && !is_done_ && !is_enough_(rung_)) {
      climbs = false;
      for (const Change& change : kChanges) {
        if (is_done_ || is_enough_(rung_)) break;
        TESSERA_ASSIGN_OR_RETURN(const bool is_taken, Try(change));
        climbs |= is_taken;
      }
    }
    return rung_;
  }

 private:
  absl::StatusOr<bool> Try(const Change& change) {
    // The effect of a measured change is unknown in advance, so it is not
    // combined with other changes.
    const bool is_alone =
        use_ == LadderUse::kWhileRunning && rung_.flags.empty();
    if (change.is_measured && !is_alone) return false;
    MemoryRung next = rung_;
    change.make(next.settings, scratch_);
    if (next.settings == rung_.settings || !CheckSettings(next.settings).ok()) {
      return false;
    }
    const absl::StatusOr<int64_t> needed = predict_(next.settings);
    if (absl::IsInvalidArgument(needed.status())) return false;
    TESSERA_ASSIGN_OR_RETURN(next.needed, needed);
    if (!change.is_measured && !Saves(next.needed, rung_.needed)) return false;
    next.strategy = std::max(next.strategy, change.strategy);
    next.flags = ChangedFlags(from_, next.settings);
    rung_ = std::move(next);
    is_done_ = change.is_measured;
    return true;
  }

  const Settings& from_;
  const LadderUse use_;
  const std::string& scratch_;
  const PredictNeed predict_;
  const absl::FunctionRef<bool(const MemoryRung&)> is_enough_;
  MemoryRung rung_;
  bool is_done_ = false;
};

}  // namespace

absl::StatusOr<MemoryRung> ClimbMemoryLadder(
    const Settings& from, LadderUse use, const std::string& scratch,
    PredictNeed predict, absl::FunctionRef<bool(const MemoryRung&)> is_enough) {
  return Climb(from, use, scratch, predict, is_enough).Run();
}

Settings AtLowestRung(const Settings& settings, const std::string& scratch) {
  Settings rung = settings;
  for (const Change& change : kChanges) {
    if (change.strategy > settings.parallel.memory_strategy) break;
    Settings next = rung;
    change.make(next, scratch);
    if (!change.is_measured && CheckSettings(next).ok()) rung = std::move(next);
  }
  return rung;
}

std::string ScratchOf(const Settings& settings) {
  if (!settings.run_dir.empty()) return settings.run_dir + "/offload";
  std::error_code error;
  const auto path = std::filesystem::temp_directory_path(error);
  return error ? "/tmp" : path.string();
}

}  // namespace tessera::train
