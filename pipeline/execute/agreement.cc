#include "pipeline/execute/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

class Hasher {
 public:
  void Add(uint64_t value) {
    state_ = (state_ ^ value) * 0x9e3779b97f4a7c15ULL;
    state_ ^= state_ >> 29;
  }
  void Add(std::string_view text) {
    Add(text.size());
    for (const char c : text) Add(static_cast<unsigned char>(c));
  }
  void Add(const std::vector<int32_t>& values) {
    Add(values.size());
    for (const int32_t value : values) Add(static_cast<uint64_t>(value));
  }
  uint64_t hash() const { return state_; }

 private:
  uint64_t state_ = 0x2545f4914f6cdd1dULL;
};

uint64_t Packed(const Action& action) {
  const auto microbatch = static_cast<uint32_t>(action.microbatch);
  return static_cast<uint64_t>(action.kind) << 60 |
         static_cast<uint64_t>(action.with_next) << 56 |
         static_cast<uint64_t>(action.stage) << 32 | microbatch;
}

// What each rank tells the others. Plain bytes.
struct Report {
  uint64_t hash = 0;
  int64_t code = 0;
  std::array<char, 240> message = {};  // Ends with a zero where it is shorter.
};
static_assert(sizeof(Report) == 256);

std::string MessageOf(const Report& report) {
  return std::string(report.message.data(),
                     strnlen(report.message.data(), report.message.size()));
}

absl::Status Failures(std::span<const Report> reports) {
  std::string text;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].code == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "rank ", rank,
                    " has no executor: ", MessageOf(reports[rank]));
    if (text.size() > 1024) break;
  }
  return text.empty() ? absl::OkStatus() : absl::FailedPreconditionError(text);
}

absl::Status Differences(std::span<const Report> reports) {
  std::map<uint64_t, std::vector<size_t>> by_hash;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    by_hash[reports[rank].hash].push_back(rank);
  }
  if (by_hash.size() == 1) return absl::OkStatus();
  const auto most = std::max_element(
      by_hash.begin(), by_hash.end(), [](const auto& a, const auto& b) {
        return a.second.size() != b.second.size()
                   ? a.second.size() < b.second.size()
                   : a.second.front() > b.second.front();
      });
  std::vector<size_t> others;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].hash != most->first) others.push_back(rank);
  }
  constexpr size_t kMostNamed = 16;
  const std::string more = others.size() > kMostNamed ? "..." : "";
  if (others.size() > kMostNamed) others.resize(kMostNamed);
  return absl::FailedPreconditionError(absl::StrCat(
      "the ranks hold different schedules or options: ",
      others.size() == 1 ? "rank " : "ranks ", absl::StrJoin(others, ", "),
      more, others.size() == 1 ? " differs" : " differ", " from rank ",
      most->second.front(),
      "; every rank must give the same schedule, boundaries, tied weights and ",
      "trace"));
}

}  // namespace

uint64_t HashOf(const Schedule& schedule, const ExecutorOptions& options) {
  Hasher hasher;
  hasher.Add(static_cast<uint64_t>(schedule.microbatches));
  hasher.Add(static_cast<uint64_t>(schedule.map.two_way()));
  hasher.Add(static_cast<uint64_t>(schedule.map.stages()));
  for (int32_t stage = 0; stage < schedule.map.stages(); ++stage) {
    hasher.Add(static_cast<uint64_t>(schedule.map.RankOf(stage)));
  }
  for (const std::vector<Action>& actions : schedule.ranks) {
    hasher.Add(actions.size());
    for (const Action& action : actions) hasher.Add(Packed(action));
  }
  hasher.Add(options.boundaries.size());
  for (const TensorSpec& spec : options.boundaries) {
    hasher.Add(spec.ToString());
  }
  hasher.Add(options.tied.size());
  for (const TiedWeights& tied : options.tied) {
    hasher.Add(tied.name);
    hasher.Add(tied.stages);
  }
  hasher.Add(static_cast<uint64_t>(options.trace));
  return hasher.hash();
}

absl::Status Agree(collectives::Communicator& communicator, uint64_t hash,
                   const absl::Status& own,
                   const collectives::CallOptions& call) {
  Report mine;
  mine.hash = hash;
  mine.code = static_cast<int64_t>(own.code());
  own.message().copy(mine.message.data(), mine.message.size());
  std::vector<Report> all(static_cast<size_t>(communicator.size()));
  const auto bytes = [](auto* data, size_t count) {
    return collectives::Buffer(
        data, static_cast<int64_t>(count * sizeof(Report)), DType::kU8);
  };
  TESSERA_RETURN_IF_ERROR(
      communicator.AllGather(bytes(&mine, 1), bytes(all.data(), all.size()),
                             call),
      Annotate(_, "the ranks of a pipeline compare their schedules"));
  TESSERA_RETURN_IF_ERROR(own);
  TESSERA_RETURN_IF_ERROR(Failures(all));
  return Differences(all);
}

}  // namespace tessera::pipeline
