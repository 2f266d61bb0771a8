#include "collectives/groups/agreement.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

// Limit for messages that are sent.
constexpr size_t kLongestMessage = 2000;

}  // namespace

absl::StatusOr<std::vector<std::string>> ExchangeTexts(Communicator& group,
                                                       std::string_view mine,
                                                       absl::Duration timeout) {
  const CallOptions call = {.timeout = timeout};
  Communicator& host = group.host();
  const auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(static_cast<size_t>(group.size()));
  TESSERA_RETURN_IF_ERROR(host.AllGather(ConstBuffer(std::span(&length, 1)),
                                         Buffer(std::span(lengths)), call));
  const std::vector<uint8_t> input(mine.begin(), mine.end());
  std::vector<uint8_t> all(static_cast<size_t>(
      std::accumulate(lengths.begin(), lengths.end(), int64_t{0})));
  TESSERA_RETURN_IF_ERROR(host.AllGatherUneven(
      ConstBuffer(std::span(input)), Buffer(std::span(all)), lengths, call));
  std::vector<std::string> texts;
  auto at = all.begin();
  for (const int64_t bytes : lengths) {
    texts.emplace_back(at, at + bytes);
    at += bytes;
  }
  return texts;
}

absl::Status FirstError(std::string_view group,
                        const std::vector<absl::Status>& by_rank) {
  const auto failed = [](const absl::Status& status) { return !status.ok(); };
  const auto first = std::find_if(by_rank.begin(), by_rank.end(), failed);
  if (first == by_rank.end()) return absl::OkStatus();
  const auto more = std::count_if(first + 1, by_rank.end(), failed);
  return absl::Status(
      first->code(),
      absl::StrCat(
          "rank ", first - by_rank.begin(), " of ", group, ": ",
          first->message(),
          more > 0 ? absl::StrCat(" (and ", more, " more ranks)") : ""));
}

absl::Status AgreeOnStatus(Communicator& group, const absl::Status& mine,
                           absl::Duration timeout) {
  // The status code followed by the message.
  const std::string text =
      absl::StrCat(std::string(1, static_cast<char>(mine.raw_code())),
                   mine.message().substr(0, kLongestMessage));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           ExchangeTexts(group, text, timeout));
  std::vector<absl::Status> by_rank;
  for (const std::string& one : texts) {
    by_rank.emplace_back(static_cast<absl::StatusCode>(one[0]), one.substr(1));
  }
  return FirstError(group.name(), by_rank);
}

}  // namespace tessera::collectives
