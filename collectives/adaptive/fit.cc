#include "collectives/adaptive/fit.h"

#include <algorithm>
#include <cmath>

namespace tessera::collectives {
namespace {

double LogBytes(int64_t bytes) {
  return std::log(static_cast<double>(std::max<int64_t>(bytes, 1)));
}

// Between `a` and `b`, or on beyond them.
double OnLogLine(const SizePoint& a, const SizePoint& b, int64_t bytes,
                 double slope_low, double slope_high) {
  const double width = LogBytes(b.bytes) - LogBytes(a.bytes);
  if (width <= 0) return b.value;
  const double slope = std::clamp(
      (std::log(b.value) - std::log(a.value)) / width, slope_low, slope_high);
  const SizePoint& from = bytes >= b.bytes ? b : a;
  return from.value *
         std::exp(slope * (LogBytes(bytes) - LogBytes(from.bytes)));
}

// The first point that is not below `bytes`; strictly between two of them.
size_t UpperIndex(std::span<const SizePoint> points, int64_t bytes) {
  const auto upper = std::lower_bound(
      points.begin(), points.end(), bytes,
      [](const SizePoint& point, int64_t b) { return point.bytes < b; });
  return static_cast<size_t>(upper - points.begin());
}

constexpr double kAnySlope = 1e9;

double Inside(std::span<const SizePoint> points, int64_t bytes) {
  const size_t upper = UpperIndex(points, bytes);
  return OnLogLine(points[upper - 1], points[upper], bytes, -kAnySlope,
                   kAnySlope);
}

}  // namespace

Line FitLine(std::span<const SizePoint> points) {
  // Minimises sum ((alpha + beta x) / y - 1)^2.
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const SizePoint& point : points) {
    const double u = 1 / point.value;
    const double v = static_cast<double>(point.bytes) / point.value;
    aa += u * u;
    ab += u * v;
    bb += v * v;
    a += u;
    b += v;
  }
  if (aa == 0) return {};
  const double determinant = aa * bb - ab * ab;
  if (bb == 0 || determinant <= 1e-12 * aa * bb) return {a / aa, 0};
  const Line line = {(a * bb - b * ab) / determinant,
                     (b * aa - a * ab) / determinant};
  if (line.alpha < 0) return {0, b / bb};
  if (line.beta < 0) return {a / aa, 0};
  return line;
}

double CurveAt(std::span<const SizePoint> points, int64_t bytes) {
  if (points.empty()) return 0;
  if (bytes <= points.front().bytes) return points.front().value;
  if (bytes < points.back().bytes) return Inside(points, bytes);
  if (points.size() == 1) {
    return points[0].value * static_cast<double>(bytes) /
           static_cast<double>(std::max<int64_t>(points[0].bytes, 1));
  }
  return OnLogLine(points[points.size() - 2], points.back(), bytes, 0, 1);
}

double FactorAt(std::span<const SizePoint> points, int64_t bytes) {
  if (points.empty()) return 1;
  if (bytes <= points.front().bytes) return points.front().value;
  if (bytes >= points.back().bytes) return points.back().value;
  return Inside(points, bytes);
}

}  // namespace tessera::collectives
