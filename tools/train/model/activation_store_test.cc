#include "tools/train/model/activation_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/codec/codec.h"
#include "offload/tier/compressed_tier.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/testing/tiers.h"

namespace tessera::train {
namespace {

using offload::Accounting;
using offload::Purpose;
using tensor_parallel::KeptTensor;
using tensor_parallel::PooledTensor;
using tensor_parallel::TensorPool;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using zero3::testing::FarTier;

constexpr size_t kWindows = 4;
// Bytes of a Flight: 7 x 5 and 3 floats and 1 x 9 16-bit numbers, each rounded
// up to cache lines.
constexpr int64_t kBlockBytes = 192 + 64 + 64;

std::shared_ptr<Accounting> Unlimited(std::string name) {
  return std::make_shared<Accounting>(std::move(name), offload::kUnlimited);
}

// The tensors that a layer keeps for a micro-batch: one borrowed from the
// caller, two of its own, and one that this pass does not have.
class Flight {
 public:
  explicit Flight(TensorPool& pool)
      : input_(pool), sums_(pool), nothing_(pool), narrow_(pool) {}

  void Compute(int seed) {
    borrowed_.resize(35);
    for (size_t i = 0; i < borrowed_.size(); ++i) {
      borrowed_[i] = static_cast<float>(seed) + 0.001F * static_cast<float>(i);
    }
    view_ = *ConstTensorView::Of(std::span<const float>(borrowed_), {{7, 5}});
    Fill(*sums_.Reserve(DType::kF32, {{3}}), seed + 1);
    Fill(*narrow_.Reserve(DType::kBF16, {{1, 9}}), seed + 2);
  }
  // Invalidates the borrowed tensor.
  void ForgetBorrowed() { borrowed_.assign(35, -1); }

  std::vector<KeptTensor> Kept() {
    return {{&input_, &view_}, {&sums_}, {&nothing_}, {&narrow_}};
  }

  void ExpectComputed(int seed) {
    ASSERT_TRUE(view_.has_value());
    ASSERT_EQ(view_->size_in_bytes(), 140);
    EXPECT_EQ(view_->shape()[0], 7);
    for (size_t i = 0; i < 35; ++i) {
      float value;
      std::memcpy(&value, view_->data() + 4 * i, 4);
      ASSERT_EQ(value,
                static_cast<float>(seed) + 0.001F * static_cast<float>(i));
    }
    ExpectFilled(sums_, 12, seed + 1);
    ExpectFilled(narrow_, 18, seed + 2);
    EXPECT_FALSE(nothing_.held());
  }
  void Clear() {
    for (const KeptTensor& tensor : Kept()) tensor.Release();
  }

 private:
  static std::byte ByteOf(int seed, int64_t i) {
    return static_cast<std::byte>(seed * 31 + i);
  }
  static void Fill(TensorView view, int seed) {
    for (int64_t i = 0; i < view.size_in_bytes(); ++i) {
      view.data()[i] = ByteOf(seed, i);
    }
  }
  static void ExpectFilled(const PooledTensor& tensor, int64_t bytes,
                           int seed) {
    ASSERT_EQ(tensor.bytes(), bytes);
    for (int64_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(tensor.view().data()[i], ByteOf(seed, i));
    }
  }

  std::vector<float> borrowed_;
  std::optional<ConstTensorView> view_;
  PooledTensor input_;
  PooledTensor sums_;
  PooledTensor nothing_;
  PooledTensor narrow_;
};

// All forwards, then all backwards in reverse order.
std::vector<ActivationPass> AllForwardsFirst(int32_t microbatches) {
  std::vector<ActivationPass> passes;
  for (int32_t m = 0; m < microbatches; ++m) {
    for (size_t w = 0; w < kWindows; ++w) passes.push_back({{w, m}, true});
  }
  for (int32_t m = microbatches - 1; m >= 0; --m) {
    for (size_t w = kWindows; w-- > 0;) passes.push_back({{w, m}, false});
  }
  return passes;
}

// Forward and backward of one micro-batch after another, as on one pipeline
// rank.
std::vector<ActivationPass> OneByOne(int32_t microbatches) {
  std::vector<ActivationPass> passes;
  for (int32_t m = 0; m < microbatches; ++m) {
    for (size_t w = 0; w < kWindows; ++w) passes.push_back({{w, m}, true});
    for (size_t w = kWindows; w-- > 0;) passes.push_back({{w, m}, false});
  }
  return passes;
}

int SeedOf(const ActivationPlace& place, int step) {
  return 1000 * step + 100 * static_cast<int>(place.window) + place.microbatch;
}

class ActivationStoreTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ActivationStore>> Create(
      offload::MemoryTier& tier, const std::vector<ActivationPass>& passes) {
    return ActivationStore::Create(
        passes, {.tier = &tier,
                 .names = {"embedding", "layer 0", "layer 1", "head"},
                 .key_prefix = "rank 5/",
                 .device = zero3::StateDevice(device_)});
  }

