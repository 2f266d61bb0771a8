// The partition of a model's state over the ranks of a shard group:
// StateLayout, and the balancing of whole parameters over ranks.
#ifndef TESSERA_ZERO3_LAYOUT_STATE_LAYOUT_H_
#define TESSERA_ZERO3_LAYOUT_STATE_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/config/named_enum.h"
#include "topology/rank.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// Assigns weights to ranks so that no rank has a much larger load than another.
// Returns the rank of each weight.
//
//   BalanceLargestFirst(std::vector<int64_t>{5, 4, 3, 3, 3}, 2);
//   // ranks 0, 1, 1, 0, 1: loads 8 and 10
//
// The algorithm is longest processing time first: in descending order of
// weight, each is assigned to the rank with the least load. The largest load is
// at most 4/3 - 1/(3 ranks) times the minimum possible: R. Graham, "Bounds on
// multiprocessing timing anomalies", SIAM Journal on Applied Mathematics 17,
// 1969.
//
// Ties are resolved by the lowest index and the lowest rank. O(n log n).
// InvalidArgument if `ranks` is below 1, a weight is negative, or the sum
// exceeds 2^63-1.
absl::StatusOr<std::vector<topology::Rank>> BalanceLargestFirst(
    std::span<const int64_t> weights, int64_t ranks);

// Found by argument-dependent look-up for the enumerations of this namespace.
using topology::AbslParseFlag;
using topology::AbslUnparseFlag;
using topology::operator<<;

enum class LayoutKind {
  kChunks,      // each parameter in even chunks, one for each rank
  kRoundRobin,  // whole parameters: number i belongs to rank i mod ranks
  kBalanced,    // whole parameters, assigned by BalanceLargestFirst
};

inline constexpr int64_t kMaxShardRanks = int64_t{1} << 20;
inline constexpr int64_t kMaxAlignment = int64_t{1} << 20;
// The maximum number of elements of a layout with all padding, so that sizes in
// bytes never overflow.
inline constexpr int64_t kMaxLayoutElements = int64_t{1} << 48;
inline constexpr int64_t kMaxOptimizerBytes = 64;

// How model state is partitioned over the ranks of a shard group.
struct LayoutOptions {
  LayoutKind kind = LayoutKind::kChunks;
  // The size of the shard group; from 1 to kMaxShardRanks.
  int64_t ranks = 1;
  // Offsets and sizes of slots are multiples of this many elements, for example
  // of the block of a block-wise optimizer. From 1 to kMaxAlignment.
  int64_t alignment = 1;
  // Parameters with fewer elements are small: every rank keeps them whole and
  // only their optimizer state is sharded, so their slots are separate. 0: no
  // parameter is small.
  int64_t small_below = 0;
  // For kBalanced: bytes of optimizer state per trained element (master weight
  // and moments), in addition to the bytes of the element itself. From 0 to
  // kMaxOptimizerBytes.
  int64_t optimizer_bytes = 12;

  friend bool operator==(const LayoutOptions&, const LayoutOptions&) = default;
};

// Elements [begin, end) of a parameter in a slot of a rank. Empty if the rank's
// part of the parameter is only padding.
struct Extent {
  ParameterId parameter = {};
  topology::Rank rank = {};
  int64_t begin = 0;
  int64_t end = 0;
  // The offset of element `begin`, and the size of the slot from that offset
  // on.
  int64_t offset = 0;
  int64_t slot = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const Extent&, const Extent&) = default;
};

// The place of an element in a rank's index space.
struct LocalIndex {
  topology::Rank rank = {};
  int64_t offset = 0;

  friend bool operator==(const LocalIndex&, const LocalIndex&) = default;
};

// The contents of a place: element `element` of a parameter, or padding, whose
// element numbers continue past the last element of the parameter.
struct GlobalIndex {
  ParameterId parameter = {};
  int64_t element = 0;
  bool is_padding = false;

  friend bool operator==(const GlobalIndex&, const GlobalIndex&) = default;
};

