#include "tools/mesh/tensor_report.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/sharding/sharded_layout.h"
#include "tools/cli/cli.h"

namespace tessera::tools {
namespace {

using tensor_parallel::Box;
using tensor_parallel::EmptyShards;
using tensor_parallel::IndexRange;
using tensor_parallel::Placements;
using tensor_parallel::RedistributionPlan;
using tensor_parallel::RedistributionStep;
using tensor_parallel::ShardedLayout;
using tensor_parallel::StepBytes;

constexpr size_t kMostDims = 8;

absl::StatusOr<Dims> ParseShape(const std::string& text) {
  Dims shape;
  for (std::string_view size : absl::StrSplit(text, 'x')) {
    if (shape.size() == kMostDims ||
        !absl::SimpleAtoi(size, &shape.emplace_back()) || shape.back() < 0) {
      return FlagError("tensor", text,
                       absl::StrCat("expected 1 to ", kMostDims,
                                    " sizes of 0 or more, such as 128x512"));
    }
  }
  return shape;
}

absl::StatusOr<ShardedLayout> MakeLayout(const topology::Mesh& mesh,
                                         const Dims& shape,
                                         std::string_view flag,
                                         const std::string& text) {
  TESSERA_ASSIGN_OR_RETURN(Placements placements,
                           tensor_parallel::ParsePlacements(text),
                           FlagError(flag, text, _));
  TESSERA_ASSIGN_OR_RETURN(
      ShardedLayout layout,
      ShardedLayout::Create(mesh, shape, std::move(placements),
                            EmptyShards::kAllowed),
      FlagError(flag, text, _));
  return layout;
}

absl::Status CheckPlanned(const ShardedLayout& from, const ShardedLayout& to,
                          const std::string& text) {
  std::set<std::string> axes;
  for (const ShardedLayout* layout : {&from, &to}) {
    for (const std::string& axis : layout->axes()) axes.insert(axis);
  }
  int64_t ranks = 1;
  for (const std::string& axis : axes) {
    const int64_t size = from.mesh().SizeOf(axis)->value();
    if (size <= kMaxPlannedRanks / ranks) {
      ranks *= size;
      continue;
    }
    return FlagError(
        "to", text,
        absl::StrCat("the axes of --as and --to have more than ",
                     kMaxPlannedRanks, " ranks; give a smaller mesh"));
  }
  return absl::OkStatus();
}

// The width of the column of shards.
int WidthOf(const ShardedLayout& layout,
            const std::vector<topology::Rank>& ranks) {
  size_t width = std::string_view("before").size();
  for (const topology::Rank rank : ranks) {
    width = std::max(width, layout.BoxOf(rank).ToString().size());
  }
  return static_cast<int>(width);
}

nlohmann::ordered_json RangesOf(const Box& box) {
  nlohmann::ordered_json ranges = nlohmann::ordered_json::array();
  for (const IndexRange range : box.ranges) {
    ranges.push_back({range.begin, range.end});
  }
  return ranges;
}

}  // namespace

absl::StatusOr<RedistributionPlan> MakeTensorReport(
    const topology::Mesh& mesh, const TensorOptions& options) {
  if (options.tensor.empty()) {
    return FlagError(options.to.empty() ? "as" : "to",
                     options.to.empty() ? options.as : options.to,
                     "there is no tensor; give one, such as --tensor=128x512");
  }
  TESSERA_ASSIGN_OR_RETURN(const Dims shape, ParseShape(options.tensor));
  const std::string as = options.as.empty() ? "replicated" : options.as;
  const std::string& text = options.to.empty() ? as : options.to;
  TESSERA_ASSIGN_OR_RETURN(const ShardedLayout from,
                           MakeLayout(mesh, shape, "as", as));
  TESSERA_ASSIGN_OR_RETURN(const ShardedLayout to,
                           MakeLayout(mesh, shape, "to", text));
  TESSERA_RETURN_IF_ERROR(CheckPlanned(from, to, text));
  TESSERA_ASSIGN_OR_RETURN(
      RedistributionPlan plan,
      tensor_parallel::PlanRedistribution(from, to, options.dtype),
      FlagError("to", text, _));
  return plan;
}

void PrintTensorText(const RedistributionPlan& plan,
                     const std::vector<topology::Rank>& ranks,
                     std::ostream& out) {
  const bool moves = !(plan.from == plan.to);
  out << "\ntensor " << DTypeName(plan.dtype) << " " << plan.from.ToString();
  if (moves) out << ", to " << FormatPlacements(plan.to.placements());
  out << "\n";
  for (const RedistributionStep& step : plan.steps) {
    out << "  " << step.ToString() << "\n";
  }
  const int before = WidthOf(plan.from, ranks), after = WidthOf(plan.to, ranks);
  if (moves) {
    out << absl::StrFormat("    rank  %-*s  %-*s %12s %12s\n", before, "before",
                           after, "after", "bytes sent", "received");
  } else {
    out << "    rank  holds\n";
  }
  for (const topology::Rank rank : ranks) {
    const std::string held = plan.from.BoxOf(rank).ToString();
    out << absl::StrFormat("%8d  ", rank.value());
    if (!moves) {
      out << held << "\n";
      continue;
    }
    const StepBytes bytes = *plan.BytesOf(rank);
    out << absl::StrFormat("%-*s  %-*s %12d %12d\n", before, held, after,
                           plan.to.BoxOf(rank).ToString(), bytes.sent,
                           bytes.received);
  }
}

void PrintTensorJson(const RedistributionPlan& plan,
                     const std::vector<topology::Rank>& ranks,
                     std::ostream& out) {
  nlohmann::ordered_json json = {
      {"shape", plan.from.shape()},
      {"dtype", DTypeName(plan.dtype)},
      {"as", FormatPlacements(plan.from.placements())},
      {"to", FormatPlacements(plan.to.placements())},
      {"steps", nlohmann::ordered_json::array()},
      {"ranks", nlohmann::ordered_json::array()}};
  for (const RedistributionStep& step : plan.steps) {
    json["steps"].push_back({{"kind", StepKindName(step.kind)},
                             {"axes", step.axes},
                             {"to", FormatPlacements(step.to.placements())}});
  }
  for (const topology::Rank rank : ranks) {
    const StepBytes bytes = *plan.BytesOf(rank);
    json["ranks"].push_back({{"rank", rank.value()},
                             {"as", RangesOf(plan.from.BoxOf(rank))},
                             {"to", RangesOf(plan.to.BoxOf(rank))},
                             {"sent", bytes.sent},
                             {"received", bytes.received}});
  }
  out << DumpJson(json);
}

}  // namespace tessera::tools
