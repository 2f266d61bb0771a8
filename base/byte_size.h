// ByteSize: a number of bytes, parsed and printed with units.
//
//   ABSL_FLAG(tessera::ByteSize, memory, tessera::ByteSize(2 << 30), "...");
//   --memory=2GiB   --memory=1.5GB   --memory=4096
//
// Binary units (KiB MiB GiB TiB PiB EiB) are powers of 1024, decimal ones (kB
// MB GB TB PB EB) powers of 1000; case does not matter. Ki, Mi, ... are the
// binary units, as in Kubernetes, and so are a lone K, M, G, T, P or E, as in
// nccl-tests. A plain number is bytes; 1e9 has an exponent.
#ifndef TESSERA_BASE_BYTE_SIZE_H_
#define TESSERA_BASE_BYTE_SIZE_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

class ByteSize {
 public:
  constexpr ByteSize() = default;
  explicit constexpr ByteSize(int64_t bytes) : bytes_(bytes) {}

  constexpr int64_t bytes() const { return bytes_; }

  // In the largest unit that shows the value exactly with at most two decimals:
  // "2GiB", "1.5KiB", "1.5GB", "1001B". ParseByteSize restores the same value.
  std::string ToString() const;

  friend constexpr auto operator<=>(ByteSize, ByteSize) = default;
  friend std::ostream& operator<<(std::ostream& os, ByteSize size) {
    return os << size.ToString();
  }

 private:
  int64_t bytes_ = 0;
};

// Reads "2GiB", "8Gi", "1.5 GB", "64M", "1e9", "4096". InvalidArgument if the
// text is not a number with an optional unit, is negative, is not a whole
// number of bytes, or exceeds 2^63-1 bytes.
absl::StatusOr<ByteSize> ParseByteSize(std::string_view text);

// The text of a limit in flags and files, which is empty for no limit,
// ByteSize(). ParseByteLimit restores it, and returns InvalidArgument for 0 and
// for the errors of ParseByteSize.
std::string FormatByteLimit(ByteSize limit);
absl::StatusOr<ByteSize> ParseByteLimit(std::string_view text);

// Abseil flags.
bool AbslParseFlag(std::string_view text, ByteSize* size, std::string* error);
std::string AbslUnparseFlag(ByteSize size);

}  // namespace tessera

#endif  // TESSERA_BASE_BYTE_SIZE_H_
