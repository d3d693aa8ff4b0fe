// SPDX-License-Identifier: Apache-2.0
// 32-byte vectors of f32 or f64 (GCC's vector extension) and the one order in which their lanes are added up.
// Every long sum on the cpu device runs in lanes: element i goes to lane i mod kLanes, so its bits follow from the
// values alone. Loads never need alignment.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "model/float_bits.hpp"

namespace shardcheck::cpu {

template <typename T>
inline constexpr std::int64_t kLanes = 32 / static_cast<std::int64_t>(sizeof(T));

template <typename T>
struct VectorOf;
template <>
struct VectorOf<float> {
  using Type = float __attribute__((vector_size(32)));
  using Four = float __attribute__((vector_size(16)));
};
template <>
struct VectorOf<double> {
  using Type = double __attribute__((vector_size(32)));
  using Four = double __attribute__((vector_size(32)));
};
template <typename T>
using Vector = typename VectorOf<T>::Type;
template <typename T>
using Four = typename VectorOf<T>::Four;

/// 16-bit storage, told apart by type.
struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

/// kLanes<A> elements from memory, widened exactly.
inline Vector<float> load_lanes(const float* in) {
  Vector<float> v;
  std::memcpy(&v, in, sizeof(v));
  return v;
}
inline Vector<double> load_lanes(const double* in) {
  Vector<double> v;
  std::memcpy(&v, in, sizeof(v));
  return v;
}
inline Vector<float> load_lanes(const Bf16* in) {
#if defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
#else
  Vector<float> v;
  for (int i = 0; i < 8; ++i) v[i] = bf16_to_f32(in[i].bits);
  return v;
#endif
}
inline Vector<float> load_lanes(const F16* in) {
#if defined(__AVX2__) && defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
#else
  Vector<float> v;
  for (int i = 0; i < 8; ++i) v[i] = f16_to_f32(in[i].bits);
  return v;
#endif
}

/// The first `count` < kLanes elements, zeros in the other lanes.
template <typename A, typename W>
Vector<A> load_some(const W* in, std::int64_t count) {
  W padded[kLanes<A>] = {};
  std::memcpy(padded, in, static_cast<std::size_t>(count) * sizeof(W));
  return load_lanes(padded);
}

inline void store_lanes(float* out, const Vector<float>& v) { std::memcpy(out, &v, sizeof(v)); }
inline void store_lanes(double* out, const Vector<double>& v) { std::memcpy(out, &v, sizeof(v)); }

/// Rounded once to fp16 (RNE), subnormals kept.
inline void store_lanes(F16* out, const Vector<float>& v) {
#if defined(__AVX2__) && defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < 8; ++i) out[i].bits = f32_to_f16(v[i]);
#endif
}

/// The value of f32_to_bf16 in lanes, still as f32: the lower 16 bits are zero.
inline Vector<float> round_to_bf16(const Vector<float>& v) {
  using U32 = std::uint32_t __attribute__((vector_size(32)));
  const U32 u = reinterpret_cast<U32>(v);
  const U32 rounded = u + 0x7fffu + ((u >> 16) & 1u);
  const U32 chosen = v != v ? u | 0x400000u : rounded;
  return reinterpret_cast<Vector<float>>(chosen & 0xffff0000u);
}

/// Rounded once to bf16 (RNE), a NaN made quiet.
inline void store_lanes(Bf16* out, const Vector<float>& v) {
  using U32 = std::uint32_t __attribute__((vector_size(32)));
  using U16 = std::uint16_t __attribute__((vector_size(16)));
  const U16 bits = __builtin_convertvector(reinterpret_cast<U32>(round_to_bf16(v)) >> 16, U16);
  std::memcpy(out, &bits, sizeof(bits));
}

/// v as it comes back from storage: one rounding, then exact widening.
template <typename W>
Vector<float> through_storage(const Vector<float>& v) {
  if constexpr (std::is_same_v<W, Bf16>) {
    return round_to_bf16(v);
  } else {
    W stored[kLanes<float>];
    store_lanes(stored, v);
    return load_lanes(stored);
  }
}

/// a * b + c, rounded once where the CPU can.
inline Vector<float> multiply_add(const Vector<float>& a, const Vector<float>& b, const Vector<float>& c) {
#if defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
inline Vector<double> multiply_add(const Vector<double>& a, const Vector<double>& b, const Vector<double>& c) {
#if defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

/// Lanes 0-3 plus lanes 4-7 of eight; four lanes are kept as they are.
inline Four<float> fold_to_four(const Vector<float>& v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
inline Four<double> fold_to_four(const Vector<double>& v) { return v; }

/// {sum of a's lanes, of b's, of c's, of d's}, each as (f0 + f2) + (f1 + f3) of its folded four.
template <typename T>
Four<T> sum_lanes(const Vector<T>& a, const Vector<T>& b, const Vector<T>& c, const Vector<T>& d) {
  const Four<T> fa = fold_to_four(a), fb = fold_to_four(b), fc = fold_to_four(c), fd = fold_to_four(d);
  const Four<T> ab = __builtin_shufflevector(fa, fb, 0, 1, 4, 5) + __builtin_shufflevector(fa, fb, 2, 3, 6, 7);
  const Four<T> cd = __builtin_shufflevector(fc, fd, 0, 1, 4, 5) + __builtin_shufflevector(fc, fd, 2, 3, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

template <typename T>
T sum_lanes(const Vector<T>& v) {
  const Four<T> f = fold_to_four(v);
  return (f[0] + f[2]) + (f[1] + f[3]);
}

template <typename T>
Vector<T> broadcast(T value) {
  return value - Vector<T>{};
}

/// out[i] = f(in[i]) for i < n, f mapping vectors; in may be out.
template <typename T, typename Function>
void map_lanes(const T* in, std::int64_t n, T* out, Function f) {
  std::int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) store_lanes(out + i, f(load_lanes(in + i)));
  if (i < n) {
    const Vector<T> last = f(load_some<T>(in + i, n - i));
    std::memcpy(out + i, &last, static_cast<std::size_t>(n - i) * sizeof(T));
  }
}

/// Sum of term(x_i) over x[0, n) in four strands of lanes; term maps a vector of elements, and 0 to 0.
/// The error is at most about n / (4 kLanes) + 5 roundoffs of the sum of |term|.
template <typename T, typename Term>
T sum_over(const T* x, std::int64_t n, Term term) {
  constexpr std::int64_t kL = kLanes<T>;
  Vector<T> s[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kL <= n; i += 4 * kL) {
    for (int strand = 0; strand < 4; ++strand) s[strand] += term(load_lanes(x + i + strand * kL));
  }
  for (int strand = 0; i < n; ++strand, i += kL) {
    s[strand] += term(n - i < kL ? load_some<T>(x + i, n - i) : load_lanes(x + i));
  }
  return sum_lanes<T>((s[0] + s[1]) + (s[2] + s[3]));
}

}  // namespace shardcheck::cpu
