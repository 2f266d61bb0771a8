// RunningLoads: running sums of the costs of layers, and the searches over them
// that an optimal split needs.
#ifndef TESSERA_TOPOLOGY_CONFIG_RUNNING_LOADS_H_
#define TESSERA_TOPOLOGY_CONFIG_RUNNING_LOADS_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::topology::internal {

// Cost is int64_t or double. Loads never shrink when a range of layers grows,
// in rounded arithmetic too, which is all that the searches rely on.
// Non-negative doubles and their bit patterns are ordered alike, so one
// bisection over 63-bit ordinals serves both types.
template <typename Cost>
class RunningLoads {
 public:
  // `sums` ascends from 0 and has one more entry than there are layers.
  explicit RunningLoads(std::vector<Cost> sums) : sums_(std::move(sums)) {}

  int64_t layers() const { return static_cast<int64_t>(sums_.size()) - 1; }
  Cost total() const { return sums_.back(); }
  Cost Load(int64_t begin, int64_t end) const {
    return sums_[end] - sums_[begin];
  }

  // The last end of a stage from `begin` with at most `limit` of load. Doubles
  // its stride, then bisects: O(log of the stage's size).
  int64_t Reach(int64_t begin, Cost limit) const {
    int64_t stride = 1;
    while (begin + stride <= layers() && Load(begin, begin + stride) <= limit) {
      stride *= 2;
    }
    int64_t good = begin + stride / 2;
    int64_t bad = std::min(begin + stride, layers() + 1);
    while (bad - good > 1) {
      const int64_t middle = good + (bad - good) / 2;
      (Load(begin, middle) <= limit ? good : bad) = middle;
    }
    return good;
  }

  // The first begin of a stage up to `end` with at most `limit` of load.
  int64_t ReachBack(int64_t end, Cost limit) const {
    int64_t stride = 1;
    while (end - stride >= 0 && Load(end - stride, end) <= limit) stride *= 2;
    int64_t good = end - stride / 2;
    int64_t bad = std::max<int64_t>(end - stride, -1);
    while (good - bad > 1) {
      const int64_t middle = bad + (good - bad) / 2;
      (Load(middle, end) <= limit ? good : bad) = middle;
    }
    return good;
  }

  // Whether `stages` stages of at most `limit` hold all layers.
  bool Fits(int64_t stages, Cost limit) const {
    int64_t begin = 0;
    for (int64_t stage = 0; stage < stages && begin < layers(); ++stage) {
      const int64_t end = Reach(begin, limit);
      if (end == begin) return false;
      begin = end;
    }
    return begin == layers();
  }

  // The least limit that fits.
  Cost LeastLimit(int64_t stages) const {
    int64_t bad = -1;
    int64_t good = Ordinal(total());
    while (good - bad > 1) {
      const int64_t middle = bad + (good - bad) / 2;
      (Fits(stages, FromOrdinal(middle)) ? good : bad) = middle;
    }
    return FromOrdinal(good);
  }

  // The first end in [low, high] at which the layers from `begin` make up an
  // equal share, one of `stages_left`, of all that are left; else `high`.
  int64_t FairEnd(int64_t begin, int64_t low, int64_t high,
                  int64_t stages_left) const {
    const Wide rest = Load(begin, layers());
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (static_cast<Wide>(Load(begin, middle)) * stages_left >= rest) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

 private:
  __extension__ typedef __int128 int128;
  using Wide =
      std::conditional_t<std::is_integral_v<Cost>, int128, long double>;

  static int64_t Ordinal(Cost cost) { return std::bit_cast<int64_t>(cost); }
  static Cost FromOrdinal(int64_t ordinal) {
    return std::bit_cast<Cost>(ordinal);
  }

  std::vector<Cost> sums_;
};

}  // namespace tessera::topology::internal

#endif  // TESSERA_TOPOLOGY_CONFIG_RUNNING_LOADS_H_
