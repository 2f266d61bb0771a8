// The contract of MemoryTier as tests, for every tier and stack of tiers:
//
//   INSTANTIATE_TEST_SUITE_P(Host, TierConformanceTest,
//                            testing::Values(TierCase{.name = "Host", ...}),
//                            TierCaseName);
#ifndef TESSERA_OFFLOAD_TIER_CONFORMANCE_H_
#define TESSERA_OFFLOAD_TIER_CONFORMANCE_H_

#include <string>

#include "gtest/gtest.h"
#include "offload/tier/tier_case.h"

namespace tessera::offload {

inline std::string TierCaseName(const testing::TestParamInfo<TierCase>& info) {
  return info.param.name;
}

class TierConformanceTest : public testing::TestWithParam<TierCase> {};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_CONFORMANCE_H_
