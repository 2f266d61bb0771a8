// Optimizer state that does not fit: blocks that exceed the budget of host
// memory go to a file, losslessly compressed.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <vector>

#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/file_tier.h"
#include "offload/tier/host_tier.h"

int main() {
  using namespace tessera;
  using namespace tessera::offload;
  const auto budget = [](const char* tier, int64_t bytes) {
    return std::make_shared<Accounting>(tier, bytes);
  };
  const char* scratch = std::getenv("TEST_TMPDIR");
  std::shared_ptr<MemoryTier> file = *FileTier::Create(
      budget("file", int64_t{1} << 30), {.path = scratch ? scratch : "."});
  CompressedTier disk(*CreateCodec("lossless"), file);
  HostTier host(budget("host", 6 << 20));

  const std::vector<float> moments(1 << 20, 0.001f);  // 4 MiB
  const auto bytes = std::as_bytes(std::span(moments));
  const BlockInfo info = {.purpose = Purpose::kOptimizer, .dtype = DType::kF32};
  for (const char* key : {"adam.0", "adam.1", "adam.2"}) {
    const bool fits = host.Put(key, bytes, info).ok();
    if (!fits && !disk.Put(key, bytes, info).ok()) return 1;
    std::cout << key << (fits ? " is in memory\n" : " is on disk\n");
  }
  std::vector<float> back(moments.size());
  const Operation load =
      disk.StartGet("adam.1", std::as_writable_bytes(std::span(back)));
  // ... compute while the block is read and decoded ...
  if (!load.Wait().ok() || back != moments) return 1;
  const Usage usage = host.usage()[0].usage;
  std::cout << "host: " << usage.of(Purpose::kOptimizer).current << " of "
            << usage.budget << " bytes\n"
            << host.Put("huge", std::vector<std::byte>(7 << 20), {}).message()
            << "\n";
}
