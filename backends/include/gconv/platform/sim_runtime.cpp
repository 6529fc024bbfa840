// The runtime of the simulator, built once: loads simulated kernels and runs their grids. With GCONV_SIM_PROGRAM it is a
// program that runs one job file (sim_program.hpp), used under the sanitizers, which cannot be loaded into a running process.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "sim_machine.hpp"

namespace gconv {
namespace sim {

// One loaded copy of a kernel library. Each OS thread runs its own copy, so that block-shared arrays can be plain statics.
class Instance {
 public:
  // `file` is a descriptor to keep open as long as the library is loaded, or -1.
  static std::unique_ptr<Instance> load(const std::string& path, int file = -1) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return nullptr;
    auto bind = (int (*)(Context*))dlsym(handle, "gconv_sim_bind");
    if (bind == nullptr) {
      dlclose(handle);
      return nullptr;
    }
    return std::unique_ptr<Instance>(new Instance(handle, bind, file));
  }
  ~Instance() {
    dlclose(handle_);
    if (file_ >= 0) close(file_);
  }

  Kernel kernel(const char* name) const { return (Kernel)dlsym(handle_, name); }
  Machine& machine() { return machine_; }

 private:
  // Binding with a null Context only asks for the wave size.
  Instance(void* handle, int (*bind)(Context*), int file) : handle_(handle), file_(file), machine_(bind(nullptr)) {
    bind(&machine_);
  }

  void* handle_;
  int file_;
  Machine machine_;
};

// The same library again, as a file of its own. The loader knows libraries by name: the descriptor stays open, so that no other
// copy gets its number and with that its name.
std::unique_ptr<Instance> load_copy(const std::string& path) {
  int source = open(path.c_str(), O_RDONLY | O_CLOEXEC), copy = memfd_create("gconv-sim", MFD_CLOEXEC);
  std::unique_ptr<Instance> instance;
  char chunk[65536];
  ssize_t got = -1;
  while (source >= 0 && copy >= 0 && (got = read(source, chunk, sizeof chunk)) > 0)
    if (write(copy, chunk, (size_t)got) != got) break;
  if (got == 0) instance = Instance::load("/proc/self/fd/" + std::to_string(copy), copy);
  if (source >= 0) close(source);
  if (instance == nullptr && copy >= 0) close(copy);
  return instance;
}

struct LaunchOptions {
  long long grid[3];
  int threads;  // lanes of a block
  int order;    // Order
  unsigned long long seed;
  double seconds;  // time limit
  int os_threads;
  int map_count;
  unsigned char maps[4][128];  // tensor maps (sim_copy_engine.hpp), each beginning with an address
};

class Module {
 public:
  explicit Module(std::string path) : path_(std::move(path)) {
    if (auto first = Instance::load(path_)) instances_.push_back(std::move(first));
  }
  bool ok() const { return !instances_.empty(); }
  bool has(const char* name) const { return instances_[0]->kernel(name) != nullptr; }

  void launch(const char* name, const LaunchOptions& options, const ConvArgs& args, Report& report) {
    std::lock_guard<std::mutex> one_at_a_time(mutex_);
    uint64_t blocks = (uint64_t)options.grid[0] * (uint64_t)options.grid[1] * (uint64_t)options.grid[2];
    int workers = (int)std::min<uint64_t>((uint64_t)std::max(options.os_threads, 1), blocks);
    while ((int)instances_.size() < workers) {
      auto copy = load_copy(path_);
      if (copy == nullptr) break;
      instances_.push_back(std::move(copy));
    }
    workers = std::min(workers, (int)instances_.size());
    Shared shared(name, options, args, report, blocks);
    std::vector<std::thread> others;
    for (int i = 1; i < workers; ++i) others.emplace_back([this, &shared, i] { work(*instances_[(size_t)i], shared); });
    if (workers > 0) work(*instances_[0], shared);
    for (std::thread& other : others) other.join();
    std::fflush(stdout);  // what kernels printed
  }

