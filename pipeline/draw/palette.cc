#include "pipeline/draw/palette.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_format.h"

namespace tessera::pipeline {
namespace {

Colour BaseOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return {0, 114, 178};
    case ActionKind::kBackward:
      return {213, 94, 0};
    case ActionKind::kBackwardInput:
      return {235, 170, 10};
    case ActionKind::kBackwardWeight:
      return {15, 172, 118};
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return {90, 70, 140};
    case ActionKind::kReceiveForward:
    case ActionKind::kReceiveBackward:
      return {176, 160, 214};
    case ActionKind::kUnshard:
      return {86, 180, 233};
    case ActionKind::kReshard:
      return {150, 150, 150};
    case ActionKind::kReduceGradient:
      return {204, 121, 167};
  }
  return kInk;
}

double Linear(double part) {
  const double share = part / 255;
  return share <= 0.04045 ? share / 12.92
                          : std::pow((share + 0.055) / 1.055, 2.4);
}

}  // namespace

std::string Colour::ToHex() const {
  const auto byte = [](double part) {
    return static_cast<int>(std::lround(std::clamp(part, 0.0, 255.0)));
  };
  return absl::StrFormat("#%02x%02x%02x", byte(red), byte(green), byte(blue));
}

double Colour::Luminance() const {
  return 0.2126 * Linear(red) + 0.7152 * Linear(green) + 0.0722 * Linear(blue);
}

Colour Mix(const Colour& a, const Colour& b, double share) {
  return {a.red + (b.red - a.red) * share,
          a.green + (b.green - a.green) * share,
          a.blue + (b.blue - a.blue) * share};
}

Colour ColourOf(ActionKind kind, int64_t chunk, int64_t chunks) {
  if (!Computes(kind)) return BaseOf(kind);
  constexpr double kDarkest = 0.22;  // Of white, so that text reads on it.
  constexpr double kLightest = 0.66;
  const double place =
      chunks > 1 ? static_cast<double>(chunk) / static_cast<double>(chunks - 1)
                 : 0;
  return Mix(BaseOf(kind), kWhite, kDarkest + (kLightest - kDarkest) * place);
}

Colour TextOn(const Colour& ground) {
  const auto contrast = [&](const Colour& text) {
    const double a = ground.Luminance() + 0.05;
    const double b = text.Luminance() + 0.05;
    return std::max(a, b) / std::min(a, b);
  };
  return contrast(kInk) >= contrast(kWhite) ? kInk : kWhite;
}

Colour ColourOfRank(int64_t rank, int64_t ranks) {
  constexpr std::array<Colour, 5> kScale = {{{68, 1, 84},
                                             {59, 82, 139},
                                             {33, 145, 140},
                                             {94, 175, 70},
                                             {224, 160, 0}}};
  if (ranks <= 1) return kScale[1];
  const double place = static_cast<double>(rank) *
                       static_cast<double>(kScale.size() - 1) /
                       static_cast<double>(ranks - 1);
  const size_t at = std::min(static_cast<size_t>(place), kScale.size() - 2);
  return Mix(kScale[at], kScale[at + 1], place - static_cast<double>(at));
}

std::string_view LegendOf(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "F forward";
    case ActionKind::kBackward:
      return "B backward";
    case ActionKind::kBackwardInput:
      return "I backward, input";
    case ActionKind::kBackwardWeight:
      return "W backward, weights";
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return "send";
    case ActionKind::kReceiveForward:
    case ActionKind::kReceiveBackward:
      return "receive";
    case ActionKind::kUnshard:
      return "unshard";
    case ActionKind::kReshard:
      return "reshard";
    case ActionKind::kReduceGradient:
      return "reduce gradient";
  }
  return "";
}

}  // namespace tessera::pipeline
