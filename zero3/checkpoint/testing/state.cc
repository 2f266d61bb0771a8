#include "zero3/checkpoint/testing/state.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "collectives/in_process/in_process.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/state_blocks.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3::testing {

namespace {

absl::Status RunRank(
    std::unique_ptr<collectives::Engine> engine, int64_t ranks, int64_t groups,
    const std::function<absl::Status(const RankGroups&)>& body) {
  collectives::CommunicatorOptions options;
  options.timeout = absl::Minutes(2);
  TESSERA_ASSIGN_OR_RETURN(auto world, collectives::Communicator::Create(
                                           std::move(engine), options));
  const int64_t rank = world->rank().value();
  TESSERA_ASSIGN_OR_RETURN(auto shard,
                           world->Split(rank / ranks, rank, "data"));
  TESSERA_ASSIGN_OR_RETURN(auto replicas,
                           world->Split(rank % ranks, rank, "replicas"));
  return body({.rank = rank,
               .world = world.get(),
               .shard = shard.get(),
               .replicas = groups > 1 ? replicas.get() : nullptr});
}

}  // namespace

std::vector<absl::Status> OnRanks(
    int64_t ranks, int64_t groups,
    const std::function<absl::Status(const RankGroups&)>& body) {
  auto engines = collectives::CreateInProcessEngines(ranks * groups);
  std::vector<absl::Status> results(static_cast<size_t>(ranks * groups));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      results[r] = RunRank(std::move((*engines)[r]), ranks, groups, body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

ModelParameters SmallModel() {
  return *ModelParameters::Builder()
              .Add({.name = "weight", .shape = {13}, .dtype = DType::kBF16})
              .Add({.name = "bias", .shape = {3}})
              .Build();
}

std::vector<absl::Status> SaveSmall(const CheckpointWriterOptions& options,
                                    int64_t ranks, int64_t seed) {
  return OnRanks(ranks, 1, [&](const RankGroups& groups) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        auto state, ShardedState::Create(SmallModel(), {}, groups.of_state()));
    TESSERA_RETURN_IF_ERROR(Stamp(*state, seed));
    return SaveCheckpoint(groups.of_checkpoint(), options, *state).status();
  });
}

absl::Status CheckSmall(const std::string& path, int64_t seed) {
  return OnRanks(1, 1, [&](const RankGroups& groups) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(
        auto state, ShardedState::Create(SmallModel(), {}, groups.of_state()));
    TESSERA_RETURN_IF_ERROR(
        LoadCheckpoint(path, groups.of_checkpoint(), *state).status());
    return CheckStamp(*state, seed);
  })[0];
}

absl::StatusOr<int64_t> CheckLatestSmall(const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
                           LatestCheckpoint(directory));
  TESSERA_RETURN_IF_ERROR(CheckSmall(latest.path, latest.step));
  return latest.step;
}

namespace {

using Visit = absl::FunctionRef<absl::Status(const ModelParameter&, StatePart,
                                             const Extent&, const StateArray&)>;

absl::Status ForEachPart(ShardedState& state, bool changes, Visit visit) {
  for (const ModelParameter& parameter : state.layout().model().all()) {
    const Extent extent = state.layout().ExtentOf(state.rank(), parameter.id);
    if (extent.size() == 0) continue;
    for (const StatePart part : kAllStateParts) {
      if (!StateFormatOf(parameter, MomentsOf(state), part)) continue;
      TESSERA_ASSIGN_OR_RETURN(OpenPart open,
                               OpenPart::Open(state, parameter.id, part));
      absl::Status status = visit(parameter, part, extent, open.array());
      status.Update(open.Close(changes));
      TESSERA_RETURN_IF_ERROR(status);
    }
  }
  return absl::OkStatus();
}

uint64_t Mix(uint64_t x) {
  for (int i = 0; i < 2; ++i) {
    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93ULL;
  }
  return x ^ (x >> 32);
}

// Eight bytes derived from all arguments.
uint64_t StampOf(int64_t seed, const std::string& name, StatePart part,
                 int64_t number, bool is_scale) {
  uint64_t x = Mix(static_cast<uint64_t>(seed) * 31 +
                   static_cast<uint64_t>(part) * 7 + (is_scale ? 3 : 0) + 1);
  for (const char c : name) x = Mix(x ^ static_cast<uint8_t>(c));
  return Mix(x ^ static_cast<uint64_t>(number));
}

// The addresses of an element and of its scale.
std::byte* ElementIn(const StateArray& array, int64_t element) {
  return array.bytes + array.format.ScaleBytes(array.capacity) +
         (element - array.begin) * SizeInBytes(array.format.dtype);
}
std::byte* ScaleIn(const StateArray& array, int64_t element) {
  return array.bytes + 4 * ((element - array.begin) / array.format.block);
}

}  // namespace

