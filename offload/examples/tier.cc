// Optimizer state that does not fit: a little host memory in front of a file,
// which holds losslessly compressed blocks.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/layered_tier.h"

int main() {
  using namespace tessera;
  using namespace tessera::offload;
  const auto budget = [](const char* tier, int64_t bytes) {
    return std::make_shared<Accounting>(tier, bytes);
  };
  const char* scratch = std::getenv("TEST_TMPDIR");
  std::shared_ptr<MemoryTier> file = *FileTier::Create(
      budget("file", int64_t{1} << 30), {.path = scratch ? scratch : "."});
  const auto far =
      std::make_shared<CompressedTier>(*CreateCodec("lossless"), file);
  const auto near = std::make_shared<HostTier>(budget("host", 6 << 20));
  const auto tier = *LayeredTier::Create(near, far, {});

  const std::vector<float> moments(1 << 20, 0.001f);  // 4 MiB
  for (const char* key : {"adam.0", "adam.1", "adam.2"}) {
    const absl::Status put = tier->Put(key, std::as_bytes(std::span(moments)),
                                       {Purpose::kOptimizer, DType::kF32});
    if (!put.ok()) std::cout << put << "\n";
  }
  const Operation load = tier->StartPrefetch("adam.0");  // while we compute
  if (!load.Wait().ok()) return 1;
  for (const char* key : {"adam.0", "adam.1", "adam.2"}) {
    std::cout << key << (tier->InFront(key) ? " is near\n" : " is far\n");
  }
  const Usage host = tier->usage()[0].usage;
  std::cout << "host: " << host.of(Purpose::kOptimizer).current << " of "
            << host.budget << " bytes\n";
  const std::vector<std::byte> huge(7 << 20);
  std::cout << "behind: " << tier->Put("huge", huge, {}) << "\n"
            << near->Put("huge", huge, {}).message() << "\n";
}
