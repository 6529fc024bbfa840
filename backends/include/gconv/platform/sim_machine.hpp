// The scheduler of the simulator: runs the lanes of one block as fibers on one OS thread.
//
// A lane runs until it reaches a wave operation, a barrier, or its end, and then switches directly to the next lane of its
// wave. When every lane of a wave has stopped, the wave is settled: all at the same operation, it is executed for the wave;
// all at the same barrier, the wave waits; anything else is an error of the kernel. The last wave to reach a barrier opens it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../args.hpp"
#include "sim_fiber.hpp"
#include "sim_matrix.hpp"

namespace gconv {
namespace sim {

enum class Order : int { kForward, kReverse, kRandom };
enum class Failure : int { kNone, kKernel, kTimeout, kSystem };

// How a launch ended; Python reads it (backends/sim.py has the same declaration).
struct Report {
  int failure;  // Failure
  int block[3];
  int wave;
  int lane;
  int line;
  char file[256];
  char reason[1024];
};

using Kernel = void (*)(ConvArgs);
using Clock = std::chrono::steady_clock;

struct Job {
  Kernel kernel;
  ConvArgs args;
  int threads;
  Order order;
  uint64_t seed;
  Clock::time_point deadline;
  const void* maps;  // tensor maps
};

inline bool same_site(Site a, Site b) { return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0); }

// A header as "gconv/x.hpp", any other file by its last component: paths of build directories say nothing.
inline const char* short_name(const char* file) {
  const char* last = std::strrchr(file, '/');
  if (last == nullptr) return file;
  for (const char* p = file; (p = std::strstr(p, "/gconv/")) != nullptr; ++p)
    if (std::strstr(p + 1, "/gconv/") == nullptr) return p + 1;
  return last + 1;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  int below(int n) { return (int)(next() % (uint64_t)n); }

 private:
  uint64_t state_;
};

struct PendingCopy {
  void* destination;
  int bytes;
  CopyKind kind;
  int group;  // of kGroupedCopy: 0 until committed
  unsigned char data[kMaxCopyBytes];
};

enum class State : unsigned char { kReady, kAtOperation, kAtBarrier, kExited };

struct Lane : Fiber {
  State state;
  Op op;
  Site site;
  void* operands;
  std::vector<PendingCopy> copies;
  int groups;  // committed so far
};

enum class WaveState : unsigned char { kRunning, kAtBarrier, kExited };

struct Wave {
  int first, count;  // lanes
  int cursor;        // position in `order` of the next lane to run
  WaveState state;
  unsigned char order[64];
};

class Machine : public Context {
 public:
  explicit Machine(int wave_size) : Context{}, wave_size_(wave_size), random_(0) { services = &kServices; }

  // Runs one block to its end or its first error; `report.failure` says which.
  void run_block(const Job& job, const int (&index)[3], uint64_t linear, Report& report);
  // Gives its stacks back after the last block of a launch.
  void end_launch() { spare_stacks().give(std::move(stacks_)); }

 private:
  static const Services kServices;
  static SpareStacks& spare_stacks() {
    static SpareStacks stacks;
    return stacks;
  }
  static Machine& of(Context* context) { return *static_cast<Machine*>(context); }
  static void entry();

  Lane& current() { return lanes_[(size_t)thread]; }
  bool prepare_block(const Job& job);
  void stop(State state, Op op, void* operands, Site site);
  void switch_from(Lane& lane, bool last);
  Lane* next_lane();
  bool settle(Wave& wave);
  bool next_wave(int start = 0);
  int turn_of(int wave) const {
    return (int)(std::find(wave_order_.begin(), wave_order_.end(), (unsigned char)wave) - wave_order_.begin());
  }
  bool open_barrier();
  void restart(Wave& wave);
  void shuffle(unsigned char* items, int count);
  bool late();

  bool fail(Failure failure, const Lane& lane, const std::string& reason);
  bool fail_divergent(int first, int count, const char* what);
  std::string describe(int first, int count);

