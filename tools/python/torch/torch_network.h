// The network between hosts: torch's own gloo, which needs no library beside
// torch and uses the interface that torch's users expect.
#ifndef TESSERA_TOOLS_PYTHON_TORCH_TORCH_NETWORK_H_
#define TESSERA_TOOLS_PYTHON_TORCH_TORCH_NETWORK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/engine/engine.h"
#include "tools/python/torch/torch_store.h"

namespace tessera::torch_backend {

// Connects all ranks of `store`, which must outlive the engine, with torch's
// gloo; the messages are encrypted if the user wants it. The engine implements
// no collective. FailedPrecondition if this host has no address for others, or
// torch no gloo; Unavailable or DeadlineExceeded if the ranks cannot be
// connected; the errors of AllGather. Takes the interpreter's lock.
absl::StatusOr<std::unique_ptr<collectives::Engine>> CreateTorchNetwork(
    TorchStore& store, const std::string& name, absl::Duration timeout);

}  // namespace tessera::torch_backend

#endif  // TESSERA_TOOLS_PYTHON_TORCH_TORCH_NETWORK_H_
