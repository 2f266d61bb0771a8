#include "topology/placement/traffic.h"

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::topology {

namespace {

bool IsAmount(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

std::string_view CollectiveKindName(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKinds> kNames = {
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<Axis> AxesOf(std::span<const AxisTraffic> traffic) {
  std::vector<Axis> axes;
  for (const AxisTraffic& item : traffic) axes.push_back(item.axis);
  return axes;
}

absl::Status ValidateTraffic(std::span<const AxisTraffic> traffic) {
  TESSERA_RETURN_IF_ERROR(ValidateAxes(AxesOf(traffic)));
  for (const AxisTraffic& item : traffic) {
    for (const Transfer& transfer : item.transfers) {
      if (IsAmount(transfer.bytes) && IsAmount(transfer.times)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "axis ", item.axis.name, ": ", CollectiveKindName(transfer.kind),
          " has ", transfer.bytes, " bytes, ", transfer.times,
          " times; use finite numbers that are at least 0"));
    }
  }
  return absl::OkStatus();
}

namespace {

std::vector<std::string> ShapeProblems(const TransformerShape& shape) {
  std::vector<std::string> problems;
  const std::vector<std::pair<std::string_view, int64_t>> counts = {
      {"layers", shape.layers},
      {"hidden", shape.hidden},
      {"kv_hidden", shape.kv_hidden},
      {"sequence", shape.sequence},
      {"micro_batch", shape.micro_batch},
      {"micro_batches", shape.micro_batches},
      {"experts_per_token", shape.experts_per_token},
      {"activation_bytes", shape.activation_bytes},
      {"weight_bytes", shape.weight_bytes},
      {"gradient_bytes", shape.gradient_bytes}};
  for (const auto& [name, count] : counts) {
    if (count < 1) {
      problems.push_back(absl::StrCat(name, " is ", count, "; use at least 1"));
    }
  }
  const std::vector<std::pair<std::string_view, double>> amounts = {
      {"dense_parameters", shape.dense_parameters},
      {"expert_parameters", shape.expert_parameters}};
  for (const auto& [name, amount] : amounts) {
    if (!std::isfinite(amount) || amount < 0) {
      problems.push_back(
          absl::StrCat(name, " is ", amount, "; use at least 0"));
    }
  }
  if (shape.zero_stage < 0 || shape.zero_stage > 3) {
    problems.push_back(
        absl::StrCat("zero_stage is ", shape.zero_stage, "; use 0 to 3"));
  }
  return problems;
}

// The quantities of the table in the header, by their letters.
class Estimate {
 public:
  Estimate(std::span<const Axis> axes, const TransformerShape& shape)
      : axes_(axes), shape_(shape) {}

  // Treats an unknown axis, which the caller rejects, like dp.
  std::vector<Transfer> Of(std::string_view axis) const {
    if (axis == "tp") return Tensor();
    if (axis == "cp") return Context();
    if (axis == "ep") return Expert();
    if (axis == "pp") return Pipeline();
    return Data();
  }

 private:
  double Size(std::string_view name) const {
    for (const Axis& axis : axes_) {
      if (axis.name == name) return static_cast<double>(axis.size.value());
    }
    return 1;
  }
  double Count(int64_t count) const { return static_cast<double>(count); }

  double Activations() const {
    return Count(shape_.micro_batch) * Count(shape_.sequence) / Size("cp") *
           Count(shape_.hidden) * Count(shape_.activation_bytes);
  }
  // Executions of a layer: those of a stage, once for each micro-batch.
  double LayerRuns() const {
    return Count(shape_.layers) / Size("pp") * Count(shape_.micro_batches);
  }
  double Parameters() const {
    return (shape_.dense_parameters + shape_.expert_parameters / Size("ep")) /
           (Size("tp") * Size("pp"));
  }

  std::vector<Transfer> Tensor() const {
    return {{CollectiveKind::kAllReduce, Activations(), 4 * LayerRuns()}};
  }
  std::vector<Transfer> Context() const {
    const double keys_and_values =
        2 * Count(shape_.micro_batch) * Count(shape_.sequence) *
        Count(shape_.kv_hidden) * Count(shape_.activation_bytes) / Size("tp");
    return {{CollectiveKind::kAllGather, keys_and_values, 3 * LayerRuns()}};
  }
  std::vector<Transfer> Expert() const {
    return {{CollectiveKind::kAllToAll,
             Activations() * Count(shape_.experts_per_token) / Size("tp"),
             4 * LayerRuns()}};
  }
  std::vector<Transfer> Pipeline() const {
    return {{CollectiveKind::kSendRecv, Activations() / Size("tp"),
             2 * Count(shape_.micro_batches)}};
  }
  std::vector<Transfer> Data() const {
    const double gradients = Parameters() * Count(shape_.gradient_bytes);
    if (shape_.zero_stage < 3) {
      return {{CollectiveKind::kAllReduce, gradients, 1}};
    }
    return {{CollectiveKind::kAllGather,
             Parameters() * Count(shape_.weight_bytes), 2},
            {CollectiveKind::kReduceScatter, gradients, 1}};
  }

  std::span<const Axis> axes_;
  const TransformerShape& shape_;
};

bool IsKnown(std::string_view axis) {
  return axis == "tp" || axis == "cp" || axis == "ep" || axis == "pp" ||
         axis == "dp";
}

}  // namespace

absl::StatusOr<std::vector<AxisTraffic>> EstimateTransformerTraffic(
    std::span<const Axis> axes, const TransformerShape& shape) {
  TESSERA_RETURN_IF_ERROR(ValidateAxes(axes));
  std::vector<std::string> problems = ShapeProblems(shape);
  const Estimate estimate(axes, shape);
  std::vector<AxisTraffic> traffic;
  for (const Axis& axis : axes) {
    if (!IsKnown(axis.name)) {
      problems.push_back(absl::StrCat(
          "axis \"", axis.name,
          "\" has no known traffic; use tp, cp, ep, pp and dp, or give its "
          "transfers yourself"));
    }
    traffic.push_back({axis, estimate.Of(axis.name)});
  }
  if (problems.empty()) return traffic;
  return absl::InvalidArgumentError(
      absl::StrCat("no estimate of a transformer's traffic: ",
                   absl::StrJoin(problems, "; ")));
}

}  // namespace tessera::topology
