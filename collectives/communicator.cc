#include "collectives/communicator.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/run_algorithm.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {
namespace {

constexpr uint32_t kWorldGroup = 1;

absl::Status ValidateTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "timeout of ", absl::FormatDuration(timeout),
      " is invalid; give more than 0, for example absl::Seconds(30)"));
}

// Equal on all ranks and in all builds, unlike absl::Hash.
uint32_t HashMembers(uint32_t group, std::span<const Rank> members) {
  std::string text = absl::StrCat(group, ":");
  for (const Rank member : members) absl::StrAppend(&text, member.value(), ",");
  const uint64_t hash = Fnv1a(text);
  return static_cast<uint32_t>(hash ^ hash >> 32);
}

int64_t LargestHost(const CommunicatorOptions& options, int64_t size) {
  return options.hierarchy == nullptr ? size
                                      : options.hierarchy->LargestGroup();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Create(
    std::unique_ptr<Engine> engine, CommunicatorOptions options) {
  if (engine == nullptr) {
    return absl::InvalidArgumentError(
        "engine is null; a communicator needs an engine");
  }
  if (engine->enqueues()) {
    return absl::InvalidArgumentError(
        absl::StrCat("engine ", engine->name(),
                     " is of a device; use CreateOnDevice with a "
                     "communicator for memory of the host"));
  }
  TESSERA_RETURN_IF_ERROR(ValidateTimeout(options.timeout));
  if (options.recorded_operations < 1) {
    return absl::InvalidArgumentError(absl::StrCat("recorded_operations is ",
                                                   options.recorded_operations,
                                                   "; at least 1 is needed"));
  }
  if (options.hierarchy != nullptr &&
      options.hierarchy->ranks() != engine->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the hierarchy has ", options.hierarchy->ranks(),
                     " ranks, but the group has ", engine->size()));
  }
  if (options.chooser == nullptr) {
    options.chooser = std::make_shared<StrategyChooser>(
        topology::CommunicationStrategy::kAllReduce);
  }
  return std::unique_ptr<Communicator>(
      new Communicator(std::move(engine), std::move(options), kWorldGroup,
                       /*host=*/nullptr));
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::CreateOnDevice(
    std::unique_ptr<Communicator> host, std::unique_ptr<Engine> engine) {
  if (host == nullptr || engine == nullptr) {
    return absl::InvalidArgumentError(
        "a communicator on a device needs a communicator for memory of the "
        "host and an engine of the device; one of them is null");
  }
  if (!engine->enqueues() || host->host_ != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a communicator on a device needs one of the host and an engine of the "
        "device; given are ",
        host->engine_name(), " and ", engine->name()));
  }
  if (engine->rank() != host->rank() || engine->size() != host->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("communicator ", host->name(), " has rank ",
                     host->rank().value(), " of ", host->size(), ", engine ",
                     engine->name(), " has rank ", engine->rank().value(),
                     " of ", engine->size(), "; they must be the same"));
  }
  CommunicatorOptions options = host->options();
  return std::unique_ptr<Communicator>(new Communicator(
      std::move(engine), std::move(options), kWorldGroup, std::move(host)));
}

Communicator::Communicator(std::unique_ptr<Engine> engine,
                           CommunicatorOptions options, uint32_t group,
                           std::unique_ptr<Communicator> host,
                           const FlightRecorder* parent)
    : host_(std::move(host)),
      engine_(std::move(engine)),
      options_(std::move(options)),
      group_(group),
      generation_(ProcessGeneration()),
      ranks_per_host_(LargestHost(options_, engine_->size())),
      timeout_ns_(absl::ToInt64Nanoseconds(options_.timeout)),
      recorder_(options_.recorded_operations, engine_->size(), parent),
      collectives_(std::make_unique<CollectiveLane>()) {
  recorder_.Observe(options_.observer, Recorded());
  if (host_ != nullptr) {
    host_->is_host_of_device_ = true;
    host_->OnBreak([this](const absl::Status& reason) { Break(reason); });
    engine_->OnError([this](const absl::Status& error) {
      static_cast<void>(BreakOnError(error));
    });
  } else if (engine_->transport() != nullptr) {
    messages_ = std::make_unique<MessageLane>(*engine_, group_, recorder_);
    if (engine_->transport()->CanPeek()) {
      tagged_ = std::make_unique<TaggedMessages>(
          *engine_, group_, recorder_, [this](const absl::Status& error) {
            static_cast<void>(BreakOnError(error));
          });
    }
  }
}

