// Tests of any tier: TierModel compares it with a map over random steps, and
// TierConformanceTest tests the contract of MemoryTier.
#ifndef TESSERA_OFFLOAD_TIER_TESTING_TIER_MODEL_H_
#define TESSERA_OFFLOAD_TIER_TESTING_TIER_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "offload/tier/memory_tier.h"

namespace tessera::offload {

// A tier under test.
struct TierCase {
  std::string name;
  // Creates a tier whose nearest budget is `budget`.
  std::function<std::shared_ptr<MemoryTier>(int64_t budget)> make;
  // True if a block uses exactly its size of that budget.
  bool exact = true;
  // The bytes that a Put needs in addition to those in use; `old` is the
  // replaced block. Null if they depend on the encoding.
  std::function<int64_t(std::optional<int64_t> old, int64_t bytes)> extra;
};

// A tier and a map, to which every step is applied and compared.

// Bytes that identify their block and position; equal for equal arguments.
std::vector<std::byte> PatternBytes(size_t bytes, uint64_t seed);

class TierModel {
 public:
  TierModel(const TierCase& tier_case, int64_t budget, uint64_t seed);

  // Executes one random operation, or several at once on different keys. Waits
  // for all of them and compares with EXPECT.
  void Step();
  // Compares everything that the tier holds with the model.
  void CompareAll();
  void DropAll();

  const std::vector<std::string>& keys() const { return keys_; }
  int64_t refused() const { return refused_; }

 private:
  struct Block {
    std::vector<std::byte> bytes;
    BlockInfo info;
  };

  size_t Below(size_t bound) { return random_() % bound; }
  size_t RandomSize();
  BlockInfo RandomInfo();
  void PutOne(const std::string& key);
  void PutSeveral();
  void GetOne(const std::string& key);
  void GetPart(const std::string& key);
  void DropOne(const std::string& key);
  void CompareAccounting();
  bool MustRefuse(const std::string& key, int64_t bytes) const;
  int64_t Held() const;

  const TierCase case_;
  const int64_t budget_;
  const std::shared_ptr<MemoryTier> tier_;
  std::mt19937_64 random_;
  std::vector<std::string> keys_;
  std::map<std::string, Block> model_;
  int64_t refused_ = 0;
};

// Tests the contract of MemoryTier (conformance.cc) for every tier and stack of
// tiers:
//
//   INSTANTIATE_TEST_SUITE_P(Host, TierConformanceTest,
//                            testing::Values(TierCase{.name = "Host", ...}),
//                            TierCaseName);
class TierConformanceTest : public testing::TestWithParam<TierCase> {};

inline std::string TierCaseName(const testing::TestParamInfo<TierCase>& info) {
  return info.param.name;
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_TESTING_TIER_MODEL_H_