// The partition of a model's state over the ranks of a shard group: which rank
// holds which elements, and where.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const StateLayout layout,
//       StateLayout::Create(model, {.kind = LayoutKind::kChunks, .ranks = 8}));
//   layout.ExtentsOf(Rank(5));                   // all that rank 5 holds
//   layout.Locate(ParameterId(3), 1000, 2000);   // the holders of elements
//   layout.LocalOf(ParameterId(3), 1000);        // the rank and offset of one
//   layout.GlobalOf(Rank(5), 77);                // and the reverse
//
// A rank has one flat index space of elements, with one slot for each parameter
// of which it can hold a part. A buffer of any state (parameters, gradients, a
// moment) is a range of it, independently of the bytes per element:
//
//   | small, trained | large, trained | large, frozen | small, frozen |
//
// Gradients and optimizer state need the first two sections; the middle two
// hold the parameters that are gathered for use. Within each section, slots are
// in the order of ids. The elements at the end of a slot that it does not hold
// are padding.
//
// With kChunks every rank has, for each parameter of E elements, a slot of
// alignment * ceil(E / (alignment * ranks)) elements at the same offset; rank r
// holds the r-th part. With the other kinds a parameter has one slot, on its
// owner, of E elements rounded up to the alignment.
//
// Ranks are positions in the shard group, from 0. An immutable value: copies
// share their contents; methods may be called from any thread.
class StateLayout {
 public:
  // InvalidArgument if an option is outside its range or the layout with its
  // padding would exceed kMaxLayoutElements.
  static absl::StatusOr<StateLayout> Create(const ModelParameters& model,
                                            const LayoutOptions& options);

  const ModelParameters& model() const;
  const LayoutOptions& options() const;
  int64_t ranks() const { return options().ranks; }
  // OK, or InvalidArgument if the rank is not in 0 to below ranks().
  absl::Status CheckRank(topology::Rank rank) const;

  // The rank and offset of an element, in O(1). InvalidArgument if there is no
  // such parameter or element.
  absl::StatusOr<LocalIndex> LocalOf(ParameterId parameter,
                                     int64_t element) const;
  // The contents of an offset of a rank, in O(log parameters). InvalidArgument
  // if there is no such rank or offset.
  absl::StatusOr<GlobalIndex> GlobalOf(topology::Rank rank,
                                       int64_t offset) const;
  // The ranks that hold at least one element of at least one of the parameters,
  // in ascending order. InvalidArgument if the model does not contain one.
  absl::StatusOr<std::vector<topology::Rank>> HoldersOf(
      std::span<const ParameterId> parameters) const;

  // The parameters of the rank's slots in the order of their offsets, so that
  // slot i belongs to the i-th. The span is valid as long as any copy of the
  // layout exists.
  // Preconditions here and below: 0 <= rank < ranks(), and the model contains
  // the parameter.
  std::span<const ParameterId> SlotsOf(topology::Rank rank) const;
  // The slots of a rank in the order of their offsets, without gaps.
  std::vector<Extent> ExtentsOf(topology::Rank rank) const;
  // The rank's slot of a parameter, in O(1); of size 0 if it has none.
  Extent ExtentOf(topology::Rank rank, ParameterId parameter) const;
  // The extents of elements [begin, end) of a parameter, in ascending order,
  // clipped to that range; none is empty. Precondition: 0 <= begin <= end <=
  // elements.
  std::vector<Extent> Locate(ParameterId parameter, int64_t begin,
                             int64_t end) const;

  // True if every rank keeps the parameter whole (LayoutOptions::small_below).
  bool IsSmall(ParameterId parameter) const;
  // The size of a buffer into which all ranks' slots of a parameter are
  // gathered, in the order of ranks: the parameter's elements, followed by
  // padding.
  int64_t GatheredElements(ParameterId parameter) const;

  // The same model and options.
  friend bool operator==(const StateLayout& a, const StateLayout& b) {
    return a.options() == b.options() && a.model() == b.model();
  }

 private:
  struct State;
  class Maker;
  explicit StateLayout(std::shared_ptr<const State> state);

  std::shared_ptr<const State> state_;
};

}  // namespace tessera::zero3

template <>
struct tessera::topology::EnumNames<tessera::zero3::LayoutKind> {
  static constexpr std::string_view kWhat = "layout";
  static constexpr auto kTable = std::to_array<NamedValue<zero3::LayoutKind>>({
      {"chunks", zero3::LayoutKind::kChunks},
      {"round_robin", zero3::LayoutKind::kRoundRobin},
      {"balanced", zero3::LayoutKind::kBalanced},
  });
};

#endif  // TESSERA_ZERO3_LAYOUT_STATE_LAYOUT_H_
