#include "base/device/cuda_convert.h"

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/device/cuda_device.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMaxCount = 1 << 18;

// Random bits give values of every kind in 8- and 16-bit formats. For wider
// formats every other element is near the range of the small ones.
std::vector<std::byte> RandomElements(DType dtype, int64_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(dtype));
  std::vector<std::byte> bytes(static_cast<size_t>(count * SizeInBytes(dtype)));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  if (dtype != DType::kF32 && dtype != DType::kF64) return bytes;
  const auto size = static_cast<size_t>(SizeInBytes(dtype));
  for (size_t i = 0; i < bytes.size(); i += 2 * size) {
    const auto sign = bytes[i + size - 1] & std::byte{0x80};
    const auto exponent =
        dtype == DType::kF32 ? 0x36 + random() % 18 : 0x3e + random() % 3;
    bytes[i + size - 1] = sign | static_cast<std::byte>(exponent);
  }
  return bytes;
}

class CudaConvertTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<CudaDevice>> device = CudaDevice::Create();
    if (!device.ok()) GTEST_SKIP() << "no CUDA device: " << device.status();
    device_ = *std::move(device);
    TESSERA_ASSERT_OK_AND_ASSIGN(queue_, device_->CreateQueue("convert"));
    const std::shared_ptr<MemoryResource> memory = device_->memory();
    TESSERA_ASSERT_OK_AND_ASSIGN(source_,
                                 Buffer::Allocate(memory, kMaxCount * 8 + 8));
    TESSERA_ASSERT_OK_AND_ASSIGN(target_,
                                 Buffer::Allocate(memory, kMaxCount * 8 + 8));
  }

  // Converts on host and device; the device pointers are offset by `shift`
  // elements.
  void ExpectAsOnTheHost(DType from, DType to,
                         std::span<const std::byte> source, int64_t shift,
                         FloatOverflow overflow) {
    const int64_t count =
        static_cast<int64_t>(source.size()) / SizeInBytes(from);
    std::vector<std::byte> expected(
        static_cast<size_t>(count * SizeInBytes(to)));
    std::vector<std::byte> actual(expected.size());
    TESSERA_ASSERT_OK(Convert(from, source, to, expected, overflow));
    std::byte* const in = source_.data() + shift * SizeInBytes(from);
    std::byte* const out = target_.data() + shift * SizeInBytes(to);
    TESSERA_ASSERT_OK(queue_->Copy(source, {in, source.size()}));
    TESSERA_ASSERT_OK(queue_->Launch(
        {.name = "convert",
         .run = [&](const DeviceAddresses&) -> absl::StatusOr<Event> {
           TESSERA_RETURN_IF_ERROR(CudaConvert(
               from, in, to, out, count,
               static_cast<cudaStream_t>(queue_->native_handle()), overflow));
           return Event();
         },
         .enqueues = true}));
    TESSERA_ASSERT_OK(queue_->Copy({out, actual.size()}, actual));
    TESSERA_ASSERT_OK(queue_->Synchronize());
    ASSERT_EQ(actual, expected)
        << from << " to " << to << ", " << count << " from " << shift;
  }

  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<Queue> queue_;
  Buffer source_, target_;
};

TEST_P(CudaConvertTest, MatchesHostBitForBit) {
  const std::vector<std::byte> source = RandomElements(GetParam(), kMaxCount);
  const auto size = static_cast<size_t>(SizeInBytes(GetParam()));
  for (DType to : kAllDTypes) {
    for (FloatOverflow overflow :
         {FloatOverflow::kInfinityOrNan, FloatOverflow::kSaturate}) {
      ExpectAsOnTheHost(GetParam(), to, source, 0, overflow);
    }
    for (size_t count : {0, 1, 7, 1003}) {
      for (int64_t shift : {0, 1}) {
        ExpectAsOnTheHost(GetParam(), to, std::span(source).first(count * size),
                          shift, FloatOverflow::kInfinityOrNan);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(From, CudaConvertTest, ::testing::ValuesIn(kAllDTypes),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param));
                         });

// Arguments are rejected before any device access, so no device is needed.
TEST(CudaConvertErrorTest, DescribesInvalidArguments) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  alignas(8) std::byte memory[16];
  EXPECT_THAT(
      CudaConvert(DType::kF32, memory, DType::kF16, memory + 8, -1, nullptr),
      StatusIs(kInvalid, HasSubstr("-1 elements")));
  EXPECT_THAT(
      CudaConvert(DType::kF32, nullptr, DType::kF16, memory, 1, nullptr),
      StatusIs(kInvalid, HasSubstr("null source")));
  EXPECT_THAT(
      CudaConvert(DType::kF32, memory, DType::kF16, nullptr, 1, nullptr),
      StatusIs(kInvalid, HasSubstr("null target")));
  EXPECT_THAT(
      CudaConvert(DType::kF32, memory + 2, DType::kF16, memory, 1, nullptr),
      StatusIs(kInvalid, HasSubstr("2 bytes past a multiple of 4")));
  EXPECT_THAT(CudaConvert(static_cast<DType>(99), memory, DType::kF16,
                          memory + 8, 1, nullptr),
              StatusIs(kInvalid, HasSubstr("source dtype number 99")));
  TESSERA_EXPECT_OK(
      CudaConvert(DType::kF32, nullptr, DType::kF16, nullptr, 0, nullptr));
}

}  // namespace
}  // namespace tessera
