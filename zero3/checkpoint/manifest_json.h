// CheckpointManifest as JSON (RFC 8259), with a checksum in its second line.
//
//   {
//     "crc32c": "0a1b2c3d",
//     "format": "tessera checkpoint",
//     "version": 1,
//     "step": 20,
//     ...
//
// The checksum is that of all bytes behind its line, so that the document is
// checked and still plain JSON. README.md has all keys.
#ifndef TESSERA_ZERO3_CHECKPOINT_MANIFEST_JSON_H_
#define TESSERA_ZERO3_CHECKPOINT_MANIFEST_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::zero3 {

inline constexpr int64_t kManifestVersion = 1;
inline constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

// InvalidArgument where a text is not UTF-8 or a value cannot be, so that what
// is returned can be parsed again.
absl::StatusOr<std::string> FormatManifest(const CheckpointManifest& manifest);

// DataLoss where the checksum is wrong; InvalidArgument, which says where,
// where the document is too long or too deep, has another version, lacks a key
// or has a value that cannot be.
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view text);

// A part on its way between ranks, without files and checksum.
absl::StatusOr<std::string> FormatPart(const CheckpointPart& part);
absl::StatusOr<CheckpointPart> ParsePart(std::string_view text);

// A checksum as a text: "0a1b2c3d". ReadHex32 takes it from a field; a text of
// another form is a problem of the reader, and 0.
std::string FormatHex32(uint32_t value);
uint32_t ReadHex32(JsonReader& fields, std::string_view key);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_MANIFEST_JSON_H_
