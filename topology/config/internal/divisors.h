// Divisors of a number that is known as a product.
#ifndef TESSERA_TOPOLOGY_CONFIG_INTERNAL_DIVISORS_H_
#define TESSERA_TOPOLOGY_CONFIG_INTERNAL_DIVISORS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::topology::internal {

// The divisors of the product of `factors`, ascending. All of them where no
// factor has two prime factors above 2^16; else those that come of taking what
// is left of a factor after its smaller primes as a prime. Each factor is at
// least 1 and the product at most 2^63-1.
std::vector<int64_t> DivisorsOfProduct(std::span<const int64_t> factors);

}  // namespace tessera::topology::internal

#endif  // TESSERA_TOPOLOGY_CONFIG_INTERNAL_DIVISORS_H_
