// RankSetup: a rank with everything that it computes on (its device, the meter
// of its steps, and the tiers of its offloaded state).
//
//   TESSERA_ASSIGN_OR_RETURN(const auto setup, RankSetup::Create(run));
//   TESSERA_RETURN_IF_ERROR(setup->meter().Begin(setup->rank()));
//   setup->rank().Step();
//
// When the memory strategy changes, or after a spike of the loss, the rank and
// its tiers are made again:
//
//   setup->Release();
//   run.settings = next;
//   TESSERA_RETURN_IF_ERROR(setup->Make(run));
#ifndef TESSERA_TOOLS_TRAIN_LOOP_RANK_SETUP_H_
#define TESSERA_TOOLS_TRAIN_LOOP_RANK_SETUP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/train/loop/offload_tiers.h"
#include "tools/train/loop/rank_device.h"
#include "tools/train/loop/run_context.h"
#include "tools/train/report/step_meter.h"
#include "tools/train/step/train_rank.h"

namespace tessera::train {

class RankSetup {
 public:
  // A collective of the run's world, like Make.
  static absl::StatusOr<std::unique_ptr<RankSetup>> Create(
      const RunContext& run);

  // Creates the tiers and the rank of the run's settings.
  absl::Status Make(const RunContext& run);
  void Release();

  TrainRank& rank() { return *rank_; }
  OffloadTiers& tiers() { return *tiers_; }
  StepMeter& meter() { return *meter_; }
  int64_t clock_offset() const { return clock_offset_; }
  // "rank 3 (dp1 pp0 cp0 tp1)".
  std::string name() const;

 private:
  // Members refer to earlier ones.
  std::unique_ptr<RankDevice> device_;
  int64_t clock_offset_ = 0;
  std::optional<StepMeter> meter_;
  std::unique_ptr<OffloadTiers> tiers_;
  std::unique_ptr<TrainRank> rank_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_RANK_SETUP_H_
