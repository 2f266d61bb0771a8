// Decodes damaged encodings: no crash, no access out of bounds (checked by
// asan), and either an error or values that can be encoded again.
#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/codec/plane_coder.h"
#include "offload/codec/testing/arrays.h"

namespace tessera::offload {
namespace {

constexpr size_t kHeader = 16;

class Damage {
 public:
  explicit Damage(uint64_t seed) : random_(seed) {}

  Bytes To(Bytes bytes) {
    const size_t times = 1 + Below(4);
    for (size_t i = 0; i < times; ++i) Once(bytes);
    return bytes;
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }

  void Once(Bytes& bytes) {
    // Mostly after the header, whose checks catch nearly all damage to it.
    const size_t first = Below(8) == 0 ? 0 : std::min(kHeader, bytes.size());
    const size_t at = first + Below(bytes.size() - first + 1);
    const size_t length = Below(std::min<size_t>(bytes.size() - at, 40) + 1);
    switch (Below(7)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<std::byte>(random_());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] ^= std::byte{1} << int(Below(8));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.erase(bytes.begin() + at, bytes.begin() + at + length);
        break;
      case 4: {
        const Bytes copy(bytes.begin() + at, bytes.begin() + at + length);
        bytes.insert(bytes.begin() + at, copy.begin(), copy.end());
        break;
      }
      case 5:  // Huge numbers.
        std::fill_n(bytes.begin() + at, std::min<size_t>(length, 4),
                    std::byte{0xff});
        break;
      default: {  // Same length.
        const size_t from = Below(bytes.size() - length + 1);
        const Bytes copy(bytes.begin() + from, bytes.begin() + from + length);
        std::copy(copy.begin(), copy.end(), bytes.begin() + at);
      }
    }
  }

  std::mt19937_64 random_;
};

// Values with repeating, constant and other planes.
Bytes Mixed(DType dtype, size_t count) {
  Bytes values = NormalArray(dtype, count, 0.02, count);
  std::fill(values.begin() + values.size() / 2,
            values.begin() + values.size() * 3 / 4, std::byte{0});
  return values;
}

// Otherwise damaged data may need a method that is not in this build.
bool HasAllMethods() {
  return HasPlaneMethod(PlaneMethod::kZstd) &&
         HasPlaneMethod(PlaneMethod::kLz4);
}

class CodecFuzz : public ::testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(, CodecFuzz, ::testing::ValuesIn(CodecNames()),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(CodecFuzz, DamagedEncodingsAreRejectedOrDecoded) {
  auto created = CreateCodec(GetParam());
  if (!created.ok()) GTEST_SKIP() << created.status();
  const std::unique_ptr<Codec> codec = *std::move(created);
  Damage damage(1);
  int refused = 0, decoded = 0;
  for (const DType dtype : kAllDTypes) {
    for (const size_t count : {1, 70, 1500}) {
      const Bytes encoded = Encoded(*codec, dtype, Mixed(dtype, count));
      Bytes values(count * static_cast<size_t>(SizeInBytes(dtype)));
      for (int i = 0; i < 700; ++i) {
        const absl::Status status =
            codec->Decode(dtype, damage.To(encoded), values);
        if (status.ok()) {
          ++decoded;
          // Lossy codecs can encode the values they decode.
          Bytes again(codec->MaxEncodedBytes(dtype, count).value());
          TESSERA_EXPECT_OK(codec->Encode(dtype, values, again));
          continue;
        }
        ++refused;
        EXPECT_TRUE(status.code() == absl::StatusCode::kDataLoss ||
                    status.code() == absl::StatusCode::kInvalidArgument ||
                    (status.code() == absl::StatusCode::kUnimplemented &&
                     !HasAllMethods()))
            << status;
        EXPECT_FALSE(status.message().empty());
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(decoded, 100);
}

TEST_P(CodecFuzz, RandomBytesBehindAValidHeaderAreSafe) {
  auto created = CreateCodec(GetParam());
  if (!created.ok()) GTEST_SKIP() << created.status();
  const std::unique_ptr<Codec> codec = *std::move(created);
  std::mt19937_64 random(2);
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kBF16, DType::kF8E5M2, DType::kU8}) {
    const Bytes encoded = Encoded(*codec, dtype, Mixed(dtype, 200));
    Bytes values(200 * static_cast<size_t>(SizeInBytes(dtype)));
    for (int i = 0; i < 2000; ++i) {
      Bytes bytes = RandomBytes(
          random() % 2 ? encoded.size() : kHeader + random() % 900, random());
      std::copy_n(encoded.begin(), kHeader, bytes.begin());
      // Plausible descriptors of planes.
      if (random() % 2 && bytes.size() >= kHeader + 4) {
        bytes[kHeader + 2] = bytes[kHeader + 1] = std::byte{0};
        bytes[kHeader + 3] = static_cast<std::byte>((random() % 4) << 4);
      }
      const absl::Status status = codec->Decode(dtype, bytes, values);
      EXPECT_TRUE(status.ok() || !status.message().empty());
    }
  }
}

}  // namespace
}  // namespace tessera::offload