Communicator::~Communicator() {
  if (host_ != nullptr) {
    host_->OnBreak(nullptr);
    engine_->OnError(nullptr);
  }
  if (ProcessGeneration() == generation_) return;
  // A forked child has none of the lanes' threads, so it cannot join them.
  static_cast<void>(collectives_.release());
  static_cast<void>(messages_.release());
  static_cast<void>(tagged_.release());
}

absl::Status Communicator::CheckUsable() const {
  if (ProcessGeneration() != generation_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "communicator ", options_.name,
        " was created before this process was forked; create a communicator in "
        "the child, or start ranks with exec instead of fork"));
  }
  if (!failure_->failed()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("communicator ", options_.name,
                   " is broken and refuses further work; the first error was ",
                   status().ToString()));
}

absl::Status Communicator::CheckCall(const Operation& operation,
                                     const CallOptions& call) const {
  TESSERA_RETURN_IF_ERROR(CheckUsable());
  TESSERA_RETURN_IF_ERROR(ValidateOperation(operation, rank(), size()),
                          Annotate(_, options_.name));
  if (call.timeout) TESSERA_RETURN_IF_ERROR(ValidateTimeout(*call.timeout));
  if (call.on_done != nullptr && host_ != nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("engine ", engine_->name(),
                     " is of a device and has no CallOptions::on_done; wait "
                     "for the work's event"));
  }
  if (!IsCollective(operation.kind)) return CheckMessage(operation);
  if (!call.algorithm || *call.algorithm == Algorithm::kEngine) {
    return absl::OkStatus();
  }
  if (!Supports(*call.algorithm, operation.kind, operation.uneven())) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.name, ": algorithm ", AlgorithmName(*call.algorithm),
        " does not support ", operation.uneven() ? "uneven " : "",
        OpKindName(operation.kind)));
  }
  if (messages_ != nullptr || host_ != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("engine ", engine_->name(),
                   " has no point-to-point messages, which algorithms other "
                   "than its own need"));
}

absl::Status Communicator::CheckMessage(const Operation& operation) const {
  if (operation.tag != kNoTag && tagged_ == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "engine ", engine_->name(),
        " has no messages with tags; in_process and shared_memory have"));
  }
  if (messages_ != nullptr || host_ != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "engine ", engine_->name(), " does not support point-to-point messages"));
}

int64_t Communicator::DeadlineOf(const CallOptions& call, int64_t begin) const {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const int64_t timeout =
      call.timeout ? absl::ToInt64Nanoseconds(*call.timeout) : timeout_ns_;
  return timeout > kNever - begin ? kNever : begin + timeout;
}

absl::Status Communicator::Run(const Operation& operation,
                               const CallOptions& call, SourcePlace place) {
  TESSERA_RETURN_IF_ERROR(CheckCall(operation, call));
  if (host_ != nullptr) return RunOnDevice(operation, call, place);
  TESSERA_RETURN_IF_ERROR(call.after.Wait());
  const int64_t begin = MonotonicNanos();
  const int64_t deadline = DeadlineOf(call, begin);
  const WaitMark mark;
  if (operation.tag != kNoTag) {
    return BreakOnError(tagged_->Run(operation, deadline).status());
  }
  if (!IsCollective(operation.kind)) {
    return BreakOnError(messages_->Run(operation, deadline));
  }
  if (collectives_->TryEnter()) {
    absl::Status status = RunCollective(operation, call, begin, deadline);
    collectives_->Leave();
    return status;
  }
  return StartCollective(operation, call, deadline).Wait();
}

