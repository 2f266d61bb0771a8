#include "zero3/state/whole_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/state/weight_gather.h"

namespace tessera::zero3 {

absl::StatusOr<std::unique_ptr<WholeParameters>> WholeParameters::Create(
    const StateSeat& seat, std::vector<ParameterId> ids,
    collectives::Communicator& group) {
  std::unique_ptr<WholeParameters> values(
      new WholeParameters(seat, std::move(ids), group));
  const auto count = static_cast<size_t>(seat.model().count());
  values->has_.resize(count);
  values->memory_.resize(count);
  values->works_.resize(count);
  for (ParameterId id : values->ids_) {
    const Parameter& parameter = seat.model()[id];
    const auto index = static_cast<size_t>(id.value());
    values->has_[index] = true;
    TESSERA_ASSIGN_OR_RETURN(
        values->memory_[index],
        AccountedMemory::Allocate(
            seat.device, parameter.name(),
            seat.layout.GatheredElements(id) * SizeInBytes(parameter.dtype()),
            offload::Purpose::kParameters));
    seat.device.ops->Zero(values->memory_[index].bytes());
  }
  return values;
}

absl::StatusOr<TensorView> WholeParameters::Value(ParameterId id) const {
  const Parameter& parameter = seat_.model()[id];
  return TensorView::Create(
      MemoryOf(id).first(static_cast<size_t>(parameter.bytes)),
      parameter.dtype(), parameter.spec.shape);
}

offload::TypedSpan WholeParameters::Own(ParameterId id) const {
  return offload::TypedSpan(
      SlotIn(seat_.layout, id, seat_.rank, MemoryOf(id)).data(),
      seat_.model()[id].dtype(), seat_.OwnExtent(id).size());
}

WholeParameters::~WholeParameters() { WaitAll().IgnoreError(); }

absl::Status WholeParameters::StartPublish() {
  if (seat_.layout.ranks() == 1) return absl::OkStatus();
  for (ParameterId id : ids_) {
    if (MemoryOf(id).empty()) continue;
    TESSERA_ASSIGN_OR_RETURN(
        works_[static_cast<size_t>(id.value())],
        group_.Start(GatherOperation(
            seat_.layout, id,
            SlotIn(seat_.layout, id, seat_.rank, MemoryOf(id)), MemoryOf(id))));
  }
  return absl::OkStatus();
}

absl::Status WholeParameters::Wait(ParameterId id) {
  auto& work = works_[static_cast<size_t>(id.value())];
  if (!work) return absl::OkStatus();
  const absl::Status status = work->Wait();
  work.reset();
  return Annotate(status, absl::StrCat("gather of parameter ", id.value(),
                                       " \"", seat_.model()[id].name(), "\""));
}

absl::Status WholeParameters::WaitAll() {
  absl::Status status;
  for (ParameterId id : ids_) status.Update(Wait(id));
  return status;
}

}  // namespace tessera::zero3
