// Fibers of the simulator: a stack and a saved stack pointer each. A switch is a dozen instructions on x86-64; elsewhere
// ucontext serves, about ten times slower.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace gconv {
namespace sim {

// What the sanitizer must be told about a switch; nothing otherwise.
struct FiberStack {
  const void* bottom = nullptr;
  size_t size = 0;
  void* fake = nullptr;
};

#if defined(__SANITIZE_ADDRESS__)
inline void before_switch(FiberStack& from, const FiberStack& to, bool last) {
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake, to.bottom, to.size);
}
inline void after_switch(FiberStack& self) { __sanitizer_finish_switch_fiber(self.fake, nullptr, nullptr); }
inline void after_first_switch(FiberStack& from) { __sanitizer_finish_switch_fiber(nullptr, &from.bottom, &from.size); }
#else
inline void before_switch(FiberStack&, const FiberStack&, bool) {}
inline void after_switch(FiberStack&) {}
inline void after_first_switch(FiberStack&) {}
#endif

struct Fiber {
#if defined(__x86_64__)
  void* saved = nullptr;
#else
  ucontext_t saved;
#endif
  FiberStack stack;
};

#if defined(__x86_64__)
extern "C" void gconv_sim_switch(void** save, void* to) __attribute__((visibility("hidden")));
asm(R"(
.text
.globl gconv_sim_switch
.hidden gconv_sim_switch
.type gconv_sim_switch, @function
gconv_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gconv_sim_switch, .-gconv_sim_switch
)");

// The first switch to the fiber pops six registers and returns into `entry`, whose own return address is 0.
inline void prepare(Fiber& fiber, char* top, void (*entry)()) {
  void** sp = (void**)((uintptr_t)top & ~(uintptr_t)15);
  *--sp = nullptr;
  *--sp = (void*)entry;
  for (int i = 0; i < 6; ++i) *--sp = nullptr;
  fiber.saved = sp;
}
inline void raw_switch(Fiber& from, Fiber& to) { gconv_sim_switch(&from.saved, to.saved); }
#else
inline void prepare(Fiber& fiber, char* top, void (*entry)()) {
  getcontext(&fiber.saved);
  fiber.saved.uc_stack.ss_sp = (void*)fiber.stack.bottom;
  fiber.saved.uc_stack.ss_size = (size_t)(top - (const char*)fiber.stack.bottom);
  fiber.saved.uc_link = nullptr;
  makecontext(&fiber.saved, entry, 0);
}
inline void raw_switch(Fiber& from, Fiber& to) { swapcontext(&from.saved, &to.saved); }
#endif

// `last`: `from` has ended and is not resumed.
inline void switch_fiber(Fiber& from, Fiber& to, bool last = false) {
  before_switch(from.stack, to.stack, last);
  raw_switch(from, to);
  after_switch(from.stack);
}

// Stacks of equal size, each with a guard page below it: a kernel that overruns its stack faults instead of corrupting another.
class Stacks {
 public:
  explicit Stacks(int count) : count_(count), page_((size_t)sysconf(_SC_PAGESIZE)), stride_(kBytes + page_) {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* mapped = mmap(nullptr, stride_ * (size_t)count, PROT_READ | PROT_WRITE, flags, -1, 0);
    base_ = mapped == MAP_FAILED ? nullptr : (char*)mapped;
    for (int i = 0; base_ != nullptr && i < count; ++i) mprotect(base_ + stride_ * (size_t)i, page_, PROT_NONE);
  }
  ~Stacks() {
    if (base_ != nullptr) munmap(base_, stride_ * (size_t)count_);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  bool ok() const { return base_ != nullptr; }
  int count() const { return count_; }
  FiberStack stack(int i) const { return {base_ + stride_ * (size_t)i + page_, kBytes, nullptr}; }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kBytes = 512 << 10;
#else
  static constexpr size_t kBytes = 128 << 10;
#endif
  int count_;
  size_t page_, stride_;
  char* base_;
};

// Stacks that no OS thread is using. All loaded kernels share them: each stack takes two of the 65530 mappings that Linux gives a
// process, which a few hundred kernels with stacks of their own would use up.
class SpareStacks {
 public:
  std::unique_ptr<Stacks> take(int count) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (std::unique_ptr<Stacks>& one : spare_)
      if (one->count() >= count) return remove(one);
    if (!spare_.empty()) remove(spare_.back());  // a larger one takes its place
    return std::make_unique<Stacks>(count);
  }
  void give(std::unique_ptr<Stacks> stacks) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stacks != nullptr && stacks->ok()) spare_.push_back(std::move(stacks));
  }

 private:
  std::unique_ptr<Stacks> remove(std::unique_ptr<Stacks>& one) {
    std::swap(one, spare_.back());
    std::unique_ptr<Stacks> taken = std::move(spare_.back());
    spare_.pop_back();
    return taken;
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Stacks>> spare_;
};

}  // namespace sim
}  // namespace gconv
