#include "offload/prefetch/testing/brute_force.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace tessera::offload {
namespace {

using Mask = uint32_t;
constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max() / 2;

// The step with blocks as bits.
struct Bits {
  Bits(const std::vector<BlockUse>& order, int64_t budget,
       const std::vector<NearBlock>& near)
      : budget(budget) {
    std::map<std::string, int> numbers;
    const auto number = [&](const std::string& key, int64_t size) {
      const auto [at, added] =
          numbers.try_emplace(key, static_cast<int>(numbers.size()));
      if (added) bytes.push_back(size);
      return at->second;
    };
    for (const NearBlock& block : near) {
      start |= Mask{1} << number(block.key, block.bytes);
    }
    for (const BlockUse& use : order) {
      block.push_back(number(use.key, use.bytes));
    }
    for (size_t use = 0; use < order.size(); ++use) {
      pinned.push_back(Mask{1} << block[use]);
      made.push_back(order[use].overwrite ? pinned[use] : 0);
    }
  }

  int64_t BytesOf(Mask mask) const {
    int64_t sum = 0;
    for (size_t b = 0; b < bytes.size(); ++b) {
      if (mask >> b & 1) sum += bytes[b];
    }
    return sum;
  }

  int64_t budget;
  std::vector<int64_t> bytes;  // by block
  std::vector<int> block;      // by use
  std::vector<Mask> pinned;    // by use
  std::vector<Mask> made;      // by use, without a load
  Mask start = 0;
};

// The state of a schedule at a point in time.
struct Moment {
  Mask there = 0;    // loaded blocks
  int loading = -1;  // block
  int64_t load_left = 0;
  size_t use = 0;            // computing, or waited for
  int64_t compute_left = 0;  // 0: it has not started
  auto Tie() const {
    return std::tie(there, loading, load_left, use, compute_left);
  }
  bool operator<(const Moment& other) const { return Tie() < other.Tie(); }
};

class Search {
 public:
  Search(const std::vector<BlockUse>& order, const Bits& bits)
      : order_(order), bits_(bits) {}

  int64_t Run() {
    std::set<Moment> now;
    AddSettled({.there = bits_.start}, now);
    for (int64_t ns = 0;; ++ns) {
      std::set<Moment> next;
      is_over_ = false;
      for (const Moment& m : now) Choose(m, next);
      if (is_over_) return ns;
      now = std::move(next);
    }
  }

 private:
  // Completes actions that take no more time, and starts the compute if its
  // block is near.
  void AddSettled(Moment m, std::set<Moment>& out) const {
    if (m.loading >= 0 && m.load_left == 0) {
      m.there |= Mask{1} << m.loading;
      m.loading = -1;
    }
    while (m.use < order_.size() && m.compute_left == 0 &&
           (m.there >> bits_.block[m.use] & 1)) {
      m.compute_left = order_[m.use].compute_ns;
      if (m.compute_left == 0) ++m.use;
    }
    out.insert(m);
  }

  // The block of the compute that has begun must stay.
  Mask Pinned(const Moment& m) const {
    return m.compute_left > 0 ? bits_.pinned[m.use] : 0;
  }

  void Choose(const Moment& m, std::set<Moment>& next) {
    if (m.use == order_.size()) {
      is_over_ = true;
      return;
    }
    const Mask pinned = Pinned(m) & m.there;
    const Mask free = m.there & ~pinned;
    for (Mask keep = free;; keep = (keep - 1) & free) {
      Moment kept = m;
      kept.there = keep | pinned;
      Tick(kept, next);
      if (m.loading < 0) StartLoads(kept, next);
      Overwrite(kept, next);
      if (keep == 0) break;
    }
  }

