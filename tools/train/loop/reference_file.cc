#include "tools/train/loop/reference_file.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/fnv1a.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "offload/file/crc32c.h"

namespace tessera::train {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 34;

struct Header {
  char magic[8] = {'T', 'S', 'D', 'P', 'O', '0', '0', '1'};
  uint64_t model = 0;
  uint64_t data = 0;
  uint64_t checksum = 0;  // Of the numbers.
};

absl::StatusOr<Header> HeaderOf(const RunIdentity& identity,
                                std::string_view numbers) {
  zero3::CheckpointMetadata metadata;
  TESSERA_RETURN_IF_ERROR(AddTo(identity, metadata));
  Header header;
  header.model = Fnv1a(metadata.at("model"));
  header.data = Fnv1a(absl::StrCat(identity.corpus, " ", identity.length, " ",
                                   identity.validation_samples, " ",
                                   identity.test_samples));
  header.checksum =
      offload::Crc32c(std::as_bytes(std::span(numbers.data(), numbers.size())));
  return header;
}

absl::Status CheckHeader(const Header& found, const Header& expected,
                         std::string_view numbers) {
  if (std::memcmp(found.magic, expected.magic, sizeof found.magic) != 0 ||
      found.checksum != expected.checksum ||
      numbers.size() % sizeof(double) != 0) {
    return absl::DataLossError(
        "the file is damaged; restore it, or start a new run");
  }
  for (const auto& [what, is_same] :
       {std::pair{"another model", found.model == expected.model},
        {"other data", found.data == expected.data}}) {
    if (is_same) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the file belongs to a run with ", what,
                     "; resume with the settings of that run"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteReferences(const std::string& path,
                             const RunIdentity& identity,
                             std::span<const double> references) {
  const std::string_view numbers(
      reinterpret_cast<const char*>(references.data()),
      references.size_bytes());
  TESSERA_ASSIGN_OR_RETURN(const Header header, HeaderOf(identity, numbers));
  return WriteFile(
      path,
      absl::StrCat(std::string_view(reinterpret_cast<const char*>(&header),
                                    sizeof header),
                   numbers));
}

absl::StatusOr<std::vector<double>> ReadReferences(
    const std::string& path, const RunIdentity& identity) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text, ReadFile(path, kMostBytes),
      Annotate(_, "the log-probabilities of the run's reference"));
  Header found = {.magic = {}};
  // A copy, because GCC 12 warns of an overflow of the string's inline buffer.
  const std::vector<char> bytes(text.begin(), text.end());
  const std::string_view all(bytes.data(), bytes.size());
  const size_t size = std::min(all.size(), sizeof found);
  all.copy(reinterpret_cast<char*>(&found), size);
  const std::string_view numbers = all.substr(size);
  TESSERA_ASSIGN_OR_RETURN(const Header expected, HeaderOf(identity, numbers));
  TESSERA_RETURN_IF_ERROR(CheckHeader(found, expected, numbers),
                          Annotate(_, QuotedPath(path)));
  std::vector<double> references(numbers.size() / sizeof(double));
  numbers.copy(reinterpret_cast<char*>(references.data()), numbers.size());
  return references;
}

}  // namespace tessera::train
