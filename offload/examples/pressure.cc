// A level of pressure rises at once, and falls two seconds after the memory.
// From 75 % on, a balanced policy moves blocks to the far tier.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "offload/pressure/pressure_gauge.h"
#include "offload/pressure/pressure_policy.h"
#include "offload/tier/host_tier.h"
#include "offload/tier/spill_tier.h"

using namespace tessera;
using namespace tessera::offload;

std::shared_ptr<HostTier> Tier(const char* name) {
  return std::make_shared<HostTier>(
      std::make_shared<Accounting>(name, kUnlimited));
}

absl::Status Run() {
  SpillTier tier(Tier("near"), Tier("far"));
  for (const char* key : {"a", "b", "c", "d"}) {
    TESSERA_RETURN_IF_ERROR(tier.Put(key, std::vector<std::byte>(100), {}));
  }
  const PressurePolicy& policy =
      PressurePolicy::Of(PressureStrategy::kBalanced);
  PressureGauge gauge;
  const int64_t used_mib[] = {300, 700, 950, 800, 700, 700, 300};
  for (int64_t second = 0; second < 7; ++second) {
    MemoryReading reading;
    reading.limits.push_back(
        {.source = "my job", .used = used_mib[second], .limit = 1000});
    TESSERA_ASSIGN_OR_RETURN(const int64_t moved,
                             tier.Relieve(policy, reading));
    std::cout << used_mib[second] << " MiB of 1000: "
              << gauge.Update(reading, second * 1'000'000'000) << ", " << moved
              << " bytes moved\n";
  }
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
