#include "tools/model_files/torch_checkpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/dtype/convert.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/model_files/pickle.h"
#include "tools/model_files/safetensors_file.h"
#include "tools/model_files/torch_archive.h"

namespace tessera::model_files {
namespace {

using Kind = PickleValue::Kind;
using Sizes = std::vector<int64_t>;

constexpr int64_t kMaxTorchMetadataBytes = int64_t{1} << 30;
constexpr int64_t kConvertedBytes = int64_t{1} << 20;

// The place of each chunk in a file, by the name of its tensor and its offsets.
using Places = std::map<std::pair<std::string, Sizes>, TorchChunk>;

// The integers of a torch.Size or a tuple; nullopt for anything else.
std::optional<Sizes> IntegersOf(const PickleValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is(Kind::kObject) && value->IsNamed("torch Size") &&
      value->items[1]->items.size() == 1) {
    value = value->items[1]->items[0];
  }
  if (!value->is(Kind::kSequence)) return std::nullopt;
  Sizes sizes;
  for (const PickleValue* const item : value->items) {
    if (!item->is(Kind::kInteger) || item->integer < 0) return std::nullopt;
    sizes.push_back(item->integer);
  }
  return sizes;
}

std::optional<int64_t> IntegerOf(const PickleValue* value) {
  if (value == nullptr || !value->is(Kind::kInteger)) return std::nullopt;
  return value->integer;
}

std::string TextOf(const PickleValue* value) {
  return value == nullptr ? std::string() : value->text;
}

// The number of elements; nullopt if it exceeds 2^63-1.
std::optional<int64_t> CountOf(const Sizes& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(count, size, &count)) return std::nullopt;
  }
  return count;
}

absl::StatusOr<Places> ParsePlaces(const PickleValue* storage) {
  if (storage == nullptr || !storage->is(Kind::kDictionary)) {
    return absl::InvalidArgumentError("no storage_data");
  }
  Places places;
  for (size_t i = 0; i < storage->items.size(); i += 2) {
    const PickleValue& index = *storage->items[i];
    const PickleValue& place = *storage->items[i + 1];
    const std::string name = TextOf(index.Find("fqn"));
    const std::optional<Sizes> offsets = IntegersOf(index.Find("offset"));
    if (!offsets) continue;  // An object that is not a tensor.
    const std::optional<int64_t> begin = IntegerOf(place.Find("offset"));
    const std::optional<int64_t> length = IntegerOf(place.Find("length"));
    const PickleValue* const transforms = place.Find("transform_descriptors");
    const std::string file = TextOf(place.Find("relative_path"));
    if (!begin || !length || *begin < 0 || *length < 0 || file.empty() ||
        file.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(name), " has no place in a file"));
    }
    if (transforms != nullptr && !transforms->items.empty()) {
      return absl::UnimplementedError(absl::StrCat(
          "tensor ", Quoted(name), " is compressed; save without extensions"));
    }
    places[{name, *offsets}] = {
        .file = file, .begin = *begin, .length = *length};
  }
  return places;
}

// The element type, out of the state of TensorProperties.
absl::Status SetType(const PickleValue* properties, StoredTensor& spec) {
  const PickleValue* const state =
      properties == nullptr ? nullptr : properties->state;
  if (state == nullptr || !state->is(Kind::kSequence) || state->items.empty() ||
      !state->items[0]->is(Kind::kGlobal)) {
    return absl::InvalidArgumentError("no type of elements");
  }
  std::string_view name = state->items[0]->text;
  if (!absl::ConsumePrefix(&name, "torch ")) {
    return absl::InvalidArgumentError("no type of elements");
  }
  const absl::StatusOr<DType> dtype = ParseTorchType(name);
  if (!dtype.ok()) {
    spec.type = ElementType::kOther;
    spec.other_type = absl::StrCat("torch.", name);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(spec.type, FromDType(*dtype));
  return absl::OkStatus();
}

bool IsInside(const TorchChunk& chunk, const Sizes& shape) {
  if (chunk.offsets.size() != shape.size() ||
      chunk.sizes.size() != shape.size()) {
    return false;
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    if (chunk.offsets[i] > shape[i] ||
        chunk.sizes[i] > shape[i] - chunk.offsets[i]) {
      return false;
    }
  }
  return true;
}

bool Overlap(const TorchChunk& a, const TorchChunk& b) {
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    if (a.offsets[i] + a.sizes[i] <= b.offsets[i] ||
        b.offsets[i] + b.sizes[i] <= a.offsets[i]) {
      return false;
    }
  }
  return true;
}

