#include "tools/train/checkpoint/resolve_checkpoint.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::train {

absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path) {
  const std::string manifest = absl::StrCat(path, "/", zero3::kManifestName);
  if (access(manifest.c_str(), F_OK) == 0) return path;
  TESSERA_ASSIGN_OR_RETURN(const zero3::FoundCheckpoint latest,
                           zero3::LatestCheckpoint(path));
  return latest.path;
}

}  // namespace tessera::train
