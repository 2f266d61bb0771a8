#include "zero3/estimate/estimate_memory.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/estimate/buffers.h"

namespace tessera::zero3 {
namespace {

using topology::Rank;

absl::Status CheckRange(std::string_view what, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, "; allowed: ", least, " to ", most));
}

absl::Status CheckOptimizer(const OptimizerState& optimizer,
                            const ZeroConfig& config) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("optimizer.moments", optimizer.moments, 0, 2));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("optimizer.block", optimizer.block, 1, kMaxAlignment));
  if (topology::EnumName(optimizer.type).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.type is ", static_cast<int>(optimizer.type),
                     "; allowed: ", topology::AllowedNames<MomentType>()));
  }
  const bool cuts_blocks = optimizer.type == MomentType::kBlock8 &&
                           config.alignment % optimizer.block != 0;
  if (!cuts_blocks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "alignment is ", config.alignment,
      ", which would cut the blocks of 8-bit moments; allowed: multiples of "
      "optimizer.block, ",
      optimizer.block, "; set alignment to ", optimizer.block));
}

absl::Status CheckRequest(const MemoryRequest& request) {
  TESSERA_RETURN_IF_ERROR(
      CheckRange("ranks", request.ranks, 1, kMaxShardRanks));
  return CheckRange("replicas", request.replicas, 1, int64_t{1} << 40);
}

absl::Status TooLarge(Rank rank, std::string_view what, int64_t needed,
                      std::string_view budget, ByteSize allowed,
                      std::string_view help) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "rank ", rank.value(), " needs ", needed, " bytes ", what, "; allowed: ",
      allowed.bytes(), " (", budget, " ", allowed.ToString(), "); ", help));
}

}  // namespace

MemoryModel::MemoryModel(StateLayout layout, ZeroConfig config,
                         MemoryRequest request, ReusePlan gathers)
    : layout_(std::move(layout)),
      config_(std::move(config)),
      request_(std::move(request)),
      gathers_(std::move(gathers)) {}

absl::StatusOr<MemoryModel> MemoryModel::Create(const ModelParameters& model,
                                                const ZeroConfig& config,
                                                const MemoryRequest& request) {
  TESSERA_RETURN_IF_ERROR(config.Validate());
  TESSERA_RETURN_IF_ERROR(CheckRequest(request));
  TESSERA_RETURN_IF_ERROR(CheckOptimizer(request.optimizer, config));
  TESSERA_ASSIGN_OR_RETURN(
      StateLayout layout,
      StateLayout::Create(model, config.MakeLayoutOptions(request.ranks)));
  MemoryModel memory(std::move(layout), config, request, ReusePlan());
  TESSERA_ASSIGN_OR_RETURN(memory.gathers_,
                           GatherPlan(memory.layout_, config, memory.Order()));
  return memory;
}

absl::Status MemoryModel::CheckRank(Rank rank) const {
  if (rank >= Rank(0) && rank.value() < request_.ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the shard group has no rank ", rank.value(),
                   "; allowed: 0 to below ", request_.ranks));
}

Rank MemoryModel::LayoutRank(Rank rank) const {
  return config_.stage == 0 ? Rank(0) : rank;
}

UseOrder MemoryModel::Order() const {
  return request_.order.has_value()
             ? *request_.order
             : UseOrder::ForwardBackward(layout_.model());
}

MemoryModel::Estimated MemoryModel::EstimateAt(Rank layout_rank) const {
  const std::vector<StateBlock> blocks =
      StateBlocksOf(layout_, config_, request_.optimizer, layout_rank);
  BuffersPeak buffers = BuffersOf(layout_, config_,
                                  {.rank = layout_rank,
                                   .world = request_.ranks * request_.replicas,
                                   .moments = request_.optimizer.moments,
                                   .holds_gradients = request_.holds_gradients,
                                   .order = Order()},
                                  gathers_, blocks);
  Estimated estimated = {buffers.use, buffers.values};
  for (const StateBlock& block : blocks) {
    estimated.use.Add(block.purpose, block.tier, block.bytes);
  }
  estimated.values += estimated.use.At(Purpose::kParameters, Tier::kDevice) +
                      estimated.use.At(Purpose::kCopies, Tier::kDevice);
  return estimated;
}

absl::StatusOr<MemoryUse> MemoryModel::Estimate(Rank rank) const {
  TESSERA_RETURN_IF_ERROR(CheckRank(rank));
  return EstimateAt(LayoutRank(rank)).use;
}

absl::StatusOr<std::vector<StateBlock>> MemoryModel::Blocks(Rank rank) const {
  TESSERA_RETURN_IF_ERROR(CheckRank(rank));
  return StateBlocksOf(layout_, config_, request_.optimizer, LayoutRank(rank));
}

absl::Status MemoryModel::CheckFits() const {
  // Chunks are alike on every rank.
  const bool is_even = layout_.options().kind == LayoutKind::kChunks;
  for (int64_t rank = 0; rank < (is_even ? 1 : layout_.ranks()); ++rank) {
    const Estimated estimated = EstimateAt(Rank(rank));
    const MemoryUse& use = estimated.use;
    if (use.Of(Tier::kHost) > config_.cpu_budget.bytes()) {
      return TooLarge(Rank(rank), "of host memory", use.Of(Tier::kHost),
                      "cpu_budget", config_.cpu_budget,
                      "raise it, name a swap_directory, or use more ranks");
    }
    if (estimated.values > config_.device_parameter_budget.bytes()) {
      return TooLarge(Rank(rank), "of device memory for parameters",
                      estimated.values, "device_parameter_budget",
                      config_.device_parameter_budget,
                      "raise it, set offload_parameters at stage 3, lower "
                      "parameter_persistence_threshold or prefetch_buffer, or "
                      "use more ranks");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<MemoryUse> EstimateMemory(const ModelParameters& model,
                                         const ZeroConfig& config,
                                         const MemoryRequest& request,
                                         Rank rank) {
  TESSERA_ASSIGN_OR_RETURN(const MemoryModel memory,
                           MemoryModel::Create(model, config, request));
  return memory.Estimate(rank);
}

}  // namespace tessera::zero3
