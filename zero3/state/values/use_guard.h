// UseGuard: all ranks use parameters in the same order, or all of them learn
// who does not, before anybody waits for a collective that never comes.
//
//   TESSERA_RETURN_IF_ERROR(guard.Use(window));   // before its collectives
//   TESSERA_RETURN_IF_ERROR(guard.EndStep());
//
// In the first step ranks exchange each window: a few bytes. What they agreed
// on then holds for all later steps, for nothing: a rank that is about to do
// something else finds out by itself, and breaks the groups with an error that
// names it and the parameter, which frees all who wait.
#ifndef TESSERA_ZERO3_STATE_VALUES_USE_GUARD_H_
#define TESSERA_ZERO3_STATE_VALUES_USE_GUARD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/use/use_order.h"

namespace tessera::zero3 {

class UseGuard {
 public:
  // `group` is only used for this. `others` are broken as well where orders
  // part. All outlive the guard.
  UseGuard(const ModelParameters& model, collectives::Communicator& group,
           std::vector<collectives::Communicator*> others)
      : model_(model), group_(group), others_(std::move(others)) {}

  // The next window of parameters. A collective in the first step.
  // FailedPrecondition, on every rank, where ranks differ; Aborted where
  // another rank has found that it differs.
  absl::Status Use(std::span<const ParameterId> window);
  absl::Status EndStep();

  // The order that all have agreed on; null in the first step.
  const UseOrder* order() const { return agreed_ ? &order_ : nullptr; }
  // How many windows of this step were used.
  size_t position() const { return position_; }

 private:
  absl::Status Agree(std::span<const ParameterId> window);
  absl::Status Follow(std::span<const ParameterId> window);
  absl::Status BreakAll(absl::Status reason);
  std::string NameOf(std::optional<ParameterId> id) const;

  const ModelParameters model_;
  collectives::Communicator& group_;
  const std::vector<collectives::Communicator*> others_;
  UseOrder order_;
  bool agreed_ = false;
  size_t position_ = 0;
  std::vector<int64_t> message_;
  std::vector<int64_t> messages_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_STATE_VALUES_USE_GUARD_H_
