#include "tools/train/launch/room_check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/cli.h"

namespace tessera::train {
namespace {

std::string Gibibytes(int64_t bytes) {
  return absl::StrFormat(
      "%.1f GiB", static_cast<double>(bytes) / static_cast<double>(1 << 30));
}

std::string AdviceOf(const RunPrediction& prediction) {
  if (prediction.advice.empty()) {
    return "no flag helps: take more ranks on more machines, or a smaller "
           "model";
  }
  const MemoryAdvice& first = prediction.advice.front();
  return absl::StrCat(
      first.flag, " would need ", Gibibytes(first.needed),
      first.fits ? ", which fits" : ", and --dry_run says more");
}

}  // namespace

absl::Status CheckRoom(const Settings& settings,
                       const RunPrediction& prediction, std::ostream& err) {
  if (prediction.fits()) return absl::OkStatus();
  const std::string shortage = absl::StrCat(
      prediction.ranks_here == 1
          ? std::string("its rank here needs ")
          : absl::StrCat("its ", prediction.ranks_here, " ranks here need "),
      Gibibytes(prediction.needed), " (", prediction.needed,
      " bytes) of memory, and ", Gibibytes(prediction.room.bytes), " (",
      prediction.room.bytes, " bytes) are available of the ",
      prediction.room.limit);
  if (settings.force) {
    err << "train: --model=" << settings.model << ": " << shortage
        << "; it is started because of --force" << std::endl;
    return absl::OkStatus();
  }
  return tools::FlagError("model", settings.model,
                          absl::InvalidArgumentError(absl::StrCat(
                              shortage, "; ", AdviceOf(prediction),
                              "; --force starts it all the same")));
}

}  // namespace tessera::train
