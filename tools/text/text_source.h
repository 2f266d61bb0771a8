// Reads a text file, which gzip or zstd may have compressed.
//
//   TESSERA_ASSIGN_OR_RETURN(TextSource source,
//   TextSource::Open("a.jsonl.gz")); std::string part(1 << 20, '\0');
//   TESSERA_ASSIGN_OR_RETURN(const size_t count, source.Read(part));
#ifndef TESSERA_TOOLS_TEXT_TEXT_SOURCE_H_
#define TESSERA_TOOLS_TEXT_TEXT_SOURCE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera::text {

// True if a file with these first bytes is compressed in a format that
// TextSource reads. It reads gzip and zstd if Tessera was built with zlib and
// libzstd.
bool IsReadableCompression(std::string_view head);

class TextSource {
 public:
  // A file in any other format is read as it is.
  static absl::StatusOr<TextSource> Open(const std::string& path);

  // Reads the next bytes of the text, fewer than `part` has only at its end.
  // DataLoss if compressed data is damaged or ends too early; otherwise the
  // system's error. The message names the file.
  absl::StatusOr<size_t> Read(std::span<char> part);

  // The reader of one format.
  class Decoder {
   public:
    virtual ~Decoder() = default;
    // Reads at least one byte, or returns 0 at the end.
    virtual absl::StatusOr<size_t> Read(std::span<char> part) = 0;
  };

 private:
  TextSource(std::string path, std::unique_ptr<Decoder> decoder);

  std::string path_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace tessera::text

#endif  // TESSERA_TOOLS_TEXT_TEXT_SOURCE_H_
