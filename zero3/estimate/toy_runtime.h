// ToyRuntime: places the state of a rank as the rule of state_blocks.h says,
// element by element, and counts what it holds.
//
// For tests. Written from the rule and from StateLayout::GlobalOf alone.
// Buffers are compared with ShardedState itself, in
// zero3/state/properties.
#ifndef TESSERA_ZERO3_ESTIMATE_TOY_RUNTIME_H_
#define TESSERA_ZERO3_ESTIMATE_TOY_RUNTIME_H_

#include <cstdint>
#include <map>
#include <vector>

#include "topology/rank.h"
#include "zero3/config/zero_config.h"
#include "zero3/estimate/estimate_memory.h"
#include "zero3/estimate/memory_use.h"
#include "zero3/layout/state_layout.h"

namespace tessera::zero3 {

class ToyRuntime {
 public:
  ToyRuntime(const StateLayout& layout, const ZeroConfig& config,
             const MemoryRequest& request, topology::Rank rank);

  const MemoryUse& state() const { return state_; }

 private:
  void Place(Purpose purpose, bool offload, int64_t bytes);
  void PlaceValues();
  void PlaceGradients();
  void PlaceOptimizer(const OptimizerState& optimizer);

  bool IsSmall(const Parameter& parameter) const {
    return config_.stage == 3 &&
           parameter.elements < config_.parameter_persistence_threshold;
  }
  int64_t GradientSize(const Parameter& parameter) const {
    const int64_t size = SizeInBytes(parameter.dtype());
    return config_.gradient_type == GradientType::kFp32 && size < 4 ? 4 : size;
  }

  const StateLayout& layout_;
  const ZeroConfig& config_;
  // By parameter, in the order of slots: elements of this rank's slot; and of
  // all slots.
  std::vector<ParameterId> order_;
  std::map<ParameterId, int64_t> slot_;
  std::map<ParameterId, int64_t> gathered_;
  int64_t host_left_ = 0;
  MemoryUse state_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_ESTIMATE_TOY_RUNTIME_H_
