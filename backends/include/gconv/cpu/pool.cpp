// The thread pool of target cpu: one per process, started on first use, rebuilt by a forked child.
//
// gconv_parallel runs task 0 .. tasks-1, each once, in any order, on up to `threads` threads of which the caller is one.
// Which thread runs a task never influences a result. Calls from several threads at once are allowed: one of them gets the
// pool, the others run their tasks themselves.
//
// The tasks are dealt out in as many ranges as threads, so that a thread finds in its caches what it left there in the call
// before; who has finished a range goes on with another's. Between calls in quick succession workers spin, since waking one takes
// longer than many a layer runs.
#include <pthread.h>
#ifdef __linux__
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace {

using Kernel = void (*)(const void* args, long long task);

constexpr int kLine = 64;        // bytes that are kept apart, so that threads do not take them from each other
constexpr int kMostRanges = 64;  // more threads than that share ranges
constexpr std::chrono::microseconds kNextJob{80};   // how long a worker looks for the next job before it sleeps
constexpr std::chrono::microseconds kStragglers{25};  // and the caller for workers that finish their last task

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks until `done` or for a time; once where there are more threads than cores, since another of them waits for this core.
// While `yields`, lets other threads of this core run now and then.
template <class Done, class Yields>
bool look(bool spins, std::chrono::microseconds time, Done done, Yields yields) {
  if (done()) return true;
  if (!spins) return false;
  const auto end = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < 16; i++) {
      if (done()) return true;
      pause();
    }
    if (yields()) std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

int cores() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Tasks next .. end-1 are left.
struct alignas(kLine) Range {
  std::atomic<long long> next{0};
  long long end = 0;
};

// Who takes part in the job: workers that may still join, workers that joined and have not left, and whether its caller has not
// returned. One number, so that nobody joins a job that its caller has left.
struct Seats {
  using Number = unsigned long long;
  static constexpr Number kWorking = 1ull << 32, kJob = 1ull << 63, kOpen = kWorking - 1;
  std::atomic<Number> value{0};

  bool open() const { return value.load() & kOpen; }
  bool job() const { return value.load() & kJob; }
  bool left() const { return (value.load() & ~kJob) < kWorking; }
  void offer(int count) { value.store(kJob + static_cast<Number>(count)); }
  void close() { value.fetch_and(~kOpen); }
  void end() { value.store(0); }
  bool leave() { return (value.fetch_sub(kWorking) & ~kJob) < 2 * kWorking; }  // whether nobody is left
  bool join() {
    Number seen = value.load();
    while (seen & kOpen)
      if (value.compare_exchange_weak(seen, seen - 1 + kWorking)) return true;
    return false;
  }
};

struct Pool {
  std::mutex busy;  // held by the caller whose job it is
  Kernel kernel = nullptr;
  const void* args = nullptr;
  int ranges = 0;
  Range range[kMostRanges];
  alignas(kLine) Seats seats;
  alignas(kLine) std::atomic<int> asleep{0};
  std::atomic<bool> caller_sleeps{false};
  std::mutex state;  // for sleeping only
  std::condition_variable wake, done;
  int workers = 0;
  std::atomic<bool> spins{true};

  void work(int first) {
    for (int i = 0; i < ranges; i++) {
      Range& mine = range[(first + i) % ranges];
      if (mine.next.load(std::memory_order_relaxed) >= mine.end) continue;
      for (long long task; (task = mine.next.fetch_add(1, std::memory_order_relaxed)) < mine.end;) kernel(args, task);
    }
    seats.close();  // all tasks are taken: nobody else need join
  }

  // All of `seats`, `asleep` and `caller_sleeps` are sequentially consistent: who is about to sleep says so and looks once more,
  // who changes what is slept for looks at who sleeps afterwards.
  void serve(int number) {
    for (;;) {
      // As long as the caller has not returned, it may be waiting for this very core.
      if (!look(spins, kNextJob, [this] { return seats.open(); }, [this] { return seats.job(); })) {
        std::unique_lock<std::mutex> lock(state);
        asleep++;
        wake.wait(lock, [this] { return seats.open(); });
        asleep--;
      }
      if (!seats.join()) continue;
      work(1 + (number - 1) % (ranges > 1 ? ranges - 1 : 1));  // the caller begins with range 0
      if (seats.leave() && caller_sleeps) {
        { std::lock_guard<std::mutex> lock(state); }
        done.notify_one();
      }
    }
  }

  // Threads that cannot be started are done without: the caller does their share.
  void grow(int wanted) {
    if (workers >= wanted) return;
    try {
      for (; workers < wanted; workers++) std::thread([this, number = workers + 1] { serve(number); }).detach();
    } catch (const std::system_error&) {
    }
    spins = workers + 1 <= cores();
  }

  void deal(Kernel what, const void* with, long long tasks, int count) {
    kernel = what, args = with, ranges = count < kMostRanges ? count : kMostRanges;
    for (int i = 0; i < ranges; i++) {
      range[i].next.store(tasks * i / ranges, std::memory_order_relaxed);
      range[i].end = tasks * (i + 1) / ranges;
    }
  }

  void run(Kernel what, const void* with, long long tasks, int threads) {
    grow(threads - 1);
    deal(what, with, tasks, threads);
    seats.offer(threads - 1);
    const int sleeping = asleep;
    if (sleeping > 0 && sleeping + threads - 1 > workers) {  // fewer are awake than are wanted
      { std::lock_guard<std::mutex> lock(state); }
      if (threads == 2) wake.notify_one();
      else wake.notify_all();
    }
    work(0);
    if (!look(spins, kStragglers, [this] { return seats.left(); }, [] { return false; })) {
      std::unique_lock<std::mutex> lock(state);
      caller_sleeps = true;
      done.wait(lock, [this] { return seats.left(); });
      caller_sleeps = false;
    }
    seats.end();
  }
};

// Never destroyed: workers may outlive static destructors. A forked child has none of the threads and must not touch the
// locks its parent held, so it begins with a new pool.
Pool* pool = nullptr;
std::once_flag registered;

void renew() { pool = new Pool; }

thread_local bool inside = false;  // a kernel that calls gconv_parallel itself runs its tasks in place

}  // namespace

extern "C" void gconv_parallel(Kernel kernel, const void* args, long long tasks, int threads) {
  std::call_once(registered, [] {
    renew();
    pthread_atfork(nullptr, nullptr, renew);
  });
  const int most = static_cast<int>(threads < tasks ? threads : tasks);
  Pool& mine = *pool;
  if (most <= 1 || inside || !mine.busy.try_lock()) {
    for (long long task = 0; task < tasks; task++) kernel(args, task);
    return;
  }
  inside = true;
  mine.run(kernel, args, tasks, most);
  inside = false;
  mine.busy.unlock();
}
