#include "zero3/parameters/use/order_hash.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::zero3 {
namespace {

OrderHash Recorded(const std::vector<int64_t>& ids) {
  OrderHash order;
  for (const int64_t id : ids) order.Record(ParameterId(id));
  return order;
}

TEST(OrderHashTest, IsTheSameInEveryVersion) {
  EXPECT_EQ(Recorded({}).hash(), 0x7465737365726133u);
  EXPECT_EQ(Recorded({0, 1, 2}).hash(), 0xf3d2889bc8d4b806u);
}

TEST(OrderHashTest, PrefixesHashAsOrdersOfTheirOwn) {
  const OrderHash order = Recorded({5, 5, 0, 9});
  EXPECT_EQ(order.PrefixHash(0), OrderHash().hash());
  EXPECT_EQ(order.PrefixHash(2), Recorded({5, 5}).hash());
  EXPECT_EQ(order.PrefixHash(4), order.hash());
}

TEST(OrderHashTest, ClearForgetsEverything) {
  OrderHash order = Recorded({1, 2, 3});
  order.Clear();
  EXPECT_EQ(order.size(), 0u);
  EXPECT_EQ(order.hash(), OrderHash().hash());
  order.Record(ParameterId(1));
  EXPECT_EQ(order.hash(), Recorded({1}).hash());
}

// Every order of up to 8 uses of 4 parameters: 87,381 of them.
TEST(OrderHashTest, NoTwoSmallOrdersCollide) {
  std::vector<std::vector<int64_t>> orders = {{}};
  for (size_t i = 0; i < orders.size(); ++i) {
    if (orders[i].size() == 8) continue;
    for (int64_t id = 0; id < 4; ++id) {
      orders.push_back(orders[i]);
      orders.back().push_back(id);
    }
  }
  std::map<uint64_t, size_t> seen;
  for (size_t i = 0; i < orders.size(); ++i) {
    EXPECT_TRUE(seen.emplace(Recorded(orders[i]).hash(), i).second);
  }
  EXPECT_EQ(seen.size(), 87'381u);
}

std::vector<int64_t> RandomIds(std::mt19937_64& random, size_t size) {
  std::vector<int64_t> ids(size);
  for (int64_t& id : ids) id = static_cast<int64_t>(random() % 3);
  return ids;
}

TEST(FirstDivergenceTest, IsWhereTheListsDiffer) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> a = RandomIds(random, random() % 70);
    std::vector<int64_t> b = a;
    if (random() % 4 != 0) b.resize(random() % 70, 1);
    if (!b.empty() && random() % 4 != 0) b[random() % b.size()] = 2;
    const auto [at_a, at_b] =
        std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    const auto divergence = FirstDivergence(Recorded(a), Recorded(b));
    if (a == b) {
      EXPECT_FALSE(divergence.has_value());
    } else {
      EXPECT_EQ(divergence, static_cast<size_t>(at_a - a.begin()));
    }
  }
}

TEST(DivergenceSearchTest, EndsInLogarithmicallyManyRounds) {
  for (size_t size = 0; size <= 300; ++size) {
    size_t most = 1;
    while ((size_t{1} << most) <= size) ++most;
    for (size_t common = 0; common <= size; ++common) {
      DivergenceSearch search(size);
      size_t rounds = 0;
      while (!search.Done()) {
        search.Report(search.Length() <= common);
        ++rounds;
      }
      ASSERT_EQ(search.Position(), common);
      ASSERT_LE(rounds, most);
    }
  }
}

}  // namespace
}  // namespace tessera::zero3
