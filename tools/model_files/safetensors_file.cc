#include "tools/model_files/safetensors_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype/convert.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::model_files {

namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and is read as it is");

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kConvertBytes = int64_t{1} << 20;

absl::StatusOr<int64_t> SizeOf(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) return absl::ErrnoToStatus(errno, "cannot stat");
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError("not a regular file");
  }
  return status.st_size;
}

// The length of the header, checked against the size of the file.
absl::StatusOr<int64_t> ReadHeaderLength(int fd, int64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a safetensors file: it has ", file_bytes,
                     " bytes, the length of the header alone takes 8"));
  }
  uint64_t length = 0;
  TESSERA_RETURN_IF_ERROR(
      ReadAt(fd, 0, std::as_writable_bytes(std::span(&length, 1))));
  const auto most = static_cast<uint64_t>(
      std::min(kMaxHeaderBytes, file_bytes - kLengthBytes));
  if (length <= most) return static_cast<int64_t>(length);
  if (std::memcmp(&length, "version ", sizeof(length)) == 0) {
    return absl::InvalidArgumentError(
        "not a safetensors file, but perhaps Git LFS's pointer to one, which "
        "\"git lfs pull\" replaces by the file");
  }
  return absl::InvalidArgumentError(
      absl::StrCat("not a safetensors file: its header would take ", length,
                   " bytes; the file has ", file_bytes, ", and ",
                   kMaxHeaderBytes, " is the maximum of the format"));
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> ShapeInRows(const StoredTensor& tensor,
                                                 int64_t first,
                                                 const TensorView& target) {
  std::vector<int64_t> found = tensor.shape;
  const Dims& wanted = target.shape();
  while (found.size() > std::max<size_t>(wanted.size(), 2)) {
    // Without overflow in tensors that have no elements.
    found[1] = static_cast<int64_t>(static_cast<uint64_t>(found[0]) *
                                    static_cast<uint64_t>(found[1]));
    found.erase(found.begin());
  }
  const auto shape = [](const auto& sizes) {
    return absl::StrCat("[", absl::StrJoin(sizes, ", ").substr(0, 100), "]");
  };
  if (found.empty() || wanted.size() != found.size() ||
      !std::equal(wanted.begin() + 1, wanted.end(), found.begin() + 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows of shape ", shape(found), " do not fit a target of shape ",
        shape(wanted), "; they differ in more than the first dimension"));
  }
  if (!IsHostAccessible(target.kind()) || !target.IsContiguous()) {
    return absl::InvalidArgumentError(
        "the target must be contiguous and on the host");
  }
  if (first < 0 || first > found[0] - wanted[0]) {
    return absl::OutOfRangeError(
        absl::StrCat("rows [", first, ", ", first, " + ", wanted[0],
                     ") are not inside the ", found[0], " there are"));
  }
  return found;
}

SafetensorsFile::SafetensorsFile(std::string path, UniqueFd fd,
                                 int64_t data_start, Header header)
    : path_(std::move(path)),
      fd_(std::move(fd)),
      data_start_(data_start),
      header_(std::move(header)) {
  index_.reserve(header_.tensors.size());
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    index_[header_.tensors[i].spec.name] = i;
  }
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot open ", QuotedPath(path)));
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, SizeOf(fd.get()),
                           Annotate(_, QuotedPath(path)));
  TESSERA_ASSIGN_OR_RETURN(const int64_t length,
                           ReadHeaderLength(fd.get(), bytes),
                           Annotate(_, QuotedPath(path)));
  std::string json(static_cast<size_t>(length), '\0');
  TESSERA_RETURN_IF_ERROR(
      ReadAt(fd.get(), kLengthBytes, std::as_writable_bytes(std::span(json))),
      Annotate(_, QuotedPath(path)));
  const int64_t data_start = kLengthBytes + length;
  TESSERA_ASSIGN_OR_RETURN(
      Header header, ParseHeader(json, bytes - data_start),
      Annotate(_, absl::StrCat(QuotedPath(path), ": header")));
  return SafetensorsFile(path, std::move(fd), data_start, std::move(header));
}

const TensorEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

