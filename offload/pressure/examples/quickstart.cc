// Blocks leave a near tier that has become too full, the last needed first.
#include <iostream>

#include "base/status_macros.h"
#include "offload/pressure/pressure_controller.h"
#include "offload/pressure/reading/budget_source.h"
#include "offload/tier/host_tier.h"

absl::Status Run() {
  using namespace tessera::offload;
  const auto budget = std::make_shared<Accounting>("near", 1000);
  HostTier near(budget);
  HostTier far(std::make_shared<Accounting>("far", kUnlimited));
  for (const char* layer : {"0", "1", "2", "3", "4", "5", "6", "7"}) {
    const std::vector<std::byte> block(100);
    TESSERA_RETURN_IF_ERROR(near.Put(layer, block, {Purpose::kParameters}));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const auto controller,
      PressureController::Create(
          {.near = &near,
           .far = &far,
           .source = std::make_shared<BudgetSource>(budget),
           .strategy = PressureStrategy::kBalanced,
           .next_use = [](std::string_view key) { return key[0] - '0'; }}));
  TESSERA_ASSIGN_OR_RETURN(const PressureReport report, controller->Check());
  std::cout << report.level << " at " << report.pressure << ": moved";
  for (const std::string& key : report.moved) std::cout << " " << key;
  std::cout << ", now at " << report.after.pressure() << "\n";
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