absl::StatusOr<Work> Communicator::Start(Operation operation,
                                         const CallOptions& call,
                                         SourcePlace place) {
  TESSERA_RETURN_IF_ERROR(CheckCall(operation, call));
  if (host_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(Enqueued enqueued,
                             Enqueue(operation, call, place));
    EndRecord(enqueued, absl::OkStatus());
    return Work(std::move(enqueued.done), failure_);
  }
  TESSERA_RETURN_IF_ERROR(call.after.Wait());
  const auto state = std::make_shared<WorkState>();
  if (engine_->TakesNoTime()) {
    absl::Status status = Run(operation, call);
    if (call.on_done != nullptr) call.on_done(status);
    if (IsCollective(operation.kind)) {
      state->Finish(std::move(status));
    } else {
      state->FinishWhenWaitedFor(std::move(status));
    }
    return Work(state);
  }
  const int64_t deadline = DeadlineOf(call, MonotonicNanos());
  if (IsCollective(operation.kind)) {
    return StartCollective(std::move(operation), call, deadline);
  }
  if (operation.tag != kNoTag) {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<TaggedMessage> message,
                             tagged_->Start(operation, deadline, call.on_done));
    return Work(std::move(message));
  }
  TESSERA_RETURN_IF_ERROR(messages_->Start(
      operation, deadline,
      [this, state, on_done = call.on_done](absl::Status status) {
        status = BreakOnError(std::move(status));
        if (on_done != nullptr) on_done(status);
        state->Finish(std::move(status));
      }));
  return Work(state);
}

absl::StatusOr<Work> Communicator::StartOn(Queue& queue, Operation operation,
                                           CallOptions call,
                                           SourcePlace place) {
  TESSERA_ASSIGN_OR_RETURN(call.after, queue.Record(place));
  return Start(std::move(operation), call, place);
}

absl::Status Communicator::RunOn(Queue& queue, const Operation& operation,
                                 const CallOptions& call, SourcePlace place) {
  if (queue.is_immediate()) return Run(operation, call, place);
  TESSERA_ASSIGN_OR_RETURN(const Work work,
                           StartOn(queue, operation, call, place));
  return queue.Wait(work.event(), place);
}

// Enqueues a valid operation on the device, and begins its record.
absl::StatusOr<Communicator::Enqueued> Communicator::Enqueue(
    const Operation& operation, const CallOptions& call,
    const SourcePlace& place) {
  const bool is_message = !IsCollective(operation.kind);
  const std::lock_guard lock(enqueue_mutex_);
  Enqueued enqueued;
  OperationRecord& record = enqueued.record;
  record.signature =
      SignatureOf(operation, size(), group_, is_message ? 0 : sequence_ + 1,
                  call.algorithm.value_or(Algorithm::kEngine));
  record.kind = operation.kind;
  record.bytes = BytesOf(operation);
  if (is_message) {
    record.peer = operation.kind == OpKind::kReceive
                      ? operation.source.value()
                      : operation.destination.value();
  }
  record.begin_ns = MonotonicNanos();
  absl::StatusOr<Event> done = engine_->Enqueue(
      operation, {.after = call.after,
                  .timeout = call.timeout.value_or(options_.timeout),
                  .algorithm = call.algorithm,
                  .group = options_.name,
                  .signature = record.signature,
                  .place = place});
  if (absl::IsUnimplemented(done.status())) return done.status();
  if (!is_message) ++sequence_;
  enqueued.ticket = recorder_.Begin(record);
  if (!done.ok()) {
    EndRecord(enqueued, done.status());
    return BreakOnError(done.status());
  }
  enqueued.done = *std::move(done);
  return enqueued;
}

void Communicator::EndRecord(Enqueued& enqueued, const absl::Status& status) {
  enqueued.record.end_ns = MonotonicNanos();
  enqueued.record.code = status.code();
  recorder_.End(enqueued.ticket, enqueued.record);
}

absl::Status Communicator::RunOnDevice(const Operation& operation,
                                       const CallOptions& call,
                                       const SourcePlace& place) {
  TESSERA_ASSIGN_OR_RETURN(Enqueued enqueued, Enqueue(operation, call, place));
  absl::Status status = enqueued.done.Wait();
  const absl::Status group = failure_->status();
  EndRecord(enqueued, status.ok() ? group : status);
  if (status.ok()) return group;
  return BreakOnError(std::move(status));
}

