#include "zero3/state/gather_operation.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/dtype/dtype.h"

namespace tessera::zero3 {

collectives::Operation GatherOperation(const StateLayout& layout,
                                       ParameterId id,
                                       std::span<const std::byte> own,
                                       std::span<std::byte> whole) {
  const DType dtype = layout.model()[id].dtype();
  const int64_t width = SizeInBytes(dtype);
  std::vector<int64_t> counts;
  if (layout.options().kind != LayoutKind::kChunks) {
    for (int64_t r = 0; r < layout.ranks(); ++r) {
      counts.push_back(layout.ExtentOf(topology::Rank(r), id).slot);
    }
  }
  collectives::Operation operation = collectives::AllGatherOf(
      collectives::ConstBuffer(own.data(),
                               static_cast<int64_t>(own.size()) / width, dtype),
      collectives::Buffer(whole.data(),
                          static_cast<int64_t>(whole.size()) / width, dtype),
      std::move(counts));
  operation.label = static_cast<uint32_t>(id.value()) + 1;
  return operation;
}

std::span<std::byte> SlotIn(const StateLayout& layout, ParameterId id,
                            topology::Rank rank, std::span<std::byte> whole) {
  const int64_t width = SizeInBytes(layout.model()[id].dtype());
  int64_t before = 0;
  for (int64_t r = 0; r < rank.value(); ++r) {
    before += layout.ExtentOf(topology::Rank(r), id).slot;
  }
  return whole.subspan(
      static_cast<size_t>(before * width),
      static_cast<size_t>(layout.ExtentOf(rank, id).slot * width));
}

}  // namespace tessera::zero3
