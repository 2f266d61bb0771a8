// CopyRows: copies many rows of bytes, each contiguous in source and target.
// Internal to base/tensor.
//
//   // 1000 rows of 32 bytes out of a matrix whose rows have 4096:
//   CopyRows({.rows = 1000, .bytes = 32, .source_step = 4096,
//             .target_step = 32}, source, target);
//
// A memcpy call costs more than copying a short row, so rows of up to 255 bytes
// use loops specialised for their length. Rows that are far apart are
// prefetched. Targets of 16 MiB and more, including gaps between rows, are
// written with non-temporal stores if rows have 128 bytes or more.
#ifndef TESSERA_BASE_TENSOR_COPY_ROWS_H_
#define TESSERA_BASE_TENSOR_COPY_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace tessera {

struct RowCopy {
  int64_t rows = 0;
  int64_t bytes = 0;        // Size of a row; may be 0.
  int64_t source_step = 0;  // Bytes from a row to the next; may be negative.
  int64_t target_step = 0;
};

// Source and target must not overlap, nor may the rows of the target. Neither
// needs to be aligned.
void CopyRows(const RowCopy& copy, const std::byte* source, std::byte* target);

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_COPY_ROWS_H_
