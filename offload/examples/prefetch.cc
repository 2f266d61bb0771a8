// Eight layers pass through room for four, forward and backward.
#include <iostream>

#include "base/status_macros.h"
#include "offload/prefetch/prefetcher.h"
#include "offload/tier/host_tier.h"

absl::Status Run() {
  using namespace tessera::offload;
  HostTier far(std::make_shared<Accounting>("far", kUnlimited));
  for (const char* layer : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
    const std::vector<std::byte> block(1 << 20);
    TESSERA_RETURN_IF_ERROR(far.Put(layer, block, {Purpose::kParameters}));
  }
  TESSERA_ASSIGN_OR_RETURN(const auto prefetcher,
                           Prefetcher::Create(far, {.budget = 4 << 20}));
  for (int step = 0; step < 3; ++step) {
    TESSERA_RETURN_IF_ERROR(prefetcher->BeginStep());
    for (const char c : std::string("0123456776543210")) {
      const std::string layer(1, c);
      TESSERA_ASSIGN_OR_RETURN(const auto block, prefetcher->Use(layer));
      block[0] = std::byte{1};
      TESSERA_RETURN_IF_ERROR(prefetcher->Done(layer, /*dirty=*/true));
    }
    TESSERA_ASSIGN_OR_RETURN(const StepReport report, prefetcher->EndStep());
    std::cout << (report.planned ? "planned" : "recorded") << ": "
              << report.uses << " uses, " << report.deviations
              << " out of order\n";
  }
  return prefetcher->Flush();
}

int main() { return Run().ok() ? 0 : 1; }
