// An all-reduce between threads over Gloo's TCP transport on loopback.

#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace {

TEST(GlooTest, SumsOverThreeRanks) {
  constexpr int kRanks = 3;
  std::vector<float> values(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([rank, kRanks, &values] {
      gloo::transport::tcp::attr attributes;
      attributes.hostname = "127.0.0.1";
      auto device = gloo::transport::tcp::CreateDevice(attributes);
      gloo::rendezvous::FileStore store(::testing::TempDir());
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, kRanks);
      context->connectFullMesh(store, device);
      float& value = values[static_cast<size_t>(rank)];
      value = static_cast<float>(rank + 1);
      gloo::AllreduceRing<float>(context, {&value}, 1).run();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(values, (std::vector<float>{6, 6, 6}));
}

}  // namespace
