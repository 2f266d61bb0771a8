#include "tools/train/parity/testing/train_case.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device/device.h"
#include "base/device/emulated_device.h"
#include "base/device/testing/forgetful_device.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "collectives/testing/run_ranks.h"
#include "offload/codec/codec.h"
#include "offload/tier/accounting.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/memory_tier.h"
#include "offload/tier/spill_tier.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/samples.h"
#include "tools/train/loop/rank_device.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/step/train_rank.h"
#include "tools/train/testing/small_text.h"

namespace tessera::train {

namespace {

using Tier = std::shared_ptr<offload::MemoryTier>;

std::string TemporaryDirectory() {
  const char* directory = std::getenv("TEST_TMPDIR");
  return directory == nullptr ? "/tmp" : directory;
}

// Null if the run has no tier.
absl::StatusOr<Tier> MakeTier(const ParityCase& run) {
  Tier tier;
  if (run.tier == "file" || run.tier == "spill") {
    TESSERA_ASSIGN_OR_RETURN(
        tier, offload::FileTier::Create(std::make_shared<offload::Accounting>(
                                            "file", int64_t{1} << 30),
                                        {.path = TemporaryDirectory()}));
  }
  if (run.tier == "host" || run.tier == "spill") {
    const auto host = std::make_shared<offload::HostTier>(
        std::make_shared<offload::Accounting>(
            "host", tier == nullptr ? int64_t{1} << 30 : int64_t{1} << 13));
    tier = tier == nullptr
               ? Tier(host)
               : std::make_shared<offload::SpillTier>(host, std::move(tier));
  }
  if (!run.lossless || tier == nullptr) return tier;
  TESSERA_ASSIGN_OR_RETURN(auto codec, offload::CreateCodec("lossless"));
  return std::make_shared<offload::CompressedTier>(std::move(codec),
                                                   std::move(tier));
}

void OffloadTo(offload::MemoryTier* tier, const std::string& offload,
               RunOptions& options) {
  zero3::ShardedStateOptions& state = options.state;
  if (offload == "activations") options.activation_tier = tier;
  const bool all = offload == "all";
  if (all || offload == "optimizer") state.optimizer_tier = tier;
  if (state.optimizer_tier == nullptr) state.speculative_bytes = 0;
  if (all || offload == "gradients") state.gradient_tier = tier;
  if (all || offload == "params") state.parameter_tier = tier;
}

// The host waits and memory growth that are allowed in steps after the first.
struct StepAllowance {
  int64_t waits = 0;
  bool grows = false;
};

// The host waits for its device once per step, for the norm (a second time if
// experts have a separate state), and the device allocates no memory. An
// optimizer on the host also waits for the gradients, which may be later than
// the norm. Mixtures wait once per step for the loads of their experts, and
// without a capacity once per routing for the number of rows of each expert. If
// experts receive more rows than before, the memory of these rows and the block
// of a tier grow, after another wait.
StepAllowance AllowanceOf(TrainRank& rank, const RunOptions& options) {
  StepAllowance allowance = {
      .waits = static_cast<int64_t>(rank.model().parts().size())};
  // For the norms of weights and of updates.
  if (options.state.optimizer == zero3::OptimizerKind::kAdafactor) {
    allowance.waits *= 2;
  }
  // For the checks of roots.
  if (options.state.optimizer == zero3::OptimizerKind::kShampoo) {
    ++allowance.waits;
  }
  if (options.qk_clip > 0) ++allowance.waits;
  const int64_t micro_batches =
      options.batch / options.mesh.dp / options.micro_batch;
  if (options.dpo_beta) allowance.waits += micro_batches;
  const bool routes_again =
      options.recompute == tensor_parallel::Recompute::kFull;
  bool counts_loads = false;
  for (const auto& part : rank.model().parts()) {
    for (const auto* parameter : part.parameters) {
      if (options.state.optimizer_tier != nullptr) {
        // Clipped weights are opened again.
        const bool is_clipped =
            options.qk_clip > 0 &&
            absl::StrContains(parameter->name(), ".attention.");
        allowance.waits += is_clipped ? 2 : 1;
      }
      if (!parameter->name().ends_with("router.weight")) continue;
      counts_loads = true;
      if (options.expert_capacity > 0) continue;
      allowance.waits += micro_batches * (routes_again ? 2 : 1);
      if (options.activation_tier != nullptr) allowance.waits += micro_batches;
      allowance.grows = true;
    }
  }
  if (counts_loads) ++allowance.waits;
  return allowance;
}

absl::Status CheckDevice(int64_t step, const StepAllowance& allowance,
                         const DeviceCounts& before,
                         const DeviceCounts& after) {
  const int64_t waits = after.host_waits - before.host_waits;
  const int64_t allocations = after.allocations - before.allocations;
  const int64_t growths = allowance.grows ? allocations : 0;
  if (step == 0 ||
      (waits <= allowance.waits + growths && allocations == growths)) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("step ", step, ": the host waits ", waits,
                   " times for its device, which allocates ", allocations,
                   " times; ", allowance.waits + growths, " waits and ",
                   growths, " allocations are allowed"));
}

absl::StatusOr<std::vector<StepRecord>> TrainOneRank(
    collectives::Communicator& world, const MakeRankDevice& make_device,
    RunOptions options, const text::Samples& samples) {
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<RankDevice> device,
                           make_device(world));
  options.state.ops = device->state_ops();
  options.state.adamw.pool = device->pool();
  TESSERA_ASSIGN_OR_RETURN(
      auto rank,
      TrainRank::Create(device->world(), options, samples, device->ops()));
  if (options.dpo_beta) TESSERA_RETURN_IF_ERROR(rank->ComputeReferences());
  TESSERA_RETURN_IF_ERROR(device->device().Synchronize());
  // Ranks that share a device count each other's waits.
  const bool counts = !device->queue().is_immediate() &&
                      device->world().engine_name() == "emulated";
  const StepAllowance allowance = AllowanceOf(*rank, options);
  std::vector<StepRecord> records;
  for (int64_t step = 0; step < options.steps; ++step) {
    const DeviceCounts before = device->device().counts();
    TESSERA_ASSIGN_OR_RETURN(records.emplace_back(), rank->Step());
    if (!counts) continue;
    TESSERA_RETURN_IF_ERROR(
        CheckDevice(step, allowance, before, device->device().counts()));
  }
  return records;
}

