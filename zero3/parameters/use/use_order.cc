#include "zero3/parameters/use/use_order.h"

#include "absl/container/flat_hash_set.h"

namespace tessera::zero3 {

UseOrder UseOrder::ForwardBackward(const ModelParameters& model) {
  UseOrder order;
  const int64_t groups = model.group_count();
  for (int64_t i = 0; i < groups; ++i) order.Use(model.group(i));
  for (int64_t i = groups - 1; i >= 0; --i) order.Use(model.group(i));
  return order;
}

UseOrder UseOrder::OneByOne(std::span<const ParameterId> order) {
  UseOrder result;
  for (const ParameterId& id : order) result.Use({&id, 1});
  return result;
}

void UseOrder::Use(std::span<const ParameterId> window) {
  absl::flat_hash_set<ParameterId> seen;
  for (const ParameterId id : window) {
    if (seen.insert(id).second) uses_.push_back(id);
  }
  ends_.push_back(uses_.size());
}

std::span<const ParameterId> UseOrder::window(size_t index) const {
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  return uses().subspan(begin, ends_[index] - begin);
}

}  // namespace tessera::zero3
