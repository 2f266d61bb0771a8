#include "zero3/state/whole_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/state/weight_gather.h"

namespace tessera::zero3 {

absl::StatusOr<std::unique_ptr<WholeParameters>> WholeParameters::Create(
    const StateContext& context, std::vector<ParameterId> ids,
    collectives::Communicator& group) {
  std::unique_ptr<WholeParameters> values(
      new WholeParameters(context, std::move(ids), group));
  const auto count = static_cast<size_t>(context.model().count());
  values->has_.resize(count);
  values->memory_.resize(count);
  values->written_.resize(count);
  values->arrivals_.resize(count);
  values->works_.resize(count);
  for (ParameterId id : values->ids_) {
    const ModelParameter& parameter = context.model()[id];
    const auto index = static_cast<size_t>(id.value());
    values->has_[index] = true;
    TESSERA_ASSIGN_OR_RETURN(
        values->memory_[index],
        AccountedMemory::Allocate(context.device, parameter.name(),
                                  context.layout.GatheredElements(id) *
                                      SizeInBytes(parameter.dtype()),
                                  offload::Purpose::kParameters));
    TESSERA_RETURN_IF_ERROR(
        context.device.ops->Zero(values->memory_[index].bytes()));
  }
  return values;
}

absl::StatusOr<TensorView> WholeParameters::Value(ParameterId id) const {
  const ModelParameter& parameter = context_.model()[id];
  return TensorView::Create(
      MemoryOf(id).first(static_cast<size_t>(parameter.bytes)),
      parameter.dtype(), parameter.spec.shape, context_.device.memory->kind());
}

offload::TypedSpan WholeParameters::Own(ParameterId id) const {
  return offload::TypedSpan(
      SlotIn(context_.layout, id, context_.rank, MemoryOf(id)).data(),
      context_.model()[id].dtype(), context_.OwnExtent(id).size());
}

WholeParameters::~WholeParameters() {
  for (const auto& work : works_) {
    if (work) work->Wait().IgnoreError();
  }
}

absl::Status WholeParameters::MarkWritten(ParameterId id) {
  TESSERA_ASSIGN_OR_RETURN(written_[static_cast<size_t>(id.value())],
                           context_.device.Mark());
  return absl::OkStatus();
}

absl::Status WholeParameters::MarkWritten(ParameterId id, Event arrived) {
  TESSERA_RETURN_IF_ERROR(MarkWritten(id));
  const auto index = static_cast<size_t>(id.value());
  written_[index].event = arrived;
  arrivals_[index] = std::move(arrived);
  return absl::OkStatus();
}

// A parameter that this rank did not write may still be read by the queue.
absl::Status WholeParameters::StartPublish() {
  if (context_.layout.ranks() == 1) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const QueuePoint now, context_.device.Mark());
  for (ParameterId id : ids_) {
    if (MemoryOf(id).empty()) continue;
    const auto index = static_cast<size_t>(id.value());
    const QueuePoint written = std::exchange(written_[index], {});
    TESSERA_ASSIGN_OR_RETURN(
        works_[index],
        group_.Start(
            GatherOperation(
                context_.layout, id,
                SlotIn(context_.layout, id, context_.rank, MemoryOf(id)),
                MemoryOf(id)),
            {.after = written.number > 0 ? written.event : now.event}));
  }
  return absl::OkStatus();
}

absl::Status WholeParameters::Wait(ParameterId id) {
  const auto index = static_cast<size_t>(id.value());
  TESSERA_RETURN_IF_ERROR(
      context_.queue().Wait(std::exchange(arrivals_[index], {})));
  auto& work = works_[index];
  if (!work) return absl::OkStatus();
  const absl::Status status = context_.queue().Wait(work->event());
  work.reset();
  return Annotate(status,
                  absl::StrCat("gather of parameter ", id.value(), " \"",
                               context_.model()[id].name(), "\""));
}

// Arrivals of this rank's own values are not publications.
absl::Status WholeParameters::WaitAll() {
  absl::Status status;
  for (ParameterId id : ids_) {
    if (works_[static_cast<size_t>(id.value())]) status.Update(Wait(id));
  }
  return status;
}

}  // namespace tessera::zero3
