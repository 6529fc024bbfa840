// The thread pool of target cpu: one per process, started on first use, rebuilt by a forked child.
//
// gconv_parallel runs task 0 .. tasks-1, each once, in any order, on up to `threads` threads of which the caller is one.
// Which thread runs a task never influences a result. Calls from several threads at once are allowed: one of them gets the
// pool, the others run their tasks themselves.
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace {

using Kernel = void (*)(const void* args, long long task);

constexpr int kShares = 64;

// Each thread begins with a share of neighbouring tasks, which often are neighbours in memory, and then helps with the others'.
struct Job {
  Kernel kernel;
  const void* args;
  long long tasks;
  int wanted;                   // workers that may still join
  std::atomic<int> working{0};  // workers that joined and have not left
  std::atomic<int> joined{0};   // threads that took a share
  int shares = 1;
  std::atomic<long long> next[kShares] = {};  // the next task of each share, counted from the share's first

  long long first(long long share) const { return tasks * share / shares; }
};

// Kernels often follow each other within microseconds, and waking a thread takes longer than that: look for work a little before
// going to sleep. About 20 microseconds.
constexpr int kLooks = 1000;

template <class Done>
bool look(Done done) {
  for (int i = 0; i < kLooks; i++) {
    if (done()) return true;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  return false;
}

void work(Job& job) {
  const int mine = job.joined.fetch_add(1, std::memory_order_relaxed);
  for (int i = 0; i < job.shares; i++) {
    const int share = (mine + i) % job.shares;
    const long long first = job.first(share), end = job.first(share + 1);
    for (long long task; (task = first + job.next[share].fetch_add(1, std::memory_order_relaxed)) < end;) job.kernel(job.args, task);
  }
}

struct Pool {
  std::mutex busy;  // held by the caller whose job it is
  std::mutex state;
  std::condition_variable wake, done;
  Job* job = nullptr;
  int workers = 0;
  std::atomic<unsigned> posted{0};  // jobs so far

  void serve() {
    std::unique_lock<std::mutex> lock(state);
    for (;;) {
      if (job == nullptr || job->wanted <= 0) {
        const unsigned seen = posted;
        lock.unlock();
        look([this, seen] { return posted != seen; });
        lock.lock();
      }
      wake.wait(lock, [this] { return job != nullptr && job->wanted > 0; });
      Job& mine = *job;
      mine.wanted--, mine.working++;
      lock.unlock();
      work(mine);
      lock.lock();
      mine.wanted = 0;  // all tasks are taken: nobody else need join
      if (--mine.working == 0) done.notify_one();
    }
  }

  // Threads that cannot be started are done without: the caller does their share.
  void grow(int wanted) {
    try {
      for (; workers < wanted; workers++) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }
  }

  void run(Job& mine) {
    std::unique_lock<std::mutex> lock(state);
    grow(mine.wanted);
    job = &mine;
    posted++;
    lock.unlock();
    if (mine.wanted == 1) wake.notify_one();
    else wake.notify_all();
    work(mine);
    lock.lock();
    job = nullptr;
    lock.unlock();
    look([&mine] { return mine.working == 0; });
    lock.lock();
    done.wait(lock, [&mine] { return mine.working == 0; });
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
  Job job{kernel, args, tasks, 0};
  const long long most = threads < tasks ? threads : tasks;
  Pool& mine = *pool;
  if (most <= 1 || inside || !mine.busy.try_lock()) return work(job);
  inside = true;
  job.wanted = static_cast<int>(most) - 1, job.shares = static_cast<int>(most < kShares ? most : kShares);
  mine.run(job);
  inside = false;
  mine.busy.unlock();
}
