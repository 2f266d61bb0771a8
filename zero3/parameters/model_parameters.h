// ModelParameters: the named parameters of a model.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const ModelParameters model,
//       ModelParameters::Builder()
//           .Add({.name = "embedding", .shape = {32000, 512}})
//           .Add({.name = "head", .shape = {512, 32000}, .group = 1})
//           .Build());
//   model.Find("head");                    // ParameterId(1)
//   model[ParameterId(1)].elements;        // 16384000
//   for (const Parameter& parameter : model.all()) ...
//
// An immutable value: copies share their contents and cost a pointer. Methods
// may be called from any thread. Ids, groups and spans stay valid while any
// copy lives.
#ifndef TESSERA_ZERO3_PARAMETERS_MODEL_PARAMETERS_H_
#define TESSERA_ZERO3_PARAMETERS_MODEL_PARAMETERS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "zero3/parameters/parameter.h"

namespace tessera::zero3 {

class ModelParameters {
 public:
  // Collects parameters; every mistake is told at Build.
  class Builder {
   public:
    Builder& Add(ParameterSpec spec);

    // InvalidArgument, with a line for each of the first mistakes, where a name
    // is empty, too long or taken, a dimension is negative, a type unknown, an
    // integer type trainable, a group negative, or the elements or the bytes of
    // a parameter or of all together exceed 2^63-1. The builder can go on.
    absl::StatusOr<ModelParameters> Build() const;

   private:
    std::vector<ParameterSpec> specs_;
  };

  // A model without parameters.
  ModelParameters();

  int64_t count() const;
  // In the order of ids.
  std::span<const Parameter> all() const;
  bool Contains(ParameterId id) const {
    return id >= ParameterId(0) && id.value() < count();
  }
  // Precondition: Contains(id).
  const Parameter& operator[](ParameterId id) const {
    return all()[static_cast<size_t>(id.value())];
  }
  // The parameter of that name, in O(1). NotFound where there is none.
  absl::StatusOr<ParameterId> Find(std::string_view name) const;
  // OK, or InvalidArgument where the model has no such parameter.
  absl::Status CheckId(ParameterId id) const;

  // Of all parameters together.
  int64_t elements() const;
  int64_t bytes() const;

  // All ids by group, and by id within one.
  std::span<const ParameterId> in_use_order() const;
  // How many groups have parameters, and those of the group that is `index`-th
  // in ascending order. Precondition: 0 <= index < group_count().
  int64_t group_count() const;
  std::span<const ParameterId> group(int64_t index) const;

  // The same specs in the same order.
  friend bool operator==(const ModelParameters& a, const ModelParameters& b);

 private:
  struct State;
  explicit ModelParameters(std::shared_ptr<const State> state);

  std::shared_ptr<const State> state_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_MODEL_PARAMETERS_H_
