#include "base/tensor/copy_rows.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace tessera {
namespace {

// The size of a vector register of every x86-64 and AArch64 processor.
constexpr size_t kVector = 16;

// Unrolled explicitly: compilers call memcpy from 128 bytes on, or earlier.
template <size_t... kAt>
void CopyVectors(const std::byte* source, std::byte* target,
                 std::index_sequence<kAt...>) {
  (std::memcpy(target + kAt * kVector, source + kAt * kVector, kVector), ...);
}

template <size_t kBytes>
void CopyBlock(const std::byte* source, std::byte* target) {
  if constexpr (kBytes <= kVector) {
    std::memcpy(target, source, kBytes);
  } else {
    CopyVectors(source, target, std::make_index_sequence<kBytes / kVector>());
  }
}

// Number of rows to prefetch ahead, if rows are so far apart that the hardware
// prefetcher stops at each (it stays within a page). Only the first lines of
// long rows are prefetched.
constexpr int64_t kRowsAhead = 8;
constexpr int64_t kFarApart = 4096;
constexpr int64_t kMostAsked = 512;
constexpr int64_t kLine = 64;

// The bytes of each row to prefetch; 0 if rows are close together.
int64_t AskedBytes(const RowCopy& copy) {
  const int64_t gap = std::abs(copy.source_step) - copy.bytes;
  return gap < kFarApart / 2 || std::abs(copy.source_step) < kFarApart
             ? 0
             : std::min(copy.bytes, kMostAsked);
}

void Ask(const RowCopy& copy, int64_t row, int64_t asked,
         const std::byte* source) {
  if (row + kRowsAhead >= copy.rows) return;
  const std::byte* const next = source + kRowsAhead * copy.source_step;
  for (int64_t i = 0; i < asked; i += kLine) __builtin_prefetch(next + i);
}

// Calls `copy_row(source, target)` for every row.
template <typename CopyRow>
void ForEachRow(const RowCopy& copy, const std::byte* source, std::byte* target,
                CopyRow copy_row) {
  const int64_t asked = AskedBytes(copy);
  for (int64_t row = 0; row < copy.rows; ++row) {
    if (asked > 0) Ask(copy, row, asked, source);
    copy_row(source, target);
    source += copy.source_step;
    target += copy.target_step;
  }
}

// Copies rows of one block, or rows of one to two blocks as their first and
// last block, which may overlap.
template <size_t kBlock>
void CopyShort(const RowCopy& copy, const std::byte* source,
               std::byte* target) {
  const int64_t last = copy.bytes - static_cast<int64_t>(kBlock);
  if (last == 0) {
    ForEachRow(copy, source, target, [](const std::byte* from, std::byte* to) {
      CopyBlock<kBlock>(from, to);
    });
    return;
  }
  ForEachRow(copy, source, target,
             [last](const std::byte* from, std::byte* to) {
               CopyBlock<kBlock>(from, to);
               CopyBlock<kBlock>(from + last, to + last);
             });
}

void CopyLong(const RowCopy& copy, const std::byte* source, std::byte* target) {
  ForEachRow(copy, source, target, [&](const std::byte* from, std::byte* to) {
    std::memcpy(to, from, static_cast<size_t>(copy.bytes));
  });
}

#if defined(__SSE2__)

// Larger targets exceed their share of the last-level cache, so cached lines
// would be evicted anyway: non-temporal stores avoid reading each line before
// it is written. Rows must contain enough whole lines.
constexpr int64_t kStreamedSpan = int64_t{16} << 20;
constexpr int64_t kStreamedRow = 128;
// For longer rows that are far apart, memcpy alone is faster.
constexpr int64_t kMostStreamedApart = 1024;

bool IsStreamed(const RowCopy& copy) {
  if (copy.bytes < kStreamedRow || copy.rows == 0) return false;
  if (AskedBytes(copy) > 0 && copy.bytes > kMostStreamedApart) return false;
  const int64_t step = std::abs(copy.target_step);
  return copy.bytes >= kStreamedSpan ||
         (copy.rows - 1) * step + copy.bytes >= kStreamedSpan;
}

void StreamLine(const std::byte* source, std::byte* target) {
  __m128i line[4];
  std::memcpy(line, source, sizeof(line));
  for (int i = 0; i < 4; ++i) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target) + i, line[i]);
  }
}

// Writes whole lines of the target with non-temporal stores, the ends with
// ordinary ones.
void StreamRow(const std::byte* source, std::byte* target, int64_t bytes) {
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(target) %
                                         static_cast<uintptr_t>(kLine));
  int64_t at = past == 0 ? 0 : kLine - past;
  std::memcpy(target, source, static_cast<size_t>(at));
  for (; at + kLine <= bytes; at += kLine) StreamLine(source + at, target + at);
  std::memcpy(target + at, source + at, static_cast<size_t>(bytes - at));
}

void StreamRows(const RowCopy& copy, const std::byte* source,
                std::byte* target) {
  ForEachRow(copy, source, target, [&](const std::byte* from, std::byte* to) {
    StreamRow(from, to, copy.bytes);
  });
  _mm_sfence();  // Orders the streaming stores before completion is signalled.
}

#else

bool IsStreamed(const RowCopy&) { return false; }
void StreamRows(const RowCopy&, const std::byte*, std::byte*) {}

#endif

}  // namespace

void CopyRows(const RowCopy& copy, const std::byte* source, std::byte* target) {
  if (IsStreamed(copy)) return StreamRows(copy, source, target);
  // The largest power of two that is no longer than a row.
  switch (std::bit_floor(static_cast<uint64_t>(copy.bytes))) {
    case 0:
      return;
    case 1:
      return CopyShort<1>(copy, source, target);
    case 2:
      return CopyShort<2>(copy, source, target);
    case 4:
      return CopyShort<4>(copy, source, target);
    case 8:
      return CopyShort<8>(copy, source, target);
    case 16:
      return CopyShort<16>(copy, source, target);
    case 32:
      return CopyShort<32>(copy, source, target);
    case 64:
      return CopyShort<64>(copy, source, target);
    case 128:
      return CopyShort<128>(copy, source, target);
    default:
      return CopyLong(copy, source, target);
  }
}

}  // namespace tessera
