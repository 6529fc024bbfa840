// The one argument block of every kernel, read by host and device code alike; gconvdsl/plan.py packs the same bytes.
// No standard header is included: device builds and the simulator compile this file freestanding.
#pragma once

namespace gconv {

constexpr int kMaxOperands = 8;

// Element strides of a tensor. n: image (of x, y) or output channel inside its group (of w); g: group; s: spatial axes
// d, h, w, a missing leading axis has size 1 and stride 0; c: channel inside its group (x, w: input channel, y: output channel).
struct TensorView {
  long long n;
  long long g;
  long long s[3];
  long long c;
};

// n / d == (high 32 bits of n * mul) >> shift for 0 <= n < 2^31; d == 1 is mul == 0.
struct FastDivisor {
  unsigned mul;
  unsigned shift;
};

struct ConvArgs {
  void* x;                           // (N, in[0..2], G, Cg) by xv
  void* w;                           // (G, Kg, filter[0..2], Cg) by wv
  void* y;                           // (N, out[0..2], G, Kg) by yv
  void* workspace;                   // scratch of Plan.workspace bytes
  const void* operand[kMaxOperands]; // per_k, per_c: contiguous float; like_y: dtype and strides of the result
  TensorView xv;
  TensorView wv;
  TensorView yv;
  float scalar[kMaxOperands]; // scalar operands, at the index of the operand
  int N;
  int G;
  int in[3];  // spatial sizes d, h, w; a missing leading axis is 1
  int out[3];
  int pad[3];  // low padding per axis; the high side follows from in, out, filter, stride, dilation
  int splits;  // split_k pieces, or the fixed chunks of a bwd_weight reduction
  FastDivisor out_div[3];  // by out[d, h, w]
  FastDivisor image_div;   // by the product of out
};

}  // namespace gconv