// Checks that each element of a tensor is in exactly one chunk.
absl::Status CheckChunks(const TorchEntry& entry) {
  const std::optional<int64_t> count = CountOf(entry.spec.shape);
  if (!count) return absl::InvalidArgumentError("its shape is too large");
  int64_t held = 0;
  for (const TorchChunk& chunk : entry.chunks) {
    if (!IsInside(chunk, entry.spec.shape)) {
      return absl::InvalidArgumentError("a chunk is not inside of it");
    }
    const int64_t more = *CountOf(chunk.sizes);
    if (more > *count - held) {
      return absl::InvalidArgumentError("its chunks overlap");
    }
    held += more;
  }
  if (held != *count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its chunks have ", held, " of its ", *count, " elements"));
  }
  for (size_t i = 0; i < entry.chunks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (Overlap(entry.chunks[i], entry.chunks[j])) {
        return absl::InvalidArgumentError("its chunks overlap");
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TorchEntry> ParseEntry(const std::string& name,
                                      const PickleValue& value,
                                      const Places& places) {
  TorchEntry entry = {.spec = {.name = name}};
  TESSERA_RETURN_IF_ERROR(SetType(value.Find("properties"), entry.spec));
  const std::optional<Sizes> shape = IntegersOf(value.Find("size"));
  const PickleValue* const chunks = value.Find("chunks");
  if (!shape || chunks == nullptr || !chunks->is(Kind::kSequence)) {
    return absl::InvalidArgumentError("no shape or no chunks");
  }
  entry.spec.shape = *shape;
  for (const PickleValue* const item : chunks->items) {
    const std::optional<Sizes> offsets = IntegersOf(item->Find("offsets"));
    const std::optional<Sizes> sizes = IntegersOf(item->Find("sizes"));
    if (!offsets || !sizes) return absl::InvalidArgumentError("a chunk");
    const auto place = places.find({name, *offsets});
    if (place == places.end()) {
      return absl::InvalidArgumentError("a chunk has no place in a file");
    }
    TorchChunk chunk = place->second;
    chunk.offsets = *offsets;
    chunk.sizes = *sizes;
    entry.chunks.push_back(std::move(chunk));
  }
  TESSERA_RETURN_IF_ERROR(CheckChunks(entry));
  return entry;
}

// The lines of a chunk, which are its last dimension, in a tensor that is read
// by rows: the numbers of a chunk's lines in the tensor ascend.
class ChunkLines {
 public:
  // With `by_element`, rows are elements.
  ChunkLines(const TorchEntry& entry, const TorchChunk& chunk, bool by_element)
      : shape_(entry.spec.shape), offsets_(chunk.offsets), sizes_(chunk.sizes) {
    if (by_element) {
      for (Sizes* const sizes : {&shape_, &sizes_}) sizes->push_back(1);
      offsets_.push_back(0);
    }
  }

  int64_t count() const {
    return std::accumulate(sizes_.begin(), sizes_.end() - 1, int64_t{1},
                           std::multiplies<>());
  }
  int64_t width() const { return sizes_.back(); }
  int64_t first_column() const { return offsets_.back(); }

  // The row of the tensor that a line is in.
  int64_t RowOf(int64_t line) const {
    int64_t row = 0;
    int64_t stride = 1;
    for (size_t i = shape_.size() - 1; i-- > 0;) {
      row += (offsets_[i] + line % sizes_[i]) * stride;
      stride *= shape_[i];
      line /= sizes_[i];
    }
    return row;
  }

  // The first line whose row is `row` or a later one.
  int64_t FirstFrom(int64_t row) const {
    int64_t begin = 0;
    int64_t end = count();
    while (begin < end) {
      const int64_t middle = begin + (end - begin) / 2;
      if (RowOf(middle) < row) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }

 private:
  Sizes shape_;
  Sizes offsets_;
  Sizes sizes_;
};

// The chunk of `size` bytes from byte `begin` on: some indices of one dimension
// and all of those after it, which are lines of the last dimension or a part of
// one line.
absl::StatusOr<TorchChunk> ChunkOf(const StoredTensor& spec, int64_t begin,
                                   int64_t size) {
  const Sizes& shape = spec.shape;
  const int64_t element = ElementBytes(spec.type);
  const int64_t line = shape.back() * element;
  const bool is_lines =
      shape.size() > 1 && line > 0 && begin % line == 0 && size % line == 0;
  const size_t split = shape.size() - (is_lines ? 2 : 1);
  const int64_t row = is_lines ? line : element;
  if (begin < 0 || begin % row != 0 || size % row != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        size, " bytes from byte ", begin, " on are not whole elements"));
  }
  TorchChunk chunk = {.offsets = Sizes(shape.size(), 0), .sizes = shape};
  std::fill_n(chunk.sizes.begin(), split, 1);
  chunk.sizes[split] = size / row;
  int64_t index = begin / row;
  for (size_t i = split + 1; i-- > 0;) {
    chunk.offsets[i] = index % std::max<int64_t>(shape[i], 1);
    index /= std::max<int64_t>(shape[i], 1);
  }
  if (index == 0 && IsInside(chunk, shape)) return chunk;
  return absl::OutOfRangeError(absl::StrCat(
      size, " bytes from byte ", begin,
      " on are not inside of it, or neither lines of one matrix nor a part of "
      "a line"));
}

std::string FileName(size_t index) {
  return absl::StrCat("__0_", index, ".distcp");
}

void WriteSizes(const Sizes& sizes, PickleWriter& pickle) {
  pickle.Global("torch", "Size");
  pickle.OpenTuple();
  pickle.OpenTuple();
  for (const int64_t size : sizes) pickle.Integer(size);
  pickle.CloseTuple();
  pickle.CloseTuple();
  pickle.Call();
}

constexpr std::string_view kMetadataModule =
    "torch.distributed.checkpoint.metadata";

// TensorProperties, whose state is the type, the layout, whether there is a
// gradient, the format of the memory, and whether it is pinned.
void WriteProperties(DType dtype, PickleWriter& pickle) {
  pickle.Object(kMetadataModule, "TensorProperties");
  pickle.OpenTuple();
  pickle.Global("torch", TorchTypeName(dtype));
  pickle.Global("torch.serialization", "_get_layout");
  pickle.OpenTuple();
  pickle.Text("torch.strided");
  pickle.CloseTuple();
  pickle.Call();
  pickle.Boolean(false);
  pickle.Global(kMetadataModule, "_MEM_FORMAT_ENCODING");
  pickle.OpenTuple();
  pickle.Integer(0);
  pickle.CloseTuple();
  pickle.Call();
  pickle.Boolean(false);
  pickle.CloseTuple();
  pickle.SetState();
}

void WriteEntry(const TorchEntry& entry, DType dtype, PickleWriter& pickle) {
  pickle.Text(entry.spec.name);
  pickle.Object(kMetadataModule, "TensorStorageMetadata");
  pickle.OpenDictionary();
  pickle.Text("properties");
  WriteProperties(dtype, pickle);
  pickle.Text("size");
  WriteSizes(entry.spec.shape, pickle);
  pickle.Text("chunks");
  pickle.OpenList();
  for (const TorchChunk& chunk : entry.chunks) {
    pickle.Object(kMetadataModule, "ChunkStorageMetadata");
    pickle.OpenDictionary();
    pickle.Text("offsets");
    WriteSizes(chunk.offsets, pickle);
    pickle.Text("sizes");
    WriteSizes(chunk.sizes, pickle);
    pickle.CloseDictionary();
    pickle.SetState();
  }
  pickle.CloseList();
  pickle.CloseDictionary();
  pickle.SetState();
}

// An entry of storage_data. `offsets` is null for an object.
void WritePlace(std::string_view name, const Sizes* offsets, size_t index,
                const TorchChunk& place, PickleWriter& pickle) {
  pickle.Object(kMetadataModule, "MetadataIndex");
  pickle.OpenDictionary();
  pickle.Text("fqn");
  pickle.Text(name);
  if (offsets != nullptr) {
    pickle.Text("offset");
    WriteSizes(*offsets, pickle);
    pickle.Text("index");
    pickle.Integer(static_cast<int64_t>(index));
  }
  pickle.CloseDictionary();
  pickle.SetState();
  pickle.Object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
  pickle.OpenDictionary();
  pickle.Text("relative_path");
  pickle.Text(place.file);
  pickle.Text("offset");
  pickle.Integer(place.begin);
  pickle.Text("length");
  pickle.Integer(place.length);
  pickle.CloseDictionary();
  pickle.SetState();
}

}  // namespace

absl::StatusOr<absl::btree_map<std::string, TorchEntry>> ParseTorchMetadata(
    std::string_view pickle) {
  TESSERA_ASSIGN_OR_RETURN(const Pickle parsed, ParsePickle(pickle));
  const PickleValue& root = parsed.root();
  const PickleValue* const tensors = root.Find("state_dict_metadata");
  if (tensors == nullptr || !tensors->is(Kind::kDictionary)) {
    return absl::InvalidArgumentError("no state_dict_metadata");
  }
  TESSERA_ASSIGN_OR_RETURN(const Places places,
                           ParsePlaces(root.Find("storage_data")));
  absl::btree_map<std::string, TorchEntry> entries;
  for (size_t i = 0; i < tensors->items.size(); i += 2) {
    const std::string& name = tensors->items[i]->text;
    const PickleValue& value = *tensors->items[i + 1];
    if (!value.IsNamed(
            absl::StrCat(kMetadataModule, " TensorStorageMetadata"))) {
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(
        entries[name], ParseEntry(name, value, places),
        Annotate(_, absl::StrCat("tensor ", Quoted(name))));
  }
  return entries;
}

absl::StatusOr<TorchCheckpoint> TorchCheckpoint::Open(
    const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kTorchMetadataFile);
  TESSERA_ASSIGN_OR_RETURN(const std::string metadata,
                           ReadFile(path, kMaxTorchMetadataBytes));
  TorchCheckpoint checkpoint;
  checkpoint.directory_ = directory;
  TESSERA_ASSIGN_OR_RETURN(checkpoint.tensors_, ParseTorchMetadata(metadata),
                           Annotate(_, QuotedPath(path)));
  for (const auto& [name, entry] : checkpoint.tensors_) {
    for (const TorchChunk& chunk : entry.chunks) {
      UniqueFd& file = checkpoint.files_[chunk.file];
      if (file.valid()) continue;
      const std::string of = absl::StrCat(directory, "/", chunk.file);
      file = UniqueFd(open(of.c_str(), O_RDONLY | O_CLOEXEC));
      if (!file.valid()) {
        return absl::ErrnoToStatus(
            errno, absl::StrCat("cannot open ", QuotedPath(of)));
      }
    }
  }
  return checkpoint;
}

std::vector<std::string> TorchCheckpoint::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors_) names.push_back(name);
  return names;
}