  int wave_size_;
  Random random_;
  const Job* job_ = nullptr;
  Report* report_ = nullptr;
  std::unique_ptr<Stacks> stacks_;
  std::vector<Lane> lanes_;
  std::vector<Wave> waves_;
  std::vector<unsigned char> wave_order_;
  int active_ = 0;  // wave that runs
  unsigned settled_ = 0;
  Fiber main_;
};

// The machine that this OS thread runs; set before the first switch to a lane, whose entry function has no argument.
inline thread_local Machine* running = nullptr;

inline void Machine::run_block(const Job& job, const int (&index)[3], uint64_t linear, Report& report) {
  job_ = &job, report_ = &report, running = this, maps = job.maps;
  for (int i = 0; i < 3; ++i) block[i] = report.block[i] = index[i];
  block_number = block_number == UINT32_MAX ? 1 : block_number + 1;
  random_ = Random(job.seed ^ (linear + 1) * 0x9e3779b97f4a7c15u);
  if (!prepare_block(job)) return;
  if (Lane* lane = next_lane()) switch_fiber(main_, *lane);
}

inline bool Machine::prepare_block(const Job& job) {
  if (stacks_ == nullptr || stacks_->count() < job.threads) stacks_ = spare_stacks().take(job.threads);
  lanes_.resize((size_t)job.threads);
  if (!stacks_->ok()) return fail(Failure::kSystem, lanes_[0], "no memory for the stacks of its lanes");
  for (int i = 0; i < job.threads; ++i) {
    Lane& lane = lanes_[(size_t)i];
    lane.stack = stacks_->stack(i);
    lane.state = State::kReady, lane.groups = 0, lane.site = {"", 0};
    lane.copies.clear();
    // Equal offsets in every stack would compete for the same few cache lines.
    prepare(lane, (char*)lane.stack.bottom + lane.stack.size - i % 32 * 192, entry);
  }
  waves_.resize((size_t)((job.threads + wave_size_ - 1) / wave_size_));
  wave_order_.resize(waves_.size());
  for (size_t w = 0; w < waves_.size(); ++w) {
    int first = (int)w * wave_size_, count = std::min(wave_size_, job.threads - first);
    waves_[w] = {first, count, 0, WaveState::kRunning, {}};
    wave_order_[w] = (unsigned char)(job.order == Order::kReverse ? waves_.size() - 1 - w : w);
    for (int i = 0; i < count; ++i) waves_[w].order[i] = (unsigned char)(job.order == Order::kReverse ? count - 1 - i : i);
    restart(waves_[w]);
  }
  if (job.order == Order::kRandom) shuffle(wave_order_.data(), (int)wave_order_.size());
  active_ = wave_order_[0];
  return !late();
}

inline void Machine::entry() {
  Machine& machine = *running;
  after_first_switch(machine.main_.stack);
  machine.job_->kernel(machine.job_->args);
  machine.current().state = State::kExited;
  machine.switch_from(machine.current(), true);
  __builtin_unreachable();
}

inline void Machine::stop(State state, Op op, void* operands, Site site) {
  Lane& lane = current();
  lane.state = state, lane.op = op, lane.operands = operands, lane.site = site;
  switch_from(lane, false);
}

inline void Machine::switch_from(Lane& lane, bool last) {
  Lane* next = next_lane();
  if (next == &lane) return;
  switch_fiber(lane, next == nullptr ? main_ : *next, last);
}

// The lane to run now, described in the Context; null when the block has ended or failed.
inline Lane* Machine::next_lane() {
  for (;;) {
    Wave& w = waves_[(size_t)active_];
    while (w.cursor < w.count) {
      int i = w.order[w.cursor++];
      if (lanes_[(size_t)(w.first + i)].state != State::kReady) continue;
      thread = w.first + i, lane = i, wave = active_;
      return &lanes_[(size_t)thread];
    }
    if (!settle(w)) return nullptr;
  }
}

// Every lane of the wave has stopped. False when there is nothing more to run.
inline bool Machine::settle(Wave& w) {
  if ((++settled_ & 255) == 0 && late()) return false;
  Lane* lanes = &lanes_[(size_t)w.first];
  const Lane& one = lanes[0];
  for (int i = 1; i < w.count; ++i) {
    bool same = lanes[i].state == one.state &&
                (one.state == State::kExited ||
                 (same_site(lanes[i].site, one.site) && (one.state == State::kAtBarrier || lanes[i].op == one.op)));
    if (!same) return fail_divergent(w.first, w.count, "divergent lanes");
  }
  if (one.state == State::kAtOperation) {
    void* operands[64];
    for (int i = 0; i < w.count; ++i) operands[i] = lanes[i].operands;
    const Operation& operation = kOperations[one.op];
    if (const char* wrong = operation.execute(operands, w.count))
      return fail(Failure::kKernel, one, std::string(operation.name) + " " + wrong);
    restart(w);
    if (one.op == kMbarrierWait && !((const WaitOperands*)operands[0])->done) return next_wave(turn_of(active_) + 1);
    if (job_->order == Order::kRandom) return next_wave();  // waves interleave at operations, not only at barriers
    return true;
  }
  w.state = one.state == State::kExited ? WaveState::kExited : WaveState::kAtBarrier;
  return next_wave();
}

// From place `start` of the order on, in random order from any; who waits for others lets them run first.
inline bool Machine::next_wave(int start) {
  if (job_->order == Order::kRandom) start = random_.below((int)waves_.size());
  for (size_t i = 0; i < waves_.size(); ++i) {
    int candidate = wave_order_[((size_t)start + i) % waves_.size()];
    if (waves_[(size_t)candidate].state != WaveState::kRunning) continue;
    active_ = candidate;
    return true;
  }
  return open_barrier();
}

// No wave can run: all have exited, all are at a barrier, or the block is deadlocked.
inline bool Machine::open_barrier() {
  size_t exited = 0;
  for (const Wave& w : waves_) exited += w.state == WaveState::kExited;
  if (exited == waves_.size()) return false;
  if (exited != 0) return fail_divergent(0, (int)lanes_.size(), "deadlock at a barrier");
  if (late()) return false;
  for (Wave& w : waves_) restart(w);
  if (job_->order == Order::kRandom) shuffle(wave_order_.data(), (int)wave_order_.size());
  active_ = wave_order_[0];
  return true;
}

inline void Machine::restart(Wave& w) {
  w.state = WaveState::kRunning, w.cursor = 0;
  for (int i = 0; i < w.count; ++i) lanes_[(size_t)(w.first + i)].state = State::kReady;
  if (job_->order == Order::kRandom) shuffle(w.order, w.count);
}

inline void Machine::shuffle(unsigned char* items, int count) {
  for (int i = count - 1; i > 0; --i) std::swap(items[i], items[random_.below(i + 1)]);
}

inline bool Machine::late() {
  if (Clock::now() < job_->deadline) return false;
  fail(Failure::kTimeout, lanes_[0], "time limit");
  return true;
}

inline bool Machine::fail(Failure failure, const Lane& at, const std::string& reason) {
  int number = (int)(&at - lanes_.data());
  report_->failure = (int)failure, report_->line = at.site.line;
  report_->wave = number / wave_size_, report_->lane = number % wave_size_;
  std::snprintf(report_->file, sizeof report_->file, "%s", short_name(at.site.file));
  std::string where = at.site.line > 0 ? std::string(short_name(at.site.file)) + ":" + std::to_string(at.site.line) + ": " : "";
  std::snprintf(report_->reason, sizeof report_->reason, "%s%s; block (%d, %d, %d), wave %d, lane %d", where.c_str(),
                reason.c_str(), block[0], block[1], block[2], report_->wave, report_->lane);
  return false;
}

// Reports where the first lane waits that has not left the kernel, and where everybody is.
inline bool Machine::fail_divergent(int first, int count, const char* what) {
  const Lane* waiting = &lanes_[(size_t)first];
  for (int i = first; i < first + count; ++i)
    if (waiting->state == State::kExited) waiting = &lanes_[(size_t)i];
  return fail(Failure::kKernel, *waiting, std::string(what) + ": " + describe(first, count));
}

// "lanes 0-31 of wave 0 wait at a barrier (k.hip:12), lanes 32-63 of wave 0 have left the kernel"
inline std::string Machine::describe(int first, int count) {
  std::string text;
  for (int i = first, next; i < first + count && text.size() < 600; i = next) {
    const Lane& lane = lanes_[(size_t)i];
    for (next = i + 1; next < first + count && next % wave_size_ != 0; ++next) {
      const Lane& other = lanes_[(size_t)next];
      if (other.state != lane.state || (lane.state != State::kExited && !same_site(other.site, lane.site))) break;
    }
    bool single = next - i == 1, left = lane.state == State::kExited;
    text += text.empty() ? "" : ", ";
    text += (single ? "lane " : "lanes ") + std::to_string(i % wave_size_);
    text += (single ? "" : "-" + std::to_string((next - 1) % wave_size_)) + " of wave " + std::to_string(i / wave_size_);
    text += left ? (single ? " has left the kernel" : " have left the kernel") : (single ? " waits at " : " wait at ");
    if (left) continue;
    text += lane.state == State::kAtBarrier ? "a barrier" : kOperations[lane.op].name;
    text += std::string(" (") + short_name(lane.site.file) + ":" + std::to_string(lane.site.line) + ")";
  }
  return text;
}

inline const Services Machine::kServices = {
    /* barrier */ [](Context* c, Site site) { of(c).stop(State::kAtBarrier, kShuffle, nullptr, site); },
    /* collective */ [](Context* c, Op op, void* operands, Site site) { of(c).stop(State::kAtOperation, op, operands, site); },
    /* copy */
    [](Context* c, void* destination, const void* data, int bytes, CopyKind kind) {
      PendingCopy copy = {destination, bytes, kind, 0, {}};
      std::memcpy(copy.data, data, kMaxCopyBytes);
      of(c).current().copies.push_back(copy);
    },
    /* commit_copies */
    [](Context* c) {
      Lane& lane = of(c).current();
      ++lane.groups;
      for (PendingCopy& copy : lane.copies)
        if (copy.kind == kGroupedCopy && copy.group == 0) copy.group = lane.groups;
    },
    /* wait_copies */
    [](Context* c, int outstanding, CopyKind kind) {
      Lane& lane = of(c).current();
      int due = -outstanding;  // of kCountedCopy: how many of the oldest arrive
      for (const PendingCopy& copy : lane.copies) due += copy.kind == kCountedCopy;
      int last_group = lane.groups - outstanding;
      std::vector<PendingCopy> rest;
      for (const PendingCopy& copy : lane.copies) {
        bool arrives = copy.kind == kind && (kind == kCountedCopy ? due-- > 0 : copy.group != 0 && copy.group <= last_group);
        if (arrives) std::memcpy(copy.destination, copy.data, (size_t)copy.bytes);
        else rest.push_back(copy);
      }
      lane.copies.swap(rest);
    },
    /* fail */
    [](Context* c, const char* reason, Site site) {
      Machine& machine = of(c);
      Lane& lane = machine.current();
      lane.site = site;
      machine.fail(Failure::kKernel, lane, reason);
      switch_fiber(lane, machine.main_, true);
      __builtin_unreachable();
    },
};

}  // namespace sim
}  // namespace gconv
