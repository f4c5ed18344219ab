// GELU and its derivative on the CPU, in float or double.
//
// Both use the tail Q(a), a = |z|, which falls to 0: 1 - Phi(a) by erfc (erf form) or 1 / (1 + exp(2 u)) (tanh form).
// gelu(z) = max(z, 0) - a Q(a) has no cancellation for negative z, where 1 + erf(z) and 1 + tanh(u) would lose all
// digits. a is limited to CAP, where Q is 0 in both forms and types, so that infinities give 0 * CAP instead of NaN. A
// NaN stays NaN.
#pragma once

#include <cmath>

#include "form.h"

namespace gpufeed::cpu {

template <typename T>
constexpr T CAP = T(200);
template <typename T>
constexpr T SQRT_HALF = T(0.70710678118654752440);
template <typename T>
constexpr T DENSITY_AT_0 = T(0.39894228040143267794);  // 1 / sqrt(2 pi)
template <typename T>
constexpr T SLOPE = T(1.59576912160573071176);  // 2 sqrt(2 / pi): 2 u = SLOPE (z + CUBE z^3)
template <typename T>
constexpr T CUBE = T(0.044715);

// min(|z|, CAP); NaN stays NaN
template <typename T>
inline T capped(T z) {
  T a = std::abs(z);
  return a > CAP<T> ? CAP<T> : a;
}

// Q(a), by exp(-2 u), which goes to 0 through the subnormals, while exp(2 u) would overflow earlier
template <Form form, typename T>
inline T tail(T a) {
  if constexpr (form == Form::erf) {
    return T(0.5) * std::erfc(a * SQRT_HALF<T>);
  } else {
    T e = std::exp(-SLOPE<T> * (a + CUBE<T> * a * a * a));
    return e / (T(1) + e);
  }
}

// gelu(z); gelu(-inf) is the limit, 0
template <Form form, typename T>
inline T gelu(T z) {
  T a = capped(z);
  return (z > T(0) ? z : T(0)) - a * tail<form>(a);
}

// gelu'(z), from gelu'(z) + gelu'(-z) = 1
template <Form form, typename T>
inline T derivative(T z) {
  T a = capped(z), q = tail<form>(a), left;
  if constexpr (form == Form::erf) {
    left = q - a * DENSITY_AT_0<T> * std::exp(T(-0.5) * a * a);
  } else {
    left = q * (T(1) - a * SLOPE<T> * (T(1) + T(3) * CUBE<T> * a * a) * (T(1) - q));
  }
  return z < T(0) ? left : T(1) - left;
}

}  // namespace gpufeed::cpu