const StoredTensor* TorchCheckpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second.spec;
}

void TorchCheckpoint::KeepUnder(std::string_view prefix) {
  absl::btree_map<std::string, TorchEntry> kept;
  for (auto& [name, entry] : tensors_) {
    std::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, prefix)) continue;
    entry.spec.name = std::string(rest);
    kept[std::string(rest)] = std::move(entry);
  }
  tensors_ = std::move(kept);
}

absl::Status TorchCheckpoint::ReadRows(std::string_view name, int64_t first,
                                       TensorView target) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::NotFoundError(
        absl::StrCat(QuotedPath(directory_), ": no tensor ", Quoted(name),
                     " among the ", tensors_.size(), " there are"));
  }
  const TorchEntry& entry = found->second;
  const auto annotate = [&](absl::Status status) {
    return Annotate(std::move(status), absl::StrCat(QuotedPath(directory_),
                                                    ": tensor ", Quoted(name)));
  };
  StoredTensor spec = entry.spec;
  if (target.shape().size() == 1) spec.shape = {*CountOf(spec.shape)};
  TESSERA_RETURN_IF_ERROR(ShapeInRows(spec, first, target).status(),
                          annotate(_));
  TESSERA_RETURN_IF_ERROR(DTypeOf(spec).status(), annotate(_));
  if (target.element_count() == 0) return absl::OkStatus();
  for (const TorchChunk& chunk : entry.chunks) {
    TESSERA_RETURN_IF_ERROR(ReadChunk(entry, chunk, first, target),
                            annotate(_));
  }
  return absl::OkStatus();
}

