// CopyRows: many runs of bytes, each in one piece on both sides. Internal to
// base/tensor.
//
//   // 1000 rows of 32 bytes out of a matrix whose rows have 4096:
//   CopyRows({.rows = 1000, .bytes = 32, .source_step = 4096,
//             .target_step = 32}, source, target);
//
// A call of memcpy costs more than a short row, so rows of up to 255 bytes go
// by loops made for their length. Rows far apart are asked for ahead. Targets
// of 16 MiB and more, the gaps between rows included, are written past the
// caches where rows have 128 bytes or more.
#ifndef TESSERA_BASE_TENSOR_COPY_ROWS_H_
#define TESSERA_BASE_TENSOR_COPY_ROWS_H_

#include <cstddef>
#include <cstdint>

namespace tessera {

struct RowCopy {
  int64_t rows = 0;
  int64_t bytes = 0;        // Of a row; may be 0.
  int64_t source_step = 0;  // Bytes from a row to the next; may be negative.
  int64_t target_step = 0;
};

// Source and target do not overlap, nor do the rows of the target. Neither need
// be aligned.
void CopyRows(const RowCopy& copy, const std::byte* source, std::byte* target);

}  // namespace tessera

#endif  // TESSERA_BASE_TENSOR_COPY_ROWS_H_
