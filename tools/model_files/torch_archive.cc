#include "tools/model_files/torch_archive.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/little_endian.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/model_files/pickle.h"

namespace tessera::model_files {
namespace {

using Kind = PickleValue::Kind;

struct TorchType {
  DType dtype;
  std::string_view name;     // torch.float32
  std::string_view storage;  // torch.FloatStorage
};

constexpr TorchType kTypes[] = {
    {DType::kF64, "float64", "DoubleStorage"},
    {DType::kF32, "float32", "FloatStorage"},
    {DType::kF16, "float16", "HalfStorage"},
    {DType::kBF16, "bfloat16", "BFloat16Storage"},
    {DType::kI64, "int64", "LongStorage"},
    {DType::kI32, "int32", "IntStorage"},
    {DType::kI8, "int8", "CharStorage"},
    {DType::kU8, "uint8", "ByteStorage"},
};

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryHeader = 0x02014b50;
constexpr uint32_t kDirectoryEnd = 0x06054b50;
constexpr uint32_t kLargeDirectoryEnd = 0x06064b50;
constexpr uint16_t kZip64Extra = 1;
constexpr uint32_t kIn64Bits = 0xffffffff;  // The value is in a zip64 field.

constexpr int64_t kLocalHeaderBytes = 30;
constexpr int64_t kDirectoryEndBytes = 22;
constexpr int64_t kLargeEndBytes = 56;      // Zip64's end of the directory.
constexpr int64_t kLargeLocatorBytes = 20;  // What refers to it.
constexpr int64_t kMaxCommentBytes = 65535;
constexpr int64_t kMaxMetadataBytes = int64_t{1} << 20;

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("malformed archive of a tensor: ", what));
}

// The integer at byte `at`, which must be inside of `bytes`.
template <typename T>
T At(std::string_view bytes, size_t at) {
  return LoadLittleEndian<T>(
      reinterpret_cast<const std::byte*>(bytes.data() + at));
}

struct Member {
  int64_t header = 0;  // From the start of the archive.
  int64_t bytes = 0;
};

class ArchiveReader {
 public:
  ArchiveReader(int fd, int64_t begin, int64_t length)
      : fd_(fd), begin_(begin), length_(length) {}

  // The directory of the archive.
  absl::Status Open() {
    const int64_t tail_bytes = std::min(
        length_, kMaxCommentBytes + kDirectoryEndBytes + kLargeLocatorBytes);
    TESSERA_ASSIGN_OR_RETURN(const std::string tail,
                             Read(length_ - tail_bytes, tail_bytes));
    std::string signature;
    AppendLittleEndian(kDirectoryEnd, &signature);
    const size_t end = tail.rfind(signature);
    if (end == std::string::npos || end + kDirectoryEndBytes > tail.size()) {
      return Malformed("no directory");
    }
    int64_t bytes = At<uint32_t>(tail, end + 12);
    int64_t begin = At<uint32_t>(tail, end + 16);
    if (begin == kIn64Bits || bytes == kIn64Bits) {
      if (end < kLargeLocatorBytes) return Malformed("no zip64 directory");
      const auto at = At<int64_t>(tail, end - kLargeLocatorBytes + 8);
      TESSERA_ASSIGN_OR_RETURN(const std::string large,
                               Read(at, kLargeEndBytes));
      if (At<uint32_t>(large, 0) != kLargeDirectoryEnd) {
        return Malformed("no zip64 directory");
      }
      bytes = At<int64_t>(large, 40);
      begin = At<int64_t>(large, 48);
    }
    if (bytes < 0 || bytes > kMaxMetadataBytes) {
      return Malformed("the size of its directory");
    }
    TESSERA_ASSIGN_OR_RETURN(directory_, Read(begin, bytes));
    return absl::OkStatus();
  }

