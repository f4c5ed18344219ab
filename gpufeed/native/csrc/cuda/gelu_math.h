// GELU and its derivative for one float, without torch and, for its tests, without CUDA.
//
// Both forms are max(z, 0) - a * Q(a) with a = |z|, where the tail Q(a) falls like exp(-a^2 / 2) (erf) or like exp(-2 u)
// (tanh). There is no cancellation for negative z, so the relative error stays small down to the smallest subnormal. a
// is limited to CAP, where Q is 0, so that infinities give 0 * CAP. A NaN stays NaN.
//
// `half_width` is for 16-bit results: one exponential and one reciprocal of the special function unit, with a relative
// error below 3e-5. `full_width` is for float32.
#pragma once

#include <cmath>

#include "../form.h"

#ifdef __CUDACC__
#define GPUFEED_INLINE __host__ __device__ __forceinline__
#else
#define GPUFEED_INLINE inline
#endif

namespace gpufeed {

constexpr float CAP = 1e4f;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float SQRT_HALF = 0.7071067811865476f;
constexpr float DENSITY_AT_0 = 0.3989422804014327f;      // 1 / sqrt(2 pi)
constexpr float TANH_SLOPE = 1.5957691216057308f;        // 2 sqrt(2 / pi): 2 u = TANH_SLOPE * (z + TANH_CUBE * z^3)
constexpr float TANH_CUBE = 0.044715f;

// Exponentials are scaled by 2^32, and their other factor by 2^-32: the fast instruction flushes results below 2^-126 to
// zero, although the product may be subnormal.
constexpr float UP = 4294967296.0f;
constexpr float DOWN = 1.0f / UP;
constexpr float UP_LOG2 = 32.0f;

GPUFEED_INLINE float fast_exp2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  float y = std::exp2(x);
  return y < 1.17549435e-38f ? 0.0f : y;
#endif
}

GPUFEED_INLINE float fast_reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

// min(|z|, CAP); NaN stays NaN
GPUFEED_INLINE float capped(float z) {
  float a = fabsf(z);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(CAP));
  return y;
#else
  return a > CAP ? CAP : a;
#endif
}

// max(z, 0); any result will do for NaN, since the other summand is NaN
GPUFEED_INLINE float positive_part(float z) { return fmaxf(z, 0.0f); }

// The derivative for any z from its value at -|z|: gelu'(z) + gelu'(-z) = 1
GPUFEED_INLINE float mirrored(float z, float left) { return z < 0.0f ? left : 1.0f - left; }

// 2^-32 * (1 - Phi(a)) * exp(a^2 / 2): the scaled complementary error function erfcx(a / sqrt(2)) / 2 as a polynomial in
// t = 1 / (1 + p a). Weighted least squares gave a relative error of at most 1.3e-5 for a from 0 to 14.6.
GPUFEED_INLINE float scaled_tail(float a) {
  float t = fast_reciprocal(fmaf(0.3622f, a, 1.0f));
  float y = -0.09815320892328197f * DOWN;
  y = fmaf(y, t, 0.24796874201843064f * DOWN);
  y = fmaf(y, t, 0.041200355939430375f * DOWN);
  y = fmaf(y, t, 0.16742519274581913f * DOWN);
  y = fmaf(y, t, 0.14138738173599638f * DOWN);
  return fmaf(y, t, 0.00016528573405752423f * DOWN);
}

// 2^32 * exp(-a^2 / 2)
GPUFEED_INLINE float scaled_bell(float a) { return fast_exp2(fmaf(-0.5f * LOG2_E * a, a, UP_LOG2)); }

// 1 / (1 + exp(2 u)) at u(a)
GPUFEED_INLINE float logistic_tail(float a, float square) {
  float slope = fmaf(LOG2_E * TANH_SLOPE * TANH_CUBE, square, LOG2_E * TANH_SLOPE);
  float e = fast_exp2(fmaf(-a, slope, UP_LOG2));  // 2^32 * exp(-2 u)
  return e * fast_reciprocal(e + UP);
}

// d(2 u) / da
GPUFEED_INLINE float logistic_slope(float square) {
  return fmaf(3.0f * TANH_SLOPE * TANH_CUBE, square, TANH_SLOPE);
}

template <Form form>
GPUFEED_INLINE float half_width_gelu(float z) {
  float a = capped(z);
  float tail = form == Form::erf ? scaled_bell(a) * scaled_tail(a) : logistic_tail(a, a * a);
  return fmaf(-a, tail, positive_part(z));
}

template <Form form>
GPUFEED_INLINE float half_width_derivative(float z) {
  float a = capped(z);
  if (form == Form::erf) {
    return mirrored(z, scaled_bell(a) * fmaf(-DENSITY_AT_0 * DOWN, a, scaled_tail(a)));
  }
  float square = a * a, tail = logistic_tail(a, square);
  return mirrored(z, tail * fmaf(-a * logistic_slope(square), 1.0f - tail, 1.0f));
}

// 1 - Phi(a)
GPUFEED_INLINE float normal_tail(float a) {
#ifdef __CUDA_ARCH__
  return normcdff(-a);
#else
  return static_cast<float>(0.5 * std::erfc(static_cast<double>(a) * 0.70710678118654752));
#endif
}

// 1 / (1 + exp(2 u)) at u(a)
GPUFEED_INLINE float full_logistic_tail(float a, float square) {
  float e = expf(-a * fmaf(TANH_SLOPE * TANH_CUBE, square, TANH_SLOPE));
  return e / (1.0f + e);
}

template <Form form>
GPUFEED_INLINE float full_width_gelu(float z) {
  float a = capped(z);
  float tail = form == Form::erf ? normal_tail(a) : full_logistic_tail(a, a * a);
  return fmaf(-a, tail, positive_part(z));
}

template <Form form>
GPUFEED_INLINE float full_width_derivative(float z) {
  float a = capped(z);
  if (form == Form::erf) {
    return mirrored(z, fmaf(-a * DENSITY_AT_0, expf(-0.5f * a * a), normal_tail(a)));
  }
  float square = a * a, tail = full_logistic_tail(a, square);
  return mirrored(z, tail * fmaf(-a * logistic_slope(square), 1.0f - tail, 1.0f));
}

}  // namespace gpufeed