absl::Status BitCollector::Add(ShardedState& state) {
  return ForEachPart(
      state, /*changes=*/false,
      [&](const ModelParameter& parameter, StatePart part, const Extent& extent,
          const StateArray& array) {
        absl::MutexLock lock(&mutex_);
        for (int64_t e = extent.begin; e < extent.end; ++e) {
          std::string bits(
              reinterpret_cast<const char*>(ElementIn(array, e)),
              static_cast<size_t>(SizeInBytes(array.format.dtype)));
          if (array.format.block > 0) {
            bits.append(reinterpret_cast<const char*>(ScaleIn(array, e)), 4);
          }
          const auto [there, is_new] =
              bits_.emplace(std::tuple(parameter.name(), part, e), bits);
          if (!is_new && there->second != bits) {
            return absl::UnavailableError(
                absl::StrCat(parameter.name(), ": ranks differ"));
          }
        }
        return absl::OkStatus();
      });
}

StateBits BitCollector::bits() const {
  absl::MutexLock lock(&mutex_);
  return bits_;
}

absl::Status Stamp(ShardedState& state, int64_t seed) {
  TESSERA_RETURN_IF_ERROR(ForEachPart(
      state, /*changes=*/true,
      [&](const ModelParameter& parameter, StatePart part, const Extent& extent,
          const StateArray& array) {
        const auto size = static_cast<size_t>(SizeInBytes(array.format.dtype));
        for (int64_t e = extent.begin; e < extent.end; ++e) {
          const uint64_t bits = StampOf(seed, parameter.name(), part, e, false);
          std::memcpy(ElementIn(array, e), &bits, size);
          if (array.format.block == 0) continue;
          const uint64_t scale = StampOf(seed, parameter.name(), part,
                                         e / array.format.block, true);
          std::memcpy(ScaleIn(array, e), &scale, 4);
        }
        return absl::OkStatus();
      }));
  TESSERA_RETURN_IF_ERROR(state.optimizer().Settle());
  state.scaler().Restore(1 + static_cast<double>(seed) / 3, seed + 5);
  return state.FinishRestoring(seed);
}

absl::Status CheckStamp(ShardedState& state, int64_t seed) {
  if (state.steps() != seed ||
      state.scaler().scale() != 1 + static_cast<double>(seed) / 3 ||
      state.scaler().steps_since_change() != seed + 5) {
    return absl::UnavailableError(
        absl::StrCat("steps or loss scale are not those of ", seed, ": ",
                     state.steps(), ", ", state.scaler().scale()));
  }
  return ForEachPart(
      state, /*changes=*/false,
      [&](const ModelParameter& parameter, StatePart part, const Extent& extent,
          const StateArray& array) {
        const auto size = static_cast<size_t>(SizeInBytes(array.format.dtype));
        for (int64_t e = extent.begin; e < extent.end; ++e) {
          const uint64_t bits = StampOf(seed, parameter.name(), part, e, false);
          bool is_right = std::memcmp(ElementIn(array, e), &bits, size) == 0;
          if (array.format.block > 0) {
            const uint64_t scale = StampOf(seed, parameter.name(), part,
                                           e / array.format.block, true);
            is_right &= std::memcmp(ScaleIn(array, e), &scale, 4) == 0;
          }
          if (is_right) continue;
          return absl::UnavailableError(
              absl::StrCat("element ", e, " of the ", StatePartName(part),
                           " of ", parameter.name(), " is wrong"));
        }
        return absl::OkStatus();
      });
}

absl::Status FillFirst(ShardedState& state) {
  return state.Fill(
      [](const ModelParameter& parameter, int64_t begin, TensorView elements) {
        std::vector<double> values;
        for (int64_t i = 0; i < elements.element_count(); ++i) {
          values.push_back(FirstValue(parameter.id.value(), begin + i));
        }
        return Convert(
            DType::kF64, std::as_bytes(std::span(values)), elements.dtype(),
            {elements.data(), static_cast<size_t>(elements.size_in_bytes())});
      });
}

absl::Status TrainSteps(ShardedState& state, const RankGroups& groups,
                        int64_t parts, int64_t begin, int64_t end) {
  const int64_t world = groups.world->size();
  const int64_t mine = parts / world;
  for (int64_t step = begin; step < end; ++step) {
    for (int64_t i = 0; i < mine; ++i) {
      const bool reduce = state.options().stage >= 2 || i + 1 == mine;
      TESSERA_RETURN_IF_ERROR(
          RunPart(state, step, groups.rank + i * world, reduce));
    }
    TESSERA_RETURN_IF_ERROR(state.Step().status());
  }
  return absl::OkStatus();
}

std::string NewDirectory(const std::string& name) {
  static std::atomic<int> counter = 0;
  const char* const base = std::getenv("TEST_TMPDIR");
  const std::string path =
      absl::StrCat(base != nullptr ? base : "/tmp", "/", name, ".", counter++);
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  return path;
}

absl::Status AllOk(const std::vector<absl::Status>& statuses) {
  absl::Status first;
  for (const absl::Status& status : statuses) first.Update(status);
  return first;
}

}  // namespace tessera::zero3::testing
