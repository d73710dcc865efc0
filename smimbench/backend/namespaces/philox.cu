// Standard normal numbers: Philox4x64-10 (Salmon and others, SC 2011; the bits of numpy.random.Philox), then Box and Muller.
//
// A stream is a key of 128 bits; four numbers belong to each value of its counter, so that any part can be drawn alone.
// Without CUDA it is one function for a C++ compiler, which is how tests/backend/test_philox.py checks it on any machine.

typedef unsigned long long word;

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define HIGH(a, b) __umul64hi(a, b)
#else
#include <math.h>
#define DEVICE static inline
#define HIGH(a, b) ((word)(((unsigned __int128)(a) * (b)) >> 64))
#endif

DEVICE void philox(word c[4], word k0, word k1) {
  for (int round = 0; round < 10; round++) {
    word high0 = HIGH(0xD2E7470EE14C6C93ull, c[0]), low0 = 0xD2E7470EE14C6C93ull * c[0];
    word high1 = HIGH(0xCA5A826395121157ull, c[2]), low1 = 0xCA5A826395121157ull * c[2];
    c[0] = high1 ^ c[1] ^ k0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ k1;
    c[3] = low0;
    k0 += 0x9E3779B97F4A7C15ull;
    k1 += 0xBB67AE8584CAA73Bull;
  }
}

DEVICE void four(long long k0, long long k1, long long at, long long left, double* out) {
  word c[4] = {(word)at + 1, 0, 0, 0};  // NumPy counts before it draws
  philox(c, (word)k0, (word)k1);
  for (int pair = 0; pair < 2 && 2 * pair < left; pair++) {
    double radius = sqrt(-2.0 * log(((double)(c[2 * pair] >> 11) + 0.5) * 0x1p-53));
    double angle = 6.283185307179586 * ((double)(c[2 * pair + 1] >> 11) * 0x1p-53);
    out[2 * pair] = radius * cos(angle);
    if (2 * pair + 1 < left) out[2 * pair + 1] = radius * sin(angle);
  }
}

#ifdef __CUDACC__
extern "C" __global__ void normals(long long k0, long long k1, long long first, long long n, double* out) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (4 * i < n) four(k0, k1, first + i, n - 4 * i, out + 4 * i);
}
#else
extern "C" void normals(long long k0, long long k1, long long first, long long n, double* out) {
  for (long long i = 0; 4 * i < n; i++) four(k0, k1, first + i, n - 4 * i, out + 4 * i);
}
#endif
