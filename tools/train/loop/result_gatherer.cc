#include "tools/train/loop/result_gatherer.h"

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>

#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/groups/agreement.h"
#include "tools/train/loop/memory_watch.h"
#include "tools/train/predict/pipeline_plan.h"

namespace tessera::train {
namespace {

// All-gathers one value per rank as plain numbers.
template <typename Number, typename Value>
absl::StatusOr<std::vector<Value>> GatherAll(collectives::Communicator& world,
                                             const Value& own) {
  static_assert(std::is_trivially_copyable_v<Value>);
  static_assert(sizeof(Value) % sizeof(Number) == 0);
  constexpr size_t kNumbers = sizeof(Value) / sizeof(Number);
  std::vector<Value> all(static_cast<size_t>(world.size()));
  TESSERA_RETURN_IF_ERROR(world.AllGather(
      collectives::ConstBuffer(std::span<const Number>(
          reinterpret_cast<const Number*>(&own), kNumbers)),
      collectives::Buffer(std::span<Number>(
          reinterpret_cast<Number*>(all.data()), kNumbers * all.size()))));
  return all;
}

TimeShares Scaled(const TimeShares& shares, double factor) {
  TimeShares scaled;
  scaled.Add(shares, factor);
  return scaled;
}

BytesByPurpose DeviceBytes(TrainRank& rank) {
  BytesByPurpose bytes = {};
  const offload::Usage usage = rank.state().usage();
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = usage.parts[i].peak;
  bytes[static_cast<size_t>(offload::Purpose::kActivations)] +=
      rank.activation_bytes();
  return bytes;
}

// The pipeline stage of each rank.
std::vector<int64_t> StagesOf(const topology::MeshSizes& mesh) {
  std::vector<int64_t> stages;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    stages.push_back(RankPlace::Of(rank, mesh).pp);
  }
  return stages;
}

SectionSeconds SectionsOf(const TimeShares& shares, double seconds) {
  return {seconds * (shares.compute - shares.data),
          seconds * shares.communication, seconds * shares.data,
          seconds * shares.offload};
}

void KeepMost(const BytesByPurpose& bytes, BytesByPurpose& most) {
  for (size_t i = 0; i < most.size(); ++i)
    most[i] = std::max(most[i], bytes[i]);
}

}  // namespace

void ResultGatherer::Begin(int64_t first_step,
                           const topology::MeshSizes& mesh) {
  stragglers_.emplace(StagesOf(mesh));
  result_.first_step = first_step;
  last_end_ns_ = collectives::MonotonicNanos();
}

absl::StatusOr<StepMetrics> ResultGatherer::AddStep(const StepRecord& record,
                                                    const StepAccount& account,
                                                    StopCause cause) {
  const int64_t now = collectives::MonotonicNanos();
  const RankStep own = {
      .resident = static_cast<double>(ReadResidentMemory().resident),
      .seconds = static_cast<double>(now - last_end_ns_) * 1e-9,
      .stop = static_cast<double>(cause),
      .shares = account.shares()};
  last_end_ns_ = now;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<RankStep> ranks,
                           (GatherAll<double, RankStep>(world_, own)),
                           Annotate(_, "exchanging the ranks' measurements"));
  StepMetrics step = {.record = record, .seconds = ranks[0].seconds};
  step.tokens_per_second = static_cast<double>(record.tokens) / step.seconds;
  for (const RankStep& rank : ranks) {
    stop_ = std::max(stop_, static_cast<StopCause>(rank.stop));
    step.memory_bytes =
        std::max(step.memory_bytes, static_cast<int64_t>(rank.resident));
    step.shares.Add(rank.shares, 1 / static_cast<double>(ranks.size()));
  }
  std::vector<SectionSeconds> sections;
  for (const RankStep& rank : ranks) {
    sections.push_back(SectionsOf(rank.shares, step.seconds));
  }
  if (stragglers_) step.slowest = stragglers_->Add(std::move(sections));
  // The first step allocates memory and records the order of parameters. It is
  // counted only if it is the only step.
  if (result_.steps.size() == 1) {
    counted_seconds_ = 0;
    counted_tokens_ = 0;
    std::fill(ranks_.begin(), ranks_.end(), TimeShares());
  }
  counted_tokens_ += record.tokens;
  counted_seconds_ += step.seconds;
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks_[i].Add(ranks[i].shares, step.seconds);
  }
  result_.seconds += step.seconds;
  result_.steps.push_back(step);
  return step;
}

void ResultGatherer::GoBack(const Rollback& rollback) {
  std::erase_if(result_.steps, [&](const StepMetrics& step) {
    return step.record.step >= rollback.to_step;
  });
  result_.rollbacks.push_back(rollback);
  last_end_ns_ = collectives::MonotonicNanos();
}

void ResultGatherer::AddRank(TrainRank& rank, const OffloadTiers& tiers) {
  KeepMost(DeviceBytes(rank), memory_.device);
  KeepMost(tiers.host_bytes(), memory_.host);
  KeepMost(tiers.file_bytes(), memory_.file);
  const zero3::ShardTraffic total = rank.offload_traffic();
  traffic_.bytes_read += total.bytes_read;
  traffic_.bytes_written += total.bytes_written;
  traffic_.stall_ns += total.stall_ns;
  traffic_.least_stall_ns += total.least_stall_ns;
}

absl::StatusOr<RunResult> ResultGatherer::Result(
    int64_t resident_before, int64_t peak, std::string checkpoint,
    const MeasuredMessages& messages) {
  const ResidentMemory process = ReadResidentMemory();
  memory_.resident = process.resident;
  memory_.peak_resident = std::max(process.peak_resident, peak);
  memory_.resident_before = resident_before;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<RankMemory> memory,
                           (GatherAll<int64_t, RankMemory>(world_, memory_)),
                           Annotate(_, "exchanging the ranks' memory"));
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<OffloadTraffic> traffic,
      (GatherAll<int64_t, OffloadTraffic>(world_, traffic_)),
      Annotate(_, "exchanging the ranks' offload traffic"));
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> all_messages,
      collectives::ExchangeTexts(world_, FormatMessages(messages),
                                 world_.options().timeout),
      Annotate(_, "exchanging the ranks' messages"));
  RunResult result = std::move(result_);
  result.memory_is_shared =
      world_.engine_name() == "in_process" && world_.size() > 1;
  result.checkpoint = std::move(checkpoint);
  const double factor = counted_seconds_ > 0 ? 1 / counted_seconds_ : 0;
  result.tokens_per_second = static_cast<double>(counted_tokens_) * factor;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(MeasuredMessages of_rank,
                             ParseMessages(all_messages[i]));
    result.ranks.push_back(
        {Scaled(ranks_[i], factor), memory[i], traffic[i], std::move(of_rank)});
  }
  return result;
}

}  // namespace tessera::train