  // Finds the member whose name, without its first folder, is `name`.
  absl::StatusOr<Member> Find(std::string_view name) const {
    constexpr size_t kHeaderBytes = 46;
    std::string_view rest = directory_;
    while (rest.size() >= kHeaderBytes &&
           At<uint32_t>(rest, 0) == kDirectoryHeader) {
      const size_t name_bytes = At<uint16_t>(rest, 28);
      const size_t extra_bytes = At<uint16_t>(rest, 30);
      const size_t all =
          kHeaderBytes + name_bytes + extra_bytes + At<uint16_t>(rest, 32);
      if (all > rest.size()) break;
      const std::string_view found = rest.substr(kHeaderBytes, name_bytes);
      const size_t folder = found.find('/');
      if (folder != std::string_view::npos &&
          found.substr(folder + 1) == name) {
        return ParseEntry(rest,
                          rest.substr(kHeaderBytes + name_bytes, extra_bytes));
      }
      rest.remove_prefix(all);
    }
    return Malformed(absl::StrCat("no member ", name));
  }

  // The byte of the file at which a member's data begins.
  absl::StatusOr<int64_t> DataOf(const Member& member) const {
    TESSERA_ASSIGN_OR_RETURN(const std::string header,
                             Read(member.header, kLocalHeaderBytes));
    if (At<uint32_t>(header, 0) != kLocalHeader) {
      return Malformed("no header of a member");
    }
    const int64_t data = member.header + kLocalHeaderBytes +
                         At<uint16_t>(header, 26) + At<uint16_t>(header, 28);
    if (member.bytes > length_ - data) return Malformed("a member is cut off");
    return begin_ + data;
  }

  absl::StatusOr<std::string> Contents(std::string_view name) const {
    TESSERA_ASSIGN_OR_RETURN(const Member member, Find(name));
    if (member.bytes > kMaxMetadataBytes) return Malformed("data.pkl is large");
    TESSERA_ASSIGN_OR_RETURN(const int64_t data, DataOf(member));
    return Read(data - begin_, member.bytes);
  }

 private:
  static absl::StatusOr<Member> ParseEntry(std::string_view entry,
                                           std::string_view extra) {
    if (At<uint16_t>(entry, 10) != 0) {
      return absl::UnimplementedError(
          "a compressed archive of a tensor; torch.save does not compress");
    }
    uint64_t bytes = At<uint32_t>(entry, 24);
    uint64_t stored = At<uint32_t>(entry, 20);
    uint64_t header = At<uint32_t>(entry, 42);
    while (extra.size() >= 4) {
      const size_t size = At<uint16_t>(extra, 2);
      if (size > extra.size() - 4) break;
      std::string_view field = extra.substr(4, size);
      if (At<uint16_t>(extra, 0) == kZip64Extra) {
        for (uint64_t* const value : {&bytes, &stored, &header}) {
          if (*value != kIn64Bits) continue;
          if (!TakeLittleEndian(&field, value)) return Malformed("zip64 field");
        }
      }
      extra.remove_prefix(4 + size);
    }
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max() / 2;
    if (bytes > kMost || header > kMost || bytes != stored) {
      return Malformed("the size of a member");
    }
    return Member{static_cast<int64_t>(header), static_cast<int64_t>(bytes)};
  }

  // Reads bytes of the archive.
  absl::StatusOr<std::string> Read(int64_t at, int64_t bytes) const {
    if (at < 0 || bytes < 0 || at > length_ || bytes > length_ - at) {
      return Malformed("it refers to bytes outside of it");
    }
    std::string read(static_cast<size_t>(bytes), '\0');
    TESSERA_RETURN_IF_ERROR(
        ReadAt(fd_, begin_ + at, std::as_writable_bytes(std::span(read))));
    return read;
  }

  int fd_;
  int64_t begin_;
  int64_t length_;
  std::string directory_;
};

bool AreIntegers(const PickleValue& value) {
  return value.is(Kind::kSequence) &&
         std::all_of(
             value.items.begin(), value.items.end(),
             [](const PickleValue* v) { return v->is(Kind::kInteger); });
}

// The description of a tensor in data.pkl.
struct Rebuilt {
  DType dtype = DType::kF32;
  std::string key = {};  // The storage is the member data/KEY.
  int64_t offset = 0;    // In elements.
  std::vector<int64_t> shape = {};
};

absl::StatusOr<DType> StorageType(const PickleValue& storage) {
  for (const TorchType& type : kTypes) {
    if (storage.IsNamed(absl::StrCat("torch ", type.storage))) {
      return type.dtype;
    }
  }
  return absl::UnimplementedError(
      absl::StrCat("a tensor in a storage of type ", Quoted(storage.text),
                   "; floats of 16 to 64 bits and integers are read"));
}