absl::Status TorchCheckpoint::ReadChunk(const TorchEntry& entry,
                                        const TorchChunk& chunk, int64_t first,
                                        TensorView target) const {
  if (*CountOf(chunk.sizes) == 0) return absl::OkStatus();
  const ChunkLines lines(entry, chunk, target.shape().size() == 1);
  const int64_t begin = lines.FirstFrom(first);
  const int64_t end = lines.FirstFrom(first + target.shape()[0]);
  if (begin == end) return absl::OkStatus();
  const int fd = files_.at(chunk.file).get();
  TESSERA_ASSIGN_OR_RETURN(const TorchTensor stored,
                           OpenTorchTensor(fd, chunk.begin, chunk.length));
  TESSERA_ASSIGN_OR_RETURN(const DType from, DTypeOf(entry.spec));
  if (stored.dtype != from || CountOf(stored.shape) != CountOf(chunk.sizes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a chunk of [", absl::StrJoin(chunk.sizes, ", "), "] of ",
        DTypeName(from), " is stored as [", absl::StrJoin(stored.shape, ", "),
        "] of ", DTypeName(stored.dtype)));
  }
  const int64_t width = lines.width();
  const int64_t row_bytes = target.size_in_bytes() / target.shape()[0];
  const int64_t element = SizeInBytes(target.dtype());
  std::byte* const to =
      target.data() + static_cast<ptrdiff_t>(lines.first_column() * element);
  const int64_t at_once = std::max<int64_t>(1, kConvertedBytes / width);
  std::vector<std::byte> read;
  for (int64_t line = begin; line < end; line += at_once) {
    const int64_t some = std::min(at_once, end - line);
    read.resize(static_cast<size_t>(some * width * SizeInBytes(from)));
    TESSERA_RETURN_IF_ERROR(
        ReadAt(fd, stored.data_begin + line * width * SizeInBytes(from), read));
    for (int64_t i = 0; i < some; ++i) {
      const auto bytes = static_cast<size_t>(width * SizeInBytes(from));
      TESSERA_RETURN_IF_ERROR(
          Convert(from,
                  std::span<const std::byte>(read).subspan(
                      static_cast<size_t>(i) * bytes, bytes),
                  target.dtype(),
                  std::span(to + (lines.RowOf(line + i) - first) * row_bytes,
                            static_cast<size_t>(width * element))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TorchCheckpointWriter> TorchCheckpointWriter::Create(
    const std::string& directory, const std::vector<StoredTensor>& tensors,
    int64_t max_file_bytes) {
  TorchCheckpointWriter writer;
  writer.directory_ = directory;
  writer.max_file_bytes_ = max_file_bytes;
  for (const StoredTensor& tensor : tensors) {
    TESSERA_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(tensor));
    TESSERA_RETURN_IF_ERROR(ParseTorchType(TorchTypeName(dtype)).status());
    TESSERA_RETURN_IF_ERROR(TensorBytes(tensor).status());
    if (tensor.shape.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("tensor ", Quoted(tensor.name), " without dimensions"));
    }
    if (!writer.index_.try_emplace(tensor.name, writer.entries_.size())
             .second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(tensor.name), " comes twice; give it once"));
    }
    writer.entries_.push_back({.spec = tensor});
  }
  return writer;
}

