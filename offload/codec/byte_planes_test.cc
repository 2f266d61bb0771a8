#include "offload/codec/byte_planes.h"

#include <array>
#include <vector>

#include "gtest/gtest.h"
#include "offload/codec/arrays.h"

namespace tessera::offload {
namespace {

// Bit by bit: bit b of an element is bit (b + rotation) mod width of the planes
// one above the other.
bool IsSplit(PlaneShape shape, const Bytes& values, size_t count,
             const std::vector<Bytes>& planes) {
  const size_t width = 8 * shape.planes;
  for (size_t i = 0; i < count; ++i) {
    for (size_t bit = 0; bit < width; ++bit) {
      const size_t to = (bit + static_cast<size_t>(shape.rotation)) % width;
      const int is = int(values[i * shape.planes + bit / 8] >> (bit % 8)) & 1;
      const int split = int(planes[to / 8][i] >> (to % 8)) & 1;
      if (is != split) return false;
    }
  }
  return true;
}

TEST(BytePlanesTest, AreTheRotatedElementsByteByByteAndBack) {
  const PlaneShape shapes[] = {{1, 0}, {2, 0}, {2, 1}, {4, 0},
                               {4, 1}, {8, 0}, {8, 4}};
  ForEachInstructionSet([&] {
    for (const PlaneShape shape : shapes) {
      for (const size_t count :
           {0, 1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 255, 256, 257, 600}) {
        const Bytes values = RandomBytes(count * shape.planes, count);
        std::vector<Bytes> planes(shape.planes, Bytes(count + 1));
        std::array<std::byte*, 8> places = {};
        for (size_t p = 0; p < shape.planes; ++p) places[p] = planes[p].data();
        SplitPlanes(shape, values.data(), count, places.data());
        ASSERT_TRUE(IsSplit(shape, values, count, planes))
            << shape.planes << " planes, " << count;
        for (const Bytes& plane : planes) EXPECT_EQ(plane[count], std::byte{0});
        Bytes back(values.size() + 1);
        MergePlanes(shape, places.data(), count, back.data());
        EXPECT_EQ(back.back(), std::byte{0});
        back.pop_back();
        ASSERT_TRUE(back == values) << shape.planes << " planes, " << count;
      }
    }
  });
}

TEST(BytePlanesTest, TheHighestPlaneIsTheExponent) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const PlaneShape shape = ShapeOf(dtype);
    const Bytes values = ArrayOf(dtype, {1, -1, -1.5, 0.25, -0.0});
    std::vector<Bytes> planes(shape.planes, Bytes(5));
    std::array<std::byte*, 8> places = {};
    for (size_t p = 0; p < shape.planes; ++p) places[p] = planes[p].data();
    SplitPlanes(shape, values.data(), 5, places.data());
    EXPECT_EQ(planes.back(),
              (Bytes{std::byte{127}, std::byte{127}, std::byte{127},
                     std::byte{125}, std::byte{0}}));
  }
  EXPECT_EQ(ShapeOf(DType::kF64).rotation, 4);
  EXPECT_EQ(ShapeOf(DType::kI32).rotation, 0);
  EXPECT_EQ(ShapeOf(DType::kF8E5M2).rotation, 0);
}

}  // namespace
}  // namespace tessera::offload