absl::StatusOr<Rank> Communicator::ReceiveFromAny(Buffer output, int32_t tag,
                                                  const CallOptions& call) {
  const Operation operation = ReceiveOf(output, kAnySource, tag);
  TESSERA_RETURN_IF_ERROR(CheckCall(operation, call));
  TESSERA_RETURN_IF_ERROR(call.after.Wait());
  absl::StatusOr<Rank> source =
      tagged_->Run(operation, DeadlineOf(call, MonotonicNanos()));
  if (!source.ok()) return BreakOnError(source.status());
  return source;
}

// Queues a valid collective for the lane's thread.
Work Communicator::StartCollective(Operation operation, const CallOptions& call,
                                   int64_t deadline) {
  const auto state = std::make_shared<WorkState>();
  collectives_->Push(
      [this, state, deadline, call, operation = std::move(operation)] {
        absl::Status status = CheckUsable();
        if (status.ok()) {
          status = RunCollective(operation, call, MonotonicNanos(), deadline);
        }
        if (call.on_done != nullptr) call.on_done(status);
        state->Finish(std::move(status));
      });
  return Work(state);
}

// Runs one collective. The calling thread holds the collective lane.
absl::Status Communicator::RunCollective(const Operation& operation,
                                         const CallOptions& call, int64_t begin,
                                         int64_t deadline) {
  const int64_t bytes = BytesOf(operation);
  const Algorithm algorithm =
      call.algorithm ? *call.algorithm
                     : options_.chooser->Choose(QuestionOf(operation, bytes));
  OperationRecord record;
  record.signature =
      SignatureOf(operation, size(), group_, ++sequence_, algorithm);
  record.kind = operation.kind;
  record.bytes = bytes;
  record.begin_ns = begin;
  const uint64_t ticket = recorder_.Begin(record);
  OperationContext context(record.signature, deadline, scratch_,
                           operation.label, options_.reproducible);
  engine_->Enter(context);
  absl::Status status = RunWith(algorithm, operation, context);
  engine_->Leave(context);
  scratch_.Reset();
  record.end_ns = MonotonicNanos();
  record.code = status.code();
  recorder_.End(ticket, record);
  return BreakOnError(std::move(status));
}

absl::Status Communicator::RunWith(Algorithm algorithm,
                                   const Operation& operation,
                                   OperationContext& context) {
  if (algorithm == Algorithm::kEngine) {
    return engine_->Run(operation, context);
  }
  AlgorithmOptions options;
  options.hierarchy = options_.hierarchy.get();
  options.reproducible = options_.reproducible;
  if (options_.chunk_bytes > 0) options.chunk_bytes = options_.chunk_bytes;
  return RunAlgorithm(algorithm, operation, *engine_->transport(), options,
                      context);
}

// A prepared operation. The thread that holds the collective lane uses the
// members behind `call`.
struct PreparedOperation::State {
  State(Communicator& communicator, Operation operation, CallOptions call,
        const Signature& signature)
      : communicator(communicator),
        operation(std::move(operation)),
        call(std::move(call)),
        context(signature, /*deadline=*/0, scratch, this->operation.label,
                communicator.options_.reproducible) {
    record.signature = signature;
    record.kind = this->operation.kind;
    record.bytes = communicator.BytesOf(this->operation);
    if (communicator.engine_->enqueues() ||
        signature.algorithm != Algorithm::kEngine) {
      return;
    }
    plan = communicator.engine_->Plan(this->operation, context);
    if (plan != nullptr) runs = communicator.recorder_.AddRuns();
  }
  ~State() {
    if (runs != nullptr) communicator.recorder_.EndRuns(runs);
  }

  // The current run has begun a wait: records it, and returns its deadline.
  int64_t BeginWait() {
    mark.emplace();
    if (record.begin_ns == 0) record.begin_ns = MonotonicNanos();
    ticket = communicator.recorder_.Begin(record);
    return communicator.DeadlineOf(call, record.begin_ns);
  }

