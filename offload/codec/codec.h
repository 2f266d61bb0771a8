// Codecs by name: what shrinks a block of model state before it is held in
// host memory or on disk.
//
//   TESSERA_ASSIGN_OR_RETURN(auto codec, CreateCodec("lossless"));
//   TESSERA_ASSIGN_OR_RETURN(
//       int64_t room, codec->MaxEncodedBytes(DType::kBF16, elements));
//   std::vector<std::byte> held(room);
//   TESSERA_ASSIGN_OR_RETURN(int64_t bytes,
//                            codec->Encode(DType::kBF16, values, held));
//   held.resize(bytes);
//   ...
//   TESSERA_RETURN_IF_ERROR(codec->Decode(DType::kBF16, held, values));
//
// offload/codec/README.md has sizes, errors and speeds.
#ifndef TESSERA_OFFLOAD_CODEC_CODEC_H_
#define TESSERA_OFFLOAD_CODEC_CODEC_H_

#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "offload/codec/codec_interface.h"

namespace tessera::offload {

// | name           | what is held                                            |
// | -------------- | ------------------------------------------------------- |
// | none           | the values                                              |
// | fp16, bf16     | wider floats rounded to 16 bits                         |
// | int8           | floats of 16 bits or more as 8 bits, blocks of 128      |
// | nf4            | floats as 4-bit NormalFloat, blocks of 64               |
// | quantization   | nf4, by the name of configurations                      |
// | nf4_double     | nf4 whose block scales are held in 8 bits               |
// | lossless       | byte planes, entropy-coded by zstd where they shrink    |
// | lossless_fast  | byte planes, exponents in 3 bits (a fifth of the time)  |
// | lossless_lz4   | byte planes, coded by LZ4 where they shrink             |
//
// Each holds what it cannot shrink (integers, narrower floats) as it is.
// InvalidArgument lists the names; Unimplemented where the build had no LZ4
// and that is asked for. "lossless" without zstd codes as "lossless_fast".
absl::StatusOr<std::unique_ptr<Codec>> CreateCodec(std::string_view name);

// All names that CreateCodec knows, in the order above.
std::span<const std::string_view> CodecNames();

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_CODEC_CODEC_H_
