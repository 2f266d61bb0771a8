// What the tests of FileTier share.
#ifndef TESSERA_OFFLOAD_TIER_FILE_TIER_FIXTURE_H_
#define TESSERA_OFFLOAD_TIER_FILE_TIER_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "offload/tier/file_tier.h"

namespace tessera::offload {

using Bytes = std::vector<std::byte>;

inline std::shared_ptr<Accounting> Budget(int64_t bytes = kUnlimited) {
  return std::make_shared<Accounting>("file", bytes);
}

// Small pieces, and no more file than is needed.
inline FileTierOptions Options(std::string path, bool keep) {
  FileTierOptions options;
  options.path = std::move(path);
  options.keep = keep;
  options.piece_bytes = 4096;
  options.bounce_bytes = 8 * 4096;
  options.space.growth_bytes = 0;
  options.lock_wait = absl::Milliseconds(20);
  return options;
}

inline std::string FreshPath(const char* name) {
  const std::string path = testing::TempDir() + "/fault." + name;
  std::remove(path.c_str());
  return path;
}

// Empty where it cannot be read.
inline Bytes Read(FileTier& tier, const std::string& key) {
  const auto stat = tier.Stat(key);
  if (!stat.ok()) return {};
  Bytes got(static_cast<size_t>(stat->bytes));
  return tier.Get(key, got).ok() ? got : Bytes();
}

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_FILE_TIER_FIXTURE_H_
