// StepTimeline: goes through a step as ShardedState does, and counts the
// buffers that there are.
//
//   StepTimeline step(layout, config, request, plan, blocks);
//   step.Run();
//   step.meter().peak();
//
// For one rank. What is modelled is stated in zero3/estimate/buffers.h.
#ifndef TESSERA_ZERO3_ESTIMATE_TIMELINE_STEP_TIMELINE_H_
#define TESSERA_ZERO3_ESTIMATE_TIMELINE_STEP_TIMELINE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "topology/rank.h"
#include "zero3/config/zero_config.h"
#include "zero3/estimate/state_blocks.h"
#include "zero3/estimate/timeline/buffer_meter.h"
#include "zero3/estimate/timeline/gradient_timeline.h"
#include "zero3/estimate/timeline/live_timeline.h"
#include "zero3/estimate/timeline/staging_timeline.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/use/reuse_plan.h"
#include "zero3/parameters/use/use_order.h"

namespace tessera::zero3 {

struct StepRequest {
  topology::Rank rank = {};
  // All ranks that reduce gradients together.
  int64_t world = 1;
  // Of the optimizer.
  int64_t moments = 2;
  // Backward passes ask for all gradients at the beginning of the step, and
  // make them ready at its end.
  bool holds_gradients = false;
  // Of a micro-batch, and how many of these the plan is for.
  UseOrder order = {};
  int64_t rounds = 1;
  int64_t max_live = 0;  // Elements; the limit of the plan.
};

class StepTimeline {
 public:
  // `layout`, `plan` and `blocks` outlive this; the blocks are the rank's.
  StepTimeline(const StateLayout& layout, const ZeroConfig& config,
               const StepRequest& request, const ReusePlan& plan,
               std::span<const StateBlock> blocks);
  StepTimeline(const StepTimeline&) = delete;
  StepTimeline& operator=(const StepTimeline&) = delete;

  // From the first values to the end of the second step, the first that knows
  // the order of use; later ones are like it. Once.
  void Run();
  const BufferMeter& meter() const { return meter_; }

 private:
  // Which of the rank's blocks go through buffers, by id.
  enum class Part { kValue, kGradient, kMaster, kFirst, kSecond };
  bool IsStaged(const StateBlock& block) const;
  int64_t NearBytesOf(std::span<const StateBlock> blocks) const;
  // The near memory of a tier whose blocks are staged.
  NearTimeline& NearOf(Tier tier) {
    return tier == Tier::kFile ? near_file_ : near_host_;
  }
  StagingTimeline StagingOf(std::span<const StateBlock> blocks, Part part);

  int64_t OwnElements(ParameterId id) const {
    return layout_.ExtentOf(request_.rank, id).size();
  }
  void FindLastUses();
  void Create();
  void CreateBlock(const StateBlock& block, int64_t bytes);
  void Fill();
  void RunStep(bool has_plan);
  void RunRound(int64_t round, bool has_plan);
  void UseGradients(size_t window);
  void AskAll();
  void ReadyAll();
  void Measure();
  void Optimize();
  void StepOne(ParameterId id);

  const StateLayout& layout_;
  const ZeroConfig& config_;
  const StepRequest request_;
  const ReusePlan& plan_;
  const std::span<const StateBlock> blocks_;
  BufferMeter meter_;
  NearTimeline near_host_;
  NearTimeline near_file_;
  StagingTimeline values_;
  StagingTimeline gradient_shards_;
  StagingTimeline masters_;
  StagingTimeline first_;
  StagingTimeline second_;
  LiveTimeline live_;
  GradientTimeline gradients_;
  int64_t missing_state_ = 0;
  // Trained parameters, last used first: those whose last use in a micro-batch
  // is in a window, and those that are in none.
  std::vector<std::vector<ParameterId>> last_uses_;
  std::vector<ParameterId> unused_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_TIMELINE_STEP_TIMELINE_H_
