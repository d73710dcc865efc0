// The adaptive quadrature of quadrature.py for CUDA: the same columns, points and decisions, LANES threads for each sample.
//
// The lanes of a sample share out the columns of a piece and keep their sums in registers; nothing but the moments is
// written to memory. FULL (0 or 1) and LANES are given at compile time. Without CUDA it is one function for a C++ compiler,
// one lane, which is how tests/channels/sequence/test_softmax_cuda.py checks the mathematics on any machine.

#if FULL
#define NUMBER 15
#else
#define NUMBER 8
#endif

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#else
#include <math.h>
#define DEVICE static inline
#undef LANES
#define LANES 1
#endif

#define PIECES 4
#define FAR 700.0
#define UNBOUNDED 1e308

struct Problem {
  double v11, v22, b, noise, skip, accuracy;
  int points, rounds;
  double negligible, share;
};

struct Sample {
  double u1, u2, mean11, mean12, mean21, mean22, reach, level;
  double middle, gap;
};

struct Piece {
  double lower, upper, x0, x1, y0, y1, spread, sign;
};

struct Column {
  double d, left, step, k, rest, first, second, slope, weight;
};

DEVICE double clip(double x, double low, double high) { return fmin(fmax(x, low), high); }

// E where x(E) = x: 0 where every E has a smaller x, unbounded where none has
DEVICE double root_of(double x, double k, double c) {
  double tail = k * (1.0 - c * x);
  if (tail <= 0.0) return 0.0;
  double a = c * k * x;
  double b = (c * (1.0 + k * k) + (1.0 - k * k)) * x - k * k;
  double root = sqrt(b * b + 4.0 * a * tail);
  if (b >= 0.0) return b + root > 0.0 ? 2.0 * tail / (b + root) : UNBOUNDED;
  return a > 0.0 ? (root - b) / (2.0 * a) : UNBOUNDED;
}

DEVICE double bounded_log(double x) { return x <= 0.0 ? -FAR : clip(log(x), -FAR, FAR); }

// d of the first layer whose attention has the coordinates (x, y)
DEVICE double gap_of(double x, double y, double c) {
  double squared = log(1.0 + y - c * x) + log(1.0 + x - c * y) - 2.0 * log1p(c) - log(x) - log(y);
  return sqrt(fmax(squared, 0.0));
}

// One of the four pieces: the sign of u (index / 2) and the sign of d (index % 2); false where there is none.
DEVICE bool find_piece(const Problem& p, const Sample& s, int index, Piece& piece) {
  double c = p.skip, sign = index < 2 ? 1.0 : -1.0;
  double first = s.u1 / (1.0 + c), second = s.u2 / (1.0 + c), slope = first - second;
  double width = s.reach * sqrt(p.v22), span = sqrt(2.0) * sqrt(p.v11) * s.reach;
  double farthest = c > 0.0 ? 1.0 / c : UNBOUNDED, largest = fmin(farthest, 1e14);
  double divisor = fabs(slope) >= 1e-150 ? slope : 1e-150;
  double xa = (sign * s.mean21 - first - width) / divisor, xb = (sign * s.mean21 - first + width) / divisor;
  double ya = (second - sign * s.mean22 - width) / divisor, yb = (second - sign * s.mean22 + width) / divisor;
  double x0 = fmax(fmin(xa, xb), 0.0), x1 = fmax(xa, xb), y0 = fmax(fmin(ya, yb), 0.0), y1 = fmax(ya, yb);
  if (x1 <= 0.0 || y1 <= 0.0 || x0 + y0 >= largest) return false;
  x1 = fmin(x1, largest - y0);
  y1 = fmin(y1, largest - x0);
  bool joined = x1 + y1 >= farthest;
  if (joined && index % 2) return false;  // a joined piece covers both signs of d
  double near = joined ? 0.0 : gap_of(x1, y1, c);
  double far = x0 <= 0.0 || y0 <= 0.0 ? 1e150 : gap_of(x0, y0, c);
  double lower = index % 2 || joined ? -far : near, upper = index % 2 ? -near : far;
  lower = fmax(lower, s.gap - span);
  upper = fmin(upper, s.gap + span);
  if (!(upper > lower)) return false;
  double narrow = fabs(s.mean21 - s.mean22) + 3.0 * sqrt(p.noise);
  piece.spread = sqrt(4.0 * c + 0.3 * fabs(s.u1 - s.u2) / narrow + 1e-12);
  piece.lower = asinh(lower / piece.spread);
  piece.upper = asinh(upper / piece.spread);
  piece.x0 = x0;
  piece.x1 = x1;
  piece.y0 = y0;
  piece.y1 = y1;
  piece.sign = sign;
  return true;
}

