#include "tools/launch/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/launch/signals.h"

namespace tessera::tools {
namespace {

using topology::Rank;

constexpr int64_t kMaxNodes = 1 << 20;
constexpr size_t kShownRanks = 8;

absl::Status CheckRange(std::string_view flag, int64_t value, int64_t low,
                        int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return FlagError(flag, absl::StrCat(value),
                   absl::InvalidArgumentError(absl::StrCat(
                       "expected a whole number from ", low, " to ", high)));
}

absl::Status CheckNodes(const LaunchPlan& plan) {
  TESSERA_RETURN_IF_ERROR(CheckRange("nnodes", plan.nnodes, 1, kMaxNodes));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("node_rank", plan.node_rank, 0, plan.nnodes - 1));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("master_port", plan.master_port, 0, 65535));
  if (plan.nnodes == 1 || !plan.master_addr.empty()) return absl::OkStatus();
  return FlagError("master_addr", "",
                   absl::InvalidArgumentError(
                       "with --nnodes above 1, expected the address of the "
                       "node with --node_rank=0"));
}

std::string Seconds(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  return absl::StrFormat("%.*f s", seconds < 10 ? 2 : 0, seconds);
}

std::string ShowRanks(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShownRanks); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", ranks[i].value());
  }
  if (ranks.size() > kShownRanks) text += ", ...";
  return text;
}

std::string ShowExit(const RankExit& exit) {
  return absl::StrCat(
      "rank ", exit.rank.value(), " (pid ", exit.pid, ") ",
      exit.by_signal ? absl::StrCat("was killed by ", SignalName(exit.code),
                                    exit.dumped_core ? " (core dumped)" : "")
                     : absl::StrCat("exited with code ", exit.code),
      " after ", Seconds(exit.ran));
}

std::string ShowAlsoFailed(const std::vector<RankExit>& exits) {
  if (exits.empty()) return "";
  std::vector<Rank> ranks;
  for (const RankExit& exit : exits) ranks.push_back(exit.rank);
  return absl::StrCat("; ", ShowRanks(ranks), " failed at the same time");
}

}  // namespace

absl::Status CheckPlan(const LaunchPlan& plan) {
  TESSERA_RETURN_IF_ERROR(CheckRange("np", plan.np, 1, LaunchPlan::kMaxRanks));
  TESSERA_RETURN_IF_ERROR(CheckNodes(plan));
  if (plan.timeout <= absl::ZeroDuration()) {
    return FlagError("timeout", absl::FormatDuration(plan.timeout),
                     absl::InvalidArgumentError(
                         "expected a time above 0, such as 90s or 2h"));
  }
  if (plan.grace < absl::ZeroDuration()) {
    return FlagError(
        "grace", absl::FormatDuration(plan.grace),
        absl::InvalidArgumentError("expected a time from 0 up, such as 5s"));
  }
  if (plan.command.empty()) {
    return absl::InvalidArgumentError(
        "no program; write it and its arguments after --");
  }
  return absl::OkStatus();
}

absl::Status LaunchOutcome::ToStatus() const {
  if (failure) {
    return absl::AbortedError(absl::StrCat(
        ShowExit(*failure),
        exits.size() > 1 ? ", the first to fail; all ranks were ended" : "",
        ShowAlsoFailed(also_failed)));
  }
  if (!timed_out.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        ShowRanks(timed_out), " of ", exits.size(),
        " still ran after --timeout=", absl::FormatDuration(timeout),
        " and were ended"));
  }
  if (signal) {
    return absl::AbortedError(
        absl::StrCat("ended by ", SignalName(*signal), ", as were its ranks"));
  }
  return absl::OkStatus();
}

int LaunchOutcome::ExitCode() const {
  if (failure || !timed_out.empty()) return 1;
  return signal ? 128 + *signal : 0;
}

}  // namespace tessera::tools