  // Runs a step's passes as a run does. After a Put nothing is held.
  void Step(ActivationStore& store, const std::vector<ActivationPass>& passes,
            int step) {
    std::map<ActivationPlace, std::unique_ptr<Flight>> flights;
    TESSERA_ASSERT_OK(store.BeginStep());
    for (const ActivationPass& pass : passes) {
      std::unique_ptr<Flight>& flight = flights[pass.place];
      const int seed = SeedOf(pass.place, step);
      if (pass.is_forward) {
        flight = std::make_unique<Flight>(pool_);
        flight->Compute(seed);
        if (!store.Sends(pass.place)) continue;
        TESSERA_ASSERT_OK(store.Put(pass.place, flight->Kept()));
        flight->ForgetBorrowed();
        for (const KeptTensor& tensor : flight->Kept()) {
          EXPECT_FALSE(tensor.value().has_value());
        }
      } else {
        EXPECT_EQ(store.IsAway(pass.place), store.Sends(pass.place));
        if (store.IsAway(pass.place)) {
          TESSERA_ASSERT_OK(store.Take(pass.place, flight->Kept()));
        }
        ASSERT_NO_FATAL_FAILURE(flight->ExpectComputed(seed));
        flight->Clear();
      }
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(last_, store.EndStep());
    EXPECT_EQ(pool_.taken_bytes(), 0);
  }

  void ExpectComesBack(offload::MemoryTier& tier,
                       const std::vector<ActivationPass>& passes) {
    TESSERA_ASSERT_OK_AND_ASSIGN(auto store, Create(tier, passes));
    for (int step = 0; step < 4; ++step) {
      SCOPED_TRACE(step);
      ASSERT_NO_FATAL_FAILURE(Step(*store, passes, step));
    }
    store = nullptr;
    EXPECT_THAT(tier.Keys(), SizeIs(0));
  }

  TensorPool pool_{HostMemory()};
  std::shared_ptr<Accounting> device_ = Unlimited("device");
  zero3::ShardTraffic last_;
};

TEST_F(ActivationStoreTest, RoundTripsActivations) {
  for (const auto& passes : {AllForwardsFirst(5), OneByOne(5)}) {
    offload::HostTier host(Unlimited("host"));
    ExpectComesBack(host, passes);
    FarTier far;
    ExpectComesBack(far, passes);
    TESSERA_ASSERT_OK_AND_ASSIGN(auto codec, offload::CreateCodec("lossless"));
    offload::CompressedTier compressed(
        std::move(codec),
        std::make_shared<offload::HostTier>(Unlimited("host")));
    ExpectComesBack(compressed, passes);
  }
}

TEST_F(ActivationStoreTest, DoesNotSendActivationsOfNextPass) {
  const auto passes = OneByOne(2);
  FarTier far;
  TESSERA_ASSERT_OK_AND_ASSIGN(auto store, Create(far, passes));
  for (const int32_t m : {0, 1}) {
    for (const size_t w : {0u, 1u, 2u}) EXPECT_TRUE(store->Sends({w, m}));
    EXPECT_FALSE(store->Sends({3, m}));
  }
  EXPECT_FALSE(store->Sends({0, 2}));
}

// The tier holds only the concurrent micro-batches, and memory two blocks;
// creating a block for the first time needs a third.
TEST_F(ActivationStoreTest, HoldsOnlyConcurrentMicroBatches) {
  const auto counted = Unlimited("far");
  FarTier far(counted);
  const auto one_by_one = OneByOne(9);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto store, Create(far, one_by_one));
  ASSERT_NO_FATAL_FAILURE(Step(*store, one_by_one, 0));
  ASSERT_NO_FATAL_FAILURE(Step(*store, one_by_one, 1));
  EXPECT_THAT(far.Keys(), SizeIs(3));
  EXPECT_EQ(far.Keys()[0], "rank 5/activations/embedding/0");
  EXPECT_EQ(counted->usage().of(Purpose::kActivations).peak, 3 * kBlockBytes);
  EXPECT_EQ(counted->usage().current, 3 * kBlockBytes);
  EXPECT_EQ(device_->usage().of(Purpose::kBuffers).peak, 3 * kBlockBytes);
  EXPECT_EQ(device_->usage().current, 2 * kBlockBytes);
  store = nullptr;
  EXPECT_EQ(device_->usage().current, 0);
  EXPECT_EQ(counted->usage().current, 0);
}

// 19 blocks in memory for two; blocks are dead once read, and overwritten
// later.
TEST_F(ActivationStoreTest, DoesNotWriteConsumedBlocks) {
  FarTier far;
  const auto passes = AllForwardsFirst(5);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto store, Create(far, passes));
  for (int step = 0; step < 3; ++step) {
    ASSERT_NO_FATAL_FAILURE(Step(*store, passes, step));
  }
  EXPECT_LE(last_.bytes_read, 18 * kBlockBytes);
  EXPECT_GE(last_.bytes_read, 17 * kBlockBytes);
  EXPECT_LE(last_.bytes_written, 19 * kBlockBytes);
  EXPECT_GE(last_.stall_ns, 0);
  EXPECT_EQ(last_.near_bytes, 2 * kBlockBytes);
  EXPECT_EQ(store->total_traffic().near_bytes, 2 * kBlockBytes);
  EXPECT_GT(store->total_traffic().bytes_read, last_.bytes_read);
}

