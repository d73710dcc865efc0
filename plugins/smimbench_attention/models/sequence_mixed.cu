// Inputs in float32, vectors and sums in float64: both products of the sequence multi-index model, reading the inputs once each.
//
// P, the number of components, is given at compile time. Without CUDA it is two functions for a C++ compiler, which is how
// tests/models/test_sequence_mixed.py checks the mathematics on any machine.

#define THREADS 128
#define ROWS 4

#ifdef __CUDACC__

// z[r, p] = sum_j x[r, j] w[p, j]: a block for ROWS tokens, which share what is read of w
extern "C" __global__ void project(const float* x, const double* w, long long rows, long long size, double* z) {
  __shared__ double parts[THREADS / 32][ROWS * P];
  long long first = (long long)blockIdx.x * ROWS;
  double sums[ROWS * P] = {0.0};
  for (long long j = threadIdx.x; j < size; j += THREADS) {
    double weights[P];
    for (int p = 0; p < P; p++) weights[p] = w[p * size + j];
    for (int r = 0; r < ROWS; r++) {
      double value = first + r < rows ? (double)x[(first + r) * size + j] : 0.0;
      for (int p = 0; p < P; p++) sums[r * P + p] += value * weights[p];
    }
  }
  for (int k = 0; k < ROWS * P; k++) {
    for (int distance = 16; distance > 0; distance /= 2) sums[k] += __shfl_down_sync(0xffffffffu, sums[k], distance);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][k] = sums[k];
  }
  __syncthreads();
  for (int k = threadIdx.x; k < ROWS * P; k += THREADS) {
    double total = 0.0;
    for (int warp = 0; warp < THREADS / 32; warp++) total += parts[warp][k];
    if (first + k / P < rows) z[(first + k / P) * P + k % P] = total;
  }
}

// out[s, p, j] = sum_r g[r, p] x[r, j] over the tokens of share s: a thread for a column and a share
extern "C" __global__ void push(const float* x, const double* g, long long rows, long long size, long long share, double* out) {
  long long j = (long long)blockIdx.x * THREADS + threadIdx.x, first = blockIdx.y * share;
  long long last = first + share < rows ? first + share : rows;
  if (j >= size) return;
  double sums[P] = {0.0};
  for (long long r = first; r < last; r++) {
    double value = (double)x[r * size + j];
    for (int p = 0; p < P; p++) sums[p] += g[r * P + p] * value;
  }
  for (int p = 0; p < P; p++) out[(blockIdx.y * P + p) * size + j] = sums[p];
}

#else

extern "C" void project(const float* x, const double* w, long long rows, long long size, double* z) {
  for (long long r = 0; r < rows; r++)
    for (int p = 0; p < P; p++) {
      double total = 0.0;
      for (long long j = 0; j < size; j++) total += (double)x[r * size + j] * w[p * size + j];
      z[r * P + p] = total;
    }
}

extern "C" void push(const float* x, const double* g, long long rows, long long size, long long share, double* out) {
  for (long long s = 0; s * share < rows; s++)
    for (int p = 0; p < P; p++)
      for (long long j = 0; j < size; j++) {
        double total = 0.0;
        for (long long r = s * share; r < rows && r < (s + 1) * share; r++) total += g[r * P + p] * (double)x[r * size + j];
        out[(s * P + p) * size + j] = total;
      }
}

#endif
