// The device's time. A stream is one number: when all that was queued on it is done. Work is
// computed at once by the host and takes its time on that number only, so a call returns long
// before its work is done, as on a GPU. Nothing runs in the background: whoever waits, waits for
// the clock.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace flop {

constexpr int kDevices = 2;
constexpr int kStreams = 64;
constexpr auto kType = c10::DeviceType::PrivateUse1;

inline int64_t now_ns() {
  using namespace std::chrono;  // equal in all processes of a machine
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

inline std::string read_text(const char* name, const char* otherwise) {
  const char* found = std::getenv(name);
  return found == nullptr ? otherwise : found;
}

inline double read_number(const char* name, double otherwise) {
  const char* found = std::getenv(name);
  return found == nullptr ? otherwise : std::atof(found);
}

// Read when the device is first used.
struct Settings {
  double launch_ns = read_number("FLOP_LAUNCH_NS", 0);  // of the host, for every operator
  double operator_ns = read_number("FLOP_OPERATOR_NS", 2e3);  // what every operator takes at least
  double flops_per_s = read_number("FLOP_FLOPS_PER_S", 1e12);  // float32; narrower ones are faster
  double bytes_per_s = read_number("FLOP_BYTES_PER_S", 1e11);  // of the device's memory
  double host_bytes_per_s = read_number("FLOP_HOST_BYTES_PER_S", 1e10);
  double link_ns = read_number("FLOP_LINK_NS", 1e4);  // of a collective
  double link_bytes_per_s = read_number("FLOP_LINK_BYTES_PER_S", 1e10);
  double memory_bytes = read_number("FLOP_MEMORY_BYTES", 4e9);
  double throttle_after_ns = read_number("FLOP_THROTTLE_AFTER_NS", 1e300);  // of work
  double throttled_clock = read_number("FLOP_THROTTLED_CLOCK", 0.5);
  bool has_timed_events = read_number("FLOP_TIMED_EVENTS", 1) != 0;
  std::string refused = read_text("FLOP_REFUSED", "");  // an operator that cannot be launched
  std::string fault = read_text("FLOP_FAULT", "");  // one that breaks the device for this process
};

inline Settings& settings() {
  static Settings found;
  return found;
}

// A copy to the host that has been queued: until its time has come, its target holds poison.
struct Delivery {
  int64_t due_ns;
  at::Tensor target, content;
};

struct Timeline {
  std::mutex mutex;
  int64_t busy_until_ns[kDevices][kStreams] = {};
  double work_ns[kDevices] = {};
  int next_stream[kDevices] = {};
  bool is_used[kDevices] = {};
  bool is_broken = false;
  std::vector<Delivery> deliveries;
};

inline Timeline& timeline() {
  static auto* found = new Timeline;  // outlives whatever is destroyed at the end
  return *found;
}

inline thread_local int current_device = 0;
inline thread_local int current_streams[kDevices] = {};

struct Span {
  int64_t start_ns, end_ns;
};

inline void spin_until(int64_t due_ns) {
  constexpr int64_t kOversleep = 200'000;
  for (int64_t left = due_ns - now_ns(); left > 0; left = due_ns - now_ns()) {
    if (left > kOversleep) std::this_thread::sleep_for(std::chrono::nanoseconds(left - kOversleep));
  }
}

// What every call of the device does first: deliver what is due, and report an earlier fault.
inline void attend() {
  std::vector<Delivery> due;
  {
    std::lock_guard<std::mutex> lock(timeline().mutex);
    auto& all = timeline().deliveries;
    const int64_t now = now_ns();
    auto first = std::stable_partition(
        all.begin(), all.end(), [&](const Delivery& one) { return one.due_ns > now; });
    std::move(first, all.end(), std::back_inserter(due));
    all.erase(first, all.end());
  }
  for (auto& one : due) one.target.copy_(one.content);
  if (timeline().is_broken) {
    throw c10::AcceleratorError(
        {__func__, __FILE__, __LINE__},
        700,
        "flop error: an illegal memory access was encountered; the process has to end");
  }
}

inline int64_t busy_until(int device, int stream) {
  std::lock_guard<std::mutex> lock(timeline().mutex);
  return std::max(now_ns(), timeline().busy_until_ns[device][stream]);
}

// Work of so many nanoseconds, not before the given time, behind all that is on the stream.
inline Span enqueue(int device, int stream, double cost_ns, int64_t earliest_ns) {
  const auto& chosen = settings();
  std::lock_guard<std::mutex> lock(timeline().mutex);
  auto& busy_ns = timeline().busy_until_ns[device][stream];
  double& work_ns = timeline().work_ns[device];
  const bool is_throttled = work_ns > chosen.throttle_after_ns;
  cost_ns /= is_throttled ? chosen.throttled_clock : 1.0;
  work_ns += cost_ns;
  const int64_t start_ns = std::max(earliest_ns, busy_ns);
  busy_ns = start_ns + static_cast<int64_t>(cost_ns);
  return {start_ns, busy_ns};
}

// The stream does nothing before this time.
inline void hold(int device, int stream, int64_t until_ns) {
  std::lock_guard<std::mutex> lock(timeline().mutex);
  auto& busy_ns = timeline().busy_until_ns[device][stream];
  busy_ns = std::max(busy_ns, until_ns);
}

inline void synchronize_stream(int device, int stream) {
  spin_until(busy_until(device, stream));
  attend();
}

inline void synchronize_device(int device) {
  for (int stream = 0; stream < kStreams; ++stream) spin_until(busy_until(device, stream));
  attend();
}

inline int take_stream(int device) {
  std::lock_guard<std::mutex> lock(timeline().mutex);
  return 1 + timeline().next_stream[device]++ % (kStreams - 1);
}

}  // namespace flop