// Column j of `count`; false where it is empty.
DEVICE bool find_column(
    const Problem& p, const Sample& s, const Piece& piece, int count, int j, double offset, Column& column) {
  double c = p.skip, step = (piece.upper - piece.lower) / count;
  double grown = exp(piece.lower + (j + offset) * step);
  double d = 0.5 * piece.spread * (grown - 1.0 / grown);
  if (fabs(d) < 1e-12) d = 1e-12;
  double radius = 0.5 * (s.reach * s.reach * p.v11 - 0.5 * (d - s.gap) * (d - s.gap));
  if (radius <= 0.0) return false;
  double k = exp(fmax(-0.5 * d * d, -FAR));
  // x <= x1 and y >= y0, then x >= x0 and y <= y1; y(E) = x(1/E)
  double below = root_of(piece.x1, k, c), above = root_of(piece.y0, k, c);
  double low = bounded_log(fmax(below, above > 0.0 ? 1.0 / above : UNBOUNDED));
  below = root_of(piece.x0, k, c);
  above = root_of(piece.y1, k, c);
  double high = bounded_log(fmin(below, above > 0.0 ? 1.0 / above : UNBOUNDED));
  if (!(low < high)) return false;
  double half = sqrt(radius), one = low / d, other = high / d;
  double left = fmax(fmin(one, other), s.middle - half), right = fmin(fmax(one, other), s.middle + half);
  if (right <= left) return false;
  column.d = d;
  column.left = left;
  column.step = (right - left) / p.points;
  column.k = k;
  column.rest = d * d > 1.0 ? 1.0 - k * k : -expm1(-d * d);
  double first = s.u1 / (1.0 + c), second = s.u2 / (1.0 + c);
  // z_2 - omega_2 at x = y = 0 and its slope, with the sign of u put in
  column.first = piece.sign * first - s.mean21;
  column.second = piece.sign * second - s.mean22;
  column.slope = piece.sign * (first - second);
  column.weight = 0.5 * piece.spread * (grown + 1.0 / grown) * step;
  return true;
}

DEVICE void add_points(
    const Problem& p, const Sample& s, const Column& column, int count, double step, double offset, double* sums) {
  double half = 0.5 * (column.d - s.gap), prior = -0.5 / p.v11, likelihood = -0.5 / p.noise;
#pragma unroll
  for (int i = 0; i < NUMBER; i++) sums[i] = 0.0;
  for (int point = 0; point < count; point++) {
    double m = column.left + (point + offset) * step;
    double E = exp(clip(m * column.d, -300.0, 300.0));
    double kE = column.k * E, one = E + column.k, two = 1.0 + kE, N = one * two;
    double inverse = 1.0 / (p.skip * N + column.rest * E), kinv = column.slope * inverse;
    double e1 = column.first + (column.k * two) * kinv, e2 = column.second - (kE * one) * kinv;
    double shifted = m - s.middle, a1 = shifted + half, a2 = shifted - half, aa = a1 * a1 + a2 * a2;
    double r1 = e1 - p.b * a1, r2 = e2 - p.b * a2;
    double w = exp(clip(prior * aa + likelihood * (r1 * r1 + r2 * r2) - s.level, -FAR, FAR)) * (N * inverse);
    double w1 = w * a1, w2 = w * a2, w3 = w * e1, w4 = w * e2;
    sums[0] += w;
    sums[1] += w1;
    sums[2] += w2;
    sums[3] += w3;
    sums[4] += w4;
#if FULL
    sums[5] += w1 * a1;
    sums[6] += w1 * a2;
    sums[7] += w1 * e1;
    sums[8] += w1 * e2;
    sums[9] += w2 * a2;
    sums[10] += w2 * e1;
    sums[11] += w2 * e2;
    sums[12] += w3 * e1;
    sums[13] += w3 * e2;
    sums[14] += w4 * e2;
#else
    sums[5] += w * aa;
    sums[6] += w1 * e1 + w2 * e2;
    sums[7] += w3 * e1 + w4 * e2;
#endif
  }
  double factor = step * column.weight;
#pragma unroll
  for (int i = 0; i < NUMBER; i++) sums[i] *= factor;
}