  Communicator& communicator;
  const Operation operation;
  const CallOptions call;
  Scratch scratch;
  OperationContext context;
  std::unique_ptr<OperationPlan> plan;  // Null: Communicator::Run.
  FlightRecorder::Runs* runs = nullptr;
  const std::function<int64_t()> on_wait = [this] { return BeginWait(); };
  OperationRecord record;  // Of the current run.
  uint64_t ticket = 0;     // Of its record; 0: it has not waited.
  std::optional<WaitMark> mark;
};

PreparedOperation::PreparedOperation(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
PreparedOperation::PreparedOperation(PreparedOperation&&) noexcept = default;
PreparedOperation& PreparedOperation::operator=(PreparedOperation&&) noexcept =
    default;
PreparedOperation::~PreparedOperation() = default;

absl::Status PreparedOperation::Run() {
  Communicator& communicator = state_->communicator;
  TESSERA_RETURN_IF_ERROR(communicator.CheckUsable());
  if (state_->plan == nullptr || !communicator.collectives_->TryEnter()) {
    return communicator.Run(state_->operation, state_->call);
  }
  absl::Status status = RunPlan();
  communicator.collectives_->Leave();
  return communicator.BreakOnError(std::move(status));
}

bool PreparedOperation::HasBuffersOf(const Operation& operation) const {
  const Operation& own = state_->operation;
  return own.kind == operation.kind && own.input.data == operation.input.data &&
         own.input.count == operation.input.count &&
         own.output.data == operation.output.data &&
         own.output.count == operation.output.count;
}

// The calling thread holds the collective lane.
absl::Status PreparedOperation::RunPlan() {
  State& state = *state_;
  Communicator& communicator = state.communicator;
  OperationRecord& record = state.record;
  record.signature.sequence = ++communicator.sequence_;
  record.begin_ns = state.runs->IsNextTimed() ? MonotonicNanos() : 0;
  record.end_ns = 0;
  state.context.BeginRun(record.signature.sequence, &state.on_wait);
  communicator.engine_->Enter(state.context);
  absl::Status status = state.plan->Run();
  communicator.engine_->Leave(state.context);
  state.scratch.Reset();
  // A run may fail without a wait.
  if (!status.ok()) state.context.BeginWait();
  if (record.begin_ns != 0) record.end_ns = MonotonicNanos();
  if (state.ticket == 0) {
    communicator.recorder_.Pass(*state.runs, record);
    return status;
  }
  state.mark.reset();
  record.code = status.code();
  communicator.recorder_.End(std::exchange(state.ticket, 0), record);
  return status;
}

// All ranks get the same signatures, so that all get the same result.
absl::Status Communicator::MatchPrepared(const Signature& mine) {
  // Counted runs stand for later steps, in which nothing is prepared.
  if (host().engine_->TakesNoTime()) return absl::OkStatus();
  constexpr uint32_t kLabel = 0x70726570;  // Differs from users' all_gathers.
  std::vector<Signature> all(static_cast<size_t>(size()));
  Operation exchange = AllGatherOf(
      ConstBuffer(&mine, sizeof(mine), DType::kU8),
      Buffer(all.data(), size() * int64_t{sizeof(mine)}, DType::kU8));
  exchange.label = kLabel;
  TESSERA_RETURN_IF_ERROR(host().Run(exchange));
  for (int64_t r = 1; r < size(); ++r) {
    const Signature& theirs = all[static_cast<size_t>(r)];
    if (theirs == all[0]) continue;
    return Annotate(MismatchError(all[0], Rank(0), theirs, Rank(r)),
                    absl::StrCat(options_.name, ": prepare"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedOperation> Communicator::Prepare(
    Operation operation, const CallOptions& call) {
  if (!IsCollective(operation.kind)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.name, ": cannot prepare ", DescribeOperation(operation),
        "; only collectives can be prepared, call Run"));
  }
  if (call.on_done != nullptr || call.after.state() != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.name,
        ": prepared operations have no CallOptions::on_done and "
        "after; wait for the event before PreparedOperation::Run"));
  }
  TESSERA_RETURN_IF_ERROR(CheckCall(operation, call));
  CallOptions own = {.timeout = call.timeout, .algorithm = call.algorithm};
  if (host_ == nullptr && !own.algorithm) {
    own.algorithm =
        options_.chooser->Choose(QuestionOf(operation, BytesOf(operation)));
  }
  const Signature signature =
      SignatureOf(operation, size(), group_, /*sequence=*/0,
                  own.algorithm.value_or(Algorithm::kEngine));
  TESSERA_RETURN_IF_ERROR(MatchPrepared(signature));
  return PreparedOperation(std::make_unique<PreparedOperation::State>(
      *this, std::move(operation), std::move(own), signature));
}

absl::Status Communicator::RunPrepared(
    std::optional<PreparedOperation>& prepared, const Operation& operation,
    const CallOptions& call) {
  if (!prepared) {
    TESSERA_ASSIGN_OR_RETURN(prepared, Prepare(operation, call));
  } else if (!prepared->HasBuffersOf(operation)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.name, ": ", DescribeOperation(operation),
        " was prepared with other buffers; a prepared operation runs on the "
        "same buffers each time"));
  }
  return prepared->Run();
}

