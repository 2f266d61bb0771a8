#include "offload/tier/testing/tier_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {

std::vector<std::byte> PatternBytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(bytes);
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(out.data() + at, &word, 8);
  }
  for (; at < bytes; ++at) out[at] = static_cast<std::byte>(random());
  return out;
}

TierModel::TierModel(const TierCase& tier_case, int64_t budget, uint64_t seed)
    : case_(tier_case),
      budget_(budget),
      tier_(tier_case.make(budget)),
      random_(seed) {
  for (int i = 0; i < 12; ++i) keys_.push_back("block." + std::to_string(i));
  keys_.push_back(std::string("\0odd\xff\n", 6));
  keys_.push_back(std::string(kMaxKeyBytes, 'k'));
}

size_t TierModel::RandomSize() {
  constexpr std::array<size_t, 10> kSizes = {0,    1,    7,    511,  512,
                                             4095, 4096, 4097, 8192, 16384};
  return Below(3) == 0 ? kSizes[Below(kSizes.size())] : Below(20000);
}

BlockInfo TierModel::RandomInfo() {
  BlockInfo info;
  info.purpose = kAllPurposes[Below(kAllPurposes.size())];
  return info;
}

int64_t TierModel::Held() const {
  int64_t held = 0;
  for (const auto& [key, block] : model_) {
    held += static_cast<int64_t>(block.bytes.size());
  }
  return held;
}

bool TierModel::MustRefuse(const std::string& key, int64_t bytes) const {
  const auto old = model_.find(key);
  const int64_t extra = case_.extra(
      old == model_.end()
          ? std::nullopt
          : std::optional(static_cast<int64_t>(old->second.bytes.size())),
      bytes);
  return Held() + extra > budget_;
}

void TierModel::PutOne(const std::string& key) {
  Block block = {PatternBytes(RandomSize(), random_()), RandomInfo()};
  const absl::Status status = tier_->Put(key, block.bytes, block.info);
  if (case_.extra != nullptr) {
    ASSERT_EQ(!status.ok(),
              MustRefuse(key, static_cast<int64_t>(block.bytes.size())))
        << status;
  }
  if (status.ok()) {
    model_[key] = std::move(block);
  } else {
    ++refused_;
    ASSERT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  }
}

// Blocks of different keys in flight at once.
void TierModel::PutSeveral() {
  std::vector<std::string> keys = keys_;
  std::shuffle(keys.begin(), keys.end(), random_);
  keys.resize(4);
  std::vector<Block> blocks;
  for (size_t i = 0; i < keys.size(); ++i) {
    blocks.push_back({PatternBytes(RandomSize(), random_()), RandomInfo()});
  }
  std::vector<Operation> puts;
  for (size_t i = 0; i < keys.size(); ++i) {
    puts.push_back(tier_->StartPut(keys[i], blocks[i].bytes, blocks[i].info));
  }
  for (size_t i = keys.size(); i-- > 0;) {
    if (puts[i].Wait().ok()) {
      model_[keys[i]] = std::move(blocks[i]);
    } else {
      ++refused_;
      ASSERT_THAT(puts[i].Wait(),
                  StatusIs(absl::StatusCode::kResourceExhausted));
    }
  }
}

void TierModel::GetOne(const std::string& key) {
  const auto found = model_.find(key);
  if (found == model_.end()) {
    ASSERT_THAT(tier_->Get(key, {}), StatusIs(absl::StatusCode::kNotFound));
    return;
  }
  const std::vector<std::byte>& expected = found->second.bytes;
  std::vector<std::byte> got(expected.size() + 1);
  ASSERT_THAT(tier_->Get(key, got),
              StatusIs(absl::StatusCode::kInvalidArgument));
  got.resize(expected.size());
  TESSERA_ASSERT_OK(tier_->Get(key, got));
  ASSERT_TRUE(got == expected) << key;
}

void TierModel::GetPart(const std::string& key) {
  const auto found = model_.find(key);
  if (found == model_.end()) return;
  const std::vector<std::byte>& all = found->second.bytes;
  const size_t from = Below(all.size() + 1);
  const size_t bytes = Below(all.size() - from + 1);
  std::vector<std::byte> got(bytes);
  TESSERA_ASSERT_OK(tier_->GetRange(key, static_cast<int64_t>(from), got));
  ASSERT_TRUE(std::equal(got.begin(), got.end(), all.begin() + from)) << key;
  got.resize(all.size() - from + 1);
  ASSERT_THAT(tier_->GetRange(key, static_cast<int64_t>(from), got),
              StatusIs(absl::StatusCode::kOutOfRange));
}

void TierModel::DropOne(const std::string& key) {
  if (model_.erase(key) == 1) {
    TESSERA_ASSERT_OK(tier_->Drop(key));
  } else {
    ASSERT_THAT(tier_->Drop(key), StatusIs(absl::StatusCode::kNotFound));
  }
}

void TierModel::CompareAccounting() {
  int64_t held = 0;
  std::map<Purpose, int64_t> parts;
  for (const auto& [key, block] : model_) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const BlockStat stat, tier_->Stat(key));
    ASSERT_EQ(stat.bytes, static_cast<int64_t>(block.bytes.size()));
    ASSERT_EQ(stat.info, block.info);
    if (case_.exact) {
      ASSERT_EQ(stat.held_bytes, stat.bytes);
    }
    held += stat.held_bytes;
    parts[block.info.purpose] += stat.held_bytes;
  }
  int64_t current = 0;
  for (const TierUsage& tier : tier_->usage()) {
    current += tier.usage.current;
    ASSERT_LE(tier.usage.peak, tier.usage.budget);
    ASSERT_LE(tier.usage.current, tier.usage.peak);
  }
  ASSERT_EQ(current, held);
  if (!case_.exact) return;
  for (const Purpose purpose : kAllPurposes) {
    ASSERT_EQ(tier_->usage().front().usage.of(purpose).current, parts[purpose]);
  }
}

void TierModel::Step() {
  const std::string& key = keys_[Below(keys_.size())];
  switch (Below(8)) {
    case 0:
    case 1:
      PutOne(key);
      break;
    case 2:
      PutSeveral();
      break;
    case 3:
      GetOne(key);
      break;
    case 4:
      GetPart(key);
      break;
    case 5:
      DropOne(key);
      break;
    case 6:
      ASSERT_EQ(tier_->Prefetch(key).ok(), model_.contains(key));
      break;
    default:
      ASSERT_EQ(tier_->Contains(key), model_.contains(key));
  }
  if (!testing::Test::HasFatalFailure()) CompareAccounting();
}

void TierModel::CompareAll() {
  std::vector<std::string> expected;
  for (const auto& [key, block] : model_) {
    expected.push_back(key);
    GetOne(key);
  }
  EXPECT_EQ(tier_->Keys(), expected);
}

void TierModel::DropAll() {
  for (const std::string& key : tier_->Keys()) DropOne(key);
  for (const TierUsage& tier : tier_->usage()) {
    EXPECT_EQ(tier.usage.current, 0) << tier.tier;
  }
}

}  // namespace tessera::offload
