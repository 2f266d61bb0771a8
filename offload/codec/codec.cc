#include "offload/codec/codec.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "offload/codec/codecs.h"

namespace tessera::offload {
namespace {

using Maker = absl::StatusOr<std::unique_ptr<Codec>> (*)();

constexpr std::array<std::string_view, 10> kNames = {
    "none",         "fp16",       "bf16",     "int8",          "nf4",
    "quantization", "nf4_double", "lossless", "lossless_fast", "lossless_lz4",
};

absl::StatusOr<std::unique_ptr<Codec>> MakeFloatNf4() {
  return MakeNf4Codec(Nf4Scales::kFloat);
}

constexpr std::array<Maker, kNames.size()> kMakers = {
    []() -> absl::StatusOr<std::unique_ptr<Codec>> { return MakeNoneCodec(); },
    []() -> absl::StatusOr<std::unique_ptr<Codec>> { return MakeFp16Codec(); },
    []() -> absl::StatusOr<std::unique_ptr<Codec>> { return MakeBf16Codec(); },
    []() -> absl::StatusOr<std::unique_ptr<Codec>> { return MakeInt8Codec(); },
    MakeFloatNf4,
    MakeFloatNf4,
    []() -> absl::StatusOr<std::unique_ptr<Codec>> {
      return MakeNf4Codec(Nf4Scales::kDouble);
    },
    []() -> absl::StatusOr<std::unique_ptr<Codec>> {
      return MakeLosslessCodec();
    },
    []() -> absl::StatusOr<std::unique_ptr<Codec>> {
      return MakeLosslessFastCodec();
    },
    MakeLosslessLz4Codec,
};

}  // namespace

std::span<const std::string_view> CodecNames() { return kNames; }

absl::StatusOr<std::unique_ptr<Codec>> CreateCodec(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return kMakers[i]();
  }
  constexpr size_t kLongest = 40;
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown codec \"", name.substr(0, kLongest),
      name.size() > kLongest ? "..." : "", "\"; expected one of ",
      absl::StrJoin(kNames, ", "), ", as in CreateCodec(\"lossless\")"));
}

}  // namespace tessera::offload
