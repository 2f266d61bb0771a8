#include "offload/codec/window_code.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "offload/codec/arrays.h"

namespace tessera::offload {
namespace {

// Bytes below `top`, each about half as likely as the one above it.
Bytes Falling(size_t count, int top, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::geometric_distribution<int> below(0.5);
  Bytes bytes(count);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(top - below(random));
  }
  return bytes;
}

// By the table of window_code.h, one byte after the other.
Bytes Reference(const Bytes& plane, int top) {
  const size_t groups = (plane.size() + 63) / 64;
  Bytes held(1 + 24 * groups), escapes;
  held[0] = static_cast<std::byte>(top);
  for (size_t i = 0; i < plane.size(); ++i) {
    const int below = (top - static_cast<int>(plane[i])) & 255;
    if (below >= 7) escapes.push_back(plane[i]);
    for (size_t k = 0; k < 3; ++k) {
      if ((std::min(below, 7) >> k & 1) == 0) continue;
      held[1 + 24 * (i / 64) + 8 * k + i % 64 / 8] |= std::byte{1} << i % 8;
    }
  }
  held.insert(held.end(), escapes.begin(), escapes.end());
  return held;
}

TEST(WindowCodeTest, IsWhatItDocumentsAndGivesThePlaneBack) {
  ForEachInstructionSet([] {
    for (const size_t count : {1, 2, 63, 64, 65, 127, 128, 1000, 65536}) {
      for (const int top : {0, 3, 6, 127, 255}) {  // Some wrap around.
        const Bytes plane = Falling(count, top, count + size_t(top));
        Bytes room(2 * count + 100);
        const size_t bytes = EncodeWindow(plane, room);
        ASSERT_GT(bytes, 0);
        room.resize(bytes);
        const int chosen = static_cast<int>(room[0]);
        EXPECT_TRUE(room == Reference(plane, chosen)) << count << " " << top;
        if (count >= 1000) {
          EXPECT_EQ(chosen, top);
        }
        Bytes back(count + 1, std::byte{0x77});
        EXPECT_TRUE(DecodeWindow(room, std::span(back).first(count)));
        EXPECT_EQ(back.back(), std::byte{0x77});
        back.pop_back();
        EXPECT_TRUE(back == plane);
      }
    }
  });
}

TEST(WindowCodeTest, SaysWhereItDoesNotFit) {
  const Bytes plane = Falling(1000, 127, 1);
  Bytes room(2000);
  const size_t bytes = EncodeWindow(plane, room);
  ASSERT_GT(bytes, 0);
  for (size_t less = 0; less < bytes; ++less) {
    EXPECT_EQ(EncodeWindow(plane, std::span(room).first(less)), 0);
  }
  EXPECT_EQ(EncodeWindow(plane, std::span(room).first(bytes)), bytes);
  Bytes big(70000);
  EXPECT_EQ(EncodeWindow(RandomBytes(65536, 1), big), 0);
}

TEST(WindowCodeTest, RefusesWhatItNeverMakes) {
  const Bytes plane = Falling(1000, 127, 1);
  Bytes held(2000);
  held.resize(EncodeWindow(plane, held));
  Bytes back(1000);
  for (size_t bytes = 0; bytes < held.size(); ++bytes) {
    EXPECT_FALSE(DecodeWindow(std::span(held).first(bytes), back));
  }
  held.push_back(std::byte{0});
  EXPECT_FALSE(DecodeWindow(held, back));
}

TEST(WindowCodeTest, AnyBytesAreSafe) {
  ForEachInstructionSet([] {
    for (uint64_t i = 0; i < 3000; ++i) {
      Bytes plane(1 + i % 200);
      const Bytes held = RandomBytes(i % 331, i);
      DecodeWindow(held, plane);
    }
  });
}

}  // namespace
}  // namespace tessera::offload
