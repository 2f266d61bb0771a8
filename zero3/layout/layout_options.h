// LayoutOptions: how model state is spread over the ranks of a shard group.
//
//   LayoutOptions options = {.kind = LayoutKind::kChunks,
//                            .ranks = 8,
//                            .alignment = 256};
#ifndef TESSERA_ZERO3_LAYOUT_LAYOUT_OPTIONS_H_
#define TESSERA_ZERO3_LAYOUT_LAYOUT_OPTIONS_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "topology/config/named_enum.h"

namespace tessera::zero3 {

// Found by argument-dependent look-up for the enumerations of this namespace.
using topology::AbslParseFlag;
using topology::AbslUnparseFlag;
using topology::operator<<;

enum class LayoutKind {
  kChunks,      // each parameter in even chunks, one for each rank
  kRoundRobin,  // whole parameters: number i belongs to rank i mod ranks
  kBalanced,    // whole parameters: the heaviest first to the lightest rank
};

inline constexpr int64_t kMaxShardRanks = int64_t{1} << 20;
inline constexpr int64_t kMaxAlignment = int64_t{1} << 20;
// Elements of a layout with all padding, so that sizes in bytes never overflow.
inline constexpr int64_t kMaxLayoutElements = int64_t{1} << 48;
inline constexpr int64_t kMaxOptimizerBytes = 64;

struct LayoutOptions {
  LayoutKind kind = LayoutKind::kChunks;
  // Of the group that shards; from 1 to kMaxShardRanks.
  int64_t ranks = 1;
  // Every slot of a buffer begins at and has a multiple of this many elements:
  // the block of a block-wise optimizer, say. From 1 to kMaxAlignment.
  int64_t alignment = 1;
  // Parameters with fewer elements are small: they get slots apart from the
  // others, since every rank keeps them whole and shards only their optimizer
  // state. 0: there are none.
  int64_t small_below = 0;
  // What a trained element weighs for kBalanced on top of its own bytes:
  // master weight and moments. From 0 to kMaxOptimizerBytes.
  int64_t optimizer_bytes = 12;

  friend bool operator==(const LayoutOptions&, const LayoutOptions&) = default;
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

#endif  // TESSERA_ZERO3_LAYOUT_LAYOUT_OPTIONS_H_
