#include "collectives/adaptive/measure_links.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "base/status_macros.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {
namespace {

constexpr std::array<int64_t, 5> kSizes = {64, 1024, 16 << 10, 128 << 10,
                                           1 << 20};
constexpr int kRepeats = 7;

double Since(int64_t begin) {
  return static_cast<double>(MonotonicNanos() - begin) * 1e-9;
}

// The first rank that is near rank 0, or is not.
std::optional<Rank> PeerOfRankZero(const Communicator& communicator,
                                   bool near) {
  const Hierarchy* hierarchy = communicator.options().hierarchy.get();
  for (int64_t r = 1; r < communicator.size(); ++r) {
    bool is_near = true;
    if (hierarchy != nullptr && hierarchy->levels() > 0) {
      const int64_t outermost = hierarchy->levels() - 1;
      is_near = hierarchy->GroupOf(outermost, Rank(r)) ==
                hierarchy->GroupOf(outermost, Rank(0));
    }
    if (is_near == near) return Rank(r);
  }
  return std::nullopt;
}

absl::Status SendAndReturn(Communicator& communicator, Buffer buffer,
                           Rank peer) {
  if (communicator.rank() == Rank(0)) {
    TESSERA_RETURN_IF_ERROR(communicator.Send(buffer, peer));
    return communicator.Receive(buffer, peer);
  }
  if (communicator.rank() != peer) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(communicator.Receive(buffer, Rank(0)));
  return communicator.Send(buffer, Rank(0));
}

// Half of the fastest way to and fro, at each size; known to rank 0 and `peer`.
absl::StatusOr<std::vector<SizePoint>> MeasureMessages(
    Communicator& communicator, Rank peer) {
  std::vector<uint8_t> memory(static_cast<size_t>(kSizes.back()));
  std::vector<SizePoint> points;
  for (const int64_t size : kSizes) {
    const Buffer buffer(memory.data(), size, DType::kU8);
    double fastest = 1e3;
    for (int i = 0; i < kRepeats; ++i) {
      const int64_t begin = MonotonicNanos();
      TESSERA_RETURN_IF_ERROR(SendAndReturn(communicator, buffer, peer));
      if (i > 0) fastest = std::min(fastest, Since(begin) / 2);
    }
    points.push_back({size, std::max(fastest, 1e-9)});
  }
  return points;
}

// Seconds a byte of adding one array to another, and of copying one.
std::array<double, 2> MeasureMemory() {
  constexpr int64_t kCount = 64 << 10;
  std::vector<float> a(kCount, 1.0f), b(kCount, 0.0f);
  const std::array<const void*, 2> sources = {a.data(), b.data()};
  const std::array<void*, 1> destinations = {b.data()};
  Combination sum;
  sum.dtype = DType::kF32;
  double add = 1e3, copy = 1e3;
  for (int i = 0; i < kRepeats; ++i) {
    int64_t begin = MonotonicNanos();
    Combine(sum, sources, destinations, kCount);
    add = std::min(add, Since(begin));
    begin = MonotonicNanos();
    CopyBytes(b.data(), a.data(), kCount * 4);
    copy = std::min(copy, Since(begin));
  }
  return {std::max(add, 1e-9) / (kCount * 4),
          std::max(copy, 1e-9) / (kCount * 4)};
}

// Whether the engine has point-to-point messages, which every rank finds out by
// itself: by one of no bytes to itself.
absl::StatusOr<bool> HasMessages(Communicator& communicator) {
  const Rank self = communicator.rank();
  const absl::Status status =
      communicator.SendReceive(ConstBuffer(), self, Buffer(), self);
  if (absl::IsUnimplemented(status)) return false;
  TESSERA_RETURN_IF_ERROR(status);
  return true;
}

// Seconds of one round of a barrier: what a message of a collective costs,
// where messages that users send take a detour over other threads.
absl::StatusOr<double> MeasureRound(Communicator& communicator) {
  constexpr int kBatch = 8;
  CallOptions call;
  call.algorithm = Algorithm::kRecursiveDoubling;
  const double rounds = std::ceil(std::log2(
      static_cast<double>(std::max<int64_t>(communicator.size(), 2))));
  double fastest = 1e3;
  for (int i = 0; i < kRepeats; ++i) {
    const int64_t begin = MonotonicNanos();
    for (int j = 0; j < kBatch; ++j) {
      TESSERA_RETURN_IF_ERROR(communicator.Barrier(call));
    }
    fastest = std::min(fastest, Since(begin));
  }
  return std::max(fastest / kBatch / rounds, 1e-9);
}

// `other` where there is no such peer.
absl::StatusOr<Line> MeasureLine(Communicator& communicator,
                                 std::optional<Rank> peer, const Line& other) {
  if (!peer.has_value()) return other;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SizePoint> points,
                           MeasureMessages(communicator, *peer));
  TESSERA_RETURN_IF_ERROR(communicator.Barrier());
  return FitLine(points);
}

}  // namespace

absl::StatusOr<FormulaCosts> MeasureLinks(Communicator& communicator) {
  const std::array<double, 2> memory = MeasureMemory();
  const Line copy = {1e-6, memory[1]};
  FormulaCosts costs = {copy, copy, memory[0]};
  TESSERA_ASSIGN_OR_RETURN(const bool has_messages, HasMessages(communicator));
  if (has_messages) {
    const auto near_peer = PeerOfRankZero(communicator, /*near=*/true);
    const auto far_peer = PeerOfRankZero(communicator, /*near=*/false);
    TESSERA_RETURN_IF_ERROR(communicator.Barrier());
    TESSERA_ASSIGN_OR_RETURN(costs.near,
                             MeasureLine(communicator, near_peer, copy));
    TESSERA_ASSIGN_OR_RETURN(costs.far,
                             MeasureLine(communicator, far_peer, costs.near));
    if (!near_peer.has_value()) costs.near = costs.far;
    TESSERA_ASSIGN_OR_RETURN(const double round, MeasureRound(communicator));
    costs.near.alpha = std::min(costs.near.alpha, round);
    costs.far.alpha = std::min(costs.far.alpha, round);
  }
  // Only rank 0 and its peers know.
  std::array<double, 5> values = {costs.near.alpha, costs.near.beta,
                                  costs.far.alpha, costs.far.beta, costs.gamma};
  TESSERA_RETURN_IF_ERROR(
      communicator.Broadcast(Buffer(values.data(), 5, DType::kF64), Rank(0)));
  return FormulaCosts{
      {values[0], values[1]}, {values[2], values[3]}, values[4]};
}

}  // namespace tessera::collectives