// Bytes of the whole message.
int64_t Communicator::BytesOf(const Operation& operation) const {
  return MessageCount(operation, size()) * SizeInBytes(DTypeOf(operation));
}

ChoiceQuestion Communicator::QuestionOf(const Operation& operation,
                                        int64_t bytes) const {
  ChoiceQuestion question;
  question.kind = operation.kind;
  question.dtype = DTypeOf(operation);
  question.uneven = operation.uneven();
  // The ranks of an uneven all_to_all have different sizes.
  const bool sizes_differ =
      operation.kind == OpKind::kAllToAll && operation.uneven();
  question.bytes = sizes_differ ? 0 : bytes;
  question.ranks = size();
  question.ranks_per_host = ranks_per_host_;
  question.has_transport = messages_ != nullptr;
  question.engine_implements =
      engine_->Implements(operation.kind) &&
      (!options_.reproducible || !Reduces(operation.kind) ||
       engine_->FoldsInRankOrder(operation));
  return question;
}

absl::StatusOr<Algorithm> Communicator::AlgorithmFor(
    const Operation& operation) const {
  TESSERA_RETURN_IF_ERROR(CheckCall(operation, {}));
  if (host_ != nullptr) return Algorithm::kEngine;
  return options_.chooser->Choose(QuestionOf(operation, BytesOf(operation)));
}

std::string Communicator::ExplainAlgorithm(const Operation& operation) const {
  if (host_ != nullptr) return "engine: the engine of the device chooses";
  return options_.chooser->Explain(QuestionOf(operation, BytesOf(operation)));
}

// Any error of a running operation breaks the group.
absl::Status Communicator::BreakOnError(absl::Status status) {
  if (status.ok()) return status;
  status = Annotate(status, options_.name);
  Break(status);
  return status;
}

void Communicator::Break(const absl::Status& reason) {
  if (!failure_->Set(reason)) return;
  engine_->Abort(reason);
  if (messages_ != nullptr) messages_->Fail(reason);
  if (tagged_ != nullptr) tagged_->Fail(reason);
  if (host_ != nullptr) host_->Break(reason);
  WriteDump(reason);
  const std::lock_guard lock(on_break_mutex_);
  if (on_break_) on_break_(reason);
}

void Communicator::OnBreak(std::function<void(const absl::Status&)> on_break) {
  const std::lock_guard lock(on_break_mutex_);
  on_break_ = std::move(on_break);
  if (on_break_ && failure_->failed()) on_break_(status());
}

void Communicator::Abort(std::string_view reason) {
  Break(absl::AbortedError(absl::StrCat("communicator ", options_.name,
                                        " was aborted on rank ", rank().value(),
                                        ": ", reason.substr(0, 512))));
}

absl::Status Communicator::status() const { return failure_->status(); }

StatisticsTable Communicator::StatisticsWithSubgroups() const {
  StatisticsTable table = recorder_.StatisticsWithSubgroups();
  if (host_ == nullptr) return table;
  for (const auto& [key, totals] : host_->StatisticsWithSubgroups()) {
    table[key].Add(totals);
  }
  return table;
}

