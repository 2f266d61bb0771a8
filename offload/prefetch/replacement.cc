#include "offload/prefetch/replacement.h"

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

std::string NameUse(size_t use, std::string_view key) {
  return absl::StrCat("use ", use, " of block ", QuoteKey(key));
}

}  // namespace

class Replacement::Builder {
 public:
  Builder(std::span<const BlockUse> order, int64_t budget, int64_t spare)
      : order_(order), budget_(budget), spare_(spare) {}

  absl::Status Build(std::span<const NearBlock> near) {
    if (budget_ < 0 || spare_ < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("near memory of ", budget_, " bytes that spares ",
                       spare_, " uses; both must be 0 or more"));
    }
    for (const NearBlock& block : near) TESSERA_RETURN_IF_ERROR(Start(block));
    total_ = used_;
    TESSERA_RETURN_IF_ERROR(NumberBlocks());
    FindNextUses();
    out_.steps_.resize(order_.size());
    for (size_t use = 0; use < order_.size(); ++use) {
      TESSERA_RETURN_IF_ERROR(Serve(use));
    }
    for (const auto& [next, block] : near_) {
      out_.left_.push_back({out_.blocks_[block].key, out_.blocks_[block].bytes,
                            states_[block].dirty});
    }
    return absl::OkStatus();
  }

  Replacement Take() { return std::move(out_); }

 private:
  struct State {
    bool near = false;
    bool dirty = false;
    int64_t dirty_use = -1;
    int64_t busy_until = -1;  // the last use through which it is held
    int64_t next_use = kNever;
  };

  size_t Number(const std::string& key, int64_t bytes) {
    const auto [at, added] = numbers_.try_emplace(key, out_.blocks_.size());
    if (added) {
      out_.blocks_.push_back({key, bytes});
      states_.emplace_back();
    }
    return at->second;
  }

  absl::Status Start(const NearBlock& near) {
    const size_t count = out_.blocks_.size();
    const size_t block = Number(near.key, near.bytes);
    if (near.bytes < 0 || block < count || near.bytes > budget_ - used_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "block ", QuoteKey(near.key), " of ", near.bytes,
          " bytes cannot be near at the start: blocks must be unique, sizes "
          "at least 0, and ",
          budget_ - used_, " of ", budget_, " bytes are free"));
    }
    used_ += near.bytes;
    states_[block].near = true;
    states_[block].dirty = near.dirty;
    return absl::OkStatus();
  }

  absl::Status NumberBlocks() {
    of_use_.reserve(order_.size());
    for (size_t use = 0; use < order_.size(); ++use) {
      const BlockUse& u = order_[use];
      const size_t block = Number(u.key, u.bytes);
      if (u.bytes < 0 || u.compute_ns < 0 || u.held < 0 ||
          u.bytes != out_.blocks_[block].bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat(NameUse(use, u.key), " has ", u.bytes, " bytes, ",
                         u.compute_ns, " ns and is held through ", u.held,
                         " uses; none may be negative, and the block has ",
                         out_.blocks_[block].bytes, " bytes elsewhere"));
      }
      if (u.bytes > kNever - total_) {
        return absl::InvalidArgumentError(
            absl::StrCat(NameUse(use, u.key), " of ", u.bytes,
                         " bytes: the order moves more than 2^63 bytes"));
      }
      total_ += u.bytes;
      of_use_.push_back(block);
    }
    return absl::OkStatus();
  }

  // The next use that reads a block, where the uses of the next step follow
  // those of this one; none if an overwriting use comes first.
  void FindNextUses() {
    const auto count = static_cast<int64_t>(order_.size());
    next_.assign(order_.size(), kNever);
    for (int64_t use = 2 * count - 1; use >= 0; --use) {
      State& state = states_[of_use_[static_cast<size_t>(use % count)]];
      if (use < count) next_[static_cast<size_t>(use)] = state.next_use;
      const BlockUse& u = order_[static_cast<size_t>(use % count)];
      state.next_use = u.overwrite ? kNever : use;
    }
    for (size_t block = 0; block < states_.size(); ++block) {
      if (states_[block].near) near_.insert({states_[block].next_use, block});
    }
  }

  absl::Status Serve(size_t use) {
    const size_t block = of_use_[use];
    const int64_t bytes = out_.blocks_[block].bytes;
    Step& step = out_.steps_[use];
    step.block = block;
    State& state = states_[block];
    if (state.near) {
      near_.erase({state.next_use, block});
    } else {
      TESSERA_RETURN_IF_ERROR(MakeRoom(use, bytes, step.evict));
      if (!order_[use].overwrite) {
        step.load = true;
        ++out_.loads_;
        out_.bytes_loaded_ += bytes;
      }
      used_ += bytes;
      state.near = true;
    }
    Touch(use, state);
    near_.insert({state.next_use, block});
    return absl::OkStatus();
  }

  void Touch(size_t use, State& state) {
    const auto at = static_cast<int64_t>(use);
    const auto last = static_cast<int64_t>(order_.size()) - 1;
    const int64_t until =
        order_[use].held >= last - at ? last : at + order_[use].held;
    state.busy_until = std::max(state.busy_until, until);
    state.next_use = next_[use];
    if (order_[use].dirty) {
      state.dirty = true;
      state.dirty_use = at;
    }
  }

  absl::Status MakeRoom(size_t use, int64_t bytes,
                        std::vector<Eviction>& evict) {
    const auto now = static_cast<int64_t>(use);
    if (spare_ > 0) EvictIdle(bytes, now - std::min(now, spare_), evict);
    EvictIdle(bytes, now, evict);
    return bytes > budget_ - used_ ? NoRoom(use, bytes) : absl::OkStatus();
  }

  // Evicts blocks not used since `since`, until `bytes` fit.
  void EvictIdle(int64_t bytes, int64_t since, std::vector<Eviction>& evict) {
    for (auto at = near_.end(); bytes > budget_ - used_;) {
      if (at == near_.begin()) return;
      --at;
      const size_t victim = at->second;
      if (states_[victim].busy_until >= since ||
          out_.blocks_[victim].bytes == 0) {
        continue;
      }
      evict.push_back(Evict(victim));
      at = near_.erase(at);
    }
  }

  Eviction Evict(size_t block) {
    State& state = states_[block];
    const Eviction eviction{.block = block,
                            .after = state.busy_until,
                            .stored_after = state.dirty_use,
                            .store = state.dirty};
    if (state.dirty) out_.bytes_stored_ += out_.blocks_[block].bytes;
    used_ -= out_.blocks_[block].bytes;
    state.near = state.dirty = false;
    state.dirty_use = -1;
    return eviction;
  }

  absl::Status NoRoom(size_t use, int64_t bytes) const {
    if (bytes > budget_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(NameUse(use, order_[use].key), ": its ", bytes,
                       " bytes are more than the whole near memory of ",
                       budget_, " bytes. Raise the budget or split the block"));
    }
    return absl::ResourceExhaustedError(absl::StrCat(
        NameUse(use, order_[use].key), " needs ", bytes,
        " bytes of near memory, and ", used_, " of ", budget_,
        " bytes are held by blocks in use. Raise the budget or finish with "
        "blocks earlier"));
  }

  const std::span<const BlockUse> order_;
  const int64_t budget_;
  const int64_t spare_;
  int64_t used_ = 0;
  int64_t total_ = 0;
  Replacement out_;
  std::unordered_map<std::string, size_t> numbers_;
  std::vector<State> states_;  // by block
  std::vector<size_t> of_use_;
  std::vector<int64_t> next_;                  // the use after each use
  std::set<std::pair<int64_t, size_t>> near_;  // next use, block
};

absl::StatusOr<Replacement> Replacement::Create(std::span<const BlockUse> order,
                                                int64_t budget,
                                                std::span<const NearBlock> near,
                                                int64_t spare) {
  Builder builder(order, budget, spare);
  TESSERA_RETURN_IF_ERROR(builder.Build(near));
  return builder.Take();
}

}  // namespace tessera::offload
