#include "tools/train/checkpoint/fp8_scales.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/device/device.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/linear_products.h"
#include "tools/train/model/llama_stage.h"
#include "zero3/state/sharded_state.h"

namespace tessera::train {
namespace {

absl::StatusOr<std::vector<std::byte>> StateOnHost(TrainRank& rank) {
  TESSERA_ASSIGN_OR_RETURN(
      const Download download,
      rank.state().staging().StartDownload(rank.fp8()->state()));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           download.Wait());
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

absl::StatusOr<std::map<int64_t, std::string>> Parse(std::string_view text) {
  std::map<int64_t, std::string> scales;
  for (const std::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string_view, std::string_view> fields =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t layer = 0;
    std::string bytes;
    if (!absl::SimpleAtoi(fields.first, &layer) ||
        !absl::Base64Unescape(fields.second, &bytes) ||
        !scales.emplace(layer, std::move(bytes)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("its scales of fp8 are invalid: \"",
                       absl::CEscape(line.substr(0, 40)), "\""));
    }
  }
  return scales;
}

}  // namespace

// "BYTES CAPACITY", then "LAYER FIRST COUNT" for each transformer layer.
std::string DescribeFp8Layers(TrainRank& rank) {
  if (rank.fp8() == nullptr) return "";
  std::string text =
      absl::StrCat(rank.fp8()->state().size(), " ", rank.fp8()->capacity());
  for (const LlamaLayers::Fp8Layers& layers : rank.fp8_layers()) {
    absl::StrAppend(&text, " ", layers.layer, " ", layers.first, " ",
                    layers.count);
  }
  return text;
}

absl::StatusOr<std::string> FormatFp8Scales(std::string_view layers,
                                            std::span<const std::byte> memory) {
  std::vector<int64_t> numbers;
  for (const std::string_view word : absl::StrSplit(layers, ' ')) {
    if (!absl::SimpleAtoi(word, &numbers.emplace_back())) {
      return absl::InternalError(
          absl::StrCat("invalid layers of fp8: ", layers));
    }
  }
  const auto scales = memory.last(static_cast<size_t>(numbers.at(0)));
  std::string text;
  for (size_t i = 2; i + 2 < numbers.size(); i += 3) {
    absl::StrAppend(&text, numbers[i], " ",
                    absl::Base64Escape(tensor_parallel::Fp8Scaling::CopyLayers(
                        scales, numbers[1], numbers[i + 1], numbers[i + 2])),
                    "\n");
  }
  return text;
}

absl::StatusOr<std::string> FormatFp8Scales(TrainRank& rank) {
  if (rank.fp8() == nullptr || !rank.fp8()->has_history()) return "";
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::byte> state,
                           StateOnHost(rank));
  return FormatFp8Scales(DescribeFp8Layers(rank), state);
}

absl::StatusOr<std::map<int64_t, std::string>> Fp8ScalesFor(
    TrainRank& rank, std::string_view text) {
  std::map<int64_t, std::string> own;
  if (rank.fp8() == nullptr || text.empty()) return own;
  TESSERA_ASSIGN_OR_RETURN(auto all, Parse(text));
  for (const LlamaLayers::Fp8Layers& layers : rank.fp8_layers()) {
    auto found = all.extract(layers.layer);
    const int64_t bytes = layers.count * rank.fp8()->LayerBytes();
    if (found.empty() || static_cast<int64_t>(found.mapped().size()) != bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "its scales of fp8 have ", found.empty() ? 0 : found.mapped().size(),
          " bytes for layer ", layers.layer, ", not ", bytes));
    }
    own.insert(std::move(found));
  }
  return own;
}

absl::Status RestoreFp8Scales(const std::map<int64_t, std::string>& scales,
                              TrainRank& rank) {
  if (rank.fp8() == nullptr) return absl::OkStatus();
  rank.fp8()->set_has_history(!scales.empty());
  if (scales.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(std::vector<std::byte> state, StateOnHost(rank));
  for (const LlamaLayers::Fp8Layers& layers : rank.fp8_layers()) {
    rank.fp8()->SetLayers(scales.at(layers.layer), layers.first, layers.count,
                          state);
  }
  zero3::ShardedState& dense = rank.state();
  TESSERA_RETURN_IF_ERROR(dense.staging().Upload(state, rank.fp8()->state()));
  return dense.queue().Synchronize();
}

}  // namespace tessera::train
