// Shared by the files bind_*.cc, each of which defines a part of the module
// tessera._core: Bind functions and the conversion of errors.
//
//   module.def("lower", &pipeline::AddCommunication, Release());
//
// A bound function may return an absl::Status or StatusOr: an error becomes an
// exception of tessera.errors, as with Check and Value. Strong integers are
// Python's. Long computations release the interpreter's lock (Release).
#ifndef TESSERA_TOOLS_PYTHON_BINDINGS_H_
#define TESSERA_TOOLS_PYTHON_BINDINGS_H_

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/strong_int.h"

namespace tessera::python {

// Carries an error status to Python.
class StatusException : public std::exception {
 public:
  explicit StatusException(absl::Status status)
      : status_(std::move(status)), text_(status_.message()) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  absl::Status status_;
  std::string text_;
};

inline void Check(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

using Release = pybind11::call_guard<pybind11::gil_scoped_release>;

void BindTopology(pybind11::module_& module);
void BindPipeline(pybind11::module_& module);
void BindPlan(pybind11::module_& module);
void BindLaunch(pybind11::module_& module);
void BindCheckpoint(pybind11::module_& module);
void BindDlpack(pybind11::module_& module);
void BindOptimizer(pybind11::module_& module);

}  // namespace tessera::python

namespace pybind11::detail {

template <typename T>
struct type_caster<absl::StatusOr<T>> {
  static constexpr auto name = make_caster<T>::name;

  static handle cast(absl::StatusOr<T> value, return_value_policy,
                     handle parent) {
    return make_caster<T>::cast(tessera::python::Value(std::move(value)),
                                return_value_policy::move, parent);
  }
};

template <>
struct type_caster<absl::Status> {
  static constexpr auto name = const_name("None");

  static handle cast(const absl::Status& status, return_value_policy, handle) {
    tessera::python::Check(status);
    return none().release();
  }
};

template <typename Tag>
struct type_caster<tessera::StrongInt<Tag>> {
  PYBIND11_TYPE_CASTER(tessera::StrongInt<Tag>, const_name("int"));

  bool load(handle source, bool convert) {
    make_caster<int64_t> number;
    if (!number.load(source, convert)) return false;
    value = tessera::StrongInt<Tag>(cast_op<int64_t>(number));
    return true;
  }
  static handle cast(tessera::StrongInt<Tag> number, return_value_policy policy,
                     handle parent) {
    return make_caster<int64_t>::cast(number.value(), policy, parent);
  }
};

// A list: its elements are valid during the call.
template <typename T>
struct type_caster<std::span<const T>> : list_caster<std::vector<T>, T> {
  template <typename>
  using cast_op_type = std::span<const T>;

  operator std::span<const T>() { return this->value; }
};

}  // namespace pybind11::detail

#endif  // TESSERA_TOOLS_PYTHON_BINDINGS_H_
