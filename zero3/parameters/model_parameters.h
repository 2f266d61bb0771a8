// ModelParameters: the named parameters of a model.
#ifndef TESSERA_ZERO3_PARAMETERS_MODEL_PARAMETERS_H_
#define TESSERA_ZERO3_PARAMETERS_MODEL_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/strong_int.h"

namespace tessera::zero3 {

// The index of a parameter in its model: 0, 1, ... in the order of insertion.
using ParameterId = StrongInt<struct ParameterIdTag>;

inline size_t IndexOf(ParameterId id) {
  return static_cast<size_t>(id.value());
}

// A value for each parameter of a model, initially a default.
template <typename T>
class ById {
 public:
  ById() = default;
  explicit ById(int64_t parameters)
      : values_(static_cast<size_t>(parameters)) {}

  T& operator[](ParameterId id) { return values_[IndexOf(id)]; }
  const T& operator[](ParameterId id) const { return values_[IndexOf(id)]; }
  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }

 private:
  std::vector<T> values_;
};

inline constexpr size_t kMaxParameterName = 1024;

// The specification of a parameter.
struct ParameterSpec {
  // Not empty, at most kMaxParameterName bytes, unique in the model.
  std::string name = {};
  // Elements along each dimension; none for a scalar, 0 for an empty tensor.
  std::vector<int64_t> shape = {};
  // The type of the values that the forward and backward passes compute with.
  DType dtype = DType::kF32;
  // False for frozen parameters and for buffers: no gradient, no optimizer
  // state. Only floating types are trainable.
  bool trainable = true;
  // True for a matrix, or several stacked matrices, that Muon updates as a
  // whole (zero3/state/optimizer_shard.h): it has one moment. Other parameters
  // have as many moments as the optimizer keeps.
  bool orthogonalized = false;
  // The layer: parameters of a group are used together, and groups are used in
  // ascending order. At least 0; gaps are allowed.
  int64_t group = 0;

  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

// A parameter of a ModelParameters, with derived sizes.
struct ModelParameter {
  ParameterId id = {};
  ParameterSpec spec = {};
  int64_t elements = 0;
  int64_t bytes = 0;

  const std::string& name() const { return spec.name; }
  DType dtype() const { return spec.dtype; }
  bool trainable() const { return spec.trainable; }
};

// Example:
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const ModelParameters model,
//       ModelParameters::Builder()
//           .Add({.name = "embedding", .shape = {32000, 512}})
//           .Add({.name = "head", .shape = {512, 32000}, .group = 1})
//           .Build());
//   model.Find("head");                    // ParameterId(1)
//   model[ParameterId(1)].elements;        // 16384000
//   for (const ModelParameter& parameter : model.all()) ...
//
// An immutable value: copies share their contents and cost a pointer.
// Thread-safe. Ids, groups and spans stay valid while any copy exists.
class ModelParameters {
 public:
  // Collects parameters; Build reports all errors.
  class Builder {
   public:
    Builder& Add(ParameterSpec spec);

    // InvalidArgument, with a line for each of the first errors, if a name is
    // empty, too long or repeated, a dimension is negative, a type unknown, an
    // integer type trainable, a group negative, or the elements or bytes of a
    // parameter or in total exceed 2^63-1. The builder stays usable.
    absl::StatusOr<ModelParameters> Build() const;

   private:
    std::vector<ParameterSpec> specs_;
  };

  // A model without parameters.
  ModelParameters();

  int64_t count() const;
  // All parameters, in the order of ids.
  std::span<const ModelParameter> all() const;
  bool Contains(ParameterId id) const {
    return id >= ParameterId(0) && id.value() < count();
  }
  // Precondition: Contains(id).
  const ModelParameter& operator[](ParameterId id) const {
    return all()[static_cast<size_t>(id.value())];
  }
  // The parameter of that name, in O(1). NotFound if there is none.
  absl::StatusOr<ParameterId> Find(std::string_view name) const;
  // OK, or InvalidArgument if the model has no such parameter.
  absl::Status CheckId(ParameterId id) const;

  // The elements of all parameters together.
  int64_t elements() const;
  int64_t bytes() const;

  // All ids, ordered by group and within a group by id.
  std::span<const ParameterId> in_use_order() const;
  // The number of groups with parameters, and the parameters of the `index`-th
  // of these groups in ascending order. Precondition: 0 <= index <
  // group_count().
  int64_t group_count() const;
  std::span<const ParameterId> group(int64_t index) const;

  // True if both have the same specs in the same order.
  friend bool operator==(const ModelParameters& a, const ModelParameters& b);

 private:
  struct State;
  explicit ModelParameters(std::shared_ptr<const State> state);

  std::shared_ptr<const State> state_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_MODEL_PARAMETERS_H_