bool IsSame(const StepRecord& a, const StepRecord& b) {
  return a.step == b.step && a.loss == b.loss &&
         a.gradient_norm == b.gradient_norm &&
         a.learning_rate == b.learning_rate && a.loss_scale == b.loss_scale &&
         a.skipped == b.skipped && a.expert_imbalance == b.expert_imbalance &&
         a.max_attention_score == b.max_attention_score &&
         a.reward_chosen == b.reward_chosen &&
         a.reward_rejected == b.reward_rejected &&
         a.reward_accuracy == b.reward_accuracy;
}

// True for errors that follow from another rank's error: an aborted group, or a
// lost rank.
bool Follows(const absl::Status& error) {
  return absl::IsAborted(error) || absl::IsUnavailable(error) ||
         absl::IsFailedPrecondition(error);
}

// The first error that does not follow from another rank's error.
absl::Status FirstError(const std::vector<absl::Status>& results) {
  absl::Status error;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].ok()) continue;
    const bool begins =
        error.ok() || (Follows(error) && !Follows(results[rank]));
    if (!begins) continue;
    error = absl::Status(
        results[rank].code(),
        absl::StrCat("rank ", rank, ": ", results[rank].message()));
  }
  return error;
}

double PartOf(double actual, double expected) {
  const double part = std::abs(actual - expected) / std::abs(expected);
  return std::isfinite(part) ? part : std::numeric_limits<double>::infinity();
}

void Enlarge(const ParityDifference& difference, ParityDifference& largest) {
  largest.loss = std::max(largest.loss, difference.loss);
  largest.gradient_norm =
      std::max(largest.gradient_norm, difference.gradient_norm);
}

std::string LineOf(const std::string& name, int64_t runs,
                   const ParityDifference& largest) {
  return absl::StrFormat("%-28s %5d runs, loss %.1e, gradient norm %.1e\n",
                         name, runs, largest.loss, largest.gradient_norm);
}

}  // namespace

