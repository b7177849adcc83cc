// Elementary functions as templates over a vector trait (vec_*.h).
#pragma once

namespace quire::kernels {
namespace {

// Returns e^x with relative error below 2e-7 for -87.3 <= x <= 88; arguments outside (and NaN) are
// moved to the nearest bound. Reduces the range by two constants (Cody & Waite 1980). The first has
// 9 bits, so that n * first is exact without fused multiply-add. The polynomial is fitted on |r| <=
// 0.3475.
template <class V>
typename V::F exp(typename V::F x) {
  const typename V::F low = V::set(-87.3f);
  const typename V::F high = V::set(88.0f);
  x = V::sub(V::zero(), V::max(V::sub(V::zero(), V::max(x, low)), V::sub(V::zero(), high)));
  const typename V::F n = V::round(V::mul(x, V::set(0x1.715476p+0f)));  // x / ln 2
  typename V::F r = V::sub(x, V::mul(n, V::set(0x1.63p-1f)));
  r = V::sub(r, V::mul(n, V::set(-0x1.bd0106p-13f)));
  typename V::F p = V::set(0x1.686bf2p-10f);
  p = V::fma(p, r, V::set(0x1.1254dap-7f));
  p = V::fma(p, r, V::set(0x1.555c26p-5f));
  p = V::fma(p, r, V::set(0x1.555466p-3f));
  p = V::fma(p, r, V::set(0x1.fffff6p-2f));
  p = V::fma(V::mul(r, r), p, V::add(r, V::set(1.0f)));
  return V::scale_exponent(p, n);
}

}  // namespace
}  // namespace quire::kernels
