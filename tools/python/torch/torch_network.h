// The network between hosts: torch's own gloo, which needs no library beside
// torch and uses the interface that torch's users expect.
#ifndef TESSERA_TOOLS_PYTHON_TORCH_TORCH_NETWORK_H_
#define TESSERA_TOOLS_PYTHON_TORCH_TORCH_NETWORK_H_

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/engine/engine.h"
#include "tools/python/torch/torch_store.h"

namespace tessera::torch_backend {

// Connects the ranks of a group with torch's gloo, whose keys in `store` are
// not used otherwise. FailedPrecondition if this host has no address for
// others, or torch no gloo; Unavailable or DeadlineExceeded if the ranks cannot
// be connected. Takes the interpreter's lock.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> ConnectGloo(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size,
    absl::Duration timeout);

// Creates an engine whose messages use ConnectGloo, for all ranks of `store`,
// which must outlive it; it implements no collective. The errors of ConnectGloo
// and AllGather.
absl::StatusOr<std::unique_ptr<collectives::Engine>> CreateTorchNetwork(
    TorchStore& store, const std::string& name, absl::Duration timeout);

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_TORCH_NETWORK_H_
