// Strategy: how early and how much to offload, and the budgets that follow.
//
//   TraitsOf(Strategy::kAggressive).threshold_percent;        // 60
//   EffectiveBudget(ByteSize(32 << 30), Strategy::kAggressive);  // 60 % of it
//
// All in exact integers: shares are whole percents.
#ifndef TESSERA_ZERO3_CONFIG_STRATEGY_H_
#define TESSERA_ZERO3_CONFIG_STRATEGY_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "base/byte_size.h"
#include "topology/config/options/named_enum.h"

namespace tessera::zero3 {

// Found by argument-dependent look-up for the enumerations of this namespace.
using topology::AbslParseFlag;
using topology::AbslUnparseFlag;
using topology::operator<<;

enum class Strategy { kConservative, kBalanced, kAggressive, kExtreme };

struct StrategyTraits {
  Strategy strategy;
  // Of a budget: what is used beyond it is offloaded.
  int64_t threshold_percent;
  // Of what could be offloaded then: how much is.
  int64_t aggressiveness_percent;
};

inline constexpr auto kStrategies = std::to_array<StrategyTraits>({
    {Strategy::kConservative, 90, 20},
    {Strategy::kBalanced, 75, 50},
    {Strategy::kAggressive, 60, 80},
    {Strategy::kExtreme, 40, 100},
});

// Those of kExtreme for a value outside the enumeration.
constexpr const StrategyTraits& TraitsOf(Strategy strategy) {
  for (const StrategyTraits& traits : kStrategies) {
    if (traits.strategy == strategy) return traits;
  }
  return kStrategies.back();
}

// bytes * percent / 100, rounded down, without overflow. Preconditions:
// bytes >= 0, 0 <= percent <= 100.
constexpr ByteSize PercentOf(ByteSize bytes, int64_t percent) {
  // With bytes = 100 q + r this is q * percent + floor(r * percent / 100).
  return ByteSize(bytes.bytes() / 100 * percent +
                  bytes.bytes() % 100 * percent / 100);
}

// How much of a budget may be used before the strategy acts.
constexpr ByteSize EffectiveBudget(ByteSize budget, Strategy strategy) {
  return PercentOf(budget, TraitsOf(strategy).threshold_percent);
}

// How many of the bytes that can be offloaded go when `used` exceeds the
// effective budget, rounded up so that an excess is never answered by nothing;
// 0 where it does not. Preconditions: no argument is negative.
constexpr ByteSize BytesToOffload(ByteSize used, ByteSize offloadable,
                                  ByteSize budget, Strategy strategy) {
  if (used <= EffectiveBudget(budget, strategy)) return ByteSize(0);
  const int64_t stays = 100 - TraitsOf(strategy).aggressiveness_percent;
  return ByteSize(offloadable.bytes() - PercentOf(offloadable, stays).bytes());
}

}  // namespace tessera::zero3

template <>
struct tessera::topology::EnumNames<tessera::zero3::Strategy> {
  static constexpr std::string_view kWhat = "offload strategy";
  static constexpr auto kTable = std::to_array<NamedValue<zero3::Strategy>>({
      {"conservative", zero3::Strategy::kConservative},
      {"balanced", zero3::Strategy::kBalanced},
      {"aggressive", zero3::Strategy::kAggressive},
      {"extreme", zero3::Strategy::kExtreme},
  });
};

#endif  // TESSERA_ZERO3_CONFIG_STRATEGY_H_
