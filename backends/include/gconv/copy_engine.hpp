// The bulk tensor copy engine of sm_90: one lane starts the copy of a whole box of a tensor to LDS, and an mbarrier in LDS says when it
// has arrived. GCONV_COPY_ENGINE is defined where there is one; the kernel then gets its tensor maps behind the argument block
// (gconvdsl/tensor_map.py describes them). In namespace gconv::hw:
//
//   Mbarrier                          8 bytes of LDS: a phase (parity 0, then 1, ...) ends with its last arrival and its last byte
//   mbarrier_init(b, arrivals)        by one thread, then mbarrier_init_done() by the same, then a barrier of the block
//   mbarrier_expect(b, bytes)         one arrival, and so many bytes more to wait for
//   mbarrier_arrive(b)                one arrival; what this thread has read before may then be overwritten
//   mbarrier_wait(b, parity)          until the phase of this parity has ended; by whole waves. Before the first phase, that of parity 1
//                                     counts as ended
//   load_box(lds, map, b, c0, ...)    starts the copy of the box whose first element has these coordinates (2 to 5, innermost first; signed:
//                                     elements outside the tensor arrive as zeros); its bytes count on b. One lane; lds is aligned to 128
//                                     bytes, with a swizzle to 8 times its length
//   prefetch(map)                     a hint, by one thread
//   swizzled<Bytes>(offset)           where the byte at `offset` of a box lies that was copied with this swizzle (0, 32, 64 or 128)
//   async_fence()                     orders this thread's ordinary LDS accesses before later ones of the engine or of wgmma
//   wave_sync()                       the lanes of a wave meet, and see one another's LDS accesses
#pragma once

#include "device.hpp"

#if defined(GCONV_PLATFORM_CUDA)
#include "platform/cuda_copy_engine.hpp"
#elif defined(GCONV_PLATFORM_SIM) && defined(GCONV_SIM_SM)
#include "platform/sim_copy_engine.hpp"
#endif

namespace gconv {
namespace hw {

template <int Bytes>
GCONV_DEVICE int swizzled(int offset) {
  return Bytes == 0 ? offset : offset ^ (offset >> 3 & (Bytes - 16));
}

}  // namespace hw
}  // namespace gconv
