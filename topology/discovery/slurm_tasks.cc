#include "topology/discovery/slurm_tasks.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tessera::topology {
namespace {

constexpr size_t kMaxText = 1 << 20;
constexpr int64_t kMaxNodes = int64_t{1} << 20;
constexpr int64_t kMaxTasks = int64_t{1} << 40;

absl::Status Invalid(std::string_view text, std::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(
      "task list \"", text.substr(0, 60), text.size() > 60 ? "..." : "", "\" ",
      reason, "; expected counts such as 2(x3),1"));
}

// Digits alone: SimpleAtoi would take a sign and blanks too.
bool ParseCount(std::string_view text, int64_t high, int64_t* count) {
  if (text.empty() || !absl::ascii_isdigit(text.front())) return false;
  if (!absl::ascii_isdigit(text.back())) return false;
  return absl::SimpleAtoi(text, count) && *count >= 1 && *count <= high;
}

bool ParseRun(std::string_view item, SlurmTaskRun* run) {
  const size_t bracket = item.find('(');
  if (bracket == std::string_view::npos) {
    return ParseCount(item, kMaxTasks, &run->tasks);
  }
  std::string_view repeat = item.substr(bracket);
  return absl::ConsumePrefix(&repeat, "(x") &&
         absl::ConsumeSuffix(&repeat, ")") &&
         ParseCount(item.substr(0, bracket), kMaxTasks, &run->tasks) &&
         ParseCount(repeat, kMaxNodes, &run->nodes);
}

}  // namespace

absl::StatusOr<std::vector<SlurmTaskRun>> ParseSlurmTasksPerNode(
    std::string_view text) {
  if (text.empty()) return Invalid(text, "is empty");
  if (text.size() > kMaxText) return Invalid(text, "is longer than 1 MiB");
  std::vector<SlurmTaskRun> runs;
  int64_t nodes = 0;
  int64_t tasks = 0;
  for (std::string_view item : absl::StrSplit(text, ',')) {
    SlurmTaskRun run;
    if (!ParseRun(item, &run)) {
      return Invalid(text, absl::StrCat("has the item \"", item.substr(0, 40),
                                        "\", which is no count"));
    }
    nodes += run.nodes;
    if (nodes > kMaxNodes) return Invalid(text, "has more than 2^20 nodes");
    // At most 2^40 * 2^20 at once, so that nothing overflows.
    tasks += run.tasks * run.nodes;
    if (tasks > kMaxTasks) return Invalid(text, "has more than 2^40 tasks");
    runs.push_back(run);
  }
  return runs;
}

std::string FormatSlurmTasksPerNode(const std::vector<SlurmTaskRun>& runs) {
  return absl::StrJoin(runs, ",", [](std::string* out, const auto& run) {
    absl::StrAppend(out, run.tasks);
    if (run.nodes > 1) absl::StrAppend(out, "(x", run.nodes, ")");
  });
}

int64_t SlurmNodeCount(const std::vector<SlurmTaskRun>& runs) {
  int64_t nodes = 0;
  for (const SlurmTaskRun& run : runs) nodes += run.nodes;
  return nodes;
}

int64_t SlurmTaskCount(const std::vector<SlurmTaskRun>& runs) {
  int64_t tasks = 0;
  for (const SlurmTaskRun& run : runs) tasks += run.tasks * run.nodes;
  return tasks;
}

std::optional<int64_t> SlurmTasksOfNode(const std::vector<SlurmTaskRun>& runs,
                                        int64_t node) {
  if (node < 0) return std::nullopt;
  for (const SlurmTaskRun& run : runs) {
    if (node < run.nodes) return run.tasks;
    node -= run.nodes;
  }
  return std::nullopt;
}

}  // namespace tessera::topology