absl::StatusOr<const TensorEntry*> SafetensorsFile::Get(
    std::string_view name) const {
  const TensorEntry* const entry = Find(name);
  if (entry != nullptr) return entry;
  return absl::NotFoundError(
      absl::StrCat(QuotedPath(path_), ": no tensor ", Quoted(name),
                   " among the ", header_.tensors.size(), " of the file"));
}

absl::Status SafetensorsFile::ReadBytes(std::string_view name, int64_t begin,
                                        std::span<std::byte> target) const {
  TESSERA_ASSIGN_OR_RETURN(const TensorEntry* const entry, Get(name));
  const auto size = static_cast<int64_t>(target.size());
  if (begin < 0 || size > entry->bytes() || begin > entry->bytes() - size) {
    return absl::OutOfRangeError(absl::StrCat(
        QuotedPath(path_), ": tensor ", Quoted(name), ": ", size,
        " bytes from byte ", begin, " on are not inside its ", entry->bytes()));
  }
  TESSERA_RETURN_IF_ERROR(
      ReadAt(fd_.get(), data_start_ + entry->begin + begin, target),
      Annotate(_, absl::StrCat(QuotedPath(path_), ": tensor ", Quoted(name))));
  return absl::OkStatus();
}

absl::Status SafetensorsFile::Read(std::string_view name,
                                   std::span<std::byte> target) const {
  TESSERA_ASSIGN_OR_RETURN(const TensorEntry* const entry, Get(name));
  if (static_cast<int64_t>(target.size()) != entry->bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat(QuotedPath(path_), ": tensor ", Quoted(name), " has ",
                     entry->bytes(), " bytes, the target ", target.size()));
  }
  return ReadBytes(name, 0, target);
}

absl::Status SafetensorsFile::ReadRows(std::string_view name, int64_t first,
                                       TensorView target) const {
  TESSERA_ASSIGN_OR_RETURN(const TensorEntry* const entry, Get(name));
  const auto context = [&] {
    return absl::StrCat(QuotedPath(path_), ": tensor ", Quoted(name));
  };
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> shape,
                           ShapeInRows(entry->spec, first, target),
                           Annotate(_, context()));
  TESSERA_ASSIGN_OR_RETURN(const DType from, DTypeOf(entry->spec),
                           Annotate(_, QuotedPath(path_)));
  if (target.element_count() == 0) return absl::OkStatus();
  const int64_t row_bytes = entry->bytes() / shape[0];
  const std::span<std::byte> bytes(target.data(),
                                   static_cast<size_t>(target.size_in_bytes()));
  if (from == target.dtype()) return ReadBytes(name, first * row_bytes, bytes);
  return ReadConverted(*entry, from, first * row_bytes, target);
}

absl::Status SafetensorsFile::ReadConverted(const TensorEntry& entry,
                                            DType from, int64_t begin,
                                            TensorView target) const {
  std::vector<std::byte> buffer(static_cast<size_t>(
      std::min(kConvertBytes, target.element_count() * SizeInBytes(from))));
  std::byte* to = target.data();
  for (int64_t left = target.element_count(); left > 0;) {
    const int64_t count =
        std::min(left, static_cast<int64_t>(buffer.size()) / SizeInBytes(from));
    const auto source =
        std::span(buffer).first(static_cast<size_t>(count * SizeInBytes(from)));
    TESSERA_RETURN_IF_ERROR(ReadBytes(entry.spec.name, begin, source));
    const auto bytes = static_cast<size_t>(count * SizeInBytes(target.dtype()));
    TESSERA_RETURN_IF_ERROR(
        Convert(from, source, target.dtype(), std::span(to, bytes)));
    to += bytes;
    begin += count * SizeInBytes(from);
    left -= count;
  }
  return absl::OkStatus();
}

namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian, and is written as it is");

// Adds [begin, end) to the ranges and joins adjacent ranges. Returns false,
// without a change, if they overlap it.
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

SafetensorsWriter::SafetensorsWriter(AtomicFile file, int64_t data_start,
                                     Header header)
    : file_(std::move(file)),
      data_start_(data_start),
      header_(std::move(header)) {
  for (const TensorEntry& entry : header_.tensors) {
    progress_[entry.spec.name].entry = &entry;
  }
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, std::vector<StoredTensor> tensors,
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
  TESSERA_ASSIGN_OR_RETURN(AtomicFile file,
                           AtomicFile::Create(path, file_bytes));
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
