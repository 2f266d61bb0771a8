#include "tools/model_files/safetensors_writer.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::model_files {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and is written as it is");

// Adds [begin, end) to the ranges, joined with those that it touches. False,
// with nothing changed, where a part of it is there.
bool AddRange(std::map<int64_t, int64_t>& ranges, int64_t begin, int64_t end) {
  auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first < end) return false;
  const auto before = next == ranges.begin() ? ranges.end() : std::prev(next);
  if (before != ranges.end() && before->second > begin) return false;
  if (next != ranges.end() && next->first == end) {
    end = next->second;
    ranges.erase(next);
  }
  if (before != ranges.end() && before->second == begin) {
    before->second = end;
  } else {
    ranges[begin] = end;
  }
  return true;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(TemporaryFile file, int64_t data_start,
                                     Header header)
    : file_(std::move(file)),
      data_start_(data_start),
      header_(std::move(header)) {
  for (const TensorEntry& entry : header_.tensors) {
    progress_[entry.spec.name].entry = &entry;
  }
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorSpec> tensors,
    std::map<std::string, std::string> metadata) {
  TESSERA_ASSIGN_OR_RETURN(Header header,
                           LayOut(std::move(tensors), std::move(metadata)),
                           Annotate(_, QuotedPath(path)));
  TESSERA_ASSIGN_OR_RETURN(const std::string json, FormatHeader(header),
                           Annotate(_, QuotedPath(path)));
  const auto data_start = static_cast<int64_t>(sizeof(uint64_t) + json.size());
  int64_t file_bytes = 0;
  if (__builtin_add_overflow(data_start, header.data_bytes(), &file_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(QuotedPath(path), ": more than 2^63-1 bytes"));
  }
  TESSERA_ASSIGN_OR_RETURN(TemporaryFile file,
                           TemporaryFile::Create(path, file_bytes));
  const uint64_t length = json.size();
  TESSERA_RETURN_IF_ERROR(file.Write(0, std::as_bytes(std::span(&length, 1))));
  TESSERA_RETURN_IF_ERROR(
      file.Write(sizeof(length), std::as_bytes(std::span(json))));
  return SafetensorsWriter(std::move(file), data_start, std::move(header));
}

absl::StatusOr<SafetensorsWriter::Progress*> SafetensorsWriter::Find(
    std::string_view name) {
  if (file_.committed()) {
    return absl::FailedPreconditionError(
        absl::StrCat(QuotedPath(path()), " is committed; make a new writer"));
  }
  const auto found = progress_.find(name);
  if (found != progress_.end()) return &found->second;
  return absl::NotFoundError(absl::StrCat(QuotedPath(path()), ": tensor ",
                                          Quoted(name), " was not declared"));
}

absl::Status SafetensorsWriter::Write(std::string_view name, int64_t begin,
                                      std::span<const std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(Progress* const progress, Find(name));
  const TensorEntry& entry = *progress->entry;
  const auto size = static_cast<int64_t>(bytes.size());
  const auto place = [&] {
    return absl::StrCat(QuotedPath(path()), ": tensor ", Quoted(name), ": ",
                        size, " bytes from byte ", begin, " on");
  };
  if (begin < 0 || size > entry.bytes() || begin > entry.bytes() - size) {
    return absl::OutOfRangeError(
        absl::StrCat(place(), " are not inside its ", entry.bytes()));
  }
  if (size == 0) return absl::OkStatus();
  if (!AddRange(progress->written, begin, begin + size)) {
    return absl::AlreadyExistsError(
        absl::StrCat(place(), ": a part of them has been written before"));
  }
  return file_.Write(data_start_ + entry.begin + begin, bytes);
}

absl::Status SafetensorsWriter::Write(std::string_view name,
                                      std::span<const std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(Progress* const progress, Find(name));
  if (static_cast<int64_t>(bytes.size()) != progress->entry->bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        QuotedPath(path()), ": tensor ", Quoted(name), " has ",
        progress->entry->bytes(), " bytes, ", bytes.size(), " were given"));
  }
  return Write(name, 0, bytes);
}

absl::Status SafetensorsWriter::CheckComplete() const {
  for (const TensorEntry& entry : header_.tensors) {
    const auto& written = progress_.at(entry.spec.name).written;
    const int64_t missing = written.empty() || written.begin()->first != 0
                                ? 0
                                : written.begin()->second;
    if (missing < entry.bytes()) {
      return absl::FailedPreconditionError(absl::StrCat(
          QuotedPath(path()), ": tensor ", Quoted(entry.spec.name), ": byte ",
          missing, " of ", entry.bytes(), " has not been written"));
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Commit() {
  if (file_.committed()) {
    return absl::FailedPreconditionError(
        absl::StrCat(QuotedPath(path()), " is committed already"));
  }
  TESSERA_RETURN_IF_ERROR(CheckComplete());
  return file_.Commit();
}

}  // namespace tessera::model_files