  // Creates the awaited block in free memory.
  void Overwrite(Moment m, std::set<Moment>& next) {
    const Mask made = m.compute_left > 0 ? 0 : bits_.made[m.use] & ~m.there;
    const Mask taken =
        m.there | (m.loading < 0 ? Mask{0} : Mask{1} << m.loading);
    if (made == 0 || (taken & made) != 0 ||
        bits_.BytesOf(taken | made) > bits_.budget) {
      return;
    }
    m.there |= made;
    std::set<Moment> at_once;
    AddSettled(m, at_once);
    for (const Moment& made_now : at_once) Choose(made_now, next);
  }

  void StartLoads(const Moment& m, std::set<Moment>& next) const {
    for (size_t b = 0; b < bits_.bytes.size(); ++b) {
      if ((m.there >> b & 1) ||
          bits_.BytesOf(m.there) + bits_.bytes[b] > bits_.budget) {
        continue;
      }
      Moment started = m;
      started.loading = static_cast<int>(b);
      started.load_left = bits_.bytes[b];
      Tick(started, next);
    }
  }

  void Tick(Moment m, std::set<Moment>& next) const {
    if (m.loading >= 0) --m.load_left;
    if (m.compute_left > 0 && --m.compute_left == 0) ++m.use;
    AddSettled(m, next);
  }

  const std::vector<BlockUse>& order_;
  const Bits& bits_;
  bool is_over_ = false;
};

int64_t Below(std::mt19937_64& random, int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
}

}  // namespace

std::vector<int64_t> BruteForceLeastBytes(const std::vector<BlockUse>& order,
                                          int64_t budget,
                                          const std::vector<NearBlock>& near) {
  const Bits bits(order, budget, near);
  const Mask end = Mask{1} << bits.bytes.size();
  std::vector<int64_t> cost(end, kInfinite);
  cost[bits.start] = 0;
  std::vector<int64_t> least;
  for (size_t use = 0; use < order.size(); ++use) {
    const Mask needed = bits.pinned[use];
    std::vector<int64_t> next(end, kInfinite);
    for (Mask from = 0; from < end; ++from) {
      if (cost[from] >= kInfinite) continue;
      for (Mask to = 0; to < end; ++to) {
        if ((needed & ~to) || bits.BytesOf(to) > budget) continue;
        next[to] = std::min(
            next[to], cost[from] + bits.BytesOf(to & ~from & ~bits.made[use]));
      }
    }
    cost = std::move(next);
    least.push_back(*std::min_element(cost.begin(), cost.end()));
  }
  return least;
}

int64_t BruteForceShortestStep(const std::vector<BlockUse>& order,
                               int64_t budget,
                               const std::vector<NearBlock>& near) {
  const Bits bits(order, budget, near);
  return Search(order, bits).Run();
}

RandomStep MakeRandomStep(std::mt19937_64& random,
                          const RandomStepOptions& options) {
  std::vector<int64_t> sizes;
  const int64_t size = 1 + Below(random, options.most_bytes);
  for (int k = 0; k < options.keys; ++k) {
    sizes.push_back(options.one_size ? size
                                     : 1 + Below(random, options.most_bytes));
  }
  RandomStep step;
  const int64_t uses = 1 + Below(random, options.uses);
  for (int64_t i = 0; i < uses; ++i) {
    const auto key = static_cast<size_t>(Below(random, options.keys));
    step.order.push_back(
        {.key = std::string(1, static_cast<char>('a' + key)),
         .bytes = sizes[key],
         .compute_ns = Below(random, options.most_compute_ns + 1)});
    if (options.overwrites && Below(random, 3) == 0) {
      step.order.back().overwrite = true;
    }
  }
  const Bits bits(step.order, 0, {});
  for (const Mask pinned : bits.pinned) {
    step.budget = std::max(step.budget, bits.BytesOf(pinned));
  }
  step.budget += Below(random, 2 * options.most_bytes + 1);
  int64_t free = step.budget;
  for (size_t key = 0; key < sizes.size(); ++key) {
    if (Below(random, 3) != 0 || sizes[key] > free) continue;
    free -= sizes[key];
    step.near.push_back(
        {std::string(1, static_cast<char>('a' + key)), sizes[key]});
  }
  return step;
}

}  // namespace tessera::offload