// False also if the number of elements exceeds 2^63-1.
bool IsContiguous(const std::vector<int64_t>& shape,
                  const PickleValue& strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] < 0 || __builtin_mul_overflow(expected, shape[i], &expected)) {
      return false;
    }
  }
  if (expected == 0) return true;
  expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides.items[i]->integer != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// Arguments: storage, offset, shape, strides, ...
absl::StatusOr<Rebuilt> ParseTensor(const PickleValue& root) {
  const PickleValue* tensor = &root;
  if (tensor->IsNamed("torch._utils _rebuild_parameter") &&
      tensor->is(Kind::kObject) && !tensor->items[1]->items.empty()) {
    tensor = tensor->items[1]->items[0];
  }
  if (!tensor->is(Kind::kObject) ||
      !tensor->IsNamed("torch._utils _rebuild_tensor_v2") ||
      tensor->items[1]->items.size() < 4) {
    return Malformed("its pickle is not a tensor");
  }
  const std::vector<const PickleValue*>& arguments = tensor->items[1]->items;
  const PickleValue& id = *arguments[0];
  if (!id.is(Kind::kPersistent) || id.items[0]->items.size() < 3 ||
      !arguments[1]->is(Kind::kInteger) || !AreIntegers(*arguments[2]) ||
      !AreIntegers(*arguments[3]) ||
      arguments[2]->items.size() != arguments[3]->items.size()) {
    return Malformed("the arguments of its tensor");
  }
  Rebuilt rebuilt = {.key = id.items[0]->items[2]->text,
                     .offset = arguments[1]->integer};
  TESSERA_ASSIGN_OR_RETURN(rebuilt.dtype, StorageType(*id.items[0]->items[1]));
  for (const PickleValue* const size : arguments[2]->items) {
    rebuilt.shape.push_back(size->integer);
  }
  if (!IsContiguous(rebuilt.shape, *arguments[3])) {
    return absl::UnimplementedError("a tensor that is not contiguous");
  }
  return rebuilt;
}

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320 : 0);
    }
    table[i] = value;
  }
  return table;
}

// The CRC-32 of zip, which is not that of crc32c.h.
uint32_t ZipCrc(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeCrcTable();
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~crc;
}

class ArchiveWriter {
 public:
  void Add(std::string_view name, std::string_view contents) {
    const std::string path = absl::StrCat("archive/", name);
    // From the version needed to the length of the extra field.
    std::string common;
    AppendLittleEndian(uint16_t{20}, &common);  // Version 2.0.
    AppendLittleEndian(uint32_t{0}, &common);   // No flags, not compressed.
    AppendLittleEndian(uint16_t{0}, &common);   // 1980-01-01, 00:00.
    AppendLittleEndian(uint16_t{33}, &common);
    AppendLittleEndian(ZipCrc(contents), &common);
    const auto size = static_cast<uint32_t>(contents.size());
    AppendLittleEndian(size, &common);
    AppendLittleEndian(size, &common);
    AppendLittleEndian(static_cast<uint16_t>(path.size()), &common);
    AppendLittleEndian(uint16_t{0}, &common);

    AppendLittleEndian(kDirectoryHeader, &directory_);
    AppendLittleEndian(uint16_t{20}, &directory_);
    absl::StrAppend(&directory_, common);
    directory_.append(10, '\0');  // Comment, disk, attributes.
    AppendLittleEndian(static_cast<uint32_t>(bytes_.size()), &directory_);
    absl::StrAppend(&directory_, path);

    AppendLittleEndian(kLocalHeader, &bytes_);
    absl::StrAppend(&bytes_, common, path, contents);
    ++members_;
  }

  std::string Finish() {
    const auto begin = static_cast<uint32_t>(bytes_.size());
    bytes_ += directory_;
    AppendLittleEndian(kDirectoryEnd, &bytes_);
    AppendLittleEndian(uint32_t{0}, &bytes_);  // One disk.
    AppendLittleEndian(members_, &bytes_);
    AppendLittleEndian(members_, &bytes_);
    AppendLittleEndian(static_cast<uint32_t>(directory_.size()), &bytes_);
    AppendLittleEndian(begin, &bytes_);
    AppendLittleEndian(uint16_t{0}, &bytes_);  // No comment.
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
  std::string directory_;
  uint16_t members_ = 0;
};

const TorchType& TypeOf(DType dtype) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes) - 1,
                       [&](const TorchType& t) { return t.dtype == dtype; });
}

