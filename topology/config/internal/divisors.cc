#include "topology/config/internal/divisors.h"

#include <algorithm>
#include <map>

namespace tessera::topology::internal {
namespace {

constexpr int64_t kMaxTrial = int64_t{1} << 16;

// Adds the prime factors of `n` to `powers`.
void Factorize(int64_t n, std::map<int64_t, int>& powers) {
  for (int64_t p = 2; p <= kMaxTrial && p <= n / p; ++p) {
    for (; n % p == 0; n /= p) ++powers[p];
  }
  if (n > 1) ++powers[n];
}

}  // namespace

std::vector<int64_t> DivisorsOfProduct(std::span<const int64_t> factors) {
  std::map<int64_t, int> powers;
  for (const int64_t factor : factors) Factorize(factor, powers);
  std::vector<int64_t> divisors = {1};
  for (const auto& [prime, power] : powers) {
    const size_t before = divisors.size();
    int64_t scale = 1;
    for (int i = 0; i < power; ++i) {
      scale *= prime;
      for (size_t d = 0; d < before; ++d) {
        divisors.push_back(divisors[d] * scale);
      }
    }
  }
  std::sort(divisors.begin(), divisors.end());
  divisors.erase(std::unique(divisors.begin(), divisors.end()), divisors.end());
  return divisors;
}

}  // namespace tessera::topology::internal
