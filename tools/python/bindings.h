// Shared by the files bind_*.cc, each of which defines a part of the module
// tessera._core: Bind functions and the conversion of errors.
//
//   module.def(
//       "lower",
//       [](const Schedule& schedule) {
//         return Value(pipeline::AddCommunication(schedule));
//       },
//       Release());
//
// Check and Value convert an error status to an exception of tessera.errors.
// Long computations release the interpreter's lock (Release).
#ifndef TESSERA_TOOLS_PYTHON_BINDINGS_H_
#define TESSERA_TOOLS_PYTHON_BINDINGS_H_

#include <pybind11/pybind11.h>

#include <exception>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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

#endif  // TESSERA_TOOLS_PYTHON_BINDINGS_H_
