// Shared by the files of the module tessera_torch._C: its errors, the
// communicator of a process group, and the parts that define it.
#ifndef TESSERA_TOOLS_PYTHON_TORCH_BACKEND_H_
#define TESSERA_TOOLS_PYTHON_TORCH_BACKEND_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"

namespace tessera::torch_backend {

// Raises a ValueError for invalid arguments.
template <typename... Parts>
void Require(bool holds, const Parts&... parts) {
  if (!holds) throw std::invalid_argument(absl::StrCat("tessera: ", parts...));
}

// Raises a ValueError for InvalidArgument, otherwise torch's DistBackendError.
// The message of a timeout contains "Timed out", which torch's users look for;
// `timeout` is the one that the message names.
[[noreturn]] void Throw(const absl::Status& status,
                        absl::Duration timeout = absl::ZeroDuration());

inline void Check(const absl::Status& status) {
  if (!status.ok()) Throw(status);
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// The communicator of a process group of backend "tessera"; otherwise throws.
std::shared_ptr<collectives::Communicator> CommunicatorOf(
    c10d::ProcessGroup& group);

// Defines the C++ part of tessera_torch.zero: a ShardedState whose values and
// gradients are torch tensors.
void BindZero(pybind11::module_& module);

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_BACKEND_H_
