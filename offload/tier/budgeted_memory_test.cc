#include "offload/tier/budgeted_memory.h"

#include <memory>

#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gtest/gtest.h"
#include "offload/tier/accounting.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

// A resource whose memory is exhausted.
class NoMemory final : public MemoryResource {
 public:
  MemoryKind kind() const override { return MemoryKind::kHost; }
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::ResourceExhaustedError("none");
  }
  void Deallocate(void*, size_t, size_t) override {}
};

TEST(BudgetedMemoryTest, CountsWhatItAllocates) {
  const auto budget = std::make_shared<Accounting>("device", 1000);
  const auto memory = std::make_shared<BudgetedMemory>(HostMemory(), budget,
                                                       Purpose::kActivations);
  EXPECT_EQ(memory->kind(), HostMemory()->kind());
  TESSERA_ASSERT_OK_AND_ASSIGN(void* const first, memory->Allocate(600, 64));
  TESSERA_ASSERT_OK_AND_ASSIGN(void* const second, memory->Allocate(300, 64));
  EXPECT_EQ(budget->usage().of(Purpose::kActivations).current, 900);
  EXPECT_THAT(
      memory->Allocate(101, 64),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("activations")));
  EXPECT_EQ(memory->usage().current, 900);
  memory->Deallocate(first, 600, 64);
  EXPECT_EQ(memory->usage().current, 300);
  memory->Deallocate(second, 300, 64);
  EXPECT_EQ(memory->usage().current, 0);
  EXPECT_EQ(memory->usage().peak, 900);
}

TEST(BudgetedMemoryTest, SharesTheBudgetWithOthers) {
  const auto budget = std::make_shared<Accounting>("device", 1000);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Reservation state,
      Accounting::Reserve(budget, "state", 900, Purpose::kParameters));
  BudgetedMemory memory(HostMemory(), budget, Purpose::kActivations);
  EXPECT_FALSE(memory.Allocate(200, 64).ok());
  state.Release();
  TESSERA_ASSERT_OK_AND_ASSIGN(void* const data, memory.Allocate(200, 64));
  memory.Deallocate(data, 200, 64);
}

TEST(BudgetedMemoryTest, FailedAllocationsAreNotCounted) {
  BudgetedMemory memory(std::make_shared<NoMemory>(),
                        std::make_shared<Accounting>("device", 1000),
                        Purpose::kActivations);
  EXPECT_FALSE(memory.Allocate(100, 64).ok());
  EXPECT_EQ(memory.usage().current, 0);
}

}  // namespace
}  // namespace tessera::offload
