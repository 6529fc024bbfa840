// How source rows come into the ring: by the copy engine, started by a wave that does nothing else (S::kEngine), or copied by all lanes with
// asynchronous copies of S::kUnit elements and a barrier for each stage. Both give the same interface and the same swizzled stages, zeros
// outside the image:
//   start(...)        before anything else, by all threads; true for waves that consume
//   acquire()         the next stage has arrived; stage() is its address
//   release(seen)     this wave has read what it needs of it; `seen` is made of every fragment that it loaded of the stage's last row
#pragma once

#include "copy_engine.hpp"
#include "ring_place.hpp"

#if defined(GCONV_NVIDIA)

namespace gconv {

#if defined(GCONV_COPY_ENGINE)
template <class S>
struct EngineLoader {
  using Shape = RingShape<S>;
  static constexpr int kThreads = Shape::kConsumers + hw::kWave, kBarrierBytes = 2 * S::kRing * 8;

  unsigned char* ring;
  hw::Mbarrier* full;
  hw::Mbarrier* empty;
  hw::LdsAddress base;
  unsigned zero;
  int slot, parity;

  template <class Map>
  GCONV_DEVICE bool start(const ConvArgs& a, const RingPlace<S>& place, unsigned char* stages, unsigned char* barriers, const Map& map) {
    zero = (unsigned)(a.splits >> 31);
    ring = stages;
    base = hw::kept(hw::lds_address(stages));
    full = (hw::Mbarrier*)barriers;
    empty = full + S::kRing;
    slot = -1;
    parity = 0;
    if (hw::thread_id() == 0) {
      for (int i = 0; i < S::kRing; ++i) {
        hw::mbarrier_init(full[i], 1);
        hw::mbarrier_init(empty[i], Shape::kWaves);
      }
      hw::mbarrier_init_done();
    }
    hw::barrier();
    if (hw::wave_id() < Shape::kWaves) return true;
    produce(place, map);
    return false;
  }
  template <class Map>
  GCONV_DEVICE void produce(const RingPlace<S>& p, const Map& map) const {
    RingWalk<S> walk;
    int at = 0, turn = 1;
    for (walk.start(p); walk.more(p); walk.next(p)) {
      hw::mbarrier_wait(empty[at], turn);
      if (hw::lane_id() == 0) {
        const RingUnit& u = walk.unit;
        hw::mbarrier_expect(full[at], Shape::kStageBytes);
        unsigned char* to = ring + at * Shape::kStageBytes;
        int w = p.column * Shape::kStepW - p.low_w, h = u.row * Shape::kStepH - p.low_h + walk.row;
        if constexpr (S::kAxes == 3) hw::load_box(to, map, full[at], p.channel, w, h, u.plane * Shape::kStepD - p.low_d, u.image);
        else hw::load_box(to, map, full[at], p.channel, w, h, u.image);
      }
      if (++at == S::kRing) {
        at = 0;
        turn ^= 1;
      }
    }
  }
  GCONV_DEVICE void acquire() {
    if (++slot == S::kRing) {
      slot = 0;
      parity ^= 1;
    }
    hw::mbarrier_wait(full[slot], parity);
  }
  // An arrival does not wait for fragments that are still on their way, and the compiler may put it before the products that do: the
  // address depends on every fragment of the last row, through a zero that only the kernel's caller knows. Rows before it are done.
  GCONV_DEVICE void release(unsigned seen) {
    hw::wave_sync();
    if (hw::lane_id() == 0) hw::mbarrier_arrive(*(hw::Mbarrier*)((unsigned char*)&empty[slot] + (seen & zero)));
  }
  GCONV_DEVICE hw::LdsAddress stage() const { return base + slot * Shape::kStageBytes; }
};

#endif

template <class S>
struct CopyLoader {
  using Shape = RingShape<S>;
  using In = typename S::In;
  static constexpr int kThreads = Shape::kConsumers, kBarrierBytes = 0, kUnitBytes = S::kUnit * (int)sizeof(In);
  static constexpr int kPixelUnits = S::kBlockChannels / S::kUnit, kUnits = Shape::kStageBytes / kUnitBytes, kPasses = ceil_div(kUnits, kThreads);

  const ConvArgs* args;
  RingPlace<S> place;
  RingWalk<S> walk;  // of the stage to be copied next
  unsigned char* ring;
  hw::LdsAddress base;
  int slot, ahead;

  GCONV_DEVICE bool start(const ConvArgs& a, const RingPlace<S>& p, unsigned char* stages, unsigned char*) {
    args = &a;
    place = p;
    ring = stages;
    base = hw::kept(hw::lds_address(stages));
    slot = -1;
    ahead = 0;
    walk.start(place);
    for (int i = 0; i < S::kRing - 1; ++i) copy_next();
    return true;
  }
  GCONV_DEVICE void acquire() {
    if (++slot == S::kRing) slot = 0;
    hw::async_wait_but<S::kRing - 2>();
    hw::barrier();  // everybody's copies are there, and nobody reads the stage before this one
    copy_next();
  }
  GCONV_DEVICE void release(unsigned) {}
  GCONV_DEVICE hw::LdsAddress stage() const { return base + slot * Shape::kStageBytes; }

 private:
  GCONV_DEVICE void copy_next() {
    if (walk.more(place)) {
      copy(ring + ahead * Shape::kStageBytes);
      walk.next(place);
    }
    hw::async_commit();
    if (++ahead == S::kRing) ahead = 0;
  }
  GCONV_DEVICE void copy(unsigned char* stage) const {
    const ConvArgs& a = *args;
    const TensorView& view = Shape::kForwardDirection ? a.xv : a.yv;
    const int* size = Shape::kForwardDirection ? a.in : a.out;
    const In* source = (const In*)(Shape::kForwardDirection ? a.x : a.y);
    int height = S::kMergeRows ? size[1] * a.N : size[1];
    long long row_stride = S::kMergeRows && S::kAxes == 1 ? view.n : view.s[1];
    for (int pass = 0; pass < kPasses; ++pass) {
      int number = pass * kThreads + hw::thread_id();
      if (number >= kUnits) continue;
      int pixel = number / kPixelUnits, line = pixel / Shape::kSegment, rest = line / S::kStageRows;
      int c = place.channel + number % kPixelUnits * S::kUnit;
      int w = place.column * Shape::kStepW - place.low_w + pixel % Shape::kSegment;
      int h = walk.unit.row * Shape::kStepH - place.low_h + walk.row + line % S::kStageRows;
      int d = walk.unit.plane * Shape::kStepD - place.low_d + rest % Shape::kPlanes, n = walk.unit.image + rest / Shape::kPlanes;
      bool ok = c < a.G * S::kCg && (unsigned)w < (unsigned)size[2] && (unsigned)h < (unsigned)height && n < place.images;
      if constexpr (S::kAxes == 3) ok = ok && (unsigned)d < (unsigned)size[0];
      long long from = c + w * view.s[2] + h * row_stride + (S::kAxes == 3 ? d * view.s[0] : 0) + n * view.n;
      hw::async_copy_to<kUnitBytes>(stage + hw::swizzled<Shape::kPixelBytes>(number * kUnitBytes), source + (ok ? from : 0), ok);
    }
  }
};

template <class S, bool Engine>
struct RingLoaderOf {
  using type = CopyLoader<S>;
};
#if defined(GCONV_COPY_ENGINE)
template <class S>
struct RingLoaderOf<S, true> {
  using type = EngineLoader<S>;
};
#endif
template <class S>
using RingLoader = typename RingLoaderOf<S, S::kEngine>::type;

}  // namespace gconv

#endif  // GCONV_NVIDIA