 private:
  struct Shared {
    Shared(const char* name, const LaunchOptions& options, const ConvArgs& args, Report& report, uint64_t blocks)
        : name(name), options(options), args(args), report(report), blocks(blocks) {}
    const char* name;
    const LaunchOptions& options;
    const ConvArgs& args;
    Report& report;
    uint64_t blocks;
    std::atomic<uint64_t> next{0};
    std::mutex mutex;
    uint64_t failed = UINT64_MAX;
  };

  // Takes blocks until none is left or one has failed. Of several failures the one of the first block is kept.
  static void work(Instance& instance, Shared& shared) {
    const LaunchOptions& o = shared.options;
    auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(o.seconds, 1e9)));
    alignas(64) unsigned char maps[sizeof o.maps];
    std::memcpy(maps, o.maps, sizeof maps);
    Job job{instance.kernel(shared.name), shared.args, o.threads, (Order)o.order, o.seed, Clock::now() + limit, maps};
    for (uint64_t turn; (turn = shared.next++) < shared.blocks;) {
      uint64_t i = job.order == Order::kReverse ? shared.blocks - 1 - turn : turn;
      int index[3] = {(int)(i % (uint64_t)o.grid[0]), (int)(i / (uint64_t)o.grid[0] % (uint64_t)o.grid[1]),
                      (int)(i / (uint64_t)o.grid[0] / (uint64_t)o.grid[1])};
      Report report{};
      instance.machine().run_block(job, index, i, report);
      if (report.failure == (int)Failure::kNone) continue;
      std::lock_guard<std::mutex> lock(shared.mutex);
      if (turn < shared.failed) shared.failed = turn, shared.report = report;
      shared.next = shared.blocks;
    }
    instance.machine().end_launch();
  }

  std::string path_;
  std::vector<std::unique_ptr<Instance>> instances_;
  std::mutex mutex_;
};

}  // namespace sim
}  // namespace gconv

using gconv::sim::LaunchOptions;
using gconv::sim::Module;
using gconv::sim::Report;

#define GCONV_EXPORT extern "C" __attribute__((visibility("default")))

// Loading a file twice gives the same library, which can be bound to one Module only.
struct OpenModule {
  std::unique_ptr<Module> module;
  int users = 0;
};
static std::mutex open_mutex;
static std::map<std::string, OpenModule> open_modules;

// A loaded kernel library, or null with the loader's reason in `report`.
GCONV_EXPORT void* gconv_sim_open(const char* path, Report* report) {
  std::lock_guard<std::mutex> lock(open_mutex);
  OpenModule& entry = open_modules[path];
  if (entry.module == nullptr) entry.module = std::make_unique<Module>(path);
  if (entry.module->ok()) {
    ++entry.users;
    return entry.module.get();
  }
  const char* why = dlerror();
  std::snprintf(report->reason, sizeof report->reason, "%s", why != nullptr ? why : "it is not a simulated kernel");
  open_modules.erase(path);
  return nullptr;
}
GCONV_EXPORT void gconv_sim_close(void* module) {
  std::lock_guard<std::mutex> lock(open_mutex);
  for (auto entry = open_modules.begin(); entry != open_modules.end(); ++entry)
    if (entry->second.module.get() == module) {
      if (--entry->second.users == 0) open_modules.erase(entry);
      return;
    }
}
GCONV_EXPORT int gconv_sim_has(void* module, const char* kernel) { return ((Module*)module)->has(kernel); }
GCONV_EXPORT int gconv_sim_args_size() { return (int)sizeof(gconv::ConvArgs); }

// Runs the whole grid; returns the failure (0: none), described in `report`.
GCONV_EXPORT int gconv_sim_launch(void* module, const char* kernel, const LaunchOptions* options, const void* args,
                                  Report* report) {
  gconv::ConvArgs block;
  std::memcpy(&block, args, sizeof block);
  *report = Report{};
  ((Module*)module)->launch(kernel, *options, block, *report);
  return report->failure;
}

#if defined(GCONV_SIM_PROGRAM)
#include "sim_program.hpp"
#endif
