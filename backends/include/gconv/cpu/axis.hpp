// One spatial axis of a convolution, cut into phases in which it has no gaps.
//
// Target index o and source index s (forward: output and input; bwd_data: input and output) meet at filter tap k:
//   forward, bwd_weight   s = o * stride - pad + k * dilation
//   bwd_data              o + pad = s * stride + k * dilation
// In each phase the targets are o = first + i * step, the taps k = tap0 + m * tap_step, and
//   s = origin + (i * advance + m') * unit   with m' = m (forward) or taps - 1 - m (bwd_data),
// so the source points of a run of targets are the dense sequence origin + j * unit. A phase without taps has targets that
// nothing reaches. Weights are packed in the order (phase class, m'), from weight_base on.
#pragma once

namespace gconv::cpu {

enum class Direction { forward, bwd_data, bwd_weight };

struct AxisPhase {
  long long first;
  long long count;
  long long origin;
  int taps;
  int tap0;
  int weight_base;
};

constexpr int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

constexpr long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }

template <Direction kDirection, int kFilter, int kStride, int kDilation>
struct Axis {
  static constexpr bool kBackward = kDirection == Direction::bwd_data;
  static constexpr int kCommon = gcd(kStride, kDilation);
  static constexpr int kClasses = kBackward ? kStride : 1;        // sets of taps
  static constexpr int kSteps = kDilation / kCommon;              // target residues that share a set of taps
  static constexpr int phases = kClasses * kSteps;
  static constexpr int step = kBackward ? kStride * kSteps : kSteps;
  static constexpr int unit = kBackward ? kSteps : kDilation;
  static constexpr int advance = kBackward ? 1 : kStride / kCommon;
  static constexpr int tap_step = kBackward ? kStride / kCommon : 1;
  static constexpr int max_taps = (kFilter + tap_step - 1) / tap_step;
  static constexpr int min_taps = kBackward ? (kCommon > 1 ? 0 : kFilter / tap_step) : kFilter;
  // Phases whose sources are the same dense sequence, so that one packed row serves them all, and the points that meet one step of
  // all of them.
  static constexpr int together = kSteps == 1 ? phases : 1;
  static constexpr int span = together > 1 ? (kStride - 1 + (kFilter - 1) * kDilation) / kStride + 1 : max_taps;

  // The lowest tap k with k * dilation % stride == residue; kFilter if there is none.
  static int lowest_tap(int residue) {
    for (int k = 0; k < tap_step && k < kFilter; k++)
      if (static_cast<long long>(k) * kDilation % kStride == residue) return k;
    return kFilter;
  }

  static int count_taps(int residue) {
    const int lowest = lowest_tap(residue);
    return lowest < kFilter ? (kFilter - 1 - lowest) / tap_step + 1 : 0;
  }

  // targets: how many target points the axis has; pad: low padding.
  static AxisPhase phase(int index, long long targets, int pad) {
    const int shift = index % kSteps;
    AxisPhase p;
    if (!kBackward) {
      p.first = shift, p.taps = kFilter, p.tap0 = 0, p.weight_base = 0;
      p.origin = static_cast<long long>(shift) * kStride - pad;
    } else {
      const int residue = index / kSteps;
      const long long lowest = ((residue - pad) % kStride + kStride) % kStride;
      p.first = lowest + static_cast<long long>(shift) * kStride;
      p.tap0 = lowest_tap(residue), p.taps = count_taps(residue), p.weight_base = 0;
      for (int r = 0; r < residue; r++) p.weight_base += count_taps(r);
      p.origin = p.taps == 0 ? 0 : (lowest + pad - static_cast<long long>(p.tap0) * kDilation) / kStride + shift
                                       - static_cast<long long>(p.taps - 1) * unit;
    }
    p.count = p.first < targets ? ceil_div(targets - p.first, step) : 0;
    return p;
  }

  // The filter tap at position `at` of the packed order of class `residue`.
  static int tap_at(const AxisPhase& p, int at) { return p.tap0 + (kBackward ? p.taps - 1 - at : at) * tap_step; }
};

}  // namespace gconv::cpu