// Half the difference of two estimates in units of the total: the largest over the first moments.
DEVICE double spread_of(const Problem& p, const double* one, const double* two) {
  double first = sqrt(p.v11), second = sqrt(p.v22), total = 0.5 * (one[0] + two[0]);
  double scale[5] = {1.0, first, first, second, second}, largest = 0.0;
#pragma unroll
  for (int i = 0; i < 5; i++) largest = fmax(largest, 0.5 * fabs(one[i] - two[i]) / scale[i]);
  return fmin(total > 0.0 ? largest / total : largest, 1.0);
}

DEVICE double expected(double ratio) { return ratio * ratio * sqrt(sqrt(ratio)); }

// Sum over the lanes of a sample; all of them get it.
DEVICE double over_lanes(double value, unsigned mask) {
#ifdef __CUDACC__
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(mask, value, distance, LANES);
#endif
  return value;
}

// First sums of a column, then twice the points until two halves agree; returns the error of the partition function.
DEVICE double refine_column(
    const Problem& p, const Sample& s, const Column& column, double partition, double* sums) {
  double more[NUMBER], error = 0.0, step = column.step;
  int count = p.points;
  add_points(p, s, column, count, step, 0.0, sums);
  if (!(sums[0] > p.negligible * p.accuracy * partition)) return 0.0;
  for (int round = 0; round < p.rounds; round++) {
    add_points(p, s, column, count, step, 0.5, more);
    double ratio = spread_of(p, sums, more);
#pragma unroll
    for (int i = 0; i < NUMBER; i++) sums[i] = 0.5 * (sums[i] + more[i]);
    error = ratio * ratio * sums[0];
    if (!(ratio >= 1.0 || expected(ratio) * sums[0] > p.share * p.accuracy * partition)) break;
    count *= 2;
    step *= 0.5;
  }
  return error;
}

// total: NUMBER sums of each of the PIECES, in memory that the lanes of the sample share.
DEVICE double integrate_sample(
    const Problem& p, const Sample& s, int lane, unsigned mask, double (*total)[NUMBER], double* result) {
  Column column;
  Piece piece;
  double sums[NUMBER], found[NUMBER], inner[PIECES], outer[PIECES], share[PIECES], partition = 0.0;
  bool unfinished[PIECES];
  int count = p.points;
#pragma unroll 1  // four copies of the body would take four times as long to compile and gain nothing
  for (int index = 0; index < PIECES; index++) {
    unfinished[index] = find_piece(p, s, index, piece);
    inner[index] = outer[index] = share[index] = 0.0;
    if (!unfinished[index]) continue;
    double here = 0.0;
    for (int j = lane; j < count; j += LANES) {
      if (!find_column(p, s, piece, count, j, 0.0, column)) continue;
      add_points(p, s, column, p.points, column.step, 0.0, sums);
      here += sums[0];
    }
    partition += over_lanes(here, mask);
  }
  for (int round = 0; round < p.rounds; round++) {
    double ratios[PIECES];
    bool some = false;
#pragma unroll 1
    for (int index = 0; index < PIECES; index++) {
      ratios[index] = 1.0;
      if (!unfinished[index]) continue;
      some = true;
      find_piece(p, s, index, piece);
      double error = 0.0;
#pragma unroll
      for (int i = 0; i < NUMBER; i++) found[i] = 0.0;
      for (int j = lane; j < count; j += LANES) {
        if (!find_column(p, s, piece, count, j, round == 0 ? 0.0 : 0.5, column)) continue;
        error += refine_column(p, s, column, partition, sums);
#pragma unroll
        for (int i = 0; i < NUMBER; i++) found[i] += sums[i];
      }
      error = over_lanes(error, mask);
#pragma unroll
      for (int i = 0; i < NUMBER; i++) found[i] = over_lanes(found[i], mask);
      double* before = total[index];
      if (round == 0) {
        inner[index] = error;
      } else {
        ratios[index] = spread_of(p, before, found);
#pragma unroll
        for (int i = 0; i < NUMBER; i++) found[i] = 0.5 * (before[i] + found[i]);
        inner[index] = 0.5 * (inner[index] + error);
      }
      share[index] = found[0];
      outer[index] = ratios[index] * ratios[index] * found[0];
#ifdef __CUDACC__
      __syncwarp(mask);  // every lane has read
#endif
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < NUMBER; i++) before[i] = found[i];
      }
#ifdef __CUDACC__
      __syncwarp(mask);  // before anybody reads again
#endif
    }
    if (!some) break;
    if (round > 0) count *= 2;
    partition = share[0] + share[1] + share[2] + share[3];