// The pickle of a contiguous tensor in the storage data/0.
std::string TensorPickle(DType dtype, std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t count = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = count;
    count *= shape[i];
  }
  PickleWriter pickle;
  const auto write_integers = [&](std::span<const int64_t> values) {
    pickle.OpenTuple();
    for (const int64_t value : values) pickle.Integer(value);
    pickle.CloseTuple();
  };
  pickle.Global("torch._utils", "_rebuild_tensor_v2");
  pickle.OpenTuple();
  pickle.OpenTuple();
  pickle.Text("storage");
  pickle.Global("torch", TypeOf(dtype).storage);
  pickle.Text("0");
  pickle.Text("cpu");
  pickle.Integer(count);
  pickle.CloseTuple();
  pickle.Persistent();
  pickle.Integer(0);
  write_integers(shape);
  write_integers(strides);
  pickle.Boolean(false);                        // No gradient.
  pickle.Global("collections", "OrderedDict");  // Hooks.
  write_integers({});
  pickle.Call();
  pickle.CloseTuple();
  pickle.Call();
  return pickle.Finish();
}

// The archive of a pickle and, if there are any, the bytes of its storage.
std::string Archive(std::string_view pickle,
                    const std::string_view* storage = nullptr) {
  ArchiveWriter writer;
  writer.Add("data.pkl", pickle);
  writer.Add("byteorder", "little");
  if (storage != nullptr) writer.Add("data/0", *storage);
  writer.Add("version", "3\n");
  return writer.Finish();
}

}  // namespace

absl::StatusOr<TorchTensor> OpenTorchTensor(int fd, int64_t begin,
                                            int64_t length) {
  if (begin < 0 || length < 0) return Malformed("its place");
  ArchiveReader archive(fd, begin, length);
  TESSERA_RETURN_IF_ERROR(archive.Open());
  TESSERA_ASSIGN_OR_RETURN(const std::string bytes,
                           archive.Contents("data.pkl"));
  TESSERA_ASSIGN_OR_RETURN(const Pickle pickle, ParsePickle(bytes));
  TESSERA_ASSIGN_OR_RETURN(Rebuilt rebuilt, ParseTensor(pickle.root()));
  TESSERA_ASSIGN_OR_RETURN(const Member storage,
                           archive.Find(absl::StrCat("data/", rebuilt.key)));
  TESSERA_ASSIGN_OR_RETURN(const int64_t data, archive.DataOf(storage));
  const int64_t stored = storage.bytes / SizeInBytes(rebuilt.dtype);
  int64_t count = 1;
  for (const int64_t size : rebuilt.shape) count *= size;
  if (rebuilt.offset < 0 || rebuilt.offset > stored ||
      count > stored - rebuilt.offset) {
    return Malformed("its tensor is larger than its storage");
  }
  return TorchTensor{
      .dtype = rebuilt.dtype,
      .shape = std::move(rebuilt.shape),
      .data_begin = data + rebuilt.offset * SizeInBytes(rebuilt.dtype)};
}

std::string TorchTensorArchive(DType dtype, std::span<const int64_t> shape,
                               std::span<const std::byte> bytes) {
  const std::string_view storage(reinterpret_cast<const char*>(bytes.data()),
                                 bytes.size());
  return Archive(TensorPickle(dtype, shape), &storage);
}

std::string TorchObjectArchive(std::string_view pickle) {
  return Archive(pickle);
}

std::string_view TorchTypeName(DType dtype) { return TypeOf(dtype).name; }

absl::StatusOr<DType> ParseTorchType(std::string_view name) {
  for (const TorchType& type : kTypes) {
    if (type.name == name) return type.dtype;
  }
  return absl::UnimplementedError(
      absl::StrCat("elements of type torch.", name,
                   "; floats of 16 to 64 bits and integers are read"));
}

}  // namespace tessera::model_files
