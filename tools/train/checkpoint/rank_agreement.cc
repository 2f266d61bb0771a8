#include "tools/train/checkpoint/rank_agreement.h"

#include <cstdint>
#include <numeric>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace tessera::train {
namespace {

constexpr size_t kLongestMessage = 2000;

}  // namespace

absl::StatusOr<std::vector<std::string>> GatherTexts(
    collectives::Communicator& group, std::string_view mine) {
  const collectives::CallOptions call = {.timeout = absl::Minutes(30)};
  const auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(static_cast<size_t>(group.size()));
  TESSERA_RETURN_IF_ERROR(
      group.AllGather(collectives::ConstBuffer(std::span(&length, 1)),
                      collectives::Buffer(std::span(lengths)), call));
  const std::vector<uint8_t> bytes(mine.begin(), mine.end());
  std::vector<uint8_t> all(static_cast<size_t>(
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0})));
  TESSERA_RETURN_IF_ERROR(group.AllGatherUneven(
      collectives::ConstBuffer(std::span(bytes)),
      collectives::Buffer(std::span(all)), lengths, call));
  std::vector<std::string> texts;
  auto at = all.begin();
  for (const int64_t size : lengths) {
    texts.emplace_back(at, at + size);
    at += size;
  }
  return texts;
}

absl::Status AgreeOnStatus(collectives::Communicator& group,
                           const absl::Status& mine) {
  // The code in front, then the message.
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      GatherTexts(group, absl::StrCat(
                             std::string(1, static_cast<char>(mine.raw_code())),
                             mine.message().substr(0, kLongestMessage))));
  absl::Status first;
  int64_t failed = 0;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const auto code = static_cast<absl::StatusCode>(texts[rank][0]);
    if (code == absl::StatusCode::kOk) continue;
    ++failed;
    first.Update(
        absl::Status(code, absl::StrCat("rank ", rank, " of ", group.name(),
                                        ": ", texts[rank].substr(1))));
  }
  if (failed < 2) return first;
  return absl::Status(first.code(), absl::StrCat(first.message(), " (and ",
                                                 failed - 1, " more ranks)"));
}

}  // namespace tessera::train