absl::StatusOr<std::vector<StepRecord>> TrainOn(
    const ParityCase& run, const MakeRankDevice& make_device) {
  TESSERA_ASSIGN_OR_RETURN(
      const text::Samples samples,
      text::Samples::Create(
          run.dpo       ? testing::SmallPreferences(run.length)
          : run.prompts ? testing::SmallPairs()
                        : testing::SmallText(),
          {.sequence = run.length, .seed = 5, .together = run.dpo ? 2 : 1}));
  TESSERA_ASSIGN_OR_RETURN(const Tier tier, MakeTier(run));
  RunOptions options = RunOptionsOf(run);
  OffloadTo(tier.get(), run.offload, options);
  const int64_t ranks = run.mesh.world_size();
  std::vector<std::vector<StepRecord>> records(static_cast<size_t>(ranks));
  // There are more ranks than processors, so waiting ranks should sleep.
  auto engines = collectives::CreateInProcessEngines(
      ranks, {.tuning = {.spins = 1, .yield_us = 0}});
  TESSERA_RETURN_IF_ERROR(FirstError(collectives::RunRanksOn(
      std::move(engines),
      [&](collectives::Communicator& world) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            records[static_cast<size_t>(world.rank().value())],
            TrainOneRank(world, make_device, options, samples));
        return absl::OkStatus();
      })));
  for (const auto& of_rank : records) {
    if (!std::equal(of_rank.begin(), of_rank.end(), records[0].begin(),
                    records[0].end(), IsSame)) {
      return absl::InternalError("the ranks have different records");
    }
  }
  return records[0];
}

absl::StatusOr<std::vector<StepRecord>> TrainCase(const ParityCase& run) {
  return TrainOn(run, [&run](collectives::Communicator& world) {
    return RankDevice::Create(
        {.device = run.device_seed != 0 ? "emulated" : "cpu",
         .device_seed = run.device_seed},
        world);
  });
}

absl::StatusOr<std::vector<StepRecord>> TrainForgetful(
    const ParityCase& run, const ForgottenWaits& forgotten) {
  return TrainOn(
      run,
      [&](collectives::Communicator& world)
          -> absl::StatusOr<std::unique_ptr<RankDevice>> {
        TESSERA_ASSIGN_OR_RETURN(
            const std::shared_ptr<Device> emulated,
            EmulatedDevice::Create(
                {.seed = static_cast<uint64_t>(100 * run.device_seed +
                                               world.rank().value())}));
        return RankDevice::CreateOn(
            std::make_shared<ForgetfulDevice>(emulated, forgotten), world);
      });
}

ParityDifference DifferenceOf(const std::vector<StepRecord>& actual,
                              const std::vector<StepRecord>& expected) {
  ParityDifference largest;
  if (actual.size() != expected.size()) {
    largest.loss = largest.gradient_norm =
        std::numeric_limits<double>::infinity();
    return largest;
  }
  for (size_t s = 0; s < actual.size(); ++s) {
    largest.loss =
        std::max(largest.loss, PartOf(actual[s].loss, expected[s].loss));
    largest.gradient_norm =
        std::max(largest.gradient_norm,
                 PartOf(actual[s].gradient_norm, expected[s].gradient_norm));
  }
  return largest;
}

void ParityReport::Add(const CoveringRow& row,
                       const ParityDifference& difference) {
  ++runs_;
  Enlarge(difference, largest_);
  for (size_t factor = 0; factor < row.size(); ++factor) {
    Line& line = lines_[{factor, row[factor]}];
    ++line.runs;
    Enlarge(difference, line.largest);
  }
}

std::ostream& operator<<(std::ostream& os, const ParityReport& report) {
  os << LineOf("all", report.runs_, report.largest_);
  for (const auto& [place, line] : report.lines_) {
    const ParityOption& option = ParityOptions()[place.first];
    os << LineOf(
        option.name + "=" + option.values[static_cast<size_t>(place.second)],
        line.runs, line.largest);
  }
  return os;
}

}  // namespace tessera::train
