// The simulator as a program, for the sanitizers: runs one job file and writes the answer beside it, `FILE.out`.
//
// Job: int64 launches, then per launch char name[256] and LaunchOptions; ConvArgs; int64 buffers, then per buffer int64 address,
// int64 bytes, and its content. Answer: Report, then the content of every buffer. Little endian, as backends/sim.py writes it.
// Each buffer is copied into a block of exactly its size, so that one element too far is caught.
#pragma once

#include <cstdlib>

#include "sim_machine.hpp"

namespace gconv {
namespace sim {

struct JobBuffer {
  long long address = 0, bytes = 0;
  char* block = nullptr;
  // Blocks keep the alignment that the buffer had, up to what malloc gives.
  char* data() const { return block + address % 16; }
  bool holds(const void* p) const { return (long long)p >= address && (long long)p < address + bytes; }
};

class JobFile {
 public:
  explicit JobFile(const char* path, const char* mode) : file_(std::fopen(path, mode)) {}
  ~JobFile() {
    if (file_ != nullptr && std::fclose(file_) != 0) std::abort();
  }
  template <class T>
  T get() {
    T value;
    get_bytes(&value, sizeof value);
    return value;
  }
  void get_bytes(void* to, size_t bytes) {
    if (file_ == nullptr || std::fread(to, 1, bytes, file_) != bytes) std::exit(90);
  }
  void put(const void* from, size_t bytes) {
    if (file_ == nullptr || std::fwrite(from, 1, bytes, file_) != bytes) std::exit(91);
  }

 private:
  std::FILE* file_;
};

struct NamedLaunch {
  char name[256];
  LaunchOptions options;
};

struct ProgramJob {
  std::vector<NamedLaunch> launches;
  ConvArgs args;
  std::vector<JobBuffer> buffers;
};

inline ProgramJob read_job(const char* path) {
  JobFile file(path, "rb");
  ProgramJob job;
  job.launches.resize((size_t)file.get<long long>());
  for (NamedLaunch& launch : job.launches) launch = file.get<NamedLaunch>();
  job.args = file.get<ConvArgs>();
  job.buffers.resize((size_t)file.get<long long>());
  for (JobBuffer& buffer : job.buffers) {
    buffer.address = file.get<long long>(), buffer.bytes = file.get<long long>();
    buffer.block = (char*)std::malloc((size_t)(buffer.bytes + buffer.address % 16));
    file.get_bytes(buffer.data(), (size_t)buffer.bytes);
  }
  return job;
}

template <class Pointer>
void relocate(Pointer& pointer, const std::vector<JobBuffer>& buffers) {
  for (const JobBuffer& buffer : buffers)
    if (buffer.holds(pointer)) {
      pointer = (Pointer)(buffer.data() + ((long long)pointer - buffer.address));
      return;
    }
}

}  // namespace sim
}  // namespace gconv

int main(int argc, char** argv) {
  using namespace gconv::sim;
  if (argc != 3) return 92;
  ProgramJob job = read_job(argv[2]);
  for (void** pointer : {&job.args.x, &job.args.w, &job.args.y, &job.args.workspace}) relocate(*pointer, job.buffers);
  for (const void*& operand : job.args.operand) relocate(operand, job.buffers);
  for (NamedLaunch& launch : job.launches)
    for (int i = 0; i < launch.options.map_count; ++i) relocate(*(void**)launch.options.maps[i], job.buffers);
  Report report{};
  void* module = gconv_sim_open(argv[1], &report);
  if (module == nullptr) report.failure = (int)Failure::kSystem;
  for (const NamedLaunch& launch : job.launches)
    if (report.failure == 0) gconv_sim_launch(module, launch.name, &launch.options, &job.args, &report);
  JobFile answer((std::string(argv[2]) + ".out").c_str(), "wb");
  answer.put(&report, sizeof report);
  for (const JobBuffer& buffer : job.buffers) answer.put(buffer.data(), (size_t)buffer.bytes);
  std::fflush(stdout);
  return 0;
}