RecordedGroup Communicator::Recorded() const {
  return {options_.name,  std::string(engine_->name()),
          rank().value(), size(),
          rank().value(), group_ ^ (engine_->enqueues() ? 1u << 31 : 0u)};
}

std::string Communicator::RecordsAsJson() const {
  return RecordsToJson(Recorded(), recorder_.Recent(), recorder_.Statistics(),
                       status());
}

void Communicator::WriteDump(const absl::Status& reason) const {
  if (options_.dump_directory.empty()) return;
  std::string name = options_.name;
  std::replace(name.begin(), name.end(), '/', '-');
  if (is_host_of_device_) name += ".host";
  const std::string path = absl::StrCat(options_.dump_directory, "/", name,
                                        ".rank-", rank().value(), ".json");
  // If the dump cannot be written, the caller still gets the original error.
  static_cast<void>(
      WriteFile(path, RecordsToJson(Recorded(), recorder_.Recent(),
                                    recorder_.Statistics(), reason)));
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Split(
    int64_t colour, int64_t key, std::string_view name) {
  const int64_t mine[2] = {colour, key};
  std::vector<int64_t> all(static_cast<size_t>(2 * size()));
  TESSERA_RETURN_IF_ERROR(
      host().AllGather(ConstBuffer(std::span(mine)), Buffer(std::span(all))),
      Annotate(_, "split"));
  if (colour < 0) return nullptr;
  std::vector<std::pair<int64_t, Rank>> keyed;
  for (int64_t r = 0; r < size(); ++r) {
    const auto at = static_cast<size_t>(2 * r);
    if (all[at] == colour) keyed.emplace_back(all[at + 1], Rank(r));
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<Rank> members;
  for (const auto& [unused, member] : keyed) members.push_back(member);
  return Subgroup(members, name.empty()
                               ? absl::StrCat(options_.name, "/", colour)
                               : std::string(name));
}

namespace {

absl::Status ValidateMembers(std::span<const Rank> members, Rank self,
                             int64_t size) {
  std::vector<bool> seen(static_cast<size_t>(size), false);
  for (Rank member : members) {
    if (member.value() < 0 || member.value() >= size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "subgroup: rank ", member.value(),
          " is not in the group, which has ranks 0 to ", size - 1));
    }
    if (seen[static_cast<size_t>(member.value())]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "subgroup: rank ", member.value(), " is listed more than once"));
    }
    seen[static_cast<size_t>(member.value())] = true;
  }
  if (seen[static_cast<size_t>(self.value())]) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "subgroup: rank ", self.value(),
      " is not among the members; only members may call Subgroup"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Subgroup(
    std::span<const Rank> members, std::string_view name,
    std::optional<absl::Duration> timeout) {
  TESSERA_RETURN_IF_ERROR(CheckUsable());
  if (timeout) TESSERA_RETURN_IF_ERROR(ValidateTimeout(*timeout));
  TESSERA_RETURN_IF_ERROR(ValidateMembers(members, rank(), size()),
                          Annotate(_, options_.name));
  uint32_t group = HashMembers(group_, members);
  {
    const std::lock_guard lock(subgroups_mutex_);
    group += ++subgroups_[group];
  }
  CommunicatorOptions options = options_;
  options.name = name.empty() ? absl::StrCat(options_.name, "/", group)
                              : std::string(name);
  options.timeout = timeout.value_or(options_.timeout);
  std::unique_ptr<Communicator> host;
  if (host_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        host, host_->Subgroup(members, options.name, options.timeout));
  }
  absl::StatusOr<std::unique_ptr<Engine>> engine = engine_->CreateSubgroup(
      members, group, DeadlineOf({.timeout = timeout}, MonotonicNanos()));
  if (!engine.ok()) return Annotate(engine.status(), options_.name);
  if (options_.hierarchy != nullptr) {
    options.hierarchy =
        std::make_shared<Hierarchy>(options_.hierarchy->Restrict(members));
  }
  return std::unique_ptr<Communicator>(
      new Communicator(*std::move(engine), std::move(options), group,
                       std::move(host), &recorder_));
}

}  // namespace tessera::collectives
