// LaunchPlan: what to start, and LaunchOutcome: how it ended.
#ifndef TESSERA_TOOLS_LAUNCH_PLAN_H_
#define TESSERA_TOOLS_LAUNCH_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/launch/rank_processes.h"
#include "topology/rank.h"

namespace tessera::tools {

enum class OutputMode {
  kPrefix,  // Whole lines, "[3] " before each.
  kRaw,     // Whole lines, not a byte more.
  kFiles,   // rank3.log of a directory holds both streams of rank 3.
};

enum class Bind {
  kNone,  // A rank runs where the launcher may.
  kCore,  // Each rank has a core of its own.
};

struct LaunchPlan {
  std::vector<std::string> command = {};      // The program and its arguments.
  std::vector<std::string> environment = {};  // The caller's, as "NAME=value".

  int64_t np = 1;      // Ranks of this node, 1 to kMaxRanks.
  int64_t nnodes = 1;  // All nodes have `np` ranks.
  int64_t node_rank = 0;
  std::string master_addr = {};  // Empty on one node: 127.0.0.1.
  int64_t master_port = 0;       // 0: a free one on one node, 29500 on several.

  absl::Duration timeout = absl::InfiniteDuration();
  absl::Duration grace = absl::Seconds(5);  // From SIGTERM to SIGKILL.
  OutputMode output = OutputMode::kPrefix;
  std::string log_directory = {};  // For kFiles; made where it is missing.
  bool colour = false;             // Of the prefixes.
  Bind bind = Bind::kNone;
  // False: the ranks stay in the launcher's session, each in a process group of
  // its own. Linux schedules sessions as groups (sched(7), autogroup), and
  // between groups sched_yield hands nothing over: ranks that exceed the cores
  // and wait for each other by yielding are faster in one session.
  bool own_sessions = true;

  static constexpr int64_t kMaxRanks = 4096;
};

// InvalidArgument that names the flag of //tools/launch whose value makes no
// sense, the value, and what is allowed.
absl::Status CheckPlan(const LaunchPlan& plan);

struct LaunchOutcome {
  std::vector<RankExit> exits;  // In the order in which the ranks ended.
  // The first that failed while nothing had told the ranks to end; of those
  // within the same 20 ms one that died by a signal, because its peers exit
  // when they lose it.
  std::optional<RankExit> failure;
  std::vector<RankExit> also_failed;      // The others within those 20 ms.
  std::optional<int> signal;              // What ended the launcher.
  std::vector<topology::Rank> timed_out;  // Still ran at the timeout.
  absl::Duration timeout;                 // The plan's.

  // OK where every rank ended with 0 by itself. Otherwise Aborted, or
  // DeadlineExceeded, with one line for people.
  absl::Status ToStatus() const;
  // 0; 1 for a failed run; 128 + n where signal n ended the launcher.
  int ExitCode() const;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_PLAN_H_
