#include "zero3/state/gradient_clipping.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "collectives/communicator.h"

namespace tessera::zero3 {

using offload::GradientStatistics;

GradientClipping::GradientClipping(const StateContext& context,
                                   const ShardedStateOptions& options,
                                   const StateGroups& groups,
                                   GradientReducer& gradients,
                                   StagingPool& staging)
    : context_(context),
      options_(options),
      groups_(groups),
      gradients_(gradients),
      staging_(staging) {
  for (const ModelParameter& parameter : context_.model().all()) {
    if (!parameter.trainable()) continue;
    counted_.push_back({parameter.id, RangesOf(parameter)});
  }
}

absl::StatusOr<std::unique_ptr<GradientClipping>> GradientClipping::Create(
    const StateContext& context, const ShardedStateOptions& options,
    const StateGroups& groups, GradientReducer& gradients,
    StagingPool& staging) {
  std::unique_ptr<GradientClipping> clipping(
      new GradientClipping(context, options, groups, gradients, staging));
  if (!context.device.ops->computes()) return clipping;
  size_t count = 0;
  for (const Counted& one : clipping->counted_) count += one.ranges.size();
  TESSERA_ASSIGN_OR_RETURN(
      clipping->statistics_,
      Buffer::Allocate(context.device.memory,
                       count * sizeof(GradientStatistics)));
  return clipping;
}

std::vector<ElementRange> GradientClipping::RangesOf(
    const ModelParameter& parameter) const {
  const Extent extent = context_.OwnExtent(parameter.id);
  std::vector<ElementRange> ranges = {{0, parameter.elements}};
  if (!options_.counted_in_norm.empty()) {
    ranges = options_.counted_in_norm[IndexOf(parameter.id)];
  }
  for (ElementRange& range : ranges) {
    range = {std::max(range.begin, extent.begin) - extent.begin,
             std::min(range.end, extent.end) - extent.begin};
  }
  std::erase_if(ranges, [](const ElementRange& range) {
    return range.begin >= range.end;
  });
  return ranges;
}

absl::StatusOr<Event> GradientClipping::StartMeasuring() {
  std::span<std::byte> results = statistics_.bytes();
  for (size_t i = 0; i < counted_.size(); ++i) {
    if (options_.overlap && i + 1 < counted_.size()) {
      gradients_.AnnounceOwn(counted_[i + 1].id);
    }
    const auto& [id, ranges] = counted_[i];
    TESSERA_ASSIGN_OR_RETURN(const offload::ConstTypedSpan own,
                             gradients_.OpenOwn(id, /*is_final=*/true));
    for (const ElementRange& range : ranges) {
      const auto size = std::min(results.size(), sizeof(GradientStatistics));
      TESSERA_RETURN_IF_ERROR(context_.device.ops->Run(op::Measure{
          {own.At(range.begin), own.dtype(), range.end - range.begin},
          results.first(size)}));
      results = results.subspan(size);
    }
    TESSERA_RETURN_IF_ERROR(gradients_.CloseOwn(id, /*changed=*/false));
  }
  TESSERA_ASSIGN_OR_RETURN(download_,
                           staging_.StartDownload(statistics_.bytes()));
  return download_.event();
}

absl::StatusOr<GradientStatistics> GradientClipping::MeasuredHere() {
  GradientStatistics all;
  const Download download = std::exchange(download_, {});
  TESSERA_ASSIGN_OR_RETURN(std::span<const std::byte> results, download.Wait());
  if (results.empty()) return all;
  for (const Counted& counted : counted_) {
    GradientStatistics sum;
    for (size_t i = 0; i < counted.ranges.size(); ++i) {
      GradientStatistics one;
      std::memcpy(&one, results.data(), sizeof one);
      results = results.subspan(sizeof one);
      sum.Add(one);
    }
    all.Add(sum);
  }
  return all;
}

absl::StatusOr<GradientStatistics> GradientClipping::SumOverRanks(
    const GradientStatistics& own) {
  sums_[0] = own.sum_of_squares;
  sums_[1] = static_cast<double>(own.non_finite);
  const collectives::Buffer buffer{std::span(sums_)};
  const auto sum =
      collectives::AllReduceOf(buffer, buffer, collectives::Reduction::Sum());
  // At stage 0 every rank has measured all elements.
  if (options_.stage > 0) {
    TESSERA_RETURN_IF_ERROR(groups_.agree->RunPrepared(agree_sum_, sum));
  }
  if (groups_.model != nullptr) {
    TESSERA_RETURN_IF_ERROR(groups_.model->RunPrepared(model_sum_, sum));
  }
  return GradientStatistics{sums_[0], static_cast<int64_t>(sums_[1])};
}

}  // namespace tessera::zero3