// The last two of the 11 offloaded blocks are still in memory. Whenever one is
// taken, the next is read in the background, as during a layer's computation:
// in the first step by announcement, later by the order of the previous step.
TEST_F(ActivationStoreTest, ReadsTheNextBackwardsAhead) {
  FarTier far;
  const auto passes = AllForwardsFirst(3);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto store, Create(far, passes));
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    far.gets = 0;
    TESSERA_ASSERT_OK(store->BeginStep());
    for (size_t i = 0; i < passes.size(); ++i) {
      if (!store->Sends(passes[i].place)) continue;
      Flight flight(pool_);
      if (passes[i].is_forward) {
        flight.Compute(SeedOf(passes[i].place, step));
        TESSERA_ASSERT_OK(store->Put(passes[i].place, flight.Kept()));
        continue;
      }
      TESSERA_ASSERT_OK(store->Take(passes[i].place, flight.Kept()));
      const int taken = static_cast<int>(i - passes.size() / 2);
      const int read = std::min(taken, 9);
      const auto deadline =
          std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (far.gets < read && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      EXPECT_GE(far.gets, read);
      if (step > 0) {
        EXPECT_EQ(far.gets, read);
      }
      flight.Clear();
    }
    TESSERA_ASSERT_OK(store->EndStep().status());
  }
}

TEST_F(ActivationStoreTest, ErrorsNameLayerAndMicroBatch) {
  FarTier far;
  const auto passes = AllForwardsFirst(5);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto store, Create(far, passes));
  Flight flight(pool_);
  flight.Compute(1);
  EXPECT_THAT(store->Take({1, 3}, flight.Kept()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("layer 0, micro-batch 3: restoring its "
                                       "activations"),
                             HasSubstr("call Put before Take"))));
  TESSERA_ASSERT_OK(store->Put({1, 3}, flight.Kept()));
  EXPECT_THAT(store->Put({1, 3}, flight.Kept()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("call Take before the next Put")));
  far.is_full = true;
  flight.Compute(2);
  EXPECT_THAT(store->Put({2, 4}, flight.Kept()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("layer 1, micro-batch 4: offloading its "
                                       "activations"),
                             HasSubstr("far: no room for"))));
}

// A block is written when memory is needed. The error appears in another
// block's call and names both blocks.
TEST_F(ActivationStoreTest, LateWriteErrorsNameBothBlocks) {
  FarTier far;
  const auto passes = AllForwardsFirst(5);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto store, Create(far, passes));
  ASSERT_NO_FATAL_FAILURE(Step(*store, passes, 0));
  far.is_full = true;
  TESSERA_ASSERT_OK(store->BeginStep());
  absl::Status status;
  for (int32_t m = 0; m < 5 && status.ok(); ++m) {
    Flight flight(pool_);
    flight.Compute(m);
    status = store->Put({1, m}, flight.Kept());
  }
  EXPECT_THAT(
      status,
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("layer 0, micro-batch 2: offloading its"),
                     HasSubstr("\"rank 5/activations/layer 0/0\" has the "
                               "activations of layer 0, micro-batch 0"))));
}

TEST_F(ActivationStoreTest, RejectsLossyTiers) {
  TESSERA_ASSERT_OK_AND_ASSIGN(auto codec, offload::CreateCodec("int8"));
  offload::CompressedTier rounds(
      std::move(codec), std::make_shared<offload::HostTier>(Unlimited("host")));
  EXPECT_THAT(Create(rounds, OneByOne(1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("give a tier that keeps every bit")));
}

}  // namespace
}  // namespace tessera::train
