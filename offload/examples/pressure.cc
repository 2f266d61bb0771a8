// A level of pressure rises at once, and falls two seconds after the memory.
#include <iostream>

#include "offload/pressure/pressure_gauge.h"

int main() {
  using namespace tessera::offload;
  PressureGauge gauge;
  const int64_t used_mib[] = {300, 700, 950, 800, 800, 800, 300};
  for (int64_t second = 0; second < 7; ++second) {
    MemoryReading reading;
    reading.limits.push_back(
        {.source = "my job", .used = used_mib[second], .limit = 1000});
    std::cout << used_mib[second] << " MiB of 1000: "
              << gauge.Update(reading, second * 1'000'000'000) << "\n";
  }
}
