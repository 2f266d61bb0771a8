// OrderHash: records the order in which a rank uses parameters.
//
//   OrderHash order;
//   order.Record(ParameterId(3));
//   order.hash();           // ranks compare this before a collective
//   order.PrefixHash(0);    // the hash of no uses
//   FirstDivergence(order, other);  // where two orders part
//
// The hash of a prefix is h' = Mix(h + id + 1) with the mixing function of
// SplitMix64, from a fixed start: the same on every machine and in every
// version. Each step is a permutation of the state for a given id, so two
// orders that differ in one id only never collide; others do with a chance of
// about 2^-64. Not safe from several threads at once. Source of Mix: Steele,
// Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#ifndef TESSERA_ZERO3_PARAMETERS_USE_ORDER_HASH_H_
#define TESSERA_ZERO3_PARAMETERS_USE_ORDER_HASH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "zero3/parameters/parameter.h"

namespace tessera::zero3 {

class OrderHash {
 public:
  void Record(ParameterId id);
  // Forgets everything, as for the next step.
  void Clear();

  size_t size() const { return uses_.size(); }
  std::span<const ParameterId> uses() const { return uses_; }

  // Of all uses so far, and of the first `length`. O(1). Precondition:
  // length <= size().
  uint64_t hash() const { return hashes_.back(); }
  uint64_t PrefixHash(size_t length) const { return hashes_[length]; }

 private:
  static constexpr uint64_t kStart = 0x7465737365726133;

  std::vector<ParameterId> uses_;
  std::vector<uint64_t> hashes_ = {kStart};
};

// The first position at which the orders differ, in O(log n) comparisons of
// prefix hashes; where one is the start of the other, the shorter's size.
// Nothing where they are the same.
std::optional<size_t> FirstDivergence(const OrderHash& a, const OrderHash& b);

// The same search between ranks that only exchange hashes: all begin with the
// least size of their orders, in each round compare PrefixHash(Length()), and
// report whether all were equal.
//
//   DivergenceSearch search(least_size);
//   while (!search.Done()) {
//     search.Report(AllEqual(order.PrefixHash(search.Length())));
//   }
//   search.Position();
//
// At most 1 + log2(least_size) rounds, the same number on every rank.
class DivergenceSearch {
 public:
  explicit DivergenceSearch(size_t least_size) : end_(least_size) {}

  bool Done() const { return begin_ == end_; }
  // The length of the prefix to compare next. Precondition: !Done().
  size_t Length() const { return begin_ + (end_ - begin_ + 1) / 2; }
  void Report(bool all_equal);
  // How long a prefix all have in common. Precondition: Done().
  size_t Position() const { return begin_; }

 private:
  // The longest common prefix is at least begin_ and at most end_ long.
  size_t begin_ = 0;
  size_t end_;
};

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_USE_ORDER_HASH_H_
