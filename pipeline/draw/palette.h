// The colours of a picture: one for each kind of action, a shade for each chunk
// of a rank, told apart by people with any colour vision (after Okabe and
// Ito, "Color Universal Design", 2008), on a white ground.
//
//   ColourOf(ActionKind::kForward, 0, 2).ToHex();    // "#3a93c2"
#ifndef TESSERA_PIPELINE_DRAW_PALETTE_H_
#define TESSERA_PIPELINE_DRAW_PALETTE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "pipeline/schedule/action.h"

namespace tessera::pipeline {

// Parts of 255.
struct Colour {
  double red = 0;
  double green = 0;
  double blue = 0;

  // "#rrggbb"
  std::string ToHex() const;
  // 0 black to 1 white, as WCAG 2 defines relative luminance.
  double Luminance() const;
};

inline constexpr Colour kWhite = {255, 255, 255};
inline constexpr Colour kOptimizer = {120, 116, 132};
inline constexpr Colour kInk = {26, 26, 32};      // Text and outlines.
inline constexpr Colour kIdle = {236, 237, 241};  // A rank's row.

// `share` 0 gives `a`, 1 gives `b`.
Colour Mix(const Colour& a, const Colour& b, double share);

// Of an action of the `chunk`-th of the rank's `chunks` stages: the first has
// the darkest shade.
Colour ColourOf(ActionKind kind, int64_t chunk = 0, int64_t chunks = 1);

// Ink or white, whichever reads better on `ground`.
Colour TextOn(const Colour& ground);

// Of a rank's curve: from dark to light over the ranks.
Colour ColourOfRank(int64_t rank, int64_t ranks);

// "forward", "send"...: what the legend says of it. Kinds that share a colour
// share the words.
std::string_view LegendOf(ActionKind kind);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_PALETTE_H_