absl::Status TorchCheckpointWriter::Write(std::string_view name, int64_t begin,
                                          std::span<const std::byte> bytes) {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    return absl::NotFoundError(absl::StrCat(QuotedPath(directory_), ": tensor ",
                                            Quoted(name), " was not declared"));
  }
  TorchEntry& entry = entries_[found->second];
  TESSERA_ASSIGN_OR_RETURN(
      TorchChunk chunk,
      ChunkOf(entry.spec, begin, static_cast<int64_t>(bytes.size())),
      Annotate(_, absl::StrCat("tensor ", Quoted(name))));
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(entry.spec));
  TESSERA_ASSIGN_OR_RETURN(
      Object place, Append(TorchTensorArchive(dtype, chunk.sizes, bytes)));
  chunk.file = std::move(place.file);
  chunk.begin = place.begin;
  chunk.length = place.length;
  entry.chunks.push_back(std::move(chunk));
  return absl::OkStatus();
}

absl::Status TorchCheckpointWriter::WriteObject(std::string_view name,
                                                std::string_view pickle) {
  TESSERA_ASSIGN_OR_RETURN(Object place, Append(TorchObjectArchive(pickle)));
  place.name = std::string(name);
  objects_.push_back(std::move(place));
  return absl::OkStatus();
}

