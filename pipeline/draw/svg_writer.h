// The elements of SVG drawings (SvgWriter), and their colours (Colour,
// ColourOf).
#ifndef TESSERA_PIPELINE_DRAW_SVG_WRITER_H_
#define TESSERA_PIPELINE_DRAW_SVG_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// An RGB colour, with components from 0 to 255.
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

// Interpolates linearly: `share` 0 returns `a`, 1 returns `b`.
Colour Mix(const Colour& a, const Colour& b, double share);

// The colour of an action of the `chunk`-th of the rank's `chunks` stages: one
// hue for each kind of action, one shade for each chunk, the first the darkest.
// The palette is distinguishable with any colour vision on a white background
// (after Okabe and Ito, "Color Universal Design", 2008).
//
//   ColourOf(ActionKind::kForward, 0, 2).ToHex();    // "#3a93c2"
Colour ColourOf(ActionKind kind, int64_t chunk = 0, int64_t chunks = 1);

// The more legible of ink and white on the background `ground`.
Colour TextOn(const Colour& ground);

// The colour of a rank's curve: from dark to light over the ranks.
Colour ColourOfRank(int64_t rank, int64_t ranks);

// The legend's text: "forward", "send"... Kinds with the same colour share a
// text.
std::string_view LegendOf(ActionKind kind);

// Escapes `text` for XML text or attributes: escapes & < > " ', and replaces
// bytes that are not valid UTF-8 or not a character of XML 1.0 by "?".
std::string XmlText(std::string_view text);

// "12.5": at most two decimals, no trailing zeros.
std::string PixelText(double pixels);

struct SvgBox {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
  std::string fill = "none";
  std::string stroke = {};  // Empty: none.
};

struct SvgLabel {
  double x = 0;
  double y = 0;  // The baseline.
  std::string_view classes = {};
  std::string fill = {};  // Empty: that of the class.
  double size = 0;        // In pixels; 0: that of the class.
};

// Writes an SVG document, one element per line.
//
//   SvgWriter svg(640, 480, "two ranks");
//   svg.Text({.x = 10, .y = 20, .classes = "title"}, "ranks < 4");
//   std::string document = std::move(svg).Finish();
//
// Coordinates are pixels, written with at most two decimals. Texts are escaped.
class SvgWriter {
 public:
  // Begins a document with a white background. The classes of text are title,
  // note, small (left-aligned), right and middle (small, with that alignment).
  SvgWriter(double width, double height, std::string_view description);

  // An empty tooltip is omitted.
  void Box(const SvgBox& box, std::string_view tooltip = "");
  void Text(const SvgLabel& label, std::string_view text);
  void Line(double x1, double y1, double x2, double y2,
            std::string_view attributes);
  // `data` is the value of a path's d attribute.
  void Path(std::string_view data, std::string_view attributes);

  // Elements between Begin and End form one group, with a name such as "panel"
  // or "rank 3".
  void Begin(std::string_view name);
  void End();

  std::string Finish() &&;

 private:
  std::string text_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_SVG_WRITER_H_