#pragma unroll
    for (int index = 0; index < PIECES; index++) {
      if (!unfinished[index]) continue;
      double limit = p.accuracy * partition;
      bool failing = share[index] > p.negligible * limit;
      if (round > 0)
        failing = failing && (ratios[index] >= 1.0 || expected(ratios[index]) * share[index] > limit);
      unfinished[index] = failing;
    }
  }
  double error = 0.0;
#pragma unroll
  for (int i = 0; i < NUMBER; i++) result[i] = 0.0;
#pragma unroll
  for (int index = 0; index < PIECES; index++) {
    if (!(share[index] > 0.0)) continue;
#pragma unroll
    for (int i = 0; i < NUMBER; i++) result[i] += total[index][i];
    error += inner[index] + outer[index];
  }
  return result[0] > 0.0 ? error / result[0] : -log(0.0);
}

DEVICE void integrate_row(
    const double* u, const double* omega, const double* reach, const double* level, const Problem& p, long long row,
    long long n, int lane, unsigned mask, double (*total)[NUMBER], double* result, double* error) {
  Sample s;
  double sums[NUMBER];
  s.u1 = u[2 * row];
  s.u2 = u[2 * row + 1];
  s.mean11 = omega[4 * row];
  s.mean12 = omega[4 * row + 1];
  s.mean21 = omega[4 * row + 2];
  s.mean22 = omega[4 * row + 3];
  s.reach = reach[row];
  s.level = level[row];
  s.middle = 0.5 * (s.mean11 + s.mean12);
  s.gap = s.mean11 - s.mean12;
  double relative = integrate_sample(p, s, lane, mask, total, sums);
  if (lane == 0) {
    for (int i = 0; i < NUMBER; i++) result[i * n + row] = sums[i];
    error[row] = relative;
  }
}

#define ARGUMENTS                                                                                                       \
  const double *u, const double *omega, const double *reach, const double *level, double v11, double v12, double v22,   \
      double skip, double accuracy, int points, int rounds, double negligible, double share, long long n,               \
      double *result, double *error
#define PROBLEM                                                                                                         \
  Problem p;                                                                                                            \
  p.v11 = v11;                                                                                                          \
  p.v22 = v22;                                                                                                          \
  p.b = v12 / v11;                                                                                                      \
  p.noise = v22 - v12 * p.b;                                                                                            \
  p.skip = skip;                                                                                                        \
  p.accuracy = accuracy;                                                                                                \
  p.points = points;                                                                                                    \
  p.rounds = rounds;                                                                                                    \
  p.negligible = negligible;                                                                                            \
  p.share = share;

#ifdef __CUDACC__
extern "C" __global__ void integrate_block(ARGUMENTS) {
  __shared__ double totals[THREADS / LANES][PIECES][NUMBER];
  int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  long long row = (long long)blockIdx.x * (THREADS / LANES) + group;
  if (row >= n) return;
  unsigned mask = (LANES == 32 ? 0xffffffffu : (1u << LANES) - 1u) << (threadIdx.x % 32 / LANES * LANES);
  PROBLEM
  integrate_row(u, omega, reach, level, p, row, n, lane, mask, totals[group], result, error);
}
#else
extern "C" void integrate_block(ARGUMENTS) {
  double total[PIECES][NUMBER];
  PROBLEM
  for (long long row = 0; row < n; row++)
    integrate_row(u, omega, reach, level, p, row, n, 0, 1u, total, result, error);
}
#endif
