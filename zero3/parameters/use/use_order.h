// UseOrder: which parameters a step uses, in order.
//
//   UseOrder order = UseOrder::ForwardBackward(model);
//   UseOrder recorded;
//   recorded.Use({&weight, 1});   // one window
//
// A step is a list of windows, one for each layer that runs; the parameters of
// a window are used at once and must be live together.
#ifndef TESSERA_ZERO3_PARAMETERS_USE_USE_ORDER_H_
#define TESSERA_ZERO3_PARAMETERS_USE_USE_ORDER_H_

#include <cstddef>
#include <span>
#include <vector>

#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/parameter.h"

namespace tessera::zero3 {

class UseOrder {
 public:
  // Every group of the model in ascending order, then in descending order: a
  // forward and a backward pass.
  static UseOrder ForwardBackward(const ModelParameters& model);
  // A window for each parameter.
  static UseOrder OneByOne(std::span<const ParameterId> order);

  // Appends a window. Ids that come twice in it count once.
  void Use(std::span<const ParameterId> window);

  size_t windows() const { return ends_.size(); }
  // Precondition: index < windows().
  std::span<const ParameterId> window(size_t index) const;
  // The parameters of all windows, one after the other.
  std::span<const ParameterId> uses() const { return uses_; }

  friend bool operator==(const UseOrder&, const UseOrder&) = default;

 private:
  std::vector<ParameterId> uses_;
  // Where each window ends in `uses_`.
  std::vector<size_t> ends_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_USE_USE_ORDER_H_
