// SafetensorsWriter: a file written in pieces, of which readers see all or
// nothing.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto writer,
//       SafetensorsWriter::Create(path, {{"w", ElementType::kF32, {2, 8}}}));
//   TESSERA_RETURN_IF_ERROR(writer.Write("w", 32, second_row));
//   TESSERA_RETURN_IF_ERROR(writer.Write("w", 0, first_row));
//   TESSERA_RETURN_IF_ERROR(writer.Commit());
//
// Bytes go to a temporary file beside `path`, which Commit syncs and renames:
// after a crash `path` holds the old bytes or the new ones. Every byte must be
// written once. A writer that is destroyed or fails before Commit leaves `path`
// as it was and nothing else behind.
#ifndef TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_WRITER_H_
#define TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/model_files/header.h"
#include "tools/model_files/temporary_file.h"

namespace tessera::model_files {

// Calls of one writer are made by one thread at a time.
class SafetensorsWriter {
 public:
  // Refuses what LayOut and FormatHeader refuse; else the system's code where
  // no file can be made beside `path` or the disk has no room for all of it.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, std::vector<TensorSpec> tensors,
      std::map<std::string, std::string> metadata = {});

  const std::string& path() const { return file_.path(); }
  const Header& header() const { return header_; }

  // Writes `bytes` at byte `begin` of a tensor. NotFound where there is no such
  // tensor, OutOfRange where the range is not inside it, AlreadyExists where a
  // part of it has been written.
  absl::Status Write(std::string_view name, int64_t begin,
                     std::span<const std::byte> bytes);
  // All of a tensor; InvalidArgument where `bytes` is not its size.
  absl::Status Write(std::string_view name, std::span<const std::byte> bytes);

  // OK where every byte has been written; FailedPrecondition names the tensor
  // and the first byte that is missing.
  absl::Status CheckComplete() const;

  // Gives the file its name; nothing can be written afterwards. Refuses as
  // CheckComplete does, and then the writer can go on.
  absl::Status Commit();

 private:
  // What of a tensor has been written: end by begin, apart from each other.
  struct Progress {
    const TensorEntry* entry;
    std::map<int64_t, int64_t> written;
  };

  SafetensorsWriter(TemporaryFile file, int64_t data_start, Header header);

  absl::StatusOr<Progress*> Find(std::string_view name);

  TemporaryFile file_;
  int64_t data_start_;
  Header header_;
  absl::flat_hash_map<std::string, Progress> progress_;
};

}  // namespace tessera::model_files

#endif  // TESSERA_TOOLS_MODEL_FILES_SAFETENSORS_WRITER_H_
