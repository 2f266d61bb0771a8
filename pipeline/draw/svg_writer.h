// SvgWriter and the palette of the pictures.
#ifndef TESSERA_PIPELINE_DRAW_SVG_WRITER_H_
#define TESSERA_PIPELINE_DRAW_SVG_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {

// The colours of a picture: one for each kind of action, a shade for each chunk
// of a rank, distinguishable with any colour vision (after Okabe and Ito,
// "Color Universal Design", 2008), on a white background.
//
//   ColourOf(ActionKind::kForward, 0, 2).ToHex();    // "#3a93c2"

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

// The colour of an action of the `chunk`-th of the rank's `chunks` stages; the
// first has the darkest shade.
Colour ColourOf(ActionKind kind, int64_t chunk = 0, int64_t chunks = 1);

// Ink or white, whichever reads better on `ground`.
Colour TextOn(const Colour& ground);

// The colour of a rank's curve: from dark to light over the ranks.
Colour ColourOfRank(int64_t rank, int64_t ranks);

// "forward", "send"...: the legend's text. Kinds with the same colour share it.
std::string_view LegendOf(ActionKind kind);

// SvgWriter: the elements of an SVG document, one a line.
//
//   SvgWriter svg(640, 480);
//   svg.Text({.x = 10, .y = 20, .classes = "title"}, "ranks < 4");
//   std::string document = std::move(svg).Finish();
//
// Coordinates are pixels, written with two decimals at most. Texts are escaped.

// `text` as XML's text or attribute: & < > " ' escaped, bytes that are no UTF-8
// or no character of XML 1.0 as "?".
std::string XmlText(std::string_view text);

// "12.5": two decimals at most, no zeros at the end.
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
  double y = 0;  // Of the base line.
  std::string_view classes = {};
  std::string fill = {};  // Empty: the class's.
  double size = 0;        // In pixels; 0: the class's.
};

class SvgWriter {
 public:
  // A document on white ground. The classes of text are title, note, small
  // (left), right and middle (small, aligned otherwise).
  SvgWriter(double width, double height, std::string_view description);

  // A tooltip is left out if it is empty.
  void Box(const SvgBox& box, std::string_view tooltip = "");
  void Text(const SvgLabel& label, std::string_view text);
  void Line(double x1, double y1, double x2, double y2,
            std::string_view attributes);
  // `data` is the value of a path's d attribute.
  void Path(std::string_view data, std::string_view attributes);

  // Elements between Begin and End form one group: "panel", "rank 3".
  void Begin(std::string_view name);
  void End();

  std::string Finish() &&;

 private:
  std::string text_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_SVG_WRITER_H_