absl::StatusOr<TorchCheckpointWriter::Object> TorchCheckpointWriter::Append(
    std::string_view archive) {
  if (files_.empty() || file_bytes_ >= max_file_bytes_) {
    TESSERA_ASSIGN_OR_RETURN(AtomicFile file,
                             AtomicFile::Create(absl::StrCat(
                                 directory_, "/", FileName(files_.size()))));
    files_.push_back(std::move(file));
    file_bytes_ = 0;
  }
  TESSERA_RETURN_IF_ERROR(
      files_.back().Write(file_bytes_, std::as_bytes(std::span(archive))));
  const Object place = {.file = FileName(files_.size() - 1),
                        .begin = file_bytes_,
                        .length = static_cast<int64_t>(archive.size())};
  file_bytes_ += place.length;
  return place;
}

std::string TorchCheckpointWriter::Metadata() const {
  PickleWriter pickle;
  pickle.Object(kMetadataModule, "Metadata");
  pickle.OpenDictionary();
  pickle.Text("state_dict_metadata");
  pickle.OpenDictionary();
  for (const TorchEntry& entry : entries_) {
    WriteEntry(entry, *DTypeOf(entry.spec), pickle);
  }
  for (const Object& object : objects_) {
    pickle.Text(object.name);
    pickle.Object(kMetadataModule, "BytesStorageMetadata");
  }
  pickle.CloseDictionary();
  pickle.Text("storage_data");
  pickle.OpenDictionary();
  for (const TorchEntry& entry : entries_) {
    for (size_t i = 0; i < entry.chunks.size(); ++i) {
      WritePlace(entry.spec.name, &entry.chunks[i].offsets, i, entry.chunks[i],
                 pickle);
    }
  }
  for (const Object& object : objects_) {
    WritePlace(
        object.name, nullptr, 0,
        {.file = object.file, .begin = object.begin, .length = object.length},
        pickle);
  }
  pickle.CloseDictionary();
  pickle.CloseDictionary();
  pickle.SetState();
  return pickle.Finish();
}

absl::Status TorchCheckpointWriter::Commit() {
  for (const TorchEntry& entry : entries_) {
    TESSERA_RETURN_IF_ERROR(
        CheckChunks(entry),
        Annotate(_, absl::StrCat("tensor ", Quoted(entry.spec.name))));
  }
  for (AtomicFile& file : files_) TESSERA_RETURN_IF_ERROR(file.Commit());
  return WriteFile(absl::StrCat(directory_, "/", kTorchMetadataFile),
                   Metadata());
}

}  // namespace tessera::model_files
