// The second kernel of a split reduction.
#pragma once

#include "conv_operands.hpp"

namespace gconv {

// Sums the splits of the reduction in order and finishes each element. One thread an element of the dense result.
template <class S>
struct ReduceSplits {
  static constexpr int kThreads = 256;
  static GCONV_DEVICE void run(const ConvArgs& a) {
    constexpr bool weight = S::kDirection == kBwdWeight;
    constexpr int channels = S::kDirection == kForward ? S::kKg : S::kCg;
    const int filter[3] = {S::Filter::d, S::Filter::h, S::Filter::w};
    const int* s = weight ? filter : S::kDirection == kForward ? a.out : a.in;
    const TensorView& view = weight ? a.wv : S::kDirection == kForward ? a.yv : a.xv;
    long long pixels = (long long)s[0] * s[1] * s[2], total = pixels * channels * a.G * (weight ? S::kKg : a.N);
    long long i = ((long long)hw::block_id_y() * 65536 + hw::block_id_x()) * kThreads + hw::thread_id();
    if (i >= total) return;
    float sum = 0.0f;
    for (int split = 0; split < a.splits; ++split) sum += ((const float*)a.workspace)[split * total + i];
    // Dense order is (G, Kg, spatial, Cg) for w and (N, spatial, G, channels) for x and y.
    long long c = i % channels, rest = i / channels, g = 0, n;
    if (!weight) {
      g = rest % a.G;
      rest /= a.G;
    }
    long long w = rest % s[2], h = rest / s[2] % s[1], d = rest / ((long long)s[2] * s[1]) % s[0];
    n = rest / pixels;
    if (weight) {
      g = n / S::kKg;
      n %= S::kKg;
    }
    long long element = n * view.n + g * view.g + d * view.s[0] + h * view.s[1] + w * view.s[2] + c * view.c;
    int channel = (int)(weight ? g * S::kKg + n : g * channels + c);
    void* tensor = weight ? a.w : S::kDirection == kForward ? a.y : a.x;
    ((typename S::Out*)tensor)[element] = from_float<typename S::Out>(S::Epilogue::apply(sum, a, channel, element));
  }
};

}  // namespace gconv
