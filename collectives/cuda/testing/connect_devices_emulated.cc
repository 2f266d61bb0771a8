#include "absl/strings/str_cat.h"
#include "collectives/cuda/connect_devices.h"

namespace tessera::collectives::emulated {

absl::Status ConnectDevices(Device& device, std::span<Device* const> devices) {
  for (const Device* const peer : devices) {
    if (peer == &device) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "cuda: emulated ranks share one device, but one has another device ",
        peer->name(), "; create one and give it to all ranks"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives::emulated
