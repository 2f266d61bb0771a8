// Fitting of measured times: a line of latency and bandwidth, and a curve
// through points.
//
//   Line line = FitLine(points);            // seconds = alpha + beta * bytes
//   double seconds = CurveAt(points, 3000); // between the measured sizes
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_FIT_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_FIT_H_

#include <cstdint>
#include <span>

namespace tessera::collectives {

// A size and what was measured there: seconds, or a factor.
struct SizePoint {
  int64_t bytes = 0;
  double value = 0;

  friend bool operator==(const SizePoint&, const SizePoint&) = default;
};

// The model of Hockney (Parallel Computing 20, 1994): latency and the inverse
// of bandwidth.
struct Line {
  double alpha = 0;  // Seconds.
  double beta = 0;   // Seconds a byte.

  friend bool operator==(const Line&, const Line&) = default;
};

// The line of least squares of the relative errors, so that a microsecond
// counts at small sizes as much as a millisecond at large ones. Neither
// coefficient is negative: where one would be, the other is fitted alone.
// Values are above 0; no points give zeros.
Line FitLine(std::span<const SizePoint> points);

// The curve through points of ascending sizes, straight between neighbours on
// logarithmic scales. Below the first it is level; above the last it grows with
// the size as the last two points say (level to proportional). Values are above
// 0; without points 0.
double CurveAt(std::span<const SizePoint> points, int64_t bytes);

// As CurveAt, but level beyond the last point as well: for factors.
double FactorAt(std::span<const SizePoint> points, int64_t bytes);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_FIT_H_
