#include "offload/prefetch/load_bound.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>

namespace tessera::offload {

namespace {

constexpr size_t kLongestWindow = 2048;

// The order, with the blocks as numbers.
struct NumberedOrder {
  NumberedOrder(std::span<const BlockUse> order,
                std::span<const NearBlock> near) {
    std::unordered_map<std::string_view, size_t> numbers;
    for (const NearBlock& block : near) {
      numbers.emplace(block.key, numbers.size());
    }
    first_far = numbers.size();
    for (const BlockUse& use : order) {
      block_of.push_back(
          numbers.emplace(use.key, numbers.size()).first->second);
    }
    blocks = numbers.size();
  }

  std::vector<size_t> block_of;  // by use
  size_t blocks = 0;
  size_t first_far = 0;  // Smaller numbers are near at the start.
};

// For each use, the bytes of the different blocks up to it that are not near at
// the start and whose first use reads them.
std::vector<int64_t> FirstLoads(std::span<const BlockUse> order,
                                const NumberedOrder& numbers) {
  std::vector<bool> seen(numbers.blocks, false);
  std::vector<int64_t> loaded;
  int64_t sum = 0;
  for (size_t use = 0; use < order.size(); ++use) {
    const size_t block = numbers.block_of[use];
    const bool loads = block >= numbers.first_far && !order[use].overwrite;
    if (!seen[block] && loads) sum += order[use].bytes;
    seen[block] = true;
    loaded.push_back(sum);
  }
  return loaded;
}

// Raises bounds[k] to bounds[j] + (bytes of the block of j, and of the
// different others whose first use in j + 1..k reads them) - budget.
void RaiseByWindows(std::span<const BlockUse> order,
                    const NumberedOrder& numbers, int64_t budget,
                    std::vector<int64_t>& bounds) {
  struct Counted {
    size_t end = std::numeric_limits<size_t>::max();  // of the window
    int64_t bytes = 0;
  };
  std::vector<Counted> counted(numbers.blocks);
  for (size_t k = 0; k < order.size(); ++k) {
    if (k > 0) bounds[k] = std::max(bounds[k], bounds[k - 1]);
    int64_t bytes = 0;
    const size_t first = k - std::min(k, kLongestWindow);
    for (size_t j = k + 1; j-- > first;) {
      Counted& of_block = counted[numbers.block_of[j]];
      if (of_block.end != k) of_block = {.end = k, .bytes = 0};
      const int64_t size = order[j].bytes;
      bytes -= of_block.bytes;
      if (j < k) {
        bounds[k] = std::max(bounds[k], bounds[j] + bytes + size - budget);
      }
      of_block.bytes = order[j].overwrite ? 0 : size;
      bytes += of_block.bytes;
    }
  }
}

}  // namespace

int64_t TransferNs(int64_t bytes, int64_t bytes_per_second) {
  const __int128 ns =
      (static_cast<__int128>(bytes) * 1'000'000'000 + bytes_per_second - 1) /
      bytes_per_second;
  return static_cast<int64_t>(
      std::min<__int128>(ns, std::numeric_limits<int64_t>::max()));
}

std::vector<int64_t> LeastBytesLoaded(std::span<const BlockUse> order,
                                      int64_t budget,
                                      std::span<const NearBlock> near) {
  const NumberedOrder numbers(order, near);
  std::vector<int64_t> bounds = FirstLoads(order, numbers);
  RaiseByWindows(order, numbers, budget, bounds);
  return bounds;
}

int64_t StepBound(std::span<const BlockUse> order, int64_t budget,
                  std::span<const NearBlock> near,
                  int64_t load_bytes_per_second) {
  const std::vector<int64_t> loaded = LeastBytesLoaded(order, budget, near);
  int64_t compute = 0;
  int64_t bound = 0;
  for (size_t k = order.size(); k-- > 0;) {
    compute += order[k].compute_ns;
    bound =
        std::max(bound, TransferNs(loaded[k], load_bytes_per_second) + compute);
  }
  return bound;
}

}  // namespace tessera::offload
