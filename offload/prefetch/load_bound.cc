#include "offload/prefetch/load_bound.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/prefetch/replacement.h"

namespace tessera::offload {
namespace {

constexpr size_t kLongestWindow = 2048;

bool OneSize(const Replacement& replacement) {
  int64_t size = 0;
  for (const Replacement::Block& block : replacement.blocks()) {
    if (block.bytes == 0) continue;
    if (size != 0 && block.bytes != size) return false;
    size = block.bytes;
  }
  return true;
}

std::vector<int64_t> LoadedUpTo(const Replacement& replacement) {
  std::vector<int64_t> loaded;
  int64_t sum = 0;
  for (const Replacement::Step& step : replacement.steps()) {
    if (step.load) sum += replacement.blocks()[step.block].bytes;
    loaded.push_back(sum);
  }
  return loaded;
}

// Each block once, unless it was near or its first use overwrites it.
std::vector<int64_t> FirstLoads(std::span<const BlockUse> order,
                                const Replacement& replacement,
                                std::span<const NearBlock> near) {
  // The blocks that are near at the start are numbered first.
  std::vector<bool> seen(replacement.blocks().size(), false);
  std::fill_n(seen.begin(), near.size(), true);
  std::vector<int64_t> loaded;
  int64_t sum = 0;
  const std::vector<Replacement::Step>& steps = replacement.steps();
  for (size_t use = 0; use < steps.size(); ++use) {
    const size_t block = steps[use].block;
    if (!seen[block] && !order[use].overwrite) {
      sum += replacement.blocks()[block].bytes;
    }
    seen[block] = true;
    loaded.push_back(sum);
  }
  return loaded;
}

// Raises bounds[k] to bounds[j] + (bytes of the block of j, and of the
// different others whose first use in j + 1..k reads them) - budget.
void RaiseByWindows(std::span<const BlockUse> order,
                    const Replacement& replacement, int64_t budget,
                    std::vector<int64_t>& bounds) {
  struct Counted {
    size_t end = std::numeric_limits<size_t>::max();  // of the window
    int64_t bytes = 0;
  };
  const std::vector<Replacement::Step>& steps = replacement.steps();
  std::vector<Counted> counted(replacement.blocks().size());
  for (size_t k = 0; k < steps.size(); ++k) {
    if (k > 0) bounds[k] = std::max(bounds[k], bounds[k - 1]);
    int64_t bytes = 0;
    const size_t first = k - std::min(k, kLongestWindow);
    for (size_t j = k + 1; j-- > first;) {
      Counted& of_block = counted[steps[j].block];
      if (of_block.end != k) of_block = {.end = k, .bytes = 0};
      const int64_t size = replacement.blocks()[steps[j].block].bytes;
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

absl::StatusOr<std::vector<int64_t>> LeastBytesLoaded(
    std::span<const BlockUse> order, int64_t budget,
    std::span<const NearBlock> near) {
  TESSERA_ASSIGN_OR_RETURN(const Replacement replacement,
                           Replacement::Create(order, budget, near));
  if (OneSize(replacement)) return LoadedUpTo(replacement);
  std::vector<int64_t> bounds = FirstLoads(order, replacement, near);
  RaiseByWindows(order, replacement, budget, bounds);
  return bounds;
}

absl::StatusOr<int64_t> StepBound(std::span<const BlockUse> order,
                                  int64_t budget,
                                  std::span<const NearBlock> near,
                                  int64_t load_bytes_per_second) {
  if (load_bytes_per_second <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("loads at ", load_bytes_per_second,
                     " bytes a second; a bandwidth is above 0"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> loaded,
                           LeastBytesLoaded(order, budget, near));
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
