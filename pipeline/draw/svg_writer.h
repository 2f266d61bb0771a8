// SvgWriter: the elements of an SVG document, one a line.
//
//   SvgWriter svg(640, 480);
//   svg.Text({.x = 10, .y = 20, .classes = "title"}, "ranks < 4");
//   std::string document = std::move(svg).Finish();
//
// Coordinates are pixels, written with two decimals at most. Texts are escaped.
#ifndef TESSERA_PIPELINE_DRAW_SVG_WRITER_H_
#define TESSERA_PIPELINE_DRAW_SVG_WRITER_H_

#include <string>
#include <string_view>

namespace tessera::pipeline {

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

  // A tooltip is left out where it is empty.
  void Box(const SvgBox& box, std::string_view tooltip = "");
  void Text(const SvgLabel& label, std::string_view text);
  void Line(double x1, double y1, double x2, double y2,
            std::string_view attributes);
  // `data` is what stands in a path's d.
  void Path(std::string_view data, std::string_view attributes);

  // What comes between is one group: "panel", "rank 3".
  void Begin(std::string_view name);
  void End();

  std::string Finish() &&;

 private:
  std::string text_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_SVG_WRITER_H_
